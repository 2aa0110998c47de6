//! The audit of real servers, compared with binutils' disassembly of all their code.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use armtrace::symbols::Arch;
use serde_json::Value;

use lab::binaries::{debian_mariadb_path, mariadb_amd64_path, mysql_amd64_path, mysql_arm64_path};
use lab::toolchain::llvm;

/// The limits of an audit. The goals are 3 s on one core and 300 MiB; the limit on time allows for busy and slower
/// machines.
const MOST_CPU_SECONDS: f64 = 10.0;
const MOST_MEMORY_KIB: i64 = 300 << 10;

/// The build ID of the official MariaDB 11.4.5 for x86_64.
const MARIADB: &str = "df9ed6c416aa0cd2e07169c3b5e3cf1bf966c72c";

/// Its structures that are laid out for cache lines of 64 bytes.
const STRUCTURES: [&str; 21] = [
    "buf_pool_t",
    "trx_t",
    "LF_PINS",
    "PFS_builtin_memory_class",
    "PFS_setup_actor",
    "PFS_thread_class",
    "Pool<trx_t, TrxFactory, TrxPoolLock>::Element",
    "Share_free_tables",
    "TDC_element",
    "btr_search_sys_t::partition",
    "dict_sys_t",
    "ib_atomic_counter_element_t<long unsigned int>",
    "ib_counter_element_t<long unsigned int>",
    "lock_sys_t",
    "purge_sys_t",
    "simple_counter<long unsigned int>",
    "srv_sys_t",
    "thread_group_t",
    "tpool::worker_data",
    "trx_lock_t",
    "trx_sys_t",
];

/// The number of instructions, by class.
type Counts = BTreeMap<String, u64>;

/// Returns the name of the disassembler for an architecture.
fn objdump(arch: Arch) -> String {
    if arch == Arch::HOST {
        "objdump".to_owned()
    } else {
        format!("{}-linux-gnu-objdump", arch.as_str())
    }
}

/// Counts the instructions in binutils' disassembly of `.text` by class, from their mnemonics, and the calls of
/// `helpers`.
fn disassembled(arch: Arch, path: &Path, helpers: &HashSet<String>) -> (Counts, u64) {
    let program = objdump(arch);
    let mut child = Command::new(&program)
        .args(["-d", "--no-show-raw-insn", "-j", ".text"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {program} (package binutils): {error}"));
    let (mut counts, mut calls) = (Counts::new(), 0);
    for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
        let line = line.expect("text");
        let Some(text) = line.split('\t').nth(1) else { continue };
        let (mnemonic, operands) = match arch {
            Arch::X86_64 => text.split_once(' ').unwrap_or((text, "")),
            Arch::Aarch64 => (text, line.split('\t').nth(2).unwrap_or("")),
        };
        let class = match arch {
            Arch::X86_64 => x86_class(mnemonic, operands.trim()),
            Arch::Aarch64 => arm64_class(mnemonic.trim(), operands.trim()),
        };
        if let Some(class) = class {
            *counts.entry(class).or_default() += 1;
        }
        let target = operands.split(' ').next().unwrap_or("");
        calls += u64::from(matches!(mnemonic.trim(), "bl" | "b") && helpers.contains(target));
    }
    assert!(child.wait().expect("it ends").success(), "{program} {}", path.display());
    (counts, calls)
}

fn x86_class(mnemonic: &str, operands: &str) -> Option<String> {
    let is_memory = operands.contains('(') || operands.contains(':') || operands.contains("0x");
    match mnemonic {
        "lock" => {
            let (operation, operands) = operands.split_once(' ')?;
            let operation = x86_base(operation);
            let on_stack = operands.trim_start().starts_with("$0x0,") && operands.contains("(%rsp)");
            Some(match operation {
                "xchg" => "xchg".to_owned(),
                "or" | "add" if on_stack => format!("lock {operation} 0"),
                _ => format!("lock {operation}"),
            })
        }
        "mfence" | "lfence" | "sfence" | "pause" | "tpause" | "umwait" => Some(mnemonic.to_owned()),
        _ if x86_base(mnemonic) == "xchg" => is_memory.then(|| "xchg".to_owned()),
        _ if mnemonic.starts_with("crc32") => Some("crc32".to_owned()),
        _ if mnemonic.starts_with("pclmul") => Some("pclmulqdq".to_owned()),
        _ if mnemonic.starts_with("vpclmul") => Some("vpclmulqdq".to_owned()),
        _ => None,
    }
}

/// Removes the operand size suffix from a mnemonic.
fn x86_base(mnemonic: &str) -> &str {
    const SIZED: [&str; 17] = [
        "adc", "add", "and", "btc", "btr", "bts", "cmpxchg", "dec", "inc", "neg", "not", "or", "sbb", "sub", "xadd",
        "xchg", "xor",
    ];
    let base = mnemonic.strip_suffix(['b', 'w', 'l', 'q']).unwrap_or(mnemonic);
    if SIZED.contains(&base) {
        base
    } else {
        mnemonic
    }
}

fn arm64_class(mnemonic: &str, operands: &str) -> Option<String> {
    const WHOLE: [&str; 7] = ["isb", "yield", "wfe", "wfet", "sb", "ssbb", "pssbb"];
    const ORDERED: [&str; 14] = [
        "ldar", "stlr", "ldlar", "stllr", "ldapr", "ldapur", "stlur", "ldxr", "ldaxr", "stxr", "stlxr", "ldxp",
        "ldaxp", "stxp",
    ];
    const ATOMIC: [&str; 11] =
        ["ldadd", "ldclr", "ldeor", "ldset", "ldsmax", "ldsmin", "ldumax", "ldumin", "swp", "cas", "casp"];
    match mnemonic {
        "dmb" | "dsb" => return Some(format!("{mnemonic} {operands}")),
        "pmull" | "pmull2" => return operands.contains(".1q").then(|| "pmull".to_owned()),
        "crc32b" | "crc32h" | "crc32w" | "crc32x" => return Some("crc32".to_owned()),
        "crc32cb" | "crc32ch" | "crc32cw" | "crc32cx" => return Some("crc32c".to_owned()),
        "stlxp" => return Some("stlxp".to_owned()),
        _ if WHOLE.contains(&mnemonic) => return Some(mnemonic.to_owned()),
        _ => {}
    }
    let base = mnemonic.strip_suffix(['b', 'h']).unwrap_or(mnemonic);
    if ORDERED.contains(&base) {
        return Some(base.to_owned());
    }
    // A store form is a load form whose result is discarded.
    let base = base.strip_prefix("st").map_or(base.to_owned(), |operation| format!("ld{operation}"));
    let is_atomic =
        |base: &str| ATOMIC.iter().any(|a| base.strip_prefix(a).is_some_and(|o| ["", "a", "l", "al"].contains(&o)));
    is_atomic(&base).then_some(base)
}

/// Runs the audit and returns its JSON.
fn audited(paths: &[&Path]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_armtrace")).args(["audit", "--format", "json"]).args(paths).output();
    let output = output.expect("armtrace");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the audit's counts by class, and the number of calls of helpers.
fn counts(audit: &Value) -> (Counts, u64) {
    let totals = audit["totals"].as_array().expect("totals").iter();
    let all =
        totals.map(|t| (t["instruction"].as_str().expect("a name").to_owned(), t["count"].as_u64().expect("a number")));
    let (calls, counts): (Vec<_>, Vec<_>) = all.partition(|(name, _)| name.starts_with("call "));
    (counts.into_iter().collect(), calls.into_iter().map(|(_, n)| n).sum())
}

/// Checks the audit against binutils, and returns it.
fn agrees_with_binutils(arch: Arch, path: &Path, at_least: u64) -> Value {
    let audit = audited(&[path]);
    let (found, calls) = counts(&audit);
    let helpers = audit["helpers"].as_array().map_or(&[][..], Vec::as_slice).iter();
    let helpers = helpers.map(|h| h["address"].as_str().expect("an address").trim_start_matches("0x").to_owned());
    let (expected, expected_calls) = disassembled(arch, path, &helpers.collect());
    assert_eq!(found, expected, "{}", path.display());
    assert_eq!(calls, expected_calls, "{}", path.display());
    assert!(found.values().sum::<u64>() > at_least, "{found:?}");
    // The functions' counts add up to the total.
    let functions = audit["functions"].as_array().expect("functions").iter();
    let own =
        |f: &Value| f["instructions"].as_object().expect("counts").values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(functions.map(own).sum::<u64>(), found.values().sum::<u64>() + calls);
    audit
}

fn verdicts(audit: &Value) -> HashSet<&str> {
    audit["verdicts"].as_array().expect("verdicts").iter().filter_map(|v| v["id"].as_str()).collect()
}

#[test]
fn mysql_for_x86_64() {
    let audit = agrees_with_binutils(Arch::X86_64, &mysql_amd64_path(), 5_000);
    assert!(verdicts(&audit).is_superset(&["spin-hint", "hardware-crc32c", "ordered-stores"].into()), "{audit:#}");
    assert_eq!(audit["spin_loops"][0]["function"], "ut_delay");
    assert_eq!(audit["spin_loops"][0]["hint"], "pause");
}

#[test]
fn mysql_for_arm64() {
    let audit = agrees_with_binutils(Arch::Aarch64, &mysql_arm64_path(), 15_000);
    let expected = ["outline-atomics", "full-fences", "ordered-stores", "spin-hint", "hardware-crc32c"];
    assert!(verdicts(&audit).is_superset(&expected.into()), "{:?}", verdicts(&audit));
    assert_eq!(audit["spin_loops"][0]["hint"], "isb");
    // All exclusive loads and stores are in helpers.
    assert_eq!(audit["exclusives"]["pairs"], audit["exclusives"]["pairs_in_helpers"]);
    assert!(audit["helpers"].as_array().expect("helpers").len() > 20);
}

#[test]
fn mariadb_with_symbols() {
    let audit = agrees_with_binutils(Arch::X86_64, &mariadb_amd64_path(), 2_000);
    assert!(verdicts(&audit).is_superset(&["full-fences", "spin-hint"].into()), "{:?}", verdicts(&audit));
    // It also has debug info.
    let functions = audit["functions"].as_array().expect("functions");
    let in_innodb = functions.iter().filter(|f| f["module"].as_str().is_some_and(|m| m.contains("storage/innobase")));
    assert!(in_innodb.count() > 100);
    let buffer = functions.iter().find(|f| f["name"] == "buf_page_get_gen").expect("a function of the buffer pool");
    assert!(buffer["source"].as_str().expect("a line").starts_with("buf0buf.cc:"), "{buffer}");
}

/// Debian's MariaDB for arm64 has no symbols for InnoDB, so its spin loops are recognised by how they wait.
#[test]
fn stripped_mariadb_spins_without_a_hint_on_arm64() {
    let audit = audited(&[&debian_mariadb_path("arm64", "bookworm")]);
    assert!(verdicts(&audit).is_superset(&["no-spin-hint", "outline-atomics"].into()), "{:?}", verdicts(&audit));
    let amd64 = audited(&[&debian_mariadb_path("amd64", "bookworm")]);
    assert!(
        verdicts(&amd64).contains("spin-hint") && !verdicts(&amd64).contains("no-spin-hint"),
        "{:?}",
        verdicts(&amd64)
    );
}

/// A structure or a member in the debug info, as printed by LLVM.
#[derive(Debug, Default)]
struct Described {
    size: String,
    line: String,
    members: Vec<Described>,
    name: String,
    /// The offset of a member.
    offset: String,
    /// The address of the entry for a member's type, and the type's name.
    type_entry: String,
}

impl Described {
    fn attribute(&mut self, attribute: &str, value: &str) {
        let field = match attribute {
            "DW_AT_name" => &mut self.name,
            "DW_AT_byte_size" => &mut self.size,
            "DW_AT_decl_line" => &mut self.line,
            "DW_AT_data_member_location" => &mut self.offset,
            "DW_AT_type" => &mut self.type_entry,
            _ => return,
        };
        *field = value.trim_matches(['(', ')', '"']).to_owned();
    }

    fn number(shown: &str) -> u64 {
        let digits = shown.split(' ').next().unwrap_or_default().trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("{shown} is not a number"))
    }
}

/// Returns the entries of a program's debug info that these options of `llvm-dwarfdump` select, with the members of
/// structures.
fn described(path: &Path, options: &[&str]) -> Vec<Described> {
    let output = Command::new(llvm("llvm-dwarfdump")).args(options).arg(path).output();
    let output = output.expect("cannot run llvm-dwarfdump (package llvm)");
    assert!(output.status.success(), "llvm-dwarfdump {options:?} {}", path.display());
    let mut found: Vec<Described> = Vec::new();
    let mut depth = 0;
    let mut is_member = false;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let entry = line.split_once(": ").filter(|(address, _)| address.starts_with("0x"));
        if let Some((_, tag)) = entry {
            depth = tag.len() - tag.trim_start().len();
            is_member = depth == 2 && ["DW_TAG_member", "DW_TAG_inheritance"].contains(&tag.trim());
            if depth == 0 {
                found.push(Described::default());
            } else if is_member {
                found.last_mut().expect("its structure").members.push(Described::default());
            }
        } else if let Some((attribute, value)) = line.trim().split_once('\t') {
            let structure = found.last_mut().filter(|_| depth == 0 || is_member);
            let entry = structure.and_then(|s| if is_member { s.members.last_mut() } else { Some(s) });
            entry.into_iter().for_each(|entry| entry.attribute(attribute, value));
        }
    }
    found
}

/// Returns the size in bytes of a member's type.
fn size_of_type(path: &Path, type_entry: &str) -> u64 {
    let address = type_entry.split(' ').next().expect("an address");
    let entries = described(path, &[&format!("--debug-info={address}")]);
    match &*entries[0].size {
        "" => size_of_type(path, &entries[0].type_entry),
        size => Described::number(size),
    }
}

/// The compiler of this build does not record alignment in the debug info.
#[test]
fn structures_agree_with_llvm() {
    let path = mariadb_amd64_path();
    let audit = audited(&[&path]);
    let found = audit["structures"].as_array().expect("structures");
    let names: Vec<&str> = found.iter().filter_map(|s| s["name"].as_str()).collect();
    if audit["binary"]["build_id"] == MARIADB {
        assert_eq!(names, STRUCTURES);
    }
    // One structure has a hole, the other has padding.
    for (name, member) in [("trx_sys_t", "m_rw_trx_hash_version"), ("Share_free_tables", "pad")] {
        let audited = found.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("no {name} in {names:?}"));
        let llvm = described(&path, &[&format!("--name={name}"), "--show-children"]);
        let llvm = llvm.iter().find(|s| !s.members.is_empty()).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(audited["size"], Described::number(&llvm.size));
        assert!(audited["source"].as_str().expect("a line").ends_with(&format!(":{}", llvm.line)), "{audited}");
        let evidence = audited["evidence"].as_array().expect("evidence").iter();
        let evidence = evidence.clone().find(|e| e["member"] == member).unwrap_or_else(|| panic!("no {member}"));
        let at =
            llvm.members.iter().position(|m| m.name == member).unwrap_or_else(|| panic!("no {member} in {llvm:?}"));
        let offset = Described::number(&llvm.members[at].offset);
        assert_eq!(evidence["offset"], offset);
        if evidence["kind"] == "padding" {
            let bytes = evidence["bytes"].as_u64().expect("bytes");
            assert!(llvm.members[at].type_entry.ends_with(&format!("char[{bytes}]")), "{llvm:?}");
        } else {
            let before = &llvm.members[at - 1];
            let free = offset - Described::number(&before.offset) - size_of_type(&path, &before.type_entry);
            assert_eq!((&evidence["kind"], &evidence["bytes"]), (&"hole".into(), &free.into()));
        }
    }
}

#[test]
fn two_architectures_of_one_server_are_compared() {
    let (amd64, arm64) = (mysql_amd64_path(), mysql_arm64_path());
    let both = audited(&[&amd64, &arm64]);
    assert_eq!((&both["a"]["binary"]["arch"], &both["b"]["binary"]["arch"]), (&"x86_64".into(), &"aarch64".into()));
    assert_eq!(both["instructions"]["ldar"][0], 0);
    // Most functions exist in both.
    let functions = both["functions"].as_array().expect("functions");
    let name = "lob::purge";
    assert!(functions.iter().any(|f| f["name"] == name), "no {name} among {}", functions.len());
    let alike = audited(&[&amd64, &amd64]);
    assert_eq!(alike["functions"], Value::Array(vec![]));
}

#[test]
fn an_audit_of_eight_million_instructions_is_cheap() {
    for path in [mysql_amd64_path(), mysql_arm64_path(), mariadb_amd64_path()] {
        let (seconds, kib) = cost(&path);
        println!("{}: {seconds:.2} s of CPU time, {} MiB", path.display(), kib >> 10);
        assert!(seconds < MOST_CPU_SECONDS && kib < MOST_MEMORY_KIB, "{}: {seconds} s, {kib} KiB", path.display());
    }
}

/// Returns the CPU time in seconds and the peak memory in KiB of an audit.
#[expect(clippy::zombie_processes, reason = "wait4 waits for the process and returns its resource usage")]
fn cost(path: &Path) -> (f64, i64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    let child = command.args(["audit", "--format", "json"]).arg(path).stdout(Stdio::null()).spawn().expect("armtrace");
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: the process is a child of this one, and both pointers are valid for the call to write to.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    assert!(waited == child.id() as i32 && status == 0, "{waited} {status}");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_maxrss)
}

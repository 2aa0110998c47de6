//! The code analysis on real server binaries of both architectures, which `tests/lab/src/binaries.rs` provides.
//!
//! Offsets are those of the builds named next to them. Another build of the same server must still pass every check
//! that does not depend on the build.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::process::Command;

use armtrace::analysis::{
    checksum_instruction, contended, direct_calls, imported_calls, jump_variable, whole_function, ChecksumInstruction,
    EndKind, Function, Location, Site, Slow, WaitSites,
};
use armtrace::catalog;
use armtrace::discovery;
use armtrace::isa::{decode, Flow, Insn, Test};
use armtrace::measure::latch::{plan, pthread_rows, Allowed, Plan};
use armtrace::symbols::{frame, Arch, Frame, Image, Parameter, SymbolSource};

use lab::binaries::{
    debian_mariadb, glibc_amd64, glibc_arm64, lab_image, libpthread_2_31, mariadb_10_1, mariadb_10_1_path,
    mariadb_10_2, mariadb_amd64, mariadb_amd64_path, mariadb_arm64, mysql_amd64, mysql_arm64, patched, stripped,
};

const X_LOCK: &str = "_Z19rw_lock_x_lock_funcP9rw_lock_tmN2ut8LocationE";
const SX_LOCK: &str = "_Z20rw_lock_sx_lock_funcP9rw_lock_tmN2ut8LocationE";
const MUTEX_ENTER: &str = "_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_N2ut8LocationE";
const POLICY_ENTER: &str = "_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterEjjPKcj";
const S_LOCK_SPIN: &str = "_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE";
const MUTEX_WAIT: &str = "_ZN14TTASEventMutexI13GenericPolicyE4waitEPKcjj";
const SPIN_AND_TRY: &str = "_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj";
const RESERVE_CELL: &str = "_Z23sync_array_reserve_cellP12sync_array_tPvmN2ut8LocationE";
const WAIT_EVENT: &str = "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t";
const EVENT_WAIT: &str = "_Z17os_event_wait_lowP8os_eventl";
const UT_DELAY: &str = "_Z8ut_delaym";

fn address(image: &Image, name: &str) -> u64 {
    image.symbol(name).unwrap_or_else(|| panic!("no symbol {name}")).addr
}

fn mysql_slow(image: &Image) -> Slow {
    let sleep = [RESERVE_CELL, WAIT_EVENT, MUTEX_WAIT, SPIN_AND_TRY].map(|name| address(image, name));
    Slow { spin: [address(image, UT_DELAY)].into(), sleep: sleep.into(), ..Slow::default() }
}

fn find(
    image: &Image,
    entry: u64,
    slow: &Slow,
    how: fn(&Image, std::ops::Range<u64>, &Slow) -> Option<WaitSites>,
) -> WaitSites {
    let range = image.function_at(entry).unwrap_or_else(|| panic!("no function at {entry:#x}"));
    assert_eq!(range.start, entry);
    how(image, range, slow).unwrap_or_else(|| panic!("no wait in the function at {entry:#x}"))
}

/// Formats what was found: a line for the beginning, then one for each end, with addresses as offsets in the function.
fn shown(image: &Image, entry: u64, sites: &WaitSites) -> String {
    let mut lines = vec![format!("start {:#x}", sites.start - entry)];
    lines.push(format!("begin {}", shown_site(image, entry, &sites.begin)));
    lines.extend(sites.entries.iter().map(|s| format!("entry {}", shown_site(image, entry, s))));
    for end in &sites.ends {
        let kind = if end.kind == EndKind::Final { "final" } else { "maybe" };
        let when = end.when.map_or(String::new(), |c| match c.test {
            Test::Flags(condition) => format!(" when {condition}={}", c.holds),
            Test::Zero { register, bits } => format!(" when zero({register}:{bits})={}", c.holds),
            Test::Bit { register, bit } => format!(" when bit({register}.{bit})={}", c.holds),
        });
        lines.push(format!("{kind} {}{when}", shown_site(image, entry, &end.site)));
    }
    lines.join("\n")
}

/// Formats a site: its offset, its mnemonic, what makes it expensive, and where the latch is.
fn shown_site(image: &Image, entry: u64, site: &Site) -> String {
    let mnemonic = site.text.split(' ').next().unwrap_or_default();
    let latch = site.args[0].map_or("?".into(), |place| shown_location(image.arch(), place));
    let flags = [(!site.emulated, " stepped"), (site.repeats, " repeats"), (site.per_round, " per-round")];
    let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
    format!("{:#x} {mnemonic}{flags} {latch}", site.addr - entry)
}

fn shown_location(arch: Arch, place: Location) -> String {
    const X86: [&str; 16] =
        ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
    let name = |register: u8| match arch {
        Arch::X86_64 => X86[usize::from(register)].to_owned(),
        Arch::Aarch64 => format!("x{register}"),
    };
    let half = |bytes: u8| if bytes == 4 { "/4" } else { "" };
    match place {
        Location::Register { register, bytes } => format!("{}{}", name(register), half(bytes)),
        Location::Stack { base, offset, bytes } => format!("{}{offset:+}{}", name(base), half(bytes)),
        Location::Sum { register, offset } => format!("{}{offset:+}=", name(register)),
        Location::Constant(value) => format!("{value:#x}="),
    }
}

fn places(arch: Arch, site: &Site) -> Vec<String> {
    site.args.iter().map(|p| p.map_or("-".into(), |p| shown_location(arch, p))).collect()
}

/// Compares with the known result of one build. For another build, the result must be just as usable.
fn check(image: &Image, build: &str, entry: u64, found: &WaitSites, expected: &str) {
    let (begin, ends) = (&found.begin, &found.ends);
    assert!(begin.emulated && begin.args[0].is_some(), "{begin:?}");
    assert!(!ends.is_empty() && ends.iter().all(|e| e.site.emulated), "{ends:?}");
    if image.build_id() == build {
        let expected: Vec<&str> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        assert_eq!(shown(image, entry, found), expected.join("\n"));
    }
}

const MYSQL_AMD64: &str = "cc8a18826385d7182761a4a8f41044748267244d";
const MYSQL_ARM64: &str = "48d30dfb6aef65284223d5973aceb0a30fd34691";
const MARIADB_AMD64: &str = "df9ed6c416aa0cd2e07169c3b5e3cf1bf966c72c";
const MARIADB_ARM64: &str = "5ea7a1dd5e8ee7bd16d4a6d2d081dc6289addfb7";

#[test]
fn mysql_amd64_latches() {
    let image = mysql_amd64();
    let slow = mysql_slow(&image);
    let check_contended = |name: &str, expected: &str| {
        let entry = address(&image, name);
        check(&image, MYSQL_AMD64, entry, &find(&image, entry, &slow, contended), expected);
    };
    check_contended(
        X_LOCK,
        "start 0x7c
         begin 0x86 jb repeats r12
         maybe 0x233 jb repeats r12 when 2=true
         maybe 0x2ff jmp repeats r12
         final 0x30b call r12",
    );
    check_contended(
        SX_LOCK,
        "start 0x7c
         begin 0x86 jb repeats r12
         maybe 0x223 jb repeats r12 when 2=true
         maybe 0x2b7 jmp repeats r12
         final 0x2c3 call r12",
    );
    check_contended(
        MUTEX_ENTER,
        "start 0xc2
         begin 0x104 jmp repeats r13
         entry 0xba mov stepped r13
         entry 0x23a jmp r13
         final 0x2bc je r13",
    );
    check_contended(
        POLICY_ENTER,
        "start 0xa7
         begin 0xe9 jmp repeats r13
         entry 0x9f mov stepped r13
         entry 0x21a jmp r13
         final 0x27c je r13",
    );
    let check_whole = |name: &str, slow: &Slow, expected: &str| {
        let entry = address(&image, name);
        check(&image, MYSQL_AMD64, entry, &find(&image, entry, slow, whole_function), expected);
    };
    for slow in [&slow, &Slow::default()] {
        check_whole(S_LOCK_SPIN, slow, "start 0x0\nbegin 0x4 push rdi\nfinal 0xfe jne rbx");
    }
    check_whole(MUTEX_WAIT, &slow, "start 0x0\nbegin 0x4 push rdi\nfinal 0x14e jne rbx");
    check_whole(SPIN_AND_TRY, &slow, "start 0x0\nbegin 0x4 push rdi\nfinal 0x207 jne r13");
    // Code without branches: its end is found if the call that sleeps is known.
    let event = Slow { sleep: [address(&image, EVENT_WAIT)].into(), ..Slow::default() };
    check_whole(WAIT_EVENT, &event, "start 0x0\nbegin 0x4 push rdi\nfinal 0x8f call rdi");
}

#[test]
fn mysql_arm64_latches() {
    let image = mysql_arm64();
    let slow = mysql_slow(&image);
    let check_contended = |name: &str, expected: &str| {
        let entry = address(&image, name);
        check(&image, MYSQL_ARM64, entry, &find(&image, entry, &slow, contended), expected);
    };
    check_contended(
        X_LOCK,
        "start 0xac
         begin 0xb8 b.cs repeats x19
         final 0x278 tbz repeats x19 when bit(0.0)=true
         maybe 0x344 b repeats x19
         final 0x380 bl x19",
    );
    check_contended(
        SX_LOCK,
        "start 0x9c
         begin 0xa8 b.cs repeats x19
         final 0x258 tbz repeats x19 when bit(0.0)=true
         maybe 0x31c b repeats x19
         final 0x358 bl x19",
    );
    check_contended(MUTEX_ENTER, "start 0x138\nbegin 0x13c adrp x21\nfinal 0x28c tbz x21");
    check_contended(POLICY_ENTER, "start 0x11c\nbegin 0x120 adrp x21\nfinal 0x26c tbz x21");
    let entry = address(&image, S_LOCK_SPIN);
    let found = find(&image, entry, &slow, whole_function);
    check(&image, MYSQL_ARM64, entry, &found, "start 0x0\nbegin 0x18 adrp x0\nfinal 0x1c8 adrp x20");
    let event = Slow { sleep: [address(&image, EVENT_WAIT)].into(), ..Slow::default() };
    let entry = address(&image, WAIT_EVENT);
    let found = find(&image, entry, &event, whole_function);
    check(&image, MYSQL_ARM64, entry, &found, "start 0x0\nbegin 0x1c adrp x0\nfinal 0x98 bl x0");
}

#[test]
fn mysql_x_lock_wait_begins_after_its_spin_loop() {
    for (image, build, expected) in [
        (
            mysql_amd64(),
            MYSQL_AMD64,
            "start 0x83
             begin 0xa9 je repeats r13
             maybe 0x163 jl repeats r13
             final 0x2eb call r13",
        ),
        (
            mysql_arm64(),
            MYSQL_ARM64,
            "start 0x94
             begin 0x9c cbz repeats x21
             maybe 0x158 b.gt repeats x21
             final 0x2f8 bl x21",
        ),
    ] {
        let (slow, entry) = (mysql_slow(&image), x_lock_wait(&image));
        let found = find(&image, entry, &slow, contended);
        assert!(found.begin.addr > entry && !found.begin.per_round, "{:?}", found.begin);
        check(&image, build, entry, &found, expected);
    }
}

/// Finds the local function that waits for readers to release the latch. It has no symbol, but calls both the spin
/// delay and the sleep.
fn x_lock_wait(image: &Image) -> u64 {
    let targets = HashSet::from([address(image, UT_DELAY), address(image, WAIT_EVENT)]);
    let mut callers: HashMap<u64, BTreeSet<u64>> = HashMap::new();
    for (at, to) in direct_calls(image, &targets) {
        let range = image.function_at(at).unwrap();
        if image.symbol_at(range.start).is_none_or(|s| s.addr != range.start) {
            callers.entry(range.start).or_default().insert(to);
        }
    }
    let found: Vec<u64> = callers.iter().filter(|(_, to)| to.len() == targets.len()).map(|(&at, _)| at).collect();
    assert_eq!(found.len(), 1, "{callers:x?}");
    found[0]
}

#[test]
fn mysql_arguments_are_known_at_each_site() {
    let image = mysql_amd64();
    let slow = mysql_slow(&image);
    let begin = |name| find(&image, address(&image, name), &slow, contended).begin;
    for name in [X_LOCK, SX_LOCK, MUTEX_ENTER] {
        assert!(begin(name).args[..3].iter().all(Option::is_some), "{name}");
    }
    if image.build_id() == MYSQL_AMD64 {
        let places = |name| places(Arch::X86_64, &begin(name));
        assert_eq!(places(X_LOCK)[..4], ["r12", "rbp-128", "rbp-104", "rbp-112"]);
        assert_eq!(places(MUTEX_ENTER)[..3], ["r13", "rbp-176", "rbp-164/4"]);
        assert_eq!(places(POLICY_ENTER)[..5], ["r13", "rbp-144/4", "r15/4", "rbp-160", "rbp-164/4"]);
    }
    let image = mysql_arm64();
    let slow = mysql_slow(&image);
    let begin = |name| find(&image, address(&image, name), &slow, contended).begin;
    if image.build_id() == MYSQL_ARM64 {
        assert_eq!(places(Arch::Aarch64, &begin(X_LOCK))[..4], ["x19", "x29-64", "x26", "x25"]);
        assert_eq!(places(Arch::Aarch64, &begin(MUTEX_ENTER))[..3], ["x21", "x29-88", "x29-80/4"]);
    }
}

/// Returns the functions that call futex themselves: MariaDB's lock primitives and a few more.
fn futex_functions(image: &Image) -> Vec<u64> {
    let stubs = imported_calls(image, "syscall");
    assert!(!stubs.is_empty(), "no stub for syscall");
    let number = if image.arch() == Arch::X86_64 { 202 } else { 98 };
    let calls = direct_calls(image, &stubs.into_iter().collect());
    let mut found = BTreeSet::new();
    for (at, _) in calls {
        let range = image.function_at(at).unwrap();
        let f = Function::new(image, range.clone()).unwrap();
        let constants = f.constants_at(at);
        // futex, FUTEX_WAIT | FUTEX_PRIVATE_FLAG
        if constants[0] == Some(number) && constants[2] == Some(0x80) {
            found.insert(range.start);
        }
    }
    found.into_iter().collect()
}

fn mariadb_slow(image: &Image) -> Slow {
    Slow { syscall: imported_calls(image, "syscall").into_iter().collect(), ..Slow::default() }
}

#[test]
fn mariadb_amd64_latches() {
    let image = mariadb_amd64();
    let slow = mariadb_slow(&image);
    let futex = futex_functions(&image);
    let check_whole = |name: &str, expected: &str| {
        let entry = address(&image, name);
        assert!(futex.contains(&entry), "{name} is not among {futex:x?}");
        let found = find(&image, entry, &slow, whole_function);
        assert!(found.ends.iter().all(|e| e.kind == EndKind::Final));
        check(&image, MARIADB_AMD64, entry, &found, expected);
    };
    check_whole(
        "_ZN14srw_mutex_implILb0EE13wait_and_lockEv",
        "start 0x0\nbegin 0x0 push rdi\nfinal 0x32 je repeats rbx when 4=true",
    );
    check_whole(
        "_ZN14srw_mutex_implILb1EE13wait_and_lockEv",
        "start 0x0
         begin 0x0 push rdi
         final 0x79 jne repeats rbx when 5=false
         final 0xc2 je repeats rbx when 4=true",
    );
    check_whole(
        "_ZN14ssux_lock_implILb0EE7wr_waitEj",
        "start 0x0\nbegin 0x0 push rdi\nfinal 0x41 jne repeats ? when 5=false",
    );
    check_whole(
        "_ZN14ssux_lock_implILb1EE7wr_waitEj",
        "start 0x0
         begin 0x0 push rdi
         final 0x52 je repeats per-round ? when 4=true
         final 0x91 jne repeats ? when 5=false",
    );
    check_whole("_ZN14ssux_lock_implILb0EE7rd_waitEv", "start 0x0\nbegin 0x0 push rdi\nfinal 0xe4 ja rbx");
    check_whole(
        "_ZN14ssux_lock_implILb1EE7rd_waitEv",
        "start 0x0
         begin 0x0 push rdi
         final 0x75 jne repeats per-round rdi when 5=false
         final 0x156 jbe r12",
    );
}

/// The binary is stripped, so the functions are found by what they do.
#[test]
fn mariadb_arm64_latches() {
    let image = mariadb_arm64();
    let slow = mariadb_slow(&image);
    let futex = futex_functions(&image);
    let mut shown_all = Vec::new();
    for &entry in &futex {
        let range = image.function_at(entry).unwrap();
        let Some(found) = whole_function(&image, range, &slow) else { continue };
        assert!(found.ends.iter().all(|e| e.site.emulated && e.kind == EndKind::Final && e.when.is_none()));
        shown_all.push(format!("{entry:x}\n{}", shown(&image, entry, &found)));
    }
    assert!(shown_all.len() >= 6, "{futex:x?}");
    if image.build_id() == MARIADB_ARM64 {
        let wait_and_lock = "e4a340\nstart 0x0\nbegin 0x1c bl x1\nfinal 0x48 ret ?";
        let spinning = "e4a3c0\nstart 0x0\nbegin 0x20 bl x1\nfinal 0xb8 ret ?";
        let rd_wait = "e4a5e0\nstart 0x0\nbegin 0x18 adrp x0\nfinal 0x6c bl x1";
        // It has no emulated instruction before its loop, and none in the loop where the latch is still known.
        let wr_wait = "e4a580\nstart 0x0\nbegin 0x4 stp stepped x0\nfinal 0x54 ret ?";
        for expected in [wait_and_lock, spinning, rd_wait, wr_wait] {
            assert!(shown_all.iter().any(|s| s == expected), "{expected}\nis not among\n{}", shown_all.join("\n"));
        }
    }
}

#[test]
fn calls_are_found_quickly() {
    for (image, build, counts) in
        [(mysql_amd64(), MYSQL_AMD64, [14, 6, 6, 3]), (mysql_arm64(), MYSQL_ARM64, [15, 6, 6, 3])]
    {
        let targets = [UT_DELAY, RESERVE_CELL, WAIT_EVENT, MUTEX_WAIT].map(|name| address(&image, name));
        let start = cpu_time();
        let calls = direct_calls(&image, &targets.into());
        let spent = cpu_time() - start;
        assert!(calls.is_sorted());
        let found = targets.map(|target| calls.iter().filter(|c| c.1 == target).count());
        if image.build_id() == build {
            assert_eq!(found, counts);
        } else {
            assert!(found.iter().all(|&n| n > 0), "{found:?}");
        }
        // On an idle machine this takes a tenth of a second. Other programs slow it down by using the caches.
        assert!(spent < if cfg!(debug_assertions) { 5.0 } else { 0.5 }, "{spent} s");
    }
}

/// Returns this thread's CPU time in seconds, which does not include that of other tests.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for the call to fill in.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The analysis copes with every function that calls something slow.
#[test]
fn every_caller_can_be_analysed() {
    for image in [mysql_amd64(), mysql_arm64()] {
        let slow = mysql_slow(&image);
        let mutex_enter = address(&image, MUTEX_ENTER);
        let targets: HashSet<u64> = slow.spin.iter().chain(&slow.sleep).copied().chain([mutex_enter]).collect();
        let functions: BTreeSet<u64> =
            direct_calls(&image, &targets).iter().filter_map(|c| image.function_at(c.0)).map(|r| r.start).collect();
        assert!(functions.len() > 500, "{}", functions.len());
        for entry in functions {
            let f = Function::new(&image, image.function_at(entry).unwrap()).unwrap();
            if let Some(found) = f.contended(&slow) {
                assert!(f.insns().iter().any(|i| i.addr == found.begin.addr));
            }
        }
    }
}

fn latch_plan(image: &Image) -> Plan {
    plan(
        image,
        discovery::family(image).expect("a known family"),
        Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true },
    )
}

/// Returns the name and address of each site.
fn named_sites(plan: &Plan) -> Vec<(String, u64)> {
    plan.sites.iter().map(|s| (s.name.clone(), s.addr)).collect()
}

/// The sites can be found from the code alone, without symbols.
#[test]
fn a_stripped_mariadb_has_the_same_sites() {
    let (whole, stripped) = (mariadb_amd64(), stripped(&mariadb_amd64_path()));
    assert_eq!((whole.symbol_source(), stripped.symbol_source()), (SymbolSource::Symtab, SymbolSource::Dynsym));
    assert!(stripped.symbol("_ZN14srw_mutex_implILb0EE13wait_and_lockEv").is_none());
    let (expected, found) = (latch_plan(&whole), latch_plan(&stripped));
    assert!(expected.sites.len() >= 12 && expected.gaps.is_empty(), "{:?}", expected.gaps);
    assert_eq!(named_sites(&found), named_sites(&expected));
    assert_eq!(found.gaps, expected.gaps);
}

/// One pair of sites serves all kinds of latches. rw-locks also have sites in the functions in which they spin.
#[test]
fn mariadb_10_2_waits_in_the_sync_array() {
    let image = mariadb_10_2();
    let plan = latch_plan(&image);
    assert!(plan.gaps.is_empty(), "{:?}", plan.gaps);
    let at = |name: &str| plan.sites.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no {name}")).addr;
    assert_eq!(at("sync_array_cell:begin"), address(&image, "_Z23sync_array_reserve_cellP12sync_array_tPvmPKcj"));
    assert_eq!(at("sync_array_cell:end"), address(&image, "_Z20sync_array_free_cellP12sync_array_tRP11sync_cell_t"));
    assert!(plan.sites.iter().all(|s| s.emulated), "a site is single-stepped");
    for label in ["rw_lock_s_lock_spin", "rw_lock_sx_lock_func"] {
        at(&format!("{label}:begin"));
        at(&format!("{label}:end"));
    }
    at("rw_lock_x_lock_func:begin");
    at("rw_lock_x_lock_func:maybe_end");
    check_inlined(&plan, "mutex_enter_inlined", 500, 0.95);
}

/// Checks that nearly all inlined mutexes are found, and that no two share a site.
fn check_inlined(plan: &Plan, label: &str, least: usize, part: f64) {
    let limit = plan.limits.iter().find(|l| l.starts_with(&format!("{label}:"))).expect("a mutex is inlined");
    let numbers: Vec<usize> = limit.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [all, found] = numbers[..] else { panic!("{limit}") };
    assert!(all >= least && found as f64 >= part * all as f64, "{limit}");
    let sites = |what: &str| {
        let of = plan.probes.iter().filter(|p| p.name.starts_with(&format!("{label}:{what}")));
        of.map(|p| p.sites.len()).sum::<usize>()
    };
    assert_eq!(sites("begin"), found);
    assert!(sites("end") + sites("maybe_end") >= found);
    let own = format!("{label}:");
    let addresses: HashSet<u64> = plan.sites.iter().filter(|s| s.name.starts_with(&own)).map(|s| s.addr).collect();
    assert_eq!(addresses.len(), sites("begin") + sites("end") + sites("maybe_end"), "two waits share a site");
}

/// In these builds the compiler inlined mutexes into hundreds of functions, and the wait for an X lock into its
/// function several times.
#[test]
fn mutexes_inlined_into_mysql() {
    for (server, least) in [("mysql-8.0.31", 350), ("mysql-8.0.12", 400), ("mysql-5.7", 130)] {
        let plan = latch_plan(&lab_image(server));
        check_inlined(&plan, "mutex_enter_inlined", least, 0.97);
        let labels: HashSet<&str> = plan.sites.iter().filter_map(|s| s.name.strip_suffix(":begin")).collect();
        for label in ["rw_lock_s_lock_spin", "rw_lock_x_lock_func", "rw_lock_sx_lock_func", "mutex_enter", "mutex_wait"]
        {
            assert!(labels.contains(label), "{server}: {label}");
        }
    }
}

/// In this build mutexes are acquired in functions of their own, so there are no sites for inlined ones.
#[test]
fn nothing_is_inlined_into_mysql_9_7() {
    for image in [mysql_amd64(), mysql_arm64()] {
        let plan = latch_plan(&image);
        assert!(plan.limits.is_empty(), "{:?}", plan.limits);
        assert!(plan.probes.iter().all(|probe| probe.sites.len() == 1), "{:?}", plan.probes);
        assert!(!plan.sites.iter().any(|s| s.name.contains("inlined") || s.name.starts_with("mutex_wait")));
    }
}

/// On kernels that attach sites one by one, only a few are attached.
#[test]
fn few_sites_if_each_is_attached_alone() {
    let image = lab_image("mysql-8.0.31");
    let allowed = Allowed { uretprobes: true, calls: true, many_sites: false, every_round: true };
    let plan = plan(&image, discovery::family(&image).expect("a known family"), allowed);
    assert!(plan.sites.len() < 100, "{}", plan.sites.len());
    assert!(plan.sites.iter().any(|s| s.name == "mutex_wait:begin"));
    assert!(plan.limits.iter().any(|l| l.contains("one by one")), "{:?}", plan.limits);
}

const MUTEX_CREATE: &str = "_Z17mutex_create_funcP10ib_mutex_tPKcmS2_";

/// Waits for a mutex and waits of readers are seen from their beginning. Waits of writers are seen from the point where
/// they have to sleep, never in code that all writers execute. The offsets are those of 10.1.23.
#[test]
fn mariadb_10_1_waits_in_functions_of_their_own() {
    let image = mariadb_10_1();
    let plan = latch_plan(&image);
    assert!(plan.gaps.is_empty(), "{:?}", plan.gaps);
    assert!(plan.sites.iter().all(|s| s.emulated), "a site is single-stepped");
    let begins: Vec<(&str, u64)> =
        plan.sites.iter().filter(|s| s.name.contains(":begin")).map(|s| (s.name.as_str(), s.addr)).collect();
    let x_lock = address(&image, "_Z19rw_lock_x_lock_funcP9rw_lock_tmPKcmbb");
    let x_lock_low = address(&image, "_Z18rw_lock_x_lock_lowP9rw_lock_tbmPKcm");
    let expected = [
        ("mutex_spin_wait:begin", address(&image, "_Z15mutex_spin_waitPvbPKcm")),
        ("rw_lock_s_lock_spin:begin", address(&image, "_Z19rw_lock_s_lock_spinPvmbbPKcm")),
        // The call of `os_thread_yield`.
        ("rw_lock_x_lock_func:begin", x_lock + 0x1c0),
        ("rw_lock_x_lock_low:begin", x_lock_low + 0x146),
    ];
    assert_eq!(begins, expected);
}

/// Returns the members for the file and the line that create a mutex or an rw-lock.
fn created(mutex: bool) -> (catalog::Member, catalog::Member) {
    let set_by: &[&str] = if mutex { &["_Z17mutex_create_func"] } else { &["_Z19rw_lock_create_func"] };
    (
        catalog::Member { set_by, to: Parameter::File, shown_by: None },
        catalog::Member { set_by, to: Parameter::Line, shown_by: None },
    )
}

/// The function for latches with priorities passes its arguments on to the function for plain ones.
#[test]
fn mariadb_10_1_latches_store_where_they_were_created() {
    let image = mariadb_10_1();
    for (mutex, file_at, line_at, mask) in [(true, 0x98, 0xa0, u32::MAX), (false, 0x110, 0x150, 0x3fff)] {
        let (file, line) = created(mutex);
        assert_eq!(discovery::find_member(&image, &file).map(|kept| kept.offset), Some(file_at));
        assert_eq!(discovery::find_member(&image, &line).map(|kept| (kept.offset, kept.mask)), Some((line_at, mask)));
    }
}

/// Without the instruction that stores the file's name, the member does not hold a name.
#[test]
fn a_mutex_without_its_place_of_creation_is_not_probed() {
    let path = mariadb_10_1_path();
    let create = address(&mariadb_10_1(), MUTEX_CREATE);
    let store = create + 0x49;
    assert_eq!(mariadb_10_1().bytes(store, 7), Some(&[0x49, 0x89, 0x9e, 0x98, 0, 0, 0][..]), "mov %rbx,0x98(%r14)");
    let image = patched(&path, &[(store, &[0x90; 7])]);
    assert_eq!(discovery::find_member(&image, &created(true).0), None);
    let plan = latch_plan(&image);
    assert!(!plan.sites.iter().any(|s| s.name.starts_with("mutex_spin_wait")));
    assert!(plan.gaps.iter().any(|gap| gap.function == "mutex_spin_wait"), "{:?}", plan.gaps);
    assert!(plan.sites.iter().any(|s| s.name.starts_with("rw_lock_s_lock_spin")));
}

/// The addresses of the wait functions in Debian's builds were read from their disassembly. They are in the catalog's
/// order.
#[test]
fn debian_mariadb_wait_functions() {
    let cases: [(&str, &str, &str, &[u64]); 6] = [
        ("amd64", "bookworm", "439da8d9", &[0xde28c0, 0xde2920, 0xde2c20, 0xde2ac0, 0xde2a70, 0xde29d0]),
        ("arm64", "bookworm", "9014e1c7", &[0xd1b7c0, 0xd1b840, 0xd1bbb0, 0xd1ba30, 0xd1b9e0, 0xd1b930]),
        ("amd64", "trixie", "2709f499", &[0xf559e0, 0xf55a50, 0xf55c40, 0xf55e10, 0xf55be0, 0xf55b10]),
        // Two of its lock functions contain their own wait; they are not in the list.
        ("arm64", "trixie", "2c7e63f5", &[0xe8b900, 0xe8b980, 0xe8bba0, 0xe8bda0, 0xe8bb40, 0xe8ba80]),
        ("amd64", "sid", "e1821821", &[0xf1f920, 0xf1f990, 0xf1fb90, 0xf1fd60, 0xf1fb30, 0xf1fa60]),
        ("arm64", "sid", "5ea7a1dd", &[0xe4a340, 0xe4a3c0, 0xe4a5e0, 0xe4a7e0, 0xe4a580, 0xe4a4c0]),
    ];
    for (arch, suite, build, expected) in cases {
        let image = debian_mariadb(arch, suite);
        let family = discovery::family(&image).unwrap_or_else(|error| panic!("{arch} {suite}: {error}"));
        let found: Vec<u64> = family
            .wait_functions
            .iter()
            .flat_map(|w| discovery::find_wait_function(&image, w))
            .map(|r| r.start)
            .collect();
        assert_eq!(found.len(), 6, "{arch} {suite}: {found:x?}");
        if image.build_id().starts_with(build) {
            assert_eq!(found, expected, "{arch} {suite}: {found:x?}");
        }
        let plan = latch_plan(&image);
        let begins: HashSet<&str> = plan.sites.iter().filter_map(|s| s.name.strip_suffix(":begin")).collect();
        assert_eq!(begins.len(), 6, "{arch} {suite}: {begins:?}");
        // From 11.8 on, readers spin and sleep in different functions.
        let spinning_readers = begins.contains("ssux_spin_rd_wait");
        let known_gaps = if spinning_readers { vec![] } else { vec!["ssux_spin_rd_wait"] };
        assert_eq!(plan.gaps.iter().map(|gap| gap.function.as_str()).collect::<Vec<_>>(), known_gaps, "{arch} {suite}");
    }
}

/// In Debian's MariaDB 10.5, only the functions that wait for InnoDB's events are found. Their addresses were read from
/// the disassembly.
#[test]
fn debian_mariadb_10_5_waits_for_events() {
    let cases: [(&str, &str, &[u64]); 2] =
        [("amd64", "f57d9293", &[0xd1d030, 0xd1d0b0]), ("arm64", "91773644", &[0xbff930, 0xbffa50])];
    for (arch, build, expected) in cases {
        let image = debian_mariadb(arch, "bullseye");
        let family = discovery::family(&image).unwrap_or_else(|error| panic!("{arch}: {error}"));
        assert!(family.wait_functions.is_empty() && matches!(family.naming, catalog::Naming::None));
        let found: Vec<u64> = discovery::event_waits(&image).iter().map(|f| f.start).collect();
        assert_eq!(found.len(), 2, "{arch}: {found:x?}");
        if image.build_id().starts_with(build) {
            assert_eq!(found, expected, "{arch}: {found:x?}");
        }
        let plan = latch_plan(&image);
        assert!(plan.sites.is_empty() && plan.gaps.len() == 1, "{:?}", plan.gaps);
    }
}

/// Every call in a function that waits has a row, with the stack frame that leads to the function's caller and with the
/// function's purpose.
#[test]
fn c_library_frames() {
    const MUTEX: u32 = 1;
    const READ: u32 = 2;
    const WRITE: u32 = 3;
    const COND: u32 = 4;
    const ALLOCATOR: u32 = 5;
    let functions = [
        ("pthread_mutex_lock", MUTEX),
        ("pthread_rwlock_rdlock", READ),
        ("pthread_rwlock_wrlock", WRITE),
        ("pthread_cond_wait", COND),
        ("pthread_cond_timedwait", COND),
        ("malloc", ALLOCATOR),
        ("calloc", ALLOCATOR),
    ];
    for image in [glibc_amd64(), glibc_arm64()] {
        let arch = image.arch().as_str();
        let rows = pthread_rows(&image);
        println!("{arch}: {} rows", rows.len());
        assert!(rows.len() < 2000, "{arch}: {} rows; the BPF programs have room for 4096", rows.len());
        for (name, primitive) in functions {
            let entry = image.symbols().find(|s| s.name == name).unwrap_or_else(|| panic!("{arch}: no {name}"));
            let range = image.function_at(entry.addr).unwrap_or_else(|| panic!("{arch}: {name} has no bounds"));
            let mut calls = 0;
            for insn in decode(&image, range) {
                if !matches!(insn.flow, Flow::Call(_)) {
                    continue;
                }
                calls += 1;
                let row = rows.get(&insn.end()).unwrap_or_else(|| panic!("{arch}: {name}: {}", insn.text()));
                assert_eq!(row.primitive, primitive, "{arch}: {name}");
                // On x86_64 the caller pushed the return address last; on aarch64 it is stored next to the frame
                // pointer.
                let expected = if image.arch() == Arch::X86_64 { row.size - 8 } else { 8 };
                assert_eq!(row.return_at, expected, "{arch}: {name}");
                assert!(row.size.is_multiple_of(8) && row.size > row.return_at, "{arch}: {name}: {}", row.size);
            }
            assert!(calls >= 1, "{arch}: {name} calls nothing");
        }
    }
}

/// Distributions for arm64 build with signed return addresses, which changes the instructions of the unwind table.
#[test]
fn frames_with_signed_return_addresses_are_known() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (source, library) = (scratch.path().join("calls.c"), scratch.path().join("calls.so"));
    fs::write(&source, "int other(void); int calls(void) { return 1 + other(); }").expect("a file");
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    compiler.args(["-O2", "-shared", "-nostdlib", "-mbranch-protection=standard", "-o"]).args([&library, &source]);
    assert!(compiler.status().expect("the compiler of the lab").success());
    let image = Image::open(&library).expect("a program");
    let insns = decode(&image, function(&image, "calls"));
    assert!(
        insns.iter().any(|insn| insn.text() == "paciasp"),
        "{:?}",
        insns.iter().map(Insn::text).collect::<Vec<_>>()
    );
    let call = insns.iter().find(|insn| matches!(insn.flow, Flow::Call(_))).expect("a call");
    assert_eq!(frame(&image, call.addr), Some(Frame { size: 16, return_at: Some(8) }));
}

/// This distinguishes the wait for a condition variable from the wait for its mutex: both are `FUTEX_WAIT`.
#[test]
fn condition_waits_make_the_system_call_themselves_before_glibc_2_34() {
    const NONE: u32 = 0;
    const COND: u32 = 4;
    let image = libpthread_2_31();
    let rows = pthread_rows(&image);
    let system_calls = |name: &str| -> Vec<u32> {
        let symbol = image.symbols().find(|s| s.name == name).unwrap_or_else(|| panic!("no {name}"));
        let range = image.function_at(symbol.addr).unwrap_or_else(|| panic!("{name} has no bounds"));
        let insns = decode(&image, range);
        let calls = insns.iter().filter(|i| i.bytes() == [0x0f, 0x05]);
        calls.map(|i| rows.get(&i.end()).unwrap_or_else(|| panic!("{name}: no row")).primitive).collect()
    };
    assert!(system_calls("__pthread_cond_wait").contains(&COND));
    // Several functions call it, so it has no purpose of its own.
    assert_eq!(system_calls("__lll_lock_wait"), [NONE]);
}

fn function(image: &Image, name: &str) -> std::ops::Range<u64> {
    image.function_at(address(image, name)).expect("the unwind table has it")
}

/// Checksum functions that use the CPU's instructions are recognised on both architectures, and so are the pointers to
/// the chosen implementation.
#[test]
fn checksums_are_recognised_by_their_instructions() {
    let of = |image: &Image, name: &str| checksum_instruction(image, function(image, name));
    for (image, best) in [(mysql_amd64(), "pclmulqdq"), (mysql_arm64(), "pmull")] {
        let hardware = of(&image, "_ZN8hardware18crc32_using_pclmulEPKhm");
        assert_eq!(hardware, Some(ChecksumInstruction::Found(best)));
        assert_eq!(of(&image, "_ZN8software5crc32EPKhm"), Some(ChecksumInstruction::None));
    }
    for image in [mariadb_amd64(), debian_mariadb("amd64", "bookworm"), mariadb_arm64()] {
        let chosen = jump_variable(&image, function(&image, "my_crc32c"));
        assert!(chosen.is_some_and(|variable| image.is_static_data(variable)), "{chosen:x?}");
    }
    // A function that jumps through no variable.
    assert_eq!(jump_variable(&mysql_amd64(), function(&mysql_amd64(), "_ZN8software5crc32EPKhm")), None);
}

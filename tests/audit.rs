//! The audit of small programs, and of files that are not programs.
//!
//! `tests/binaries/counts.rs` audits real servers.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use armtrace::audit::{self, classes, count, structures, Counted, Report, Structure, UnknownStructures};
use armtrace::isa::Group;
use armtrace::symbols::{Arch, DebugInfo, Image};
use lab::elf::{elf, elf_of_size, AARCH64, TEXT, X86_64};
use lab::toolchain::llvm;
use object::{Object, ObjectSection};
use tempfile::NamedTempFile;

/// The distance in bytes between the instructions of an assembled list. No instruction is longer.
const SLOT: usize = 16;

fn written(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("space for it");
    file
}

fn image(bytes: &[u8]) -> Image {
    Image::open(written(bytes).path()).expect("a program")
}

fn report(bytes: &[u8]) -> Report {
    audit::audit(&image(bytes), Path::new("test")).expect("a program with code")
}

/// Returns the names of the classes found in a program, and their counts.
fn found(arch: Arch, counted: &Counted) -> Vec<(&'static str, u32)> {
    counted.totals.iter().map(|(class, n)| (classes(arch)[usize::from(class)].name, n)).collect()
}

/// Returns the instructions in an assembly file and the class of each, which is its comment.
fn listed<'s>(source: &'s str, comment: &str) -> Vec<(&'s str, &'s str)> {
    let lines = source.lines().filter(|line| !line.starts_with(comment));
    lines.map(|line| line.split_once(comment).map(|(i, class)| (i.trim(), class.trim())).expect("a class")).collect()
}

/// Assembles the instructions, each at the beginning of a slot.
fn assembled(triple: &str, instructions: &[(&str, &str)]) -> Vec<u8> {
    let source: String = instructions.iter().map(|(text, _)| format!(".p2align 4\n{text}\n")).collect();
    let arguments = ["-mattr=+all", "-filetype=obj", "-o", "-"];
    let arguments = if triple.starts_with("x86") { &arguments[1..] } else { &arguments[..] };
    let mut assembler = Command::new(llvm("llvm-mc"))
        .arg(format!("-triple={triple}"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cannot run llvm-mc (package llvm)");
    assembler.stdin.take().expect("its input").write_all(source.as_bytes()).expect("it reads");
    let output = assembler.wait_with_output().expect("it ends");
    assert!(output.status.success(), "llvm-mc for {triple}");
    let object = object::File::parse(&*output.stdout).expect("an object file");
    object.section_by_name(".text").expect("code").data().expect("code").to_vec()
}

fn each_is_in_its_class(arch: Arch, machine: u16, triple: &str, source: &str, comment: &str) {
    let expected = listed(source, comment);
    let code = assembled(triple, &expected);
    assert_eq!(code.len().div_ceil(SLOT), expected.len());
    let mut all = std::collections::BTreeMap::new();
    for (slot, (instruction, class)) in code.chunks(SLOT).zip(&expected) {
        let counted = count(&image(&elf(machine, slot))).expect("code");
        let expected = if *class == "-" { vec![] } else { vec![(*class, 1)] };
        assert_eq!(found(arch, &counted), expected, "{instruction}");
        *all.entry(*class).or_insert(0) += 1;
    }
    all.remove("-");
    // Then count all of them in one program.
    let counted = count(&image(&elf(machine, &code))).expect("code");
    assert_eq!(found(arch, &counted).into_iter().collect::<std::collections::BTreeMap<_, _>>(), all);
    let own = classes(arch).iter().filter(|class| !class.name.starts_with("call "));
    let untested: Vec<_> = own.map(|c| c.name).filter(|name| !all.contains_key(name)).collect();
    assert!(untested.is_empty() || arch == Arch::Aarch64 && untested.iter().all(|n| is_minmax(n)), "{untested:?}");
}

/// Returns whether the class is a minimum or maximum operation, of which the list has only some orderings.
fn is_minmax(name: &str) -> bool {
    ["ldsmax", "ldsmin", "ldumax", "ldumin"].iter().any(|operation| name.starts_with(operation))
}

#[test]
fn each_x86_instruction_is_in_its_class() {
    each_is_in_its_class(Arch::X86_64, X86_64, "x86_64", include_str!("audit/x86_64.s"), "#");
}

#[test]
fn each_arm64_instruction_is_in_its_class() {
    each_is_in_its_class(Arch::Aarch64, AARCH64, "aarch64", include_str!("audit/aarch64.s"), "//");
}

fn arm64(words: &[u32]) -> Vec<u8> {
    elf(AARCH64, &words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())
}

/// ldaxr w0, [x1]; cmp w0, w2; b.ne +12; stlxr w3, w4, [x1]; cbnz w3, -16; ret
const COMPARE_AND_SWAP: [u32; 6] = [0x885f_fc20, 0x6b02_001f, 0x5400_0061, 0x8803_fc24, 0x35ff_ff83, 0xd65f_03c0];

#[test]
fn exclusive_pairs_and_loops() {
    let exclusives = |words: &[u32]| {
        let e = count(&image(&arm64(words))).expect("code").exclusives;
        (e.pairs, e.loops)
    };
    assert_eq!(exclusives(&COMPARE_AND_SWAP), (1, 1));
    // The branch tests another register or does not lead back, so the store is tried only once.
    for (at, word) in [(4, 0x35ff_ff84), (4, 0x3500_0043)] {
        let mut words = COMPARE_AND_SWAP;
        words[at] = word;
        assert_eq!(exclusives(&words), (1, 0));
    }
    // A store without its load.
    assert_eq!(exclusives(&COMPARE_AND_SWAP[3..]), (0, 0));
}

#[test]
fn a_build_without_lse_is_reported() {
    let report = report(&arm64(&COMPARE_AND_SWAP));
    let verdict = &report.verdicts[0];
    assert_eq!((verdict.id, verdict.is_finding), ("ll-sc-only", true));
    assert!(verdict.text.starts_with("LL/SC only: built without LSE or outline atomics"), "{}", verdict.text);
    assert_eq!(verdict.evidence, [format!("1 exclusive stores in sub_{TEXT:x} at {TEXT:#x}")]);
    // Add casal w0, w1, [x2].
    let with_lse = [&COMPARE_AND_SWAP[..], &[0x88e0_fc41]].concat();
    assert_eq!(self::report(&arm64(&with_lse)).verdicts[0].id, "lse-inline");
}

#[test]
fn full_fences_and_ordered_stores_are_reported() {
    let dmb_ish = 0xd503_3bbf;
    let stlr = 0x889f_fc20;
    let report = report(&arm64(&[[stlr; 9].as_slice(), &[dmb_ish; 3]].concat()));
    let ids: Vec<&str> = report.verdicts.iter().map(|v| v.id).collect();
    assert_eq!(ids, ["full-fences", "ordered-stores"]);
    assert!(report.verdicts[0].text.contains("3, in sub_1000"), "{}", report.verdicts[0].text);
    assert_eq!(report.groups[&Group::OrderedStore], 9);
    // With as many fences as stores, stores do not dominate.
    let report = self::report(&arm64(&[[stlr; 9].as_slice(), &[dmb_ish; 9]].concat()));
    assert_eq!(report.verdicts.iter().map(|v| v.id).collect::<Vec<_>>(), ["full-fences"]);
}

#[test]
fn bytes_inside_instructions_are_not_counted() {
    // mov $0xf0ae0f, %eax (which contains mfence); a long nop that contains f0 0f ae f0; ret
    let code = [0xb8, 0x0f, 0xae, 0xf0, 0x00, 0x66, 0x0f, 0x1f, 0x84, 0x00, 0xf0, 0x0f, 0xae, 0xf0, 0xc3];
    let counted = count(&image(&elf(X86_64, &code))).expect("code");
    assert_eq!((found(Arch::X86_64, &counted), counted.instructions), (vec![], 3));
}

/// Compiles a file of `tests/audit` to a shared object with debug info.
fn compiled(compiler: &str, arch: Arch, source: &str, options: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let object = folder.path().join("object.o");
    let target = format!("--target={}-linux-gnu", arch.as_str());
    let mut compile = Command::new(if compiler == CLANG { llvm(CLANG) } else { compiler.to_owned() });
    compile.args((compiler == CLANG).then_some(target)).args([
        "-g",
        "-c",
        "-fPIC",
        "-fno-eliminate-unused-debug-types",
    ]);
    run(compile.args(options).arg(Path::new("tests/audit").join(source)).arg("-o").arg(&object));
    linked(arch, &object)
}

/// Links an object, because the addresses in an object's debug info are not yet filled in.
fn linked(arch: Arch, object: &Path) -> Vec<u8> {
    let library = object.with_extension("so");
    let linker = if arch == Arch::HOST { "ld".to_owned() } else { format!("{}-linux-gnu-ld", arch.as_str()) };
    run(Command::new(linker).arg("-shared").arg(object).arg("-o").arg(&library));
    std::fs::read(library).expect("the linked library")
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(status.success(), "{command:?}");
}

const CLANG: &str = "clang";
const GCC: &str = "aarch64-linux-gnu-gcc";

fn structures_of(program: &[u8]) -> Result<Vec<Structure>, String> {
    let image = image(program);
    let found = DebugInfo::of(&image).map_err(UnknownStructures::from).and_then(|debug| structures(&debug));
    found.map_err(|why| why.to_string())
}

fn summaries(program: &[u8]) -> Vec<String> {
    let found = structures_of(program).expect("debug info");
    found.iter().map(Structure::summary).collect()
}

#[test]
fn structures_for_64_byte_cache_lines_are_reported() {
    let expected = [
        "filled (structures.c:15), 128 bytes: pad0 at 8, 56 bytes of padding; m_pad1 at 80, 48 bytes of padding",
        "aligned (structures.c:7), 64 bytes: aligned to 64",
        "aligned_member (structures.c:8), 128 bytes: b at 64, aligned to 64",
        "array_of_aligned (structures.c:10), 256 bytes: b at 64, aligned to 64",
        "by_name (structures.c:18), 64 bytes: pad at 16, 48 bytes of padding",
        "by_typedef (structures.c:12), 128 bytes: b at 64, aligned to 64",
        "filled_behind (structures.c:16), 144 bytes: Padding at 76, 60 bytes of padding",
        "free_line (structures.c:34), 192 bytes: aligned to 64",
        "of_aligned (structures.c:9), 128 bytes: b at 64, aligned to 64",
        "padded (structures.c:14), 80 bytes: pad at 8, 64 bytes of padding",
        "slot (structures.c:17), 64 bytes: pad at 0, 64 bytes of padding",
    ];
    for dwarf in ["-gdwarf-4", "-gdwarf-5"] {
        for (compiler, arch) in [(CLANG, Arch::X86_64), (CLANG, Arch::Aarch64), (GCC, Arch::Aarch64)] {
            let found = summaries(&compiled(compiler, arch, "structures.c", &[dwarf]));
            assert_eq!(found, expected, "{compiler} {dwarf} for {}", arch.as_str());
        }
    }
}

/// Older compilers, and compilers in strict mode, do not record alignment. Holes are evidence of it.
#[test]
fn holes_are_evidence_of_alignment() {
    let program = compiled(GCC, Arch::Aarch64, "structures.c", &["-gdwarf-4", "-gstrict-dwarf"]);
    let expected = [
        "filled (structures.c:15), 128 bytes: pad0 at 8, 56 bytes of padding; m_pad1 at 80, 48 bytes of padding",
        "aligned (structures.c:7), 64 bytes: a hole of 56 bytes at its end",
        "aligned_member (structures.c:8), 128 bytes: b at 64, after a hole of 56 bytes",
        "array_of_aligned (structures.c:10), 256 bytes: b at 64, after a hole of 56 bytes",
        "by_name (structures.c:18), 64 bytes: pad at 16, 48 bytes of padding",
        "by_typedef (structures.c:12), 128 bytes: b at 64, after a hole of 56 bytes",
        "filled_behind (structures.c:16), 144 bytes: Padding at 76, 60 bytes of padding",
        "free_line (structures.c:34), 192 bytes: a hole of 56 bytes at its end",
        "of_aligned (structures.c:9), 128 bytes: b at 64, after a hole of 56 bytes",
        "padded (structures.c:14), 80 bytes: pad at 8, 64 bytes of padding",
        "slot (structures.c:17), 64 bytes: pad at 0, 64 bytes of padding",
    ];
    assert_eq!(summaries(&program), expected);
}

#[test]
fn classes_are_named_with_their_scope() {
    let expected = [
        "Behind (structures.cc:25), 64 bytes: pad at 8, 56 bytes of padding",
        "Derived (structures.cc:24), 192 bytes: Padded<int> at 64, aligned to 64",
        "Outer::(anonymous) (structures.cc:26), 64 bytes: pad at 0, 64 bytes of padding",
        "ns::(anonymous)::Hidden (structures.cc:19), 64 bytes: a at 0, aligned to 64",
        "ns::Outer (structures.cc:9), 128 bytes: b at 64, aligned to 64",
        "ns::Outer::Later (structures.cc:16), 64 bytes: a at 0, aligned to 64",
        "ns::Outer::Nested (structures.cc:10), 64 bytes: m_pad at 8, 56 bytes of padding",
        "ns::Padded<int> (structures.cc:7), 64 bytes: aligned to 64",
        "ns::Padded<unsigned long> (structures.cc:7), 64 bytes: aligned to 64",
    ];
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let program = compiled(CLANG, arch, "structures.cc", &["-fstandalone-debug"]);
        assert_eq!(summaries(&program), expected, "{}", arch.as_str());
    }
}

/// Type units hold types separately from the code that uses them. A `typedef` for a type in a type unit is not
/// followed.
#[test]
fn type_units_are_read() {
    for dwarf in ["-gdwarf-4", "-gdwarf-5"] {
        let together = summaries(&compiled(GCC, Arch::Aarch64, "structures.c", &[dwarf]));
        let mut apart = summaries(&compiled(GCC, Arch::Aarch64, "structures.c", &[dwarf, "-fdebug-types-section"]));
        let by_name = apart.iter_mut().find(|s| s.starts_with("(anonymous)")).expect("an anonymous structure");
        *by_name = by_name.replace("(anonymous)", "by_name");
        apart.sort();
        assert_eq!(apart, BTreeSet::from_iter(together).into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn short_lines_are_a_finding_where_longer_ones_exist() {
    let [amd64, arm64] = [Arch::X86_64, Arch::Aarch64].map(|arch| compiled(CLANG, arch, "structures.c", &[]));
    let verdicts = [&amd64, &arm64].map(|program| report(program).verdicts);
    for (verdicts, is_finding) in verdicts.iter().zip([false, true]) {
        let verdict = verdicts.iter().find(|v| v.id == "64-byte-lines").expect("structures for short lines");
        assert_eq!((verdict.is_finding, verdict.evidence.len()), (is_finding, 11), "{verdict:?}");
        assert!(verdict.text.starts_with("11 structures are laid out for 64-byte cache lines, "), "{}", verdict.text);
    }
    // Without debug info, structures are unknown, which is not reported as none.
    let without = report(&elf(AARCH64, &[0; 64]));
    assert_eq!(without.structures, None);
    assert!(without.verdicts.is_empty(), "{:?}", without.verdicts);
    let same = audit::compare(report(&amd64), report(&arm64));
    assert_eq!(same.structures, Some(vec![]));
    let other = audit::compare(report(&arm64), report(&compiled(CLANG, Arch::Aarch64, "structures.cc", &[])));
    let differing = other.structures.as_ref().expect("both have debug info");
    let slot = differing.iter().find(|d| d.name == "slot").expect("a structure of the first");
    assert_eq!(slot.layouts(), ["64 bytes: pad at 0, 64 bytes of padding", "none"]);
    let text = audit::Text(&other).to_string();
    assert!(text.contains("\n  slot: 64 bytes: pad at 0, 64 bytes of padding -> none\n"), "{text}");
    let html = audit::Html(&other).to_string();
    assert!(html.contains("<td>64 bytes: pad at 0, 64 bytes of padding</td><td>none</td>"), "{html}");
    let html = audit::Html(&report(&arm64)).to_string();
    assert!(html.contains(
        "<td>pad0 at 8, 56 bytes of padding; m_pad1 at 80, 48 bytes of padding</td><td>structures.c:15</td>"
    ));
    assert_eq!(audit::compare(report(&arm64), without).structures, None);
}

#[test]
fn hostile_debug_info_does_not_hang() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let object = folder.path().join("object.o");
    run(Command::new(llvm("llvm-mc"))
        .args(["-triple=x86_64", "-filetype=obj", "tests/audit/hostile.s", "-o"])
        .arg(&object));
    let found = summaries(&linked(Arch::X86_64, &object));
    assert_eq!(found, ["right?[2J, 192 bytes: b at 64, after a hole of 63 bytes"]);
}

/// Returns a copy of a program with its debug info compressed in this format.
fn recompressed(program: &[u8], format: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, program).expect("space for it");
    run(Command::new("objcopy").arg(format!("--compress-debug-sections={format}")).args([&from, &to]));
    std::fs::read(to).expect("the converted program")
}

#[test]
fn compressed_debug_info_is_read() {
    let program = compiled(CLANG, Arch::X86_64, "structures.cc", &["-fstandalone-debug"]);
    for (how, section) in [("zlib-gabi", ".debug_info"), ("zlib-gnu", ".zdebug_info")] {
        let compressed = recompressed(&program, how);
        let file = object::File::parse(&*compressed).expect("a program");
        let names: Vec<&str> = file.sections().filter_map(|s| s.name().ok()).collect();
        assert!(names.contains(&section), "{how}: {names:?}");
        assert!(compressed.len() < program.len(), "{how}");
        assert_eq!(summaries(&compressed), summaries(&program), "{how}");
        let source = |program: &[u8]| report(program).functions.first().and_then(|f| f.source.clone());
        assert_eq!(source(&compressed), source(&program), "{how}");
    }
}

/// The header of a compressed section starts with the compression type, which the test changes to zstd.
#[test]
fn sections_compressed_by_zstd_are_reported() {
    let program = compiled(CLANG, Arch::X86_64, "structures.cc", &["-fstandalone-debug"]);
    let mut bytes = recompressed(&program, "zlib-gabi");
    let file = object::File::parse(&*bytes).expect("a program");
    let (at, _) = file.section_by_name(".debug_info").and_then(|s| s.file_range()).expect("a section");
    bytes[at as usize] = 2;
    let error = structures_of(&bytes).expect_err("zstd");
    assert!(error.contains(".debug_info is compressed by zstd"), "{error}");
}

/// A compressed section may claim any size. In its header, the size is the 64-bit number after the compression type.
#[test]
fn wrong_sizes_of_compressed_sections_are_reported() {
    let program = compiled(CLANG, Arch::X86_64, "structures.cc", &["-fstandalone-debug"]);
    let compressed = recompressed(&program, "zlib-gabi");
    let file = object::File::parse(&*compressed).expect("a program");
    let (at, _) = file.section_by_name(".debug_str").and_then(|s| s.file_range()).expect("a section");
    for (size, why) in
        [(1 << 40, "claims to have 1099511627776 bytes"), (u64::MAX, "claims"), (3, "bytes that it claims")]
    {
        let mut bytes = compressed.clone();
        bytes[at as usize + 8..][..8].copy_from_slice(&u64::to_le_bytes(size));
        let error = structures_of(&bytes).expect_err("the size is wrong");
        assert!(error.contains(".debug_str") && error.contains(why), "{error}");
        assert_eq!(report(&bytes).structures, None);
    }
}

/// Any result will do, but there must be one. The damage is the same in every run.
#[test]
fn damaged_debug_info_is_survived() {
    let whole = compiled(CLANG, Arch::Aarch64, "structures.cc", &["-fstandalone-debug"]);
    let file = object::File::parse(&*whole).expect("a program");
    let is_debug = |name: &str| [".debug_info", ".debug_abbrev", ".debug_str", ".debug_line"].contains(&name);
    let sections: Vec<_> = file.sections().filter(|s| s.name().is_ok_and(is_debug)).collect();
    let ranges: Vec<_> = sections.iter().filter_map(ObjectSection::file_range).collect();
    assert_eq!(ranges.len(), 4);
    let right = structures_of(&whole);
    let mut random = random();
    let mut changed = 0;
    for round in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random(4) {
            let (begin, size) = ranges[round % ranges.len()];
            bytes[begin as usize + random(size as usize)] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
        }
        changed += u32::from(structures_of(&bytes) != right);
    }
    assert!(changed > 500, "{changed}");
}

fn armtrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_armtrace")).arg("audit").args(arguments).output().expect("armtrace")
}

/// Checks that the audit fails with one line of error, status 1 and nothing on standard output.
fn is_rejected(path: &Path, why: &str) {
    let output = armtrace(&[path.to_str().expect("UTF-8")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{path:?}: {errors}");
    assert!(errors.starts_with("armtrace: ") && errors.lines().count() == 1, "{errors}");
    assert!(errors.contains(why), "{errors}");
    assert!(output.stdout.is_empty());
}

fn bytes_are_rejected(bytes: &[u8], why: &str) {
    is_rejected(written(bytes).path(), why);
}

#[test]
fn files_that_are_not_programs_are_rejected() {
    is_rejected(Path::new("/nowhere/mysqld"), "No such file");
    is_rejected(Path::new("/"), "not a file");
    is_rejected(Path::new("/dev/null"), "not a file");
    bytes_are_rejected(b"", "not a usable ELF file");
    bytes_are_rejected(b"#!/bin/sh\n", "not a usable ELF file");
    bytes_are_rejected(&elf(243, &[0; 64]), "for a machine that armtrace does not know");
    bytes_are_rejected(&elf(AARCH64, &[]), "no code");
    let mut class32 = elf(AARCH64, &[0; 64]);
    class32[4] = 1;
    bytes_are_rejected(&class32, "not a usable ELF file");
}

#[test]
fn truncated_programs_are_rejected() {
    let whole = elf(X86_64, &[0x90; 256]);
    assert_eq!(armtrace(&[written(&whole).path().to_str().expect("UTF-8")]).status.code(), Some(0));
    for length in [1, 4, 16, 63, 64, 100, 130, 200, 0xfff, 0x1000, 0x10ff] {
        bytes_are_rejected(&whole[..length], "not a usable ELF file");
    }
}

#[test]
fn a_sparse_gibibyte_is_rejected() {
    let file = written(&[]);
    file.as_file().set_len(1 << 30).expect("a sparse file");
    is_rejected(file.path(), "not a usable ELF file");
    let file = written(&elf_of_size(X86_64, &[], (1 << 30) - TEXT));
    file.as_file().set_len(1 << 30).expect("a sparse file");
    is_rejected(file.path(), "MiB of code");
}

/// Returns a generator of numbers below a bound, which are the same in every run.
fn random() -> impl FnMut(usize) -> usize {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below.max(1) as u64) as usize
    }
}

/// Any result will do, but there must be one. The damage is the same in every run.
#[test]
fn damaged_programs_are_survived() {
    let whole = std::fs::read("/bin/true").expect("a small program");
    let mut random = random();
    let headers = [0..64, 64..1024, whole.len().saturating_sub(2200)..whole.len(), 0..whole.len()];
    let mut audited = 0;
    for round in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random(6) {
            let part = headers[round % headers.len()].clone();
            let at = part.start + random(part.len());
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
        }
        if round % 7 == 0 {
            bytes.truncate(random(whole.len()));
        }
        let Ok(image) = Image::open(written(&bytes).path()) else { continue };
        audited += u32::from(audit::audit(&image, Path::new("damaged")).is_ok());
    }
    assert!(audited > 500, "{audited}");
}

#[test]
fn every_format_is_written() {
    let file = written(&arm64(&COMPARE_AND_SWAP));
    let path = file.path().to_str().expect("UTF-8");
    let text = |arguments: &[&str]| {
        let output = armtrace(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert!(text(&[path]).contains("! LL/SC only"));
    let json: serde_json::Value = serde_json::from_str(&text(&[path, "--format", "json"])).expect("JSON");
    assert_eq!(json["totals"][0]["instruction"], "ldaxr");
    assert_eq!(json["functions"][0]["instructions"]["stlxr"], 1);
    let html = text(&[path, "--format", "html"]);
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n") && !html.contains("://"), "{html}");
    let other = written(&elf(X86_64, &[0x0f, 0xae, 0xf0]));
    let both = [path, other.path().to_str().expect("UTF-8")];
    assert!(text(&both).contains("full fence"));
    let json: serde_json::Value = serde_json::from_str(&text(&[both[0], both[1], "--format", "json"])).expect("JSON");
    assert_eq!(json["instructions"]["mfence"], serde_json::json!([0, 1]));
    assert!(text(&[both[0], both[1], "--format", "html"]).contains("<td>+1</td>"));
}

/// `ARMTRACE_BLESS=1 cargo test --test audit` writes the reports anew.
#[test]
fn a_report_lists_all_instructions() {
    let program = |machine, triple, source, comment, more: &[u8]| {
        let code = assembled(triple, &listed(source, comment));
        report(&elf(machine, &[code.as_slice(), more].concat()))
    };
    let arm64 = |more: &[u8]| program(AARCH64, "aarch64", include_str!("audit/aarch64.s"), "//", more);
    let stlr: Vec<u8> = [0x889f_fc20_u32; 9].iter().flat_map(|word| word.to_le_bytes()).collect();
    fn check<T: serde::Serialize>(name: &str, text: &str, html: &str, value: &T) {
        lab::golden::check(&format!("audit/{name}.txt"), text);
        lab::golden::check(&format!("audit/{name}.html"), html);
        let json = serde_json::to_string_pretty(value).expect("it can be serialized");
        lab::golden::check(&format!("audit/{name}.json"), &json);
    }
    let x86 = program(X86_64, "x86_64", include_str!("audit/x86_64.s"), "#", &[]);
    for (name, report) in [("x86_64", &x86), ("aarch64", &arm64(&[]))] {
        check(name, &audit::Text(report).to_string(), &audit::Html(report).to_string(), report);
    }
    for (name, other) in [("other-architecture", x86), ("more-stores", arm64(&stlr))] {
        let comparison = audit::compare(arm64(&[]), other);
        check(name, &audit::Text(&comparison).to_string(), &audit::Html(&comparison).to_string(), &comparison);
    }
}

//! What the audit says about structures, from the debug information of compiled programs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use armtrace::audit::{self, structures, Structure, UnknownStructures};
use armtrace::symbols::{Arch, DebugInfo};
use lab::audited::{image, report};
use lab::elf::{elf, AARCH64};
use lab::toolchain::llvm;
use object::{Object, ObjectSection};

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
    let mut random = fastrand::Rng::with_seed(1);
    let mut changed = 0;
    for round in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.usize(..4) {
            let (begin, size) = ranges[round % ranges.len()];
            bytes[begin as usize + random.usize(..size as usize)] =
                [0, 1, 0x7f, 0x80, 0xff, random.u8(..)][random.usize(..6)];
        }
        changed += u32::from(structures_of(&bytes) != right);
    }
    assert!(changed > 500, "{changed}");
}

//! The audit of small programs, and of files that are not programs.
//!
//! `tests/programs` audits programs that it compiles, and `tests/binaries/counts.rs` real servers.

use std::path::Path;
use std::process::{Command, Output};

use armtrace::audit::{audit, count};
use armtrace::isa::Group;
use armtrace::symbols::{Arch, Image};
use lab::audited::{found, image, report, written};
use lab::elf::{elf, elf_of_size, AARCH64, TEXT, X86_64};

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

/// Any result will do, but there must be one. The damage is the same in every run.
#[test]
fn damaged_programs_are_survived() {
    let whole = std::fs::read("/bin/true").expect("a small program");
    let mut random = fastrand::Rng::with_seed(1);
    let headers = [0..64, 64..1024, whole.len().saturating_sub(2200)..whole.len(), 0..whole.len()];
    let mut audited = 0;
    for round in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.usize(..6) {
            let part = headers[round % headers.len()].clone();
            let at = part.start + random.usize(..part.len());
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)][random.usize(..6)];
        }
        if round % 7 == 0 {
            bytes.truncate(random.usize(..whole.len()));
        }
        let Ok(image) = Image::open(written(&bytes).path()) else { continue };
        audited += u32::from(audit(&image, Path::new("damaged")).is_ok());
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

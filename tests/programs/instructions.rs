//! Assembled instructions of both architectures, and the class in which the audit counts each.

use std::io::Write;
use std::process::{Command, Stdio};

use armtrace::audit::{self, classes, count};
use armtrace::symbols::Arch;
use lab::audited::{found, image, report};
use lab::elf::{elf, AARCH64, X86_64};
use lab::toolchain::llvm;
use object::{Object, ObjectSection};

/// The distance in bytes between the instructions of an assembled list. No instruction is longer.
const SLOT: usize = 16;

/// Returns the instructions in an assembly file and the class of each, which is its comment.
fn listed<'s>(source: &'s str, comment: &str) -> Vec<(&'s str, &'s str)> {
    let lines = source.lines().filter(|line| !line.starts_with(comment));
    lines.map(|line| line.split_once(comment).map(|(i, class)| (i.trim(), class.trim())).expect("a class")).collect()
}

/// Assembles the instructions, each at the beginning of a slot.
fn assembled(triple: &str, instructions: &[(&str, &str)]) -> Vec<u8> {
    let source: String = instructions.iter().map(|(text, _)| format!(".p2align 4\n{text}\n")).collect();
    // What else decides differs between versions of LLVM: which extensions there are, and by how many no-ops a slot is
    // filled.
    let processor = if triple == "aarch64" { "-mattr=+v9.3a,+aes,+mte,+sve2" } else { "-mcpu=skylake" };
    let mut assembler = Command::new(llvm("llvm-mc"))
        .arg(format!("-triple={triple}"))
        .args([processor, "-filetype=obj", "-o", "-"])
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
    each_is_in_its_class(Arch::X86_64, X86_64, "x86_64", include_str!("../audit/x86_64.s"), "#");
}

#[test]
fn each_arm64_instruction_is_in_its_class() {
    each_is_in_its_class(Arch::Aarch64, AARCH64, "aarch64", include_str!("../audit/aarch64.s"), "//");
}

/// `ARMTRACE_BLESS=1 cargo test --test programs` writes the reports anew.
#[test]
fn a_report_lists_all_instructions() {
    let program = |machine, triple, source, comment, more: &[u8]| {
        let code = assembled(triple, &listed(source, comment));
        report(&elf(machine, &[code.as_slice(), more].concat()))
    };
    let arm64 = |more: &[u8]| program(AARCH64, "aarch64", include_str!("../audit/aarch64.s"), "//", more);
    let stlr: Vec<u8> = [0x889f_fc20_u32; 9].iter().flat_map(|word| word.to_le_bytes()).collect();
    fn check<T: serde::Serialize>(name: &str, text: &str, html: &str, value: &T) {
        lab::golden::check(&format!("audit/{name}.txt"), text);
        lab::golden::check(&format!("audit/{name}.html"), html);
        let json = serde_json::to_string_pretty(value).expect("it can be serialized");
        lab::golden::check(&format!("audit/{name}.json"), &json);
    }
    let x86 = program(X86_64, "x86_64", include_str!("../audit/x86_64.s"), "#", &[]);
    for (name, report) in [("x86_64", &x86), ("aarch64", &arm64(&[]))] {
        check(name, &audit::Text(report).to_string(), &audit::Html(report).to_string(), report);
    }
    for (name, other) in [("other-architecture", x86), ("more-stores", arm64(&stlr))] {
        let comparison = audit::compare(arm64(&[]), other);
        check(name, &audit::Text(&comparison).to_string(), &audit::Html(&comparison).to_string(), &comparison);
    }
}

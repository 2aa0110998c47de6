//! Tests what is known of single instructions, against the lists in `lists/`.

use std::fmt::Write;

use super::{decode_bytes, x86, Effect, Flow, Insn};
use crate::golden::compare;
use crate::symbols::Arch;

const BASE: u64 = 0x10000;

fn shown(effect: &Effect) -> String {
    match *effect {
        Effect::Copy { to, from, bytes } => format!("r{to} = r{from} ({bytes})"),
        Effect::Offset { to, from, by } => format!("r{to} = r{from} {by:+}"),
        Effect::Constant { to, value } => format!("r{to} = {value:#x}"),
        Effect::Insert { to, value, shift } => format!("r{to} = {value:#x} from bit {shift}"),
        Effect::And { to, mask, bytes } => format!("r{to} &= {mask:#x} ({bytes})"),
        Effect::Or { to, from, bytes } => format!("r{to} |= r{from} ({bytes})"),
        Effect::Take { to, from, mask } => format!("r{to} = r{from} in {mask:#x}"),
        Effect::Store { base, offset, from: Some(from), bytes } => format!("[r{base}{offset:+}] = r{from} ({bytes})"),
        Effect::Store { base, offset, from: None, bytes } => format!("[r{base}{offset:+}] = ? ({bytes})"),
        Effect::Load { to, base, offset, bytes } => format!("r{to} = [r{base}{offset:+}] ({bytes})"),
        Effect::Clobber(register) => format!("r{register} = ?"),
        Effect::Call => "call".to_owned(),
        Effect::Unknown => "?".to_owned(),
    }
}

/// Returns what is known of an instruction: its effects, and everything that most instructions do not have.
fn known(insn: &Insn) -> String {
    let mut all = Vec::new();
    insn.effects(&mut all);
    let mut text = all.iter().map(shown).collect::<Vec<_>>().join(", ");
    let mut add = |what: &str, value: Option<String>| {
        value
            .into_iter()
            .for_each(|value| _ = write!(text, "; {what}{}{value}", if value.is_empty() { "" } else { " " }));
    };
    let flag = |is_so: bool| is_so.then(String::new);
    add("", Some(format!("{:?}", insn.probing).to_lowercase()));
    add("flow", (insn.flow != Flow::Next).then(|| format!("{:x?}", insn.flow)));
    add("test", insn.branch_test().map(|test| format!("{test:?}")));
    add("static", insn.memory.map(|at| format!("{at:#x}")));
    add("number", insn.immediate().map(|number| format!("{number:#x}")));
    add("memory", flag(insn.touches_memory()));
    add(
        "at",
        insn.operand()
            .map(|(base, offset)| base.map_or_else(String::new, |base| format!("r{base}")) + &format!("{offset:+#x}")),
    );
    add("access", insn.access().map(|access| format!("{access:?}").to_lowercase()));
    add("atomic", flag(insn.is_atomic()));
    add("reads 4", flag(insn.reads_four_bytes()));
    add("padding", flag(insn.is_padding()));
    add("landing pad", flag(insn.is_landing_pad()));
    add("spin hint", flag(insn.is_spin_hint()));
    add("stores", insn.stored_number().map(|number| format!("{number:#x}")));
    add("page", insn.page().map(|at| format!("{at:#x}")));
    add("system call", flag(insn.is_system_call()));
    if insn.arch == Arch::X86_64 {
        add("lanes", x86::lanes(insn).map(|lanes| format!("{lanes:?}")));
        add("attempt", x86::attempt(insn).map(|attempt| format!("{attempt:?}")));
        add("zero", Some(format!("{:?}", x86::zero_use(insn))));
    }
    text
}

/// Checks each line of a file: the bytes in hexadecimal, the instruction, and what is known of it.
fn check(arch: Arch, name: &str, list: &str) {
    let mut all = String::new();
    for line in list.lines() {
        let bytes: Vec<u8> = line
            .split(' ')
            .next()
            .unwrap_or_default()
            .as_bytes()
            .chunks_exact(2)
            .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).expect("digits"), 16).expect("a byte"))
            .collect();
        let found = decode_bytes(arch, BASE, &bytes);
        assert_eq!(found.len(), 1, "{line}");
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        _ = writeln!(all, "{digits:<20} {:<32} {}", found[0].text(), known(&found[0]));
    }
    compare(&format!("isa/lists/{name}"), &all);
}

#[test]
fn each_x86_instruction_is_known() {
    check(Arch::X86_64, "x86_64.txt", include_str!("lists/x86_64.txt"));
}

#[test]
fn each_arm64_instruction_is_known() {
    check(Arch::Aarch64, "aarch64.txt", include_str!("lists/aarch64.txt"));
}

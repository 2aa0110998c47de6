//! What the kernel does with a uprobe on an x86-64 instruction.

use crate::isa::insn::Probing;

/// Returns how the kernel probes the instruction: `arch/x86/kernel/uprobes.c` (`is_prefix_bad`, `good_insns_64`,
/// `good_2byte_insns`, `branch_setup_xol_ops`, `push_setup_xol_ops`).
pub(super) fn of(raw: &[u8]) -> Probing {
    let is_prefix = |b: u8| matches!(b, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
    let prefixes = raw.iter().take_while(|&&b| is_prefix(b)).count();
    let (prefix, rest) = raw.split_at(prefixes);
    if prefix.iter().any(|b| matches!(b, 0xf0 | 0x26 | 0x2e | 0x36 | 0x3e)) {
        return Probing::Refused;
    }
    let rex = rest.first().copied().filter(|b| b & 0xf0 == 0x40);
    let opcode = &rest[usize::from(rex.is_some())..];
    match *opcode {
        // The kernel does not support branches with an operand-size prefix ("not supported").
        [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] if prefix.contains(&0x66) => Probing::Refused,
        [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] => Probing::Emulated,
        [0x90, ..] if prefix.is_empty() && rex.is_none() => Probing::Emulated,
        // `pause` is a nop to kernels before 6.18, and single-stepped since.
        [0x90, ..] if prefix == [0xf3] && rex.is_none() => Probing::Stepped,
        // With other prefixes, older kernels refuse 90; later ones treat it as a nop even where it is `xchg %rax,%r8`.
        [0x90, ..] => Probing::Refused,
        [0x50..=0x57] if prefix.is_empty() && matches!(rex, None | Some(0x41)) => Probing::Emulated,
        // For VEX, EVEX and XOP prefixes, the kernel looks up the opcode in the wrong table.
        [0xc4 | 0xc5 | 0x62 | 0x8f, ..] => Probing::Refused,
        [b, ..] if !may_step(b) => Probing::Refused,
        [0x0f, b, ..] if !may_step_two_byte(b) => Probing::Refused,
        _ => Probing::Stepped,
    }
}

/// Returns whether the kernel steps this one-byte opcode in a 64-bit program. `mov` to a segment register is excluded,
/// because the processor delays traps after it.
fn may_step(opcode: u8) -> bool {
    !matches!(
        opcode,
        0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x27 | 0x2f | 0x37 | 0x3f | 0x60..=0x62 | 0x6c..=0x6f
            | 0x82 | 0x8e | 0x9a | 0xcc..=0xcf | 0xd4..=0xd6 | 0xe4..=0xe7 | 0xea | 0xec..=0xef
            | 0xf1 | 0xf4 | 0xfa | 0xfb
    )
}

fn may_step_two_byte(opcode: u8) -> bool {
    !matches!(opcode, 0x00 | 0x01 | 0x05..=0x09 | 0x0b | 0x30 | 0x34 | 0x35 | 0x37 | 0x78 | 0x79 | 0xae)
}

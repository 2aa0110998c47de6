//! What the kernel does with a uprobe on an arm64 instruction.

use super::word::Word;
use super::MAX_EXCLUSIVE;
use crate::isa::insn::{Insn, Probing};

/// Returns how the kernel probes the instruction for a uprobe: `arch/arm64/kernel/probes/decode-insn.c`
/// (`arm_probe_decode_insn`, `aarch64_insn_is_steppable`). Literal loads are simulated for kprobes only.
pub(super) fn of(word: Word) -> Probing {
    let emulated = [
        (0x7c00_0000, 0x1400_0000), // b, bl
        (0xff00_0010, 0x5400_0000), // b.cond
        (0x7e00_0000, 0x3400_0000), // cbz, cbnz
        (0x7e00_0000, 0x3600_0000), // tbz, tbnz
        (0x1f00_0000, 0x1000_0000), // adr, adrp
        (0xffff_fc1f, 0xd61f_0000), // br
        (0xffff_fc1f, 0xd63f_0000), // blr
        (0xffff_fc1f, 0xd65f_0000), // ret
    ];
    let is = |&(mask, value): &(u32, u32)| word.is(mask, value);
    if emulated.iter().any(is) {
        return Probing::Emulated;
    }
    if word.is_hint() {
        return if may_step(word.hint()) { Probing::Stepped } else { Probing::Refused };
    }
    let refused = [
        (0xfe00_0000, 0xd600_0000), // authenticated branches, eret
        (0xff00_0000, 0xd400_0000), // svc, hvc, smc, brk, hlt
        (0xff00_0000, 0x5400_0000), // bc.cond
        (0xfff8_f01f, 0xd500_401f), // msr (immediate)
        (0xfff0_0000, 0xd510_0000), // msr (register)
        (0x3b00_0000, 0x1800_0000), // literal loads
        (0x3f80_0000, 0x0800_0000), // exclusive loads and stores, casp
        (0xffff_0000, 0x0000_0000), // udf
    ];
    if refused.iter().any(is) || word.class() <= 3 {
        return Probing::Refused;
    }
    Probing::Stepped
}

/// Returns whether the kernel steps this hint: nop, and those that sign, authenticate, or mark a branch target.
fn may_step(hint: u32) -> bool {
    matches!(hint, 0 | 7 | 8 | 10 | 12 | 14 | 24..=31 | 32 | 34 | 36 | 38)
}

/// Refuses probes between an exclusive load and its store, where a trap would make the store fail forever.
pub(super) fn refuse_exclusive_sequences(insns: &mut [Insn]) {
    let mut left = 0;
    for insn in insns {
        let word = insn.word();
        if word.is_exclusive() && word.loads() {
            left = MAX_EXCLUSIVE;
        } else if word.is_exclusive() {
            left = 0;
        } else if left > 0 {
            left -= 1;
            insn.probing = Probing::Refused;
        }
    }
}

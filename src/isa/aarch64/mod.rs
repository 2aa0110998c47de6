//! arm64 (A64) instructions: every one is a [`Word`]. yaxpeax-arm is used only for display.

mod class;
mod effects;
mod probing;
mod text;
mod thread;
mod word;

use std::collections::HashSet;

pub use self::class::{classes, classified, classify};
pub(super) use self::effects::effects;
pub(super) use self::text::text;
pub(super) use self::thread::thread_effect;
pub use self::word::{words, words_at, Word};
use super::insn::{Effect, Flow, Insn, MAX_LEN};
use crate::symbols::Arch;

pub const SP: u8 = 31;
pub const FP: u8 = 29;
pub const LR: u8 = 30;

/// The registers of the first six integer arguments (AAPCS64).
pub const ARGUMENTS: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// The registers that a function may change without restoring them: x0 to x17, the platform's x18, and the
/// return address.
pub const CALLER_SAVED: [u8; 20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 30];

/// The longest exclusive sequence that the architecture guarantees to succeed eventually, in instructions (the kernel
/// uses the same figure for kprobes).
pub const MAX_EXCLUSIVE: usize = 32;

pub(super) fn decode(base: u64, bytes: &[u8]) -> Vec<Insn> {
    let mut found: Vec<Insn> = words_at(base, bytes)
        .map(|(addr, word)| {
            let mut raw = [0; MAX_LEN];
            raw[..4].copy_from_slice(&word.0.to_le_bytes());
            let (flow, probing) = (flow(word, addr), probing::of(word));
            Insn { addr, len: 4, flow, probing, memory: None, arch: Arch::Aarch64, raw }
        })
        .collect();
    probing::refuse_exclusive_sequences(&mut found);
    resolve_memory(&mut found);
    found
}

fn flow(word: Word, addr: u64) -> Flow {
    if let Some(to) = word.branch(addr) {
        return if word.links() { Flow::Call(Some(to)) } else { Flow::Jump(to) };
    }
    if let Some(branch) = word.zero_branch(addr) {
        return Flow::Branch(branch.to);
    }
    match word {
        _ if word.is_flags_branch() => Flow::Branch(word.target(addr, 5, 19)),
        _ if word.is_bit_branch() => Flow::Branch(word.target(addr, 5, 14)),
        // Unconditional branch (register), including authenticated forms.
        _ if word.is(0xfe00_0000, 0xd600_0000) => match word.field(21, 4) {
            0 | 8 => Flow::IndirectJump,
            1 | 9 => Flow::Call(None),
            2 | 4 => Flow::Return,
            _ => Flow::Next,
        },
        // udf, brk, hlt
        _ if word.is(0xffff_0000, 0) => Flow::Trap,
        _ if word.is(0xffe0_001f, 0xd420_0000) || word.is(0xffe0_001f, 0xd440_0000) => Flow::Trap,
        _ => Flow::Next,
    }
}

/// Fills in `memory` by following each `adrp` along its straight line.
fn resolve_memory(insns: &mut [Insn]) {
    let targets: HashSet<u64> = insns
        .iter()
        .filter_map(|i| match i.flow {
            Flow::Jump(to) | Flow::Branch(to) => Some(to),
            _ => None,
        })
        .collect();
    let mut pages = [None; 32];
    let mut changes = Vec::new();
    for insn in insns {
        let word = insn.word();
        // Another path leads here, with other values.
        if targets.contains(&insn.addr) || word.is_landing_pad() {
            pages = [None; 32];
        }
        insn.memory = memory(insn, &pages);
        changes.clear();
        effects(insn, &mut changes);
        for change in &changes {
            apply(change, &mut pages);
        }
        if matches!(insn.flow, Flow::Jump(_) | Flow::IndirectJump | Flow::Return | Flow::Trap) {
            pages = [None; 32];
        }
    }
}

fn memory(insn: &Insn, pages: &[Option<u64>; 32]) -> Option<u64> {
    let word = insn.word();
    if let Some(address) = word.address(insn.addr).filter(|_| !word.is_wide()) {
        return Some(address);
    }
    if word.is_literal_load() {
        return Some(word.target(insn.addr, 5, 19));
    }
    if let Some((base, offset)) = word.addition().map(|(_, from, by)| (from, by)).or_else(|| word.unsigned_offset()) {
        return pages[usize::from(base)].map(|page| page.wrapping_add_signed(offset));
    }
    None
}

/// Tracks static addresses in registers; sp never holds one.
fn apply(change: &Effect, pages: &mut [Option<u64>; 32]) {
    let value = |r: u8, pages: &[Option<u64>; 32]| if r == SP { None } else { pages[usize::from(r)] };
    match *change {
        Effect::Constant { to, value } => pages[usize::from(to)] = Some(value),
        Effect::Copy { to, from, bytes: 8 } => pages[usize::from(to)] = value(from, pages),
        Effect::Offset { to, from, by } => {
            pages[usize::from(to)] = value(from, pages).map(|v| v.wrapping_add_signed(by));
        }
        Effect::Insert { to, .. }
        | Effect::Copy { to, .. }
        | Effect::Load { to, .. }
        | Effect::And { to, .. }
        | Effect::Or { to, .. }
        | Effect::Take { to, .. }
        | Effect::Clobber(to) => {
            pages[usize::from(to)] = None;
        }
        Effect::Call => CALLER_SAVED.iter().for_each(|&r| pages[usize::from(r)] = None),
        Effect::Unknown => *pages = [None; 32],
        Effect::Store { .. } => {}
    }
    pages[usize::from(SP)] = None;
}

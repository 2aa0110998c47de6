//! arm64 (A64) instructions. The encoding is regular enough to read the few needed fields directly from the instruction
//! word (Arm ARM, C4.1 "A64 instruction set encoding"); yaxpeax-arm is used only for display.

use std::collections::HashSet;

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

use super::insn::{Effect, Flow, Insn, Probing, Test, MAX_LEN};
use crate::symbols::Arch;

pub(super) const SP: u8 = 31;
pub(super) const FP: u8 = 29;
pub(super) const LR: u8 = 30;
pub(super) const NOP: u32 = 0xd503_201f;

/// The registers of the first six integer arguments (AAPCS64).
pub(super) const ARGUMENTS: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// The registers that a function may change without restoring them: x0 to x17, the platform's x18, and the
/// return address.
pub(super) const CALLER_SAVED: [u8; 20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 30];

/// The longest exclusive sequence that the architecture guarantees to succeed eventually, in instructions (the kernel
/// uses the same figure for kprobes).
const MAX_EXCLUSIVE: usize = 32;

pub(super) fn decode(base: u64, bytes: &[u8]) -> Vec<Insn> {
    let mut found: Vec<Insn> = bytes
        .chunks_exact(4)
        .enumerate()
        .map(|(i, chunk)| {
            let word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            let addr = base.wrapping_add(i as u64 * 4);
            let mut raw = [0; MAX_LEN];
            raw[..4].copy_from_slice(chunk);
            let (flow, probing) = (flow(word, addr), probing(word));
            Insn { addr, len: 4, flow, probing, memory: None, arch: Arch::Aarch64, raw }
        })
        .collect();
    refuse_exclusive_sequences(&mut found);
    resolve_memory(&mut found);
    found
}

/// Returns `width` bits of `word`, starting at bit `low`.
const fn field(word: u32, low: u32, width: u32) -> u32 {
    (word >> low) & ((1 << width) - 1)
}

const fn register(word: u32, low: u32) -> u8 {
    field(word, low, 5) as u8
}

/// Sign-extends the low `bits` of `value`.
const fn signed(value: u32, bits: u32) -> i64 {
    ((value as i64) << (64 - bits)) >> (64 - bits)
}

fn flow(word: u32, addr: u64) -> Flow {
    let to = |offset: i64| addr.wrapping_add_signed(offset * 4);
    match word {
        _ if word & 0xfc00_0000 == 0x1400_0000 => Flow::Jump(to(signed(field(word, 0, 26), 26))),
        _ if word & 0xfc00_0000 == 0x9400_0000 => Flow::Call(Some(to(signed(field(word, 0, 26), 26)))),
        // b.cond, bc.cond; cbz, cbnz; tbz, tbnz
        _ if word & 0xff00_0000 == 0x5400_0000 => Flow::Branch(to(signed(field(word, 5, 19), 19))),
        _ if word & 0x7e00_0000 == 0x3400_0000 => Flow::Branch(to(signed(field(word, 5, 19), 19))),
        _ if word & 0x7e00_0000 == 0x3600_0000 => Flow::Branch(to(signed(field(word, 5, 14), 14))),
        // Unconditional branch (register), including authenticated forms.
        _ if word & 0xfe00_0000 == 0xd600_0000 => match field(word, 21, 4) {
            0 | 8 => Flow::IndirectJump,
            1 | 9 => Flow::Call(None),
            2 | 4 => Flow::Return,
            _ => Flow::Next,
        },
        _ if word & 0xffff_0000 == 0 => Flow::Trap,
        // brk, hlt
        _ if word & 0xffe0_001f == 0xd420_0000 || word & 0xffe0_001f == 0xd440_0000 => Flow::Trap,
        _ => Flow::Next,
    }
}

/// Returns how the kernel probes the instruction for a uprobe: `arch/arm64/kernel/probes/decode-insn.c`
/// (`arm_probe_decode_insn`, `aarch64_insn_is_steppable`). Literal loads are simulated for kprobes only.
fn probing(word: u32) -> Probing {
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
    let is = |&(mask, value): &(u32, u32)| word & mask == value;
    if emulated.iter().any(is) {
        return Probing::Emulated;
    }
    if is_hint(word) {
        return if may_step_hint(word) { Probing::Stepped } else { Probing::Refused };
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
    if refused.iter().any(is) || class(word) <= 3 {
        return Probing::Refused;
    }
    Probing::Stepped
}

/// Returns the main encoding class.
const fn class(word: u32) -> u32 {
    field(word, 25, 4)
}

const fn is_hint(word: u32) -> bool {
    word & 0xffff_f01f == 0xd503_201f
}

/// Returns whether the kernel steps this hint: nop, and those that sign, authenticate, or mark a branch target.
fn may_step_hint(word: u32) -> bool {
    matches!(field(word, 5, 7), 0 | 7 | 8 | 10 | 12 | 14 | 24..=31 | 32 | 34 | 36 | 38)
}

/// Returns whether it is `bti` or signs the return address (`paciasp`, `pacibsp`).
pub(super) fn is_landing_pad(word: u32) -> bool {
    is_hint(word) && matches!(field(word, 5, 7), 25 | 27 | 32 | 34 | 36 | 38)
}

/// Returns whether it is `yield` or `isb`.
pub(super) fn is_spin_hint(word: u32) -> bool {
    word == 0xd503_203f || word & 0xffff_f0ff == 0xd503_30df
}

/// Refuses probes between an exclusive load and its store, where a trap would make the store fail forever.
fn refuse_exclusive_sequences(insns: &mut [Insn]) {
    let mut left = 0;
    for insn in insns {
        let word = insn.word();
        let exclusive = word & 0x3f80_0000 == 0x0800_0000;
        if exclusive && field(word, 22, 1) == 1 {
            left = MAX_EXCLUSIVE;
        } else if exclusive {
            left = 0;
        } else if left > 0 {
            left -= 1;
            insn.probing = Probing::Refused;
        }
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
        if targets.contains(&insn.addr) || is_landing_pad(word) {
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
    if word & 0x9f00_0000 == 0x1000_0000 {
        return Some(pc_relative(word, insn.addr));
    }
    if word & 0x3b00_0000 == 0x1800_0000 {
        return Some(insn.addr.wrapping_add_signed(signed(field(word, 5, 19), 19) * 4));
    }
    if let Some((base, offset)) = addition(word).map(|(_, from, by)| (from, by)).or_else(|| unsigned_offset(word)) {
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

/// Returns the target of `adr` or `adrp`.
fn pc_relative(word: u32, addr: u64) -> u64 {
    let immediate = signed(field(word, 5, 19) << 2 | field(word, 29, 2), 21);
    if word >> 31 == 1 {
        (addr & !0xfff).wrapping_add_signed(immediate << 12)
    } else {
        addr.wrapping_add_signed(immediate)
    }
}

/// Decodes a 64-bit `add` or `sub` of an immediate, with or without flags: (to, from, by). A discarded result (`cmp`)
/// does not count.
fn addition(word: u32) -> Option<(u8, u8, i64)> {
    if word & 0x9f80_0000 != 0x9100_0000 {
        return None;
    }
    let sets_flags = field(word, 29, 1) == 1;
    if sets_flags && register(word, 0) == 31 {
        return None;
    }
    let immediate = i64::from(field(word, 10, 12)) << (12 * field(word, 22, 1));
    let by = if field(word, 30, 1) == 1 { -immediate } else { immediate };
    Some((register(word, 0), register(word, 5), by))
}

/// Decodes the address of a load or store with an unsigned scaled offset: (base, offset).
fn unsigned_offset(word: u32) -> Option<(u8, i64)> {
    (word & 0x3b00_0000 == 0x3900_0000)
        .then(|| (register(word, 5), i64::from(field(word, 10, 12)) << access_shift(word)))
}

/// Returns log2 of the number of bytes that a load or store of one register moves.
fn access_shift(word: u32) -> u32 {
    let vector = field(word, 26, 1) == 1;
    if vector && field(word, 23, 1) == 1 {
        4
    } else {
        field(word, 30, 2)
    }
}

pub(super) fn is_load_or_store(word: u32) -> bool {
    word & 0x0a00_0000 == 0x0800_0000
}

/// Returns whether it is a store at an address that is the sum of two registers.
pub(super) fn stores_somewhere(word: u32) -> bool {
    let is_register_offset = word & 0x3b20_0c00 == 0x3820_0800;
    let (vector, opc) = (field(word, 26, 1) == 1, field(word, 22, 2));
    is_register_offset && (opc == 0 || (vector && opc == 2))
}

pub(super) fn branch_test(word: u32) -> Option<(Test, bool)> {
    let negated = field(word, 24, 1) == 1;
    if word & 0xff00_0010 == 0x5400_0000 {
        return Some((Test::Flags(field(word, 0, 4) as u8), true));
    }
    // Register 31 is the zero register here, which a probe cannot see.
    if register(word, 0) == 31 {
        return None;
    }
    if word & 0x7e00_0000 == 0x3400_0000 {
        let bits = if word >> 31 == 1 { 64 } else { 32 };
        return Some((Test::Zero { register: register(word, 0), bits }, !negated));
    }
    if word & 0x7e00_0000 == 0x3600_0000 {
        let bit = (field(word, 31, 1) << 5 | field(word, 19, 5)) as u8;
        return Some((Test::Bit { register: register(word, 0), bit }, negated));
    }
    None
}

pub(super) fn effects(insn: &Insn, into: &mut Vec<Effect>) {
    let word = insn.word();
    match class(word) {
        8 | 9 => immediate_effects(word, insn.addr, into),
        10 | 11 => system_effects(insn, into),
        4 | 6 | 12 | 14 => memory_effects(word, into),
        5 | 13 => register_effects(word, into),
        7 | 15 => vector_effects(word, into),
        // SVE, SME and unallocated encodings.
        _ => into.push(Effect::Unknown),
    }
}

/// Appends `Clobber`, unless the register field names the zero register.
fn clobber(register: u8, into: &mut Vec<Effect>) {
    if register != 31 {
        into.push(Effect::Clobber(register));
    }
}

/// Decodes data processing with an immediate.
fn immediate_effects(word: u32, addr: u64, into: &mut Vec<Effect>) {
    let to = register(word, 0);
    if word & 0x1f00_0000 == 0x1000_0000 {
        if to != 31 {
            into.push(Effect::Constant { to, value: pc_relative(word, addr) });
        }
    } else if word & 0x1f80_0000 == 0x1100_0000 {
        match addition(word) {
            Some((to, from, by)) => into.push(Effect::Offset { to, from, by }),
            // This is 32 bits wide, or a comparison.
            None if field(word, 29, 1) == 0 => into.push(Effect::Clobber(to)),
            None => clobber(to, into),
        }
    } else if word & 0x1f80_0000 == 0x1280_0000 {
        wide_move_effects(word, into);
    } else if word & 0x7f80_0000 == 0x7200_0000 {
        // ands
        clobber(to, into);
    } else if let Some(take) = bit_field_insert(word) {
        into.push(take);
    } else if word & 0x1f80_0000 == 0x1200_0000 {
        // The other logical operations can write sp.
        into.push(Effect::Clobber(to));
    } else {
        clobber(to, into);
    }
}

/// Decodes `bfi` into the lowest bits, and `bfxil` from them: both are `bfm` with these operands.
fn bit_field_insert(word: u32) -> Option<Effect> {
    let (to, from) = (register(word, 0), register(word, 5));
    let (rotate, last) = (field(word, 16, 6), field(word, 10, 6));
    let is_lowest = word & 0x7f80_0000 == 0x3300_0000 && rotate == 0 && last < 31;
    (is_lowest && to != 31 && from != 31).then(|| Effect::Take { to, from, mask: (2 << last) - 1 })
}

/// Decodes movn, movz, movk.
fn wide_move_effects(word: u32, into: &mut Vec<Effect>) {
    let (to, wide) = (register(word, 0), word >> 31 == 1);
    let (immediate, shift) = (field(word, 5, 16), field(word, 21, 2) * 16);
    if to == 31 {
        return;
    }
    let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
    match field(word, 29, 2) {
        0 => into.push(Effect::Constant { to, value: !(u64::from(immediate) << shift) & mask }),
        2 => into.push(Effect::Constant { to, value: (u64::from(immediate) << shift) & mask }),
        3 if wide => into.push(Effect::Insert { to, value: immediate as u16, shift: shift as u8 }),
        _ => into.push(Effect::Clobber(to)),
    }
}

/// Decodes branches, exceptions, and system instructions.
fn system_effects(insn: &Insn, into: &mut Vec<Effect>) {
    let word = insn.word();
    match insn.flow {
        Flow::Call(_) => into.push(Effect::Call),
        Flow::Next if is_hint(word) => match field(word, 5, 7) {
            // xpaclri and the forms that authenticate x30.
            7 | 28..=31 => into.push(Effect::Clobber(30)),
            // The forms that sign it keep the address in its lower bits.
            24..=27 => {}
            // The forms for x17.
            8 | 10 | 12 | 14 => into.push(Effect::Clobber(17)),
            _ => {}
        },
        // svc: the kernel returns a result.
        Flow::Next if word & 0xff00_0000 == 0xd400_0000 => into.push(Effect::Clobber(0)),
        // mrs, sysl
        Flow::Next if word & 0xffe0_0000 == 0xd520_0000 => clobber(register(word, 0), into),
        // mrs of two registers.
        Flow::Next if word & 0xffe0_0000 == 0xd560_0000 => {
            clobber(register(word, 0), into);
            clobber((register(word, 0) + 1) & 31, into);
        }
        _ => {}
    }
}

/// Decodes data processing on registers.
fn register_effects(word: u32, into: &mut Vec<Effect>) {
    let to = register(word, 0);
    // orr to, zr, from without a shift: a plain move.
    if word & 0x7fe0_ffe0 == 0x2a00_03e0 && to != 31 {
        let (from, bytes) = (register(word, 16), if word >> 31 == 1 { 8 } else { 4 });
        return into.push(if from == 31 {
            Effect::Constant { to, value: 0 }
        } else {
            Effect::Copy { to, from, bytes }
        });
    }
    // add or sub of an extended register can write sp.
    if word & 0x3fe0_0000 == 0x0b20_0000 {
        return into.push(Effect::Clobber(to));
    }
    // ccmp and ccmn have no result.
    if word & 0x1fe0_0000 != 0x1a40_0000 {
        clobber(to, into);
    }
}

/// Decodes the vector and floating point instructions that write a general register.
fn vector_effects(word: u32, into: &mut Vec<Effect>) {
    let conversion = word & 0x5f00_0000 == 0x1e00_0000 && (field(word, 21, 1) == 0 || field(word, 10, 6) == 0);
    let moved_lane = word & 0xbfe0_8400 == 0x0e00_0400 && matches!(field(word, 11, 4), 5 | 7);
    // scvtf, ucvtf, and the opposite fmov write a vector register.
    let to_vector = matches!(field(word, 16, 3), 2 | 3 | 7);
    if conversion && !to_vector || moved_lane {
        clobber(register(word, 0), into);
    }
}

/// Decodes loads and stores.
fn memory_effects(word: u32, into: &mut Vec<Effect>) {
    match (field(word, 28, 2), field(word, 24, 2), field(word, 26, 1)) {
        (0, 0, 0) => exclusive_effects(word, into),
        (0, _, 1) => structure_effects(word, into),
        // Literal loads; prefetches have no result.
        (1, 0, 0) if field(word, 30, 2) != 3 => clobber(register(word, 0), into),
        (1, 0, _) => {}
        // ldapur and stlur
        (1, 1, 0) if field(word, 21, 1) == 0 && field(word, 10, 2) == 0 => {
            if field(word, 22, 2) != 0 {
                clobber(register(word, 0), into);
            } else {
                let (base, offset) = (register(word, 5), signed(field(word, 12, 9), 9));
                into.push(Effect::Store { base, offset, from: None, bytes: 1 << field(word, 30, 2) });
            }
        }
        // Memory tags and memory copies.
        (1, _, _) => {
            clobber(register(word, 0), into);
            into.push(Effect::Clobber(register(word, 5)));
            clobber(register(word, 16), into);
        }
        (2, _, _) => pair_effects(word, into),
        (3, 1, _) => {
            let (base, offset) = (register(word, 5), i64::from(field(word, 10, 12)) << access_shift(word));
            single_effects(word, base, offset, into);
        }
        (3, 0, _) => unscaled_effects(word, into),
        _ => into.push(Effect::Unknown),
    }
}

/// Decodes loads and stores of vector structures: up to four registers.
fn structure_effects(word: u32, into: &mut Vec<Effect>) {
    let (base, load, writes_back) = (register(word, 5), field(word, 22, 1) == 1, field(word, 23, 1) == 1);
    if !load {
        into.push(Effect::Store { base, offset: 0, from: None, bytes: 64 });
    }
    if writes_back {
        into.push(Effect::Clobber(base));
    }
}

/// Decodes exclusive and ordered accesses, and compare and swap.
fn exclusive_effects(word: u32, into: &mut Vec<Effect>) {
    let (data, base, status) = (register(word, 0), register(word, 5), register(word, 16));
    let (load, ordered, pair) = (field(word, 22, 1) == 1, field(word, 23, 1) == 1, field(word, 21, 1) == 1);
    let size = 1u8 << field(word, 30, 2);
    match (ordered, pair, load) {
        // stlr
        (true, false, false) => into.push(Effect::Store { base, offset: 0, from: plain(data, size), bytes: size }),
        // ldar
        (true, false, true) => load_effects(data, base, 0, size, into),
        // cas
        (true, true, _) => {
            into.push(Effect::Store { base, offset: 0, from: None, bytes: size });
            clobber(status, into);
        }
        // stxr; stxp and casp, which share an encoding except for the size.
        (false, _, false) => {
            into.push(Effect::Store { base, offset: 0, from: None, bytes: 16 });
            clobber(status, into);
            if pair && status != 31 {
                clobber(status + 1, into);
            }
        }
        // ldxr, ldxp; casp with acquire
        (false, _, true) => {
            clobber(data, into);
            if pair {
                into.push(Effect::Store { base, offset: 0, from: None, bytes: 16 });
                clobber(register(word, 10), into);
                clobber(status, into);
                clobber((status + 1) & 31, into);
            }
        }
    }
}

/// Returns the source of a store: only whole 32 or 64-bit registers are followed.
fn plain(register: u8, bytes: u8) -> Option<u8> {
    (register != 31 && bytes >= 4).then_some(register)
}

fn load_effects(to: u8, base: u8, offset: i64, bytes: u8, into: &mut Vec<Effect>) {
    match (to, bytes) {
        (31, _) => {}
        (_, 4 | 8) => into.push(Effect::Load { to, base, offset, bytes }),
        _ => into.push(Effect::Clobber(to)),
    }
}

/// Decodes ldp, stp and their kin.
fn pair_effects(word: u32, into: &mut Vec<Effect>) {
    let (first, base, second) = (register(word, 0), register(word, 5), register(word, 10));
    let (vector, load) = (field(word, 26, 1) == 1, field(word, 22, 1) == 1);
    let opc = field(word, 30, 2);
    let shift = if vector { 2 + opc } else { 2 + (opc >> 1) };
    let bytes = 1u8 << shift.min(4);
    let immediate = signed(field(word, 15, 7), 7) << shift;
    // 0 no-allocate, 1 post-index, 2 offset, 3 pre-index
    let (before, offset, after) = match field(word, 23, 2) {
        1 => (0, 0, immediate),
        3 => (immediate, 0, 0),
        _ => (0, immediate, 0),
    };
    if before != 0 {
        into.push(Effect::Offset { to: base, from: base, by: before });
    }
    for (register, at) in [(first, offset), (second, offset + i64::from(bytes))] {
        match (vector, load) {
            (true, true) => {}
            (true, false) => into.push(Effect::Store { base, offset: at, from: None, bytes }),
            // ldpsw sign-extends.
            (false, true) if opc == 1 => clobber(register, into),
            (false, true) => load_effects(register, base, at, bytes, into),
            (false, false) if opc == 1 => into.push(Effect::Store { base, offset: at, from: None, bytes: 16 }),
            (false, false) => into.push(Effect::Store { base, offset: at, from: plain(register, bytes), bytes }),
        }
    }
    if after != 0 {
        into.push(Effect::Offset { to: base, from: base, by: after });
    }
}

/// Decodes an access of one register at `base` + `offset`.
fn single_effects(word: u32, base: u8, offset: i64, into: &mut Vec<Effect>) {
    let (data, bytes) = (register(word, 0), 1u8 << access_shift(word).min(4));
    let (vector, opc) = (field(word, 26, 1) == 1, field(word, 22, 2));
    match (vector, opc) {
        (true, 0 | 2) => into.push(Effect::Store { base, offset, from: None, bytes }),
        (true, _) => {}
        (false, 0) => into.push(Effect::Store { base, offset, from: plain(data, bytes), bytes }),
        (false, 1) => load_effects(data, base, offset, bytes, into),
        // prefetch
        (false, 2) if bytes == 8 => {}
        (false, _) => clobber(data, into),
    }
}

/// Decodes unscaled, pre- and post-indexed and register-offset accesses, and the atomic operations.
fn unscaled_effects(word: u32, into: &mut Vec<Effect>) {
    let base = register(word, 5);
    let immediate = signed(field(word, 12, 9), 9);
    match (field(word, 21, 1), field(word, 10, 2)) {
        (0, 0 | 2) => single_effects(word, base, immediate, into),
        (0, 1) => {
            single_effects(word, base, 0, into);
            into.push(Effect::Offset { to: base, from: base, by: immediate });
        }
        (0, _) => {
            into.push(Effect::Offset { to: base, from: base, by: immediate });
            single_effects(word, base, 0, into);
        }
        (_, 2) => register_offset_effects(word, into),
        (_, 0) => atomic_effects(word, into),
        // ldraa, ldrab
        _ => {
            clobber(register(word, 0), into);
            into.push(Effect::Clobber(base));
        }
    }
}

/// A store to an unknown offset from its base cannot be followed; a load's result is unknown.
fn register_offset_effects(word: u32, into: &mut Vec<Effect>) {
    let (vector, opc) = (field(word, 26, 1) == 1, field(word, 22, 2));
    let prefetch = opc == 2 && field(word, 30, 2) == 3;
    if !vector && opc != 0 && !prefetch {
        clobber(register(word, 0), into);
    }
}

/// Decodes ldadd and its kin, swp, ldapr.
fn atomic_effects(word: u32, into: &mut Vec<Effect>) {
    // 64-byte loads and stores.
    if field(word, 30, 2) == 3 && field(word, 15, 1) == 1 && matches!(field(word, 12, 3), 1 | 2 | 3 | 5) {
        return into.push(Effect::Unknown);
    }
    let ordered_load = field(word, 12, 4) == 12;
    if !ordered_load {
        let bytes = 1u8 << field(word, 30, 2);
        into.push(Effect::Store { base: register(word, 5), offset: 0, from: None, bytes });
    }
    clobber(register(word, 0), into);
}

const CONDITIONS: [&str; 16] =
    ["eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv"];

pub(super) fn text(insn: &Insn) -> String {
    let word = insn.word();
    let name = |register: u8, wide: bool| match (register, wide) {
        (31, true) => "xzr".to_owned(),
        (31, false) => "wzr".to_owned(),
        (n, true) => format!("x{n}"),
        (n, false) => format!("w{n}"),
    };
    let negated = if field(word, 24, 1) == 1 { "n" } else { "" };
    let wide = word >> 31 == 1;
    match (insn.flow, branch_test(word)) {
        (Flow::Jump(to), _) => format!("b {to:#x}"),
        (Flow::Call(Some(to)), _) => format!("bl {to:#x}"),
        (Flow::Branch(to), Some((Test::Flags(condition), _))) => {
            format!("b.{} {to:#x}", CONDITIONS[usize::from(condition & 15)])
        }
        (Flow::Branch(to), Some((Test::Zero { register, .. }, _))) => {
            format!("cb{negated}z {},{to:#x}", name(register, wide))
        }
        (Flow::Branch(to), Some((Test::Bit { register, bit }, _))) => {
            format!("tb{negated}z {},#{bit},{to:#x}", name(register, wide))
        }
        _ if word & 0x1f00_0000 == 0x1000_0000 => {
            let page = if wide { "p" } else { "" };
            format!("adr{page} {},{:#x}", name(register(word, 0), true), pc_relative(word, insn.addr))
        }
        _ if is_hint(word) && matches!(field(word, 5, 7), 32 | 34 | 36 | 38) => {
            ["bti", "bti c", "bti j", "bti jc"][field(word, 6, 2) as usize].to_owned()
        }
        _ => {
            let bytes = word.to_le_bytes();
            match InstDecoder::default().decode(&mut U8Reader::new(&bytes)) {
                Ok(instruction) => instruction.to_string(),
                Err(_) => format!(".inst {word:#010x}"),
            }
        }
    }
}

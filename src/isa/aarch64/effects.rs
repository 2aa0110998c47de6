//! What arm64 instructions do to registers and memory.

use super::word::{signed, Word};
use crate::isa::insn::{Effect, Flow, Insn};

/// Appends what `insn` does.
pub(in crate::isa) fn effects(insn: &Insn, into: &mut Vec<Effect>) {
    let word = insn.word();
    match word.class() {
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
fn immediate_effects(word: Word, addr: u64, into: &mut Vec<Effect>) {
    let to = word.register(0);
    if let Some(value) = word.address(addr) {
        if to != 31 {
            into.push(Effect::Constant { to, value });
        }
    } else if word.is(0x1f80_0000, 0x1100_0000) {
        match word.addition() {
            Some((to, from, by)) => into.push(Effect::Offset { to, from, by }),
            // This is 32 bits wide, or a comparison.
            None if word.field(29, 1) == 0 => into.push(Effect::Clobber(to)),
            None => clobber(to, into),
        }
    } else if word.is(0x1f80_0000, 0x1280_0000) {
        wide_move_effects(word, into);
    } else if word.is(0x7f80_0000, 0x7200_0000) {
        // ands
        clobber(to, into);
    } else if let Some(take) = bit_field_insert(word) {
        into.push(take);
    } else if word.is(0x1f80_0000, 0x1200_0000) {
        // The other logical operations can write sp.
        into.push(Effect::Clobber(to));
    } else {
        clobber(to, into);
    }
}

/// Decodes `bfi` into the lowest bits, and `bfxil` from them: both are `bfm` with these operands.
fn bit_field_insert(word: Word) -> Option<Effect> {
    let (to, from) = (word.register(0), word.register(5));
    let (rotate, last) = (word.field(16, 6), word.field(10, 6));
    let is_lowest = word.is(0x7f80_0000, 0x3300_0000) && rotate == 0 && last < 31;
    (is_lowest && to != 31 && from != 31).then(|| Effect::Take { to, from, mask: (2 << last) - 1 })
}

/// Decodes movn, movz, movk.
fn wide_move_effects(word: Word, into: &mut Vec<Effect>) {
    let (to, wide) = (word.register(0), word.is_wide());
    let (immediate, shift) = (word.field(5, 16), word.field(21, 2) * 16);
    if to == 31 {
        return;
    }
    let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
    match word.field(29, 2) {
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
        Flow::Next if word.is_hint() => match word.hint() {
            // xpaclri and the forms that authenticate x30.
            7 | 28..=31 => into.push(Effect::Clobber(30)),
            // The forms that sign it keep the address in its lower bits.
            24..=27 => {}
            // The forms for x17.
            8 | 10 | 12 | 14 => into.push(Effect::Clobber(17)),
            _ => {}
        },
        // svc: the kernel returns a result.
        Flow::Next if word.is(0xff00_0000, 0xd400_0000) => into.push(Effect::Clobber(0)),
        // mrs, sysl
        Flow::Next if word.is(0xffe0_0000, 0xd520_0000) => clobber(word.register(0), into),
        // mrs of two registers.
        Flow::Next if word.is(0xffe0_0000, 0xd560_0000) => {
            clobber(word.register(0), into);
            clobber((word.register(0) + 1) & 31, into);
        }
        _ => {}
    }
}

/// Decodes data processing on registers.
fn register_effects(word: Word, into: &mut Vec<Effect>) {
    let to = word.register(0);
    // orr to, zr, from without a shift: a plain move.
    if word.is(0x7fe0_ffe0, 0x2a00_03e0) && to != 31 {
        let (from, bytes) = (word.register(16), if word.is_wide() { 8 } else { 4 });
        return into.push(if from == 31 {
            Effect::Constant { to, value: 0 }
        } else {
            Effect::Copy { to, from, bytes }
        });
    }
    // add or sub of an extended register can write sp.
    if word.is(0x3fe0_0000, 0x0b20_0000) {
        return into.push(Effect::Clobber(to));
    }
    // ccmp and ccmn have no result.
    if !word.is(0x1fe0_0000, 0x1a40_0000) {
        clobber(to, into);
    }
}

/// Decodes the vector and floating point instructions that write a general register.
fn vector_effects(word: Word, into: &mut Vec<Effect>) {
    let conversion = word.is(0x5f00_0000, 0x1e00_0000) && (word.field(21, 1) == 0 || word.field(10, 6) == 0);
    let moved_lane = word.is(0xbfe0_8400, 0x0e00_0400) && matches!(word.field(11, 4), 5 | 7);
    // scvtf, ucvtf, and the opposite fmov write a vector register.
    let to_vector = matches!(word.field(16, 3), 2 | 3 | 7);
    if conversion && !to_vector || moved_lane {
        clobber(word.register(0), into);
    }
}

/// Decodes loads and stores.
fn memory_effects(word: Word, into: &mut Vec<Effect>) {
    match (word.field(28, 2), word.field(24, 2), word.field(26, 1)) {
        (0, 0, 0) => exclusive_effects(word, into),
        (0, _, 1) => structure_effects(word, into),
        // Literal loads; prefetches have no result.
        (1, 0, 0) if word.field(30, 2) != 3 => clobber(word.register(0), into),
        (1, 0, _) => {}
        // ldapur and stlur
        (1, 1, 0) if word.field(21, 1) == 0 && word.field(10, 2) == 0 => {
            if word.field(22, 2) != 0 {
                clobber(word.register(0), into);
            } else {
                let (base, offset) = (word.register(5), signed(word.field(12, 9), 9));
                into.push(Effect::Store { base, offset, from: None, bytes: word.access_bytes() });
            }
        }
        // Memory tags and memory copies.
        (1, _, _) => {
            clobber(word.register(0), into);
            into.push(Effect::Clobber(word.register(5)));
            clobber(word.register(16), into);
        }
        (2, _, _) => pair_effects(word, into),
        (3, 1, _) => {
            let (base, offset) = (word.register(5), i64::from(word.field(10, 12)) << word.access_shift());
            single_effects(word, base, offset, into);
        }
        (3, 0, _) => unscaled_effects(word, into),
        _ => into.push(Effect::Unknown),
    }
}

/// Decodes loads and stores of vector structures: up to four registers.
fn structure_effects(word: Word, into: &mut Vec<Effect>) {
    let (base, load, writes_back) = (word.register(5), word.loads(), word.field(23, 1) == 1);
    if !load {
        into.push(Effect::Store { base, offset: 0, from: None, bytes: 64 });
    }
    if writes_back {
        into.push(Effect::Clobber(base));
    }
}

/// Decodes exclusive and ordered accesses, and compare and swap.
fn exclusive_effects(word: Word, into: &mut Vec<Effect>) {
    let (data, base, status) = (word.register(0), word.register(5), word.register(16));
    let (load, ordered, pair) = (word.loads(), word.field(23, 1) == 1, word.field(21, 1) == 1);
    let size = word.access_bytes();
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
                clobber(word.register(10), into);
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
fn pair_effects(word: Word, into: &mut Vec<Effect>) {
    let (first, base, second) = (word.register(0), word.register(5), word.register(10));
    let (vector, load) = (word.is_vector(), word.loads());
    let opc = word.field(30, 2);
    let shift = if vector { 2 + opc } else { 2 + (opc >> 1) };
    let bytes = 1u8 << shift.min(4);
    let immediate = signed(word.field(15, 7), 7) << shift;
    // 0 no-allocate, 1 post-index, 2 offset, 3 pre-index
    let (before, offset, after) = match word.field(23, 2) {
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
fn single_effects(word: Word, base: u8, offset: i64, into: &mut Vec<Effect>) {
    let (data, bytes) = (word.register(0), 1u8 << word.access_shift().min(4));
    let (vector, opc) = (word.is_vector(), word.field(22, 2));
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
fn unscaled_effects(word: Word, into: &mut Vec<Effect>) {
    let base = word.register(5);
    let immediate = signed(word.field(12, 9), 9);
    match (word.field(21, 1), word.field(10, 2)) {
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
            clobber(word.register(0), into);
            into.push(Effect::Clobber(base));
        }
    }
}

/// A store to an unknown offset from its base cannot be followed; a load's result is unknown.
fn register_offset_effects(word: Word, into: &mut Vec<Effect>) {
    let (vector, opc) = (word.is_vector(), word.field(22, 2));
    let prefetch = opc == 2 && word.field(30, 2) == 3;
    if !vector && opc != 0 && !prefetch {
        clobber(word.register(0), into);
    }
}

/// Decodes ldadd and its kin, swp, ldapr.
fn atomic_effects(word: Word, into: &mut Vec<Effect>) {
    // 64-byte loads and stores.
    if word.field(30, 2) == 3 && word.field(15, 1) == 1 && matches!(word.field(12, 3), 1 | 2 | 3 | 5) {
        return into.push(Effect::Unknown);
    }
    let ordered_load = word.field(12, 4) == 12;
    if !ordered_load {
        let bytes = word.access_bytes();
        into.push(Effect::Store { base: word.register(5), offset: 0, from: None, bytes });
    }
    clobber(word.register(0), into);
}

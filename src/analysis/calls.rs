//! Finds callers and callees, from the bytes of `.text`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::insn::{decode, Flow, Insn};
use crate::symbols::{Arch, Image};

/// Returns the direct calls and jumps in `.text` to any of `targets`: (address of the instruction, target), by
/// ascending address. Only unconditional ones count: a call, or a tail call.
pub fn direct_calls(image: &Image, targets: &HashSet<u64>) -> Vec<(u64, u64)> {
    let Some((base, text)) = text(image) else { return Vec::new() };
    match image.arch() {
        Arch::X86_64 => {
            let mut found = x86_candidates(base, text, targets);
            let mut function = Decoded::default();
            found.retain(|&(at, to)| function.has_call(image, at, to));
            found
        }
        Arch::Aarch64 => aarch64_calls(base, text, targets),
    }
}

pub(super) fn text(image: &Image) -> Option<(u64, &[u8])> {
    let range = image.section(".text")?;
    Some((range.start, image.bytes(range.start, usize::try_from(range.end.checked_sub(range.start)?).ok()?)?))
}

/// Returns every place where the bytes may be `call rel32` (e8) or `jmp rel32` (e9) to a target.
fn x86_candidates(base: u64, text: &[u8], targets: &HashSet<u64>) -> Vec<(u64, u64)> {
    let (Some(&low), Some(&high)) = (targets.iter().min(), targets.iter().max()) else { return Vec::new() };
    let mut found = Vec::new();
    let mut check = |at: usize| {
        let Some(&[opcode, a, b, c, d]) = text.get(at..at + 5) else { return };
        let from = base.wrapping_add(at as u64);
        let to = from.wrapping_add(5).wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
        // The set is queried last, because few of the many candidates pass the comparisons.
        if opcode & 0xfe == 0xe8 && (low..=high).contains(&to) && targets.contains(&to) {
            found.push((from, to));
        }
    };
    let words = text.chunks_exact(8);
    let rest = text.len() - words.remainder().len();
    for (i, word) in words.enumerate() {
        let mut hits = maybe_calls(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        while hits != 0 {
            check(i * 8 + hits.trailing_zeros() as usize / 8);
            hits &= hits - 1;
        }
    }
    (rest..text.len()).for_each(check);
    found
}

/// Returns a word with the top bit set for every byte that is e8 or e9, and for some others. It processes eight bytes
/// at a time, because `.text` is tens of megabytes.
fn maybe_calls(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // XOR yields zero for both opcodes; then comes the classic test for a zero byte, which also reports some bytes
    // after one.
    let differs = (word & (ONES * 0xfe)) ^ (ONES * 0xe8);
    differs.wrapping_sub(ONES) & !differs & (ONES * 0x80)
}

fn aarch64_calls(base: u64, text: &[u8], targets: &HashSet<u64>) -> Vec<(u64, u64)> {
    let (Some(&low), Some(&high)) = (targets.iter().min(), targets.iter().max()) else { return Vec::new() };
    let mut found = Vec::new();
    for (i, chunk) in text.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        // b and bl
        if word & 0x7c00_0000 != 0x1400_0000 {
            continue;
        }
        let from = base.wrapping_add(i as u64 * 4);
        let to = from.wrapping_add_signed(i64::from((word << 6) as i32 >> 4));
        if (low..=high).contains(&to) && targets.contains(&to) {
            found.push((from, to));
        }
    }
    found
}

/// The function decoded last, with its calls. Candidates arrive by ascending address.
#[derive(Default)]
struct Decoded {
    range: Range<u64>,
    calls: HashSet<(u64, u64)>,
}

impl Decoded {
    /// Returns whether an instruction at `at` calls or jumps to `to`. A candidate outside of all known functions is
    /// accepted.
    fn has_call(&mut self, image: &Image, at: u64, to: u64) -> bool {
        if !self.range.contains(&at) {
            let Some(range) = image.function_at(at) else { return true };
            let insns = decode(image, range.clone());
            self.calls = insns
                .iter()
                .filter_map(|i| match i.flow {
                    Flow::Call(Some(to)) | Flow::Jump(to) => Some((i.addr, to)),
                    _ => None,
                })
                .collect();
            self.range = range;
        }
        self.calls.contains(&(at, to))
    }
}

/// Returns the linkage stubs through which the binary calls the imported function `name` (without a symbol version), as
/// targets for [`direct_calls`]. There are several if the linker created several.
pub fn imported_calls(image: &Image, name: &str) -> Vec<u64> {
    let mut found: Vec<u64> = import_stubs(image).into_iter().filter(|(_, n)| n == name).map(|(at, _)| at).collect();
    found.sort_unstable();
    found
}

/// Returns the imported function that the linkage stub at `addr` calls, or `None` if it is not a stub.
pub(super) fn import_called(image: &Image, addr: u64) -> Option<&str> {
    /// The longest stub: a landing pad, three instructions to load the slot, and a jump.
    const STUB_BYTES: u64 = 20;
    let section = STUB_SECTIONS.iter().find_map(|name| image.section(name).filter(|r| r.contains(&addr)))?;
    let (begin, slot) = *stubs(image, addr..section.end.min(addr + STUB_BYTES)).first()?;
    image.imports().get(&slot).filter(|_| begin == addr).map(String::as_str)
}

const STUB_SECTIONS: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];

/// Returns all linkage stubs of the binary, mapping address to name of the imported function.
pub fn import_stubs(image: &Image) -> HashMap<u64, String> {
    let slots = image.imports();
    let mut found = HashMap::new();
    for section in STUB_SECTIONS {
        let Some(range) = image.section(section) else { continue };
        for (stub, slot) in stubs(image, range) {
            if let Some(name) = slots.get(&slot) {
                found.insert(stub, name.clone());
            }
        }
    }
    found
}

/// Returns the stubs in a section: (address, slot that it jumps through). A stub begins after the previous stub's jump
/// and any padding; before loading the slot it contains at most a landing pad.
fn stubs(image: &Image, section: Range<u64>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut first = None;
    let mut slot = None;
    for insn in decode(image, section) {
        if first.is_none() && is_padding(&insn) {
            continue;
        }
        let begin = *first.get_or_insert(insn.addr);
        slot = insn.memory.or(slot);
        match insn.flow {
            Flow::IndirectJump => {
                found.extend(slot.map(|slot| (begin, slot)));
                (first, slot) = (None, None);
            }
            Flow::Jump(_) | Flow::Return | Flow::Trap => (first, slot) = (None, None),
            _ => {}
        }
    }
    found
}

fn is_padding(insn: &Insn) -> bool {
    let bytes = insn.bytes();
    match insn.arch {
        Arch::X86_64 => bytes == [0x90] || bytes == [0x66, 0x90] || bytes.starts_with(&[0x0f, 0x1f]),
        Arch::Aarch64 => bytes == 0xd503_201f_u32.to_le_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_calls_anywhere_in_x86_bytes() {
        let targets = HashSet::from([0x5000, 0x9000]);
        for at in 0..24 {
            let mut text = vec![0xe8; 40];
            // call 0x5000; jmp 0x9000
            text[at] = 0xe8;
            text[at + 1..at + 5].copy_from_slice(&(0x5000 - (0x1000 + at as i32 + 5)).to_le_bytes());
            text[at + 5] = 0xe9;
            text[at + 6..at + 10].copy_from_slice(&(0x9000 - (0x1000 + at as i32 + 10)).to_le_bytes());
            let expected = [(0x1000 + at as u64, 0x5000), (0x1005 + at as u64, 0x9000)];
            assert_eq!(x86_candidates(0x1000, &text, &targets), expected);
        }
        assert_eq!(x86_candidates(0x1000, &[0xe8, 0, 0, 0], &targets), []);
    }

    #[test]
    fn finds_arm64_calls_both_ways() {
        let targets = HashSet::from([0x1000, 0x100c]);
        // bl 0x100c; b 0x1000; bl 0x100c; b.eq 0x100c
        let text: Vec<u8> =
            [0x9400_0003_u32, 0x17ff_ffff, 0x9400_0001, 0x5400_0000].iter().flat_map(|w| w.to_le_bytes()).collect();
        let expected = [(0x1000, 0x100c), (0x1004, 0x1000), (0x1008, 0x100c)];
        assert_eq!(aarch64_calls(0x1000, &text, &targets), expected);
    }
}

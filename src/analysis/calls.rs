//! Finds callers and callees, from the bytes of `.text`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::isa::{aarch64, decode, x86, Flow};
use crate::symbols::{Arch, Image};

/// Returns the direct calls and jumps in `.text` to any of `targets`: (address of the instruction, target), by
/// ascending address. Only unconditional ones count: a call, or a tail call.
pub fn direct_calls(image: &Image, targets: &HashSet<u64>) -> Vec<(u64, u64)> {
    let Some((base, text)) = text(image) else { return Vec::new() };
    let mut found = branches(image.arch(), base, text, targets);
    if image.arch() == Arch::X86_64 {
        let mut function = Decoded::default();
        found.retain(|&(at, to)| function.has_call(image, at, to));
    }
    found
}

/// Returns the calls and jumps to the targets. On x86-64, some of these may be in the middle of an instruction.
fn branches(arch: Arch, base: u64, text: &[u8], targets: &HashSet<u64>) -> Vec<(u64, u64)> {
    let (Some(&low), Some(&high)) = (targets.iter().min(), targets.iter().max()) else { return Vec::new() };
    let mut found = Vec::new();
    let mut add = |from: u64, to: u64| {
        // The set is queried last, because few of the many branches pass the comparisons.
        if (low..=high).contains(&to) && targets.contains(&to) {
            found.push((from, to));
        }
    };
    match arch {
        Arch::X86_64 => x86::possible_calls(base, text, add),
        Arch::Aarch64 => {
            let branches = aarch64::words_at(base, text).filter_map(|(at, word)| Some((at, word.branch(at)?)));
            branches.for_each(|(from, to)| add(from, to));
        }
    }
    found
}

pub(super) fn text(image: &Image) -> Option<(u64, &[u8])> {
    let range = image.section(".text")?;
    Some((range.start, image.bytes(range.start, usize::try_from(range.end.checked_sub(range.start)?).ok()?)?))
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
        if first.is_none() && insn.is_padding() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_to_the_targets_are_found() {
        // call 0x5000; jmp 0x9000; call 0x7000
        let calls = [(0xe8, 0x5000), (0xe9, 0x9000), (0xe8, 0x7000)];
        let code = calls.iter().zip((0x1005..).step_by(5)).flat_map(|((opcode, to), end)| {
            let distance: i32 = to - end;
            [vec![*opcode], distance.to_le_bytes().to_vec()].concat()
        });
        let found = branches(Arch::X86_64, 0x1000, &code.collect::<Vec<u8>>(), &HashSet::from([0x5000, 0x9000]));
        assert_eq!(found, [(0x1000, 0x5000), (0x1005, 0x9000)]);
        assert_eq!(branches(Arch::X86_64, 0x1000, &[0xe8, 0, 0, 0, 0], &HashSet::new()), []);
    }

    #[test]
    fn finds_arm64_calls_both_ways() {
        let targets = HashSet::from([0x1000, 0x100c]);
        // bl 0x100c; b 0x1000; bl 0x100c; b.eq 0x100c
        let text: Vec<u8> =
            [0x9400_0003_u32, 0x17ff_ffff, 0x9400_0001, 0x5400_0000].iter().flat_map(|w| w.to_le_bytes()).collect();
        let expected = [(0x1000, 0x100c), (0x1004, 0x1000), (0x1008, 0x100c)];
        assert_eq!(branches(Arch::Aarch64, 0x1000, &text, &targets), expected);
    }
}

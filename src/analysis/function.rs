//! A decoded function with its control flow.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::calls::import_called;
use super::cfg::{blocks, Block, Dominators, Graph, Target};
use super::values::{added_for, left_for, HandedOn, Left, Location, Passed, Values};
use crate::isa::{decode, Flow, Insn};
use crate::symbols::Image;

/// The most instructions of a function that is analyzed. The largest known latch function has 260.
const MAX_INSNS: usize = 20_000;

/// The most cold parts, which the compiler moved out of a function, that are analyzed with it.
const MAX_PARTS: usize = 4;

/// The largest cold part, in bytes. Larger code is another function, reached by a tail call.
const MAX_PART: u64 = 16 << 10;

/// The size in bytes above which a function is assumed to return.
const MAX_ENDING: u64 = 512;

/// The most callees and jump targets that are examined per function.
const MAX_LOOKED_AT: usize = 32;

/// The same limit when many functions share one cache of callees.
const MAX_LOOKED_AT_IN_ALL: usize = 100_000;

/// A decoded function, with its control flow and the locations of its arguments.
pub struct Function {
    pub(super) entry: u64,
    /// The instructions, sorted by address.
    pub(super) insns: Vec<Insn>,
    pub(super) blocks: Vec<Block>,
    pub(super) block_of: Vec<usize>,
    /// The blocks, and node `blocks.len()` for "returned".
    pub(super) graph: Graph,
    pub(super) entry_block: usize,
    pub(super) dominators: Dominators,
    pub(super) postdominators: Dominators,
    /// Static pointers that it reads and that never change, by their address.
    pointers: HashMap<u64, u64>,
    /// Computed on first use.
    values: OnceCell<Values>,
    is_complete: bool,
}

impl Function {
    /// Decodes and analyzes the function at `range` ([`Image::function_at`]), including the cold parts that the
    /// compiler moved away and that jump back into it.
    ///
    /// `None` if the range is not in the file, or the function is too large to analyze.
    pub fn new(image: &Image, range: Range<u64>) -> Option<Function> {
        Function::with_endings(image, range, &mut Endings { most: MAX_LOOKED_AT, ..Endings::default() })
    }

    /// Does the same, with a cache of what is known about the functions that it calls.
    pub(super) fn with_endings(image: &Image, range: Range<u64>, endings: &mut Endings) -> Option<Function> {
        let mut insns = with_cold_parts(range.clone(), &|r| decode(image, r), &|addr| image.function_at(addr));
        endings.mark_calls(image, &mut insns);
        let pointers = insns.iter().filter_map(|i| Some((i.memory?, image.got_entry(i.memory?)?))).collect();
        Function::from_insns(range.start, insns, pointers)
    }

    /// Analyzes the machine code at address `base`, where the function also begins.
    #[cfg(test)]
    pub fn from_bytes(arch: crate::symbols::Arch, base: u64, bytes: &[u8]) -> Option<Function> {
        Function::from_insns(base, crate::isa::decode_bytes(arch, base, bytes), HashMap::new())
    }

    /// Analyzes decoded instructions. `pointers` are static pointers that the function reads and that never change, by
    /// their address.
    pub(super) fn from_insns(entry: u64, insns: Vec<Insn>, pointers: HashMap<u64, u64>) -> Option<Function> {
        if insns.is_empty() || insns.len() > MAX_INSNS {
            return None;
        }
        let (blocks, block_of) = blocks(&insns);
        let entry_block = block_of[insns.binary_search_by_key(&entry, |i| i.addr).ok()?];
        let returned = blocks.len();
        let mut graph = Graph::new(blocks.len() + 1);
        for (from, block) in blocks.iter().enumerate() {
            for target in block.targets() {
                match target {
                    Target::Block(to) => graph.add(from, to),
                    Target::Out => graph.add(from, returned),
                    Target::Dead => {}
                }
            }
        }
        let dominators = Dominators::new(&graph, entry_block)?;
        let postdominators = Dominators::new(&graph.reversed(), returned)?;
        let is_complete = !insns.iter().any(|i| i.flow == Flow::IndirectJump);
        Some(Function {
            entry,
            insns,
            blocks,
            block_of,
            graph,
            entry_block,
            dominators,
            postdominators,
            pointers,
            values: OnceCell::new(),
            is_complete,
        })
    }

    fn values(&self) -> &Values {
        self.values.get_or_init(|| {
            if !self.is_complete {
                return Values::unknown(self.insns[0].arch, self.blocks.len());
            }
            Values::new(&self.insns, &self.blocks, &self.graph, self.entry_block, self.pointers.clone())
        })
    }

    /// Returns whether all of its control flow is known, that is, whether it has no jump to an address in a register or
    /// in memory. If it has one, [`Function::arguments_at`] and [`Function::constants_at`] know nothing.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the address of the first instruction.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Returns its instructions, by ascending address.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns whether an instruction of the function begins at `addr`.
    pub fn contains(&self, addr: u64) -> bool {
        self.index(addr).is_some()
    }

    /// Returns where the function's first six integer arguments are just before the instruction at `addr` runs. `None`
    /// for an argument that is nowhere; all are `None` if there is no such instruction.
    pub fn arguments_at(&self, addr: u64) -> [Option<Location>; 6] {
        self.index(addr).map_or([None; 6], |i| self.values().arguments(&self.insns, &self.blocks, self.block_of[i], i))
    }

    /// Returns the values in the registers of a call's first six integer arguments just before the instruction at
    /// `addr` runs, as far as they are constants: numbers, and addresses of static data.
    pub fn constants_at(&self, addr: u64) -> [Option<u64>; 6] {
        self.passed_at(addr).map(|passed| passed.and_then(Passed::constant))
    }

    /// Returns what these registers hold just before the instruction at `addr` runs, as far as it is constant or
    /// derives from the function's own arguments.
    pub fn passed_at(&self, addr: u64) -> [Option<Passed>; 6] {
        self.index(addr).map_or([None; 6], |i| self.values().passed(&self.insns, &self.blocks, self.block_of[i], i))
    }

    /// Returns where the function itself stores argument `argument` in what argument `object` points to, and which of
    /// its bits.
    pub(super) fn stores(&self, argument: u8, object: u8) -> impl Iterator<Item = (i64, u32)> {
        let stores = self.values().stores(&self.insns, &self.blocks).into_iter();
        stores.filter(move |s| (s.argument, s.object) == (argument, object)).map(|s| (s.offset, s.mask))
    }

    /// Returns where the function itself reads or writes what an argument points to: offsets, and numbers of bytes.
    pub fn accessed(&self, argument: u8) -> BTreeSet<(i64, u8)> {
        self.values().accessed(&self.insns, &self.blocks, argument)
    }

    /// Returns the direct calls, and jumps to other functions, that pass on any of the function's arguments.
    pub fn handed_on(&self) -> Vec<HandedOn> {
        self.values().handed_on(&self.insns, &self.blocks)
    }

    /// Returns what the code before the call at `addr` leaves in the register of its argument `number`; `None` if that
    /// is not clear.
    pub fn left_for(&self, addr: u64, number: usize) -> Option<Left> {
        let at = self.index(addr)?;
        let start = self.blocks[self.block_of[at]].insns.start;
        left_for(&self.insns[start..at], number)
    }

    /// Returns the offset from another pointer at which argument `number` of the call at `addr` points, on the path to
    /// the call that takes no branch; `None` if that is not clear.
    pub fn added_for(&self, addr: u64, number: usize) -> Option<i64> {
        let at = self.index(addr)?;
        let goes_on = |i: &Insn| matches!(i.flow, Flow::Next | Flow::Branch(_) | Flow::Call(_));
        let start = self.insns[..at].iter().rposition(|i| !goes_on(i)).map_or(0, |last| last + 1);
        added_for(&self.insns[start..at], number)
    }

    /// Returns the instructions that run in every call of the function that returns.
    pub fn always_passed(&self) -> impl Iterator<Item = &Insn> {
        let blocks = self.postdominators.chain(self.entry_block).filter(|&b| b < self.blocks.len());
        blocks.flat_map(|b| &self.insns[self.blocks[b].insns.clone()])
    }

    /// Returns where the function's return address is just before the instruction at `addr` runs.
    pub fn return_address_at(&self, addr: u64) -> Option<Location> {
        self.index(addr).and_then(|i| self.values().return_address(&self.insns, &self.blocks, self.block_of[i], i))
    }

    fn index(&self, addr: u64) -> Option<usize> {
        self.insns.binary_search_by_key(&addr, |i| i.addr).ok()
    }

    /// Returns, for each instruction of a block, whether the first argument is in a known place before it runs.
    pub(super) fn latch_known(&self, block: usize) -> Vec<bool> {
        self.values().known(&self.insns, &self.blocks[block], block, 0)
    }

    /// Returns whether the function can return from the block.
    pub(super) fn is_live(&self, block: usize) -> bool {
        self.dominators.reaches(block) && self.postdominators.reaches(block)
    }
}

/// A cache of which functions never return.
#[derive(Default)]
pub(super) struct Endings {
    known: HashMap<u64, bool>,
    /// The number of functions that may still be examined.
    most: usize,
}

impl Endings {
    /// Creates a cache for the analysis of many functions.
    pub fn of_many() -> Endings {
        Endings { most: MAX_LOOKED_AT_IN_ALL, ..Endings::default() }
    }

    /// Marks calls to functions that end the program, mostly failed assertions. Control flow ends there; it does not
    /// continue to whatever the compiler placed after them.
    fn mark_calls(&mut self, image: &Image, insns: &mut [Insn]) {
        for insn in insns {
            let Flow::Call(Some(to)) = insn.flow else { continue };
            if self.known.len() >= self.most && !self.known.contains_key(&to) {
                continue;
            }
            if *self.known.entry(to).or_insert_with(|| never_returns(image, to)) {
                insn.flow = Flow::Trap;
            }
        }
    }
}

/// Returns whether the function at `entry` is small and has no way out, or is the C library function that ends the
/// program.
fn never_returns(image: &Image, entry: u64) -> bool {
    if import_called(image, entry) == Some("abort") {
        return true;
    }
    let Some(range) = image.function_at(entry).filter(|r| r.start == entry && r.end - r.start <= MAX_ENDING) else {
        return false;
    };
    let insns = decode(image, range.clone());
    !insns.is_empty() && !insns.iter().any(|i| leaves(i, &range))
}

/// Returns whether the instruction can leave the code at `range` other than by a call.
fn leaves(insn: &Insn, range: &Range<u64>) -> bool {
    match insn.flow {
        Flow::Jump(to) | Flow::Branch(to) => !range.contains(&to),
        flow => matches!(flow, Flow::Return | Flow::IndirectJump),
    }
}

/// Returns the instructions of the function at `range` and of its cold parts.
pub(super) fn with_cold_parts(
    range: Range<u64>,
    decode: &dyn Fn(Range<u64>) -> Vec<Insn>,
    function_at: &dyn Fn(u64) -> Option<Range<u64>>,
) -> Vec<Insn> {
    let mut insns = decode(range.clone());
    let mut parts = vec![range];
    while parts.len() <= MAX_PARTS && insns.len() <= MAX_INSNS {
        let Some((part, mut more)) = cold_part(&insns, &parts, decode, function_at) else { break };
        parts.push(part);
        insns.append(&mut more);
        insns.sort_by_key(|i| i.addr);
    }
    insns
}

/// Returns a part of the function that the compiler placed elsewhere: `insns` jump to it, and it jumps back to after
/// the function's first instruction. A part that neither returns nor jumps away counts too, because it ends the
/// program.
fn cold_part(
    insns: &[Insn],
    parts: &[Range<u64>],
    decode: &dyn Fn(Range<u64>) -> Vec<Insn>,
    function_at: &dyn Fn(u64) -> Option<Range<u64>>,
) -> Option<(Range<u64>, Vec<Insn>)> {
    let inside = |addr: u64| parts.iter().any(|p| p.contains(&addr));
    let mut seen: Vec<Range<u64>> = Vec::new();
    for insn in insns {
        let (Flow::Jump(to) | Flow::Branch(to)) = insn.flow else { continue };
        if inside(to) || seen.iter().any(|r| r.contains(&to)) || seen.len() >= MAX_LOOKED_AT {
            continue;
        }
        let Some(range) = function_at(to).filter(|r| r.contains(&to) && !inside(r.start)) else { continue };
        seen.push(range.clone());
        if range.end - range.start > MAX_PART {
            continue;
        }
        let part = decode(range.clone());
        let comes_back = |i: &Insn| match i.flow {
            Flow::Jump(to) | Flow::Branch(to) => inside(to) && !parts.iter().any(|p| p.start == to),
            _ => false,
        };
        if part.iter().any(comes_back) || !part.iter().any(|i| leaves(i, &range)) {
            return Some((range, part));
        }
    }
    None
}

//! Describes what registers and stack slots hold in a part of a function, in terms of what they held where that part
//! was entered.
//!
//! [`super::values`] follows a function's arguments from its entry. Inlined code has no arguments: its inputs are in
//! whatever registers or spill slots the compiler chose. Two instructions of a part use the same value if both have it
//! from the same location at the part's entry, on all paths. As in that module, the analysis assumes that nothing
//! writes to a spill slot through a pointer to something else.

use std::collections::HashMap;

use super::cfg::{Block, Graph};
use super::values::{Convention, Location};
use crate::isa::{Effect, Insn};
use crate::symbols::Arch;

/// A value in terms of the part's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    from: From,
    by: i64,
    /// Its size in bytes, 4 or 8.
    bytes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// The value that a register held.
    Register(u8),
    /// The value on the stack at an offset from what a register held.
    Slot { base: u8, at: i64 },
    /// The value that an instruction last left in a register.
    Made { insn: usize, register: u8 },
    /// No variable part: the value is a number.
    Nothing,
}

impl Origin {
    fn constant(value: u64) -> Origin {
        Origin { from: From::Nothing, by: value as i64, bytes: 8 }
    }

    fn register(register: u8) -> Origin {
        Origin { from: From::Register(register), by: 0, bytes: 8 }
    }

    fn slot(base: u8, at: i64, bytes: u8) -> Option<Origin> {
        matches!(bytes, 4 | 8).then_some(Origin { from: From::Slot { base, at }, by: 0, bytes })
    }

    pub fn as_constant(self) -> Option<u64> {
        (self.from == From::Nothing).then_some(self.by as u64)
    }

    pub fn plus(self, by: i64) -> Option<Origin> {
        (self.bytes == 8 || by == 0).then_some(Origin { by: self.by.wrapping_add(by), ..self })
    }

    /// Returns the distance of this value from `other`, if it is known.
    pub fn distance_from(self, other: Origin) -> Option<i64> {
        (self.from == other.from && self.bytes == 8 && other.bytes == 8).then(|| self.by.wrapping_sub(other.by))
    }

    fn low(self, bytes: u8) -> Option<Origin> {
        match (bytes, self.from) {
            (8, _) => Some(self),
            (4, From::Nothing) => Some(Origin { by: i64::from(self.by as u32), ..self }),
            (4, _) if self.by == 0 => Some(Origin { bytes: 4, ..self }),
            _ => None,
        }
    }
}

fn meet(one: Option<Origin>, other: Option<Origin>) -> Option<Origin> {
    let (one, other) = (one?, other?);
    let same = one.from == other.from && one.by == other.by;
    same.then_some(Origin { bytes: one.bytes.min(other.bytes), ..one })
}

/// A stack slot that was written since the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    base: u8,
    at: i64,
    bytes: u8,
    value: Option<Origin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    registers: [Option<Origin>; 32],
    slots: Vec<Slot>,
}

/// The most slots that are tracked; with more, the analysis gives up.
const MAX_SLOTS: usize = 128;

impl State {
    fn entry() -> State {
        State { registers: std::array::from_fn(|i| Some(Origin::register(i as u8))), slots: Vec::new() }
    }

    fn get(&self, register: u8) -> Option<Origin> {
        self.registers[usize::from(register & 31)]
    }

    fn set(&mut self, register: u8, value: Option<Origin>) {
        self.registers[usize::from(register & 31)] = value;
    }

    /// Forgets what the other state does not know. Returns true if that changed anything.
    fn meet(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.registers.iter_mut().zip(&other.registers) {
            *mine = meet(*mine, *theirs);
        }
        for theirs in &other.slots {
            if !self.slots.iter().any(|s| (s.base, s.at, s.bytes) == (theirs.base, theirs.at, theirs.bytes)) {
                let value = self.load(theirs.base, theirs.at, theirs.bytes);
                self.slots.push(Slot { value, ..*theirs });
            }
        }
        for slot in &mut self.slots {
            slot.value = meet(slot.value, other.load(slot.base, slot.at, slot.bytes));
        }
        *self != before
    }

    fn load(&self, base: u8, at: i64, bytes: u8) -> Option<Origin> {
        let end = at.saturating_add(i64::from(bytes));
        let overlaps = |s: &&Slot| s.base == base && s.at < end && at < s.at.saturating_add(i64::from(s.bytes));
        match self.slots.iter().rev().find(overlaps) {
            Some(slot) if slot.at == at && slot.bytes >= bytes => slot.value?.low(bytes),
            Some(_) => None,
            None => Origin::slot(base, at, bytes),
        }
    }

    fn store(&mut self, base: u8, at: i64, bytes: u8, value: Option<Origin>) {
        let end = at.saturating_add(i64::from(bytes));
        self.slots.retain(|s| s.base != base || s.at < at || s.at.saturating_add(i64::from(s.bytes)) > end);
        self.slots.push(Slot { base, at, bytes, value: value.and_then(|v| v.low(bytes)) });
    }

    /// Returns where on the stack an address is, if it is on the stack.
    fn in_stack(&self, base: u8, offset: i64, frame: &Frame) -> Option<(u8, i64)> {
        match self.get(base)? {
            Origin { from: From::Register(register), by, bytes: 8 } if frame.has(register) => {
                Some((register, by.wrapping_add(offset)))
            }
            _ => None,
        }
    }

    /// Records that the register holds a value that instruction `insn` made. This invalidates what that instruction
    /// made before.
    fn make(&mut self, insn: usize, register: u8) {
        let from = From::Made { insn, register };
        let is_old = |value: &Option<Origin>| value.is_some_and(|v| v.from == from);
        self.registers.iter_mut().filter(|v| is_old(v)).for_each(|v| *v = None);
        self.slots.iter_mut().map(|s| &mut s.value).filter(|v| is_old(v)).for_each(|v| *v = None);
        self.set(register, Some(Origin { from, by: 0, bytes: 8 }));
    }

    fn set_or_make(&mut self, insn: usize, register: u8, value: Option<Origin>) {
        match value {
            Some(_) => self.set(register, value),
            None => self.make(insn, register),
        }
    }

    /// Applies the effects of instruction `insn`.
    fn apply(&mut self, insn: usize, effect: &Effect, frame: &Frame) {
        match *effect {
            Effect::Copy { to, from, bytes } => self.set_or_make(insn, to, self.get(from).and_then(|v| v.low(bytes))),
            Effect::Offset { to, from, by } => self.set_or_make(insn, to, self.get(from).and_then(|v| v.plus(by))),
            Effect::Constant { to, value } => self.set(to, Some(Origin::constant(value))),
            Effect::Insert { to, value, shift } => {
                let old = self.get(to).and_then(Origin::as_constant);
                let new = |old: u64| Origin::constant(old & !(0xffff << shift) | u64::from(value) << shift);
                self.set_or_make(insn, to, old.map(new));
            }
            Effect::Store { base, offset, from, bytes } => {
                if let Some((base, at)) = self.in_stack(base, offset, frame) {
                    self.store(base, at, bytes, from.and_then(|r| self.get(r)));
                }
            }
            Effect::Load { to, base, offset, bytes } => {
                let value = self.in_stack(base, offset, frame).and_then(|(base, at)| self.load(base, at, bytes));
                self.set_or_make(insn, to, value);
            }
            Effect::And { to, .. } | Effect::Or { to, .. } | Effect::Take { to, .. } | Effect::Clobber(to) => {
                self.make(insn, to);
            }
            Effect::Call => {
                let convention = Convention::of(frame.arch);
                convention.caller_saved.iter().for_each(|&r| self.set(r, None));
                // The call's result.
                self.make(insn, 0);
            }
            Effect::Unknown => *self = State { registers: [None; 32], slots: Vec::new() },
        }
        if self.slots.len() > MAX_SLOTS {
            self.registers = [None; 32];
        }
    }

    /// Returns the value in the register of a call's argument.
    pub fn argument(&self, arch: Arch, number: usize) -> Option<Origin> {
        self.get(*Convention::of(arch).arguments.get(number)?)
    }

    /// Returns the address of an instruction's memory operand.
    pub fn address(&self, insn: &Insn) -> Option<Origin> {
        match insn.operand()? {
            (Some(base), offset) => self.get(base)?.plus(offset),
            (None, at) => Some(Origin::constant(at as u64)),
        }
    }

    /// Returns where a value is, preferring registers over the stack.
    pub fn location(&self, value: Origin) -> Option<Location> {
        if let Some(constant) = value.as_constant() {
            return Some(Location::Constant(constant));
        }
        let registers = (0..32).filter_map(|register| {
            let held = self.get(register)?;
            if held.from != value.from || held.bytes < value.bytes {
                return None;
            }
            match i32::try_from(value.by.checked_sub(held.by)?).ok()? {
                0 => Some(Location::Register { register, bytes: value.bytes }),
                offset => (held.bytes == 8).then_some(Location::Sum { register, offset }),
            }
        });
        let exact = |p: &Location| matches!(p, Location::Register { .. });
        let mut found: Vec<Location> = registers.collect();
        found.sort_by_key(|p| !exact(p));
        found.first().copied().or_else(|| self.stacked(value))
    }

    fn stacked(&self, value: Origin) -> Option<Location> {
        let untouched = match value.from {
            From::Slot { base, at } if self.load(base, at, value.bytes) == Some(value) => Some((base, at)),
            _ => None,
        };
        let written = || {
            let holds = |s: &&Slot| s.value == Some(value) && matches!(s.bytes, 4 | 8) && s.bytes == value.bytes;
            self.slots.iter().find(holds).map(|s| (s.base, s.at))
        };
        let (base, at) = untouched.or_else(written)?;
        (0..32).find_map(|register| match self.get(register)? {
            Origin { from: From::Register(r), by, bytes: 8 } if r == base => {
                let offset = i32::try_from(at.checked_sub(by)?).ok()?;
                Some(Location::Stack { base: register, offset, bytes: value.bytes })
            }
            _ => None,
        })
    }
}

/// The registers through which a function addresses its stack.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    arch: Arch,
    has_pointer: bool,
}

/// The number of instructions at the beginning among which one may set up a frame pointer.
const PROLOGUE: usize = 16;

impl Frame {
    pub fn of(arch: Arch, function: &[Insn]) -> Frame {
        let Convention { stack_pointer, frame_pointer, .. } = Convention::of(arch);
        let mut changes = Vec::new();
        for insn in function.iter().take(PROLOGUE) {
            insn.effects(&mut changes);
        }
        let has_pointer = changes.iter().any(|change| match *change {
            Effect::Copy { to, from, bytes: 8 } | Effect::Offset { to, from, .. } => {
                to == frame_pointer && from == stack_pointer
            }
            _ => false,
        });
        Frame { arch, has_pointer }
    }

    fn has(&self, register: u8) -> bool {
        let convention = Convention::of(self.arch);
        register == convention.stack_pointer || self.has_pointer && register == convention.frame_pointer
    }
}

/// What is known at the start of every block of a part of a function.
pub(super) struct Origins<'a> {
    insns: &'a [Insn],
    blocks: &'a [Block],
    frame: Frame,
    starts: HashMap<usize, State>,
}

/// The most visits per block, which bounds the iteration.
const MAX_VISITS: usize = 64;

impl<'a> Origins<'a> {
    /// Analyzes the blocks that `inside` names. `None` if the analysis does not converge.
    pub fn new(
        insns: &'a [Insn],
        blocks: &'a [Block],
        graph: &Graph,
        frame: Frame,
        inside: &[bool],
    ) -> Option<Origins<'a>> {
        let is_inside = |b: usize| b < blocks.len() && inside[b];
        let is_entered = |b: usize| graph.back[b].is_empty() || graph.back[b].iter().any(|&from| !is_inside(from));
        let mut work: Vec<usize> = (0..blocks.len()).filter(|&b| is_inside(b) && is_entered(b)).collect();
        let starts = work.iter().map(|&b| (b, State::entry())).collect();
        let mut origins = Origins { insns, blocks, frame, starts };
        let mut visits = work.len() + MAX_VISITS * inside.iter().filter(|&&i| i).count();
        while let Some(block) = work.pop() {
            visits = visits.checked_sub(1)?;
            let end = origins.before(block, blocks[block].insns.end)?;
            for &next in graph.next[block].iter().filter(|&&n| is_inside(n)) {
                let changed = match origins.starts.get_mut(&next) {
                    Some(known) => known.meet(&end),
                    None => origins.starts.insert(next, end.clone()).is_none(),
                };
                if changed && !work.contains(&next) {
                    work.push(next);
                }
            }
        }
        Some(origins)
    }

    /// Returns what is known in a block before the instruction with index `at`.
    pub fn before(&self, block: usize, at: usize) -> Option<State> {
        self.follow(block, at, |_, _| ())
    }

    /// Calls `visit` with each instruction of a block and what is known before it. An unreached block has no calls.
    pub fn each(&self, block: usize, visit: impl FnMut(&State, &Insn)) {
        _ = self.follow(block, self.blocks[block].insns.end, visit);
    }

    /// Returns what is known in a block before the instruction with index `at`, and calls `visit` with the state before
    /// each instruction up to it.
    fn follow(&self, block: usize, at: usize, mut visit: impl FnMut(&State, &Insn)) -> Option<State> {
        let mut state = self.starts.get(&block)?.clone();
        let mut changes = Vec::new();
        for insn in self.blocks[block].insns.start..at {
            visit(&state, &self.insns[insn]);
            changes.clear();
            self.insns[insn].effects(&mut changes);
            changes.iter().for_each(|change| state.apply(insn, change, &self.frame));
        }
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u8 = 4;

    #[test]
    fn a_slot_is_known_until_something_overlaps_it() {
        let (whole, half) = (Origin::register(3), Origin::register(5).low(4).expect("the low half"));
        let mut state = State::entry();
        assert_eq!(state.load(BASE, 0, 8), Origin::slot(BASE, 0, 8), "what the caller left there");
        state.store(BASE, 0, 8, Some(whole));
        state.store(BASE, 8, 4, Some(half));
        assert_eq!((state.load(BASE, 0, 8), state.load(BASE, 8, 4)), (Some(whole), Some(half)));
        assert_eq!(state.load(BASE, 0, 4), whole.low(4));
        // A part of the first is overwritten: the rest is neither that nor what the caller left.
        state.store(BASE, 0, 4, Some(half));
        assert_eq!((state.load(BASE, 0, 4), state.load(BASE, 4, 4), state.load(BASE, 0, 8)), (Some(half), None, None));
        // All of it is.
        state.store(BASE, -8, 32, None);
        assert_eq!((state.load(BASE, 8, 4), state.slots.len()), (None, 1));
        assert_eq!(state.load(BASE, 24, 8), Origin::slot(BASE, 24, 8));
        assert_eq!(state.load(BASE + 1, 0, 8), Origin::slot(BASE + 1, 0, 8));
    }
}

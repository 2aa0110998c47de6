//! Tracks where a function's arguments are at each of its instructions.
//!
//! This is a forward dataflow analysis of what every register and every written stack slot is known to hold, on all
//! paths to an instruction. It follows copies, spills, reloads and address arithmetic. It forgets whatever else is
//! written and, at calls, what a callee may change. It assumes, as compilers do, that nothing writes to a spill slot
//! through a pointer to something else.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::cfg::{Block, Graph};
use crate::isa::{aarch64, x86, Effect, Flow, Insn};
use crate::symbols::Arch;

/// Where a value can be read at an instruction, from the registers that the kernel saves and the thread's stack.
///
/// Registers are numbered as the hardware encodes them: on x86-64 rax 0, rcx 1, rdx 2, rbx 3, rsp 4, rbp 5, rsi 6, rdi
/// 7, r8 to r15; on arm64 x0 to x30, and 31 for sp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the low bytes of a register.
    Register {
        /// The register.
        register: u8,
        /// The number of bytes, 4 or 8.
        bytes: u8,
    },
    /// In memory at a distance from where a register points.
    Stack {
        /// The register.
        base: u8,
        /// The distance, in bytes.
        offset: i32,
        /// The number of bytes, 4 or 8.
        bytes: u8,
    },
    /// The sum of a register and an offset.
    Sum {
        /// The register.
        register: u8,
        /// The number to add.
        offset: i32,
    },
    /// No location: the value is always this number or link-time address.
    Constant(u64),
}

/// What a function passes in a call, as far as its code alone shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// A number, or the address of static data.
    Constant(u64),
    /// The u32 in static data at this address.
    Content(u64),
    /// One of its own arguments, or an address at an offset from where the argument points.
    Member {
        /// The number of the argument, counted from 0.
        argument: u8,
        /// The offset, in bytes; 0 for the argument itself.
        offset: i64,
    },
}

impl Passed {
    /// Returns the value if it is a constant.
    pub fn constant(self) -> Option<u64> {
        match self {
            Passed::Constant(value) => Some(value),
            Passed::Content(_) | Passed::Member { .. } => None,
        }
    }

    /// Returns the offset if the value is the first argument or points into its object.
    pub fn first_argument(self) -> Option<i64> {
        match self {
            Passed::Member { argument: 0, offset } => Some(offset),
            _ => None,
        }
    }
}

/// A store of one argument into the object that another one points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Keeping {
    pub argument: u8,
    pub object: u8,
    /// The offset, in bytes, from where the object's argument points.
    pub offset: i64,
    /// The bits of the stored word that belong to the argument.
    pub mask: u32,
}

/// A call that passes on some of the caller's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOn {
    /// The link-time address of the called function.
    pub callee: u64,
    /// For each argument of the call: the number of the caller's argument that it is (or whose low half it is), and its
    /// offset from where that argument points.
    pub arguments: [Option<(u8, i64)>; 6],
}

/// The most stack slots that are tracked; further ones are forgotten. Compiled functions stay far below.
const MAX_SLOTS: usize = 128;

/// The most visits per block, which bounds the dataflow iteration. Every visit but the first forgets something.
const MAX_VISITS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    /// The low `bytes` of an argument, zero-extended.
    Argument {
        index: u8,
        bytes: u8,
    },
    /// An argument plus a nonzero offset: the address of a member of what it points to.
    Member {
        index: u8,
        offset: i64,
    },
    /// In the low `bytes`: the bits of an argument under the mask, and zeros elsewhere.
    Masked {
        index: u8,
        mask: u32,
        bytes: u8,
    },
    /// In the low `bytes`: the bits of an argument under the mask, and other bits elsewhere, as when a bit field is
    /// written.
    Merged {
        index: u8,
        mask: u32,
        bytes: u8,
    },
    /// An unknown value whose low `bytes` have these bits zero.
    Cleared {
        zeros: u32,
        bytes: u8,
    },
    /// The stack pointer on entry, plus this.
    Frame(i64),
    Constant(u64),
    /// The contents of the 4 bytes of static data at this address.
    Content(u64),
    /// The address that the function returns to.
    ReturnAddress,
}

impl Value {
    fn meet(self, other: Value) -> Value {
        match (self, other) {
            (a, b) if a == b => a,
            (Value::Argument { index: a, bytes: x }, Value::Argument { index: b, bytes: y }) if a == b => {
                Value::Argument { index: a, bytes: x.min(y) }
            }
            _ => Value::Unknown,
        }
    }

    fn plus(self, by: i64) -> Value {
        match self {
            value if by == 0 => value,
            Value::Argument { index, bytes: 8 } => Value::Member { index, offset: by },
            Value::Member { index, offset } if offset.wrapping_add(by) == 0 => Value::Argument { index, bytes: 8 },
            Value::Member { index, offset } => Value::Member { index, offset: offset.wrapping_add(by) },
            Value::Frame(at) => Value::Frame(at.wrapping_add(by)),
            Value::Constant(value) => Value::Constant(value.wrapping_add_signed(by)),
            _ => Value::Unknown,
        }
    }

    /// Returns the argument that it is or points into, and the offset.
    fn member(self) -> Option<(u8, i64)> {
        match self {
            Value::Argument { index, bytes: 8 } => Some((index, 0)),
            Value::Member { index, offset } => Some((index, offset)),
            _ => None,
        }
    }

    /// Returns its low `bytes`.
    fn low(self, bytes: u8) -> Value {
        match (self, bytes) {
            (value, 8) => value,
            (value @ (Value::Masked { .. } | Value::Merged { .. } | Value::Cleared { .. }), _) => value,
            (Value::Argument { index, bytes }, 4) => Value::Argument { index, bytes: bytes.min(4) },
            (Value::Constant(value), 4) => Value::Constant(value & u64::from(u32::MAX)),
            (Value::Content(at), 4) => Value::Content(at),
            _ => Value::Unknown,
        }
    }
}

/// Bit fields: values of which an argument is a part.
impl Value {
    /// Returns the low `bytes`, masked with `mask`.
    fn and(self, mask: u64, bytes: u8) -> Value {
        let width = if bytes == 2 { 0xffff } else { u32::MAX };
        let mask = mask as u32 & width;
        match self {
            Value::Argument { index, bytes: b } => Value::Masked { index, mask, bytes: bytes.min(b).min(4) },
            Value::Masked { index, mask: m, bytes: b } => {
                Value::Masked { index, mask: m & mask, bytes: bytes.min(b).min(4) }
            }
            Value::Frame(_) | Value::Constant(_) | Value::ReturnAddress => Value::Unknown,
            _ => Value::Cleared { zeros: !mask & width, bytes: bytes.min(4) },
        }
    }

    /// Returns the value with another value's bits set in it.
    fn or(self, other: Value) -> Value {
        match (self, other) {
            (Value::Masked { index, mask, bytes: a }, Value::Cleared { zeros, bytes: b })
            | (Value::Cleared { zeros, bytes: b }, Value::Masked { index, mask, bytes: a })
                if mask & !zeros == 0 =>
            {
                Value::Merged { index, mask, bytes: a.min(b) }
            }
            _ => Value::Unknown,
        }
    }

    /// Returns the value with the bits of `mask` taken from another.
    fn take(from: Value, mask: u32) -> Value {
        match from {
            Value::Argument { index, .. } => Value::Merged { index, mask, bytes: 4 },
            _ => Value::Unknown,
        }
    }

    /// Returns the argument that a store of the low `bytes` stores, and which of its bits.
    fn kept(self, bytes: u8) -> Option<(u8, u32)> {
        let width = if bytes == 2 { 0xffff } else { u32::MAX };
        match self {
            Value::Argument { index, .. } => Some((index, width)),
            Value::Masked { index, mask, .. } | Value::Merged { index, mask, .. } => Some((index, mask & width)),
            _ => None,
        }
    }
}

/// Returns the value at a static address.
fn content(at: u64, bytes: u8, pointers: &HashMap<u64, u64>) -> Value {
    match (bytes, pointers.get(&at)) {
        (8, Some(&to)) => Value::Constant(to),
        (4, None) => Value::Content(at),
        _ => Value::Unknown,
    }
}

/// A stack slot with a known value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// The offset from the stack pointer on entry.
    at: i64,
    bytes: u8,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    registers: [Value; 32],
    slots: Vec<Slot>,
}

impl State {
    fn entry(arch: Arch) -> State {
        let mut registers = [Value::Unknown; 32];
        let convention = Convention::of(arch);
        for (index, &register) in (0..).zip(convention.arguments) {
            registers[usize::from(register)] = Value::Argument { index, bytes: 8 };
        }
        registers[usize::from(convention.stack_pointer)] = Value::Frame(0);
        if let Some(register) = convention.link_register {
            registers[usize::from(register)] = Value::ReturnAddress;
        }
        State { registers, slots: Vec::new() }
    }

    fn get(&self, register: u8) -> Value {
        self.registers[usize::from(register & 31)]
    }

    fn set(&mut self, register: u8, value: Value) {
        self.registers[usize::from(register & 31)] = value;
    }

    /// Forgets what the other state does not know. Returns true if that changed anything.
    fn meet(&mut self, other: &State) -> bool {
        let before = (self.registers, self.slots.len());
        let mut changed = false;
        for (mine, theirs) in self.registers.iter_mut().zip(&other.registers) {
            *mine = mine.meet(*theirs);
        }
        self.slots.retain_mut(|slot| {
            let Some(theirs) = other.slots.iter().find(|o| o.at == slot.at && o.bytes == slot.bytes) else {
                return false;
            };
            let met = slot.value.meet(theirs.value);
            changed |= met != slot.value;
            slot.value = met;
            met != Value::Unknown
        });
        changed || before != (self.registers, self.slots.len())
    }

    fn apply(&mut self, effect: &Effect, convention: &Convention, pointers: &HashMap<u64, u64>) {
        match *effect {
            Effect::Copy { to, from, bytes } => self.set(to, self.get(from).low(bytes)),
            Effect::Offset { to, from, by } => {
                self.set(to, self.get(from).plus(by));
            }
            Effect::Constant { to, value } => self.set(to, Value::Constant(value)),
            Effect::Insert { to, value, shift } => {
                let new = match self.get(to) {
                    Value::Constant(old) => Value::Constant(old & !(0xffff << shift) | u64::from(value) << shift),
                    _ => Value::Unknown,
                };
                self.set(to, new);
            }
            Effect::And { to, mask, bytes } => self.set(to, self.get(to).and(mask, bytes)),
            Effect::Or { to, from, .. } => self.set(to, self.get(to).or(self.get(from))),
            Effect::Take { to, from, mask } => self.set(to, Value::take(self.get(from), mask)),
            Effect::Store { base, offset, from, bytes } => {
                if let Value::Frame(at) = self.get(base) {
                    let value = from.map_or(Value::Unknown, |r| self.get(r));
                    self.store(at.wrapping_add(offset), bytes, value);
                }
            }
            Effect::Load { to, base, offset, bytes } => {
                let value = match self.get(base) {
                    Value::Frame(at) => self.load(at.wrapping_add(offset), bytes),
                    Value::Constant(at) => content(at.wrapping_add_signed(offset), bytes, pointers),
                    _ => Value::Unknown,
                };
                self.set(to, value);
            }
            Effect::Clobber(register) => self.set(register, Value::Unknown),
            Effect::Call => self.call(convention),
            Effect::Unknown => {
                self.registers = [Value::Unknown; 32];
                self.slots.clear();
            }
        }
    }

    fn argument_stored(&self, base: u8, offset: i64, from: u8, bytes: u8) -> Option<Keeping> {
        let (argument, mask) = self.get(from).kept(bytes)?;
        let (object, member) = self.get(base).member()?;
        Some(Keeping { argument, object, offset: member.wrapping_add(offset), mask })
    }

    fn store(&mut self, at: i64, bytes: u8, value: Value) {
        let end = at.saturating_add(i64::from(bytes));
        self.slots.retain(|s| s.at >= end || s.at.saturating_add(i64::from(s.bytes)) <= at);
        // A value narrower than the slot would otherwise be taken for a whole one.
        let value = value.low(bytes);
        let is_known = !matches!(value, Value::Unknown | Value::Cleared { .. });
        if is_known && self.slots.len() < MAX_SLOTS {
            self.slots.push(Slot { at, bytes, value });
        }
    }

    fn load(&self, at: i64, bytes: u8) -> Value {
        let found = self.slots.iter().find(|s| s.at == at && s.bytes >= bytes);
        found.map_or(Value::Unknown, |s| s.value.low(bytes))
    }

    fn call(&mut self, convention: &Convention) {
        convention.caller_saved.iter().for_each(|&r| self.set(r, Value::Unknown));
        // The callee's frame lies below the stack pointer.
        if let Value::Frame(top) = self.get(convention.stack_pointer) {
            self.slots.retain(|s| s.at >= top);
        }
    }

    /// Returns where argument `index` is, preferring whole values over halves, and registers over memory.
    fn location(&self, index: u8, convention: &Convention) -> Option<Location> {
        let width = |value: Value| match value {
            Value::Argument { index: i, bytes } if i == index => Some(bytes),
            _ => None,
        };
        let registers = (0..)
            .zip(self.registers)
            .filter_map(|(register, value)| width(value).map(|bytes| (bytes, Location::Register { register, bytes })));
        let live = self.slots.iter().filter(|slot| !self.is_freed(slot, convention));
        let slots = live.filter_map(|slot| {
            let bytes = width(slot.value)?.min(slot.bytes);
            let (base, offset) = self.address(slot.at, convention)?;
            Some((bytes, Location::Stack { base, offset, bytes }))
        });
        let found: Vec<_> = registers.chain(slots).collect();
        let widest = found.iter().map(|&(bytes, _)| bytes).max()?;
        found.iter().find(|&&(bytes, _)| bytes == widest).map(|&(_, location)| location)
    }

    /// Returns whether the slot lies below the stack, where a signal handler may overwrite it.
    fn is_freed(&self, slot: &Slot, convention: &Convention) -> bool {
        match self.get(convention.stack_pointer) {
            Value::Frame(top) => slot.at < top.saturating_sub(convention.red_zone),
            _ => false,
        }
    }

    /// Returns a register from which the stack slot can be addressed, preferring the frame pointer.
    fn address(&self, at: i64, convention: &Convention) -> Option<(u8, i32)> {
        let from = |base: u8| match self.get(base) {
            Value::Frame(known) => Some((base, i32::try_from(at.checked_sub(known)?).ok()?)),
            _ => None,
        };
        from(convention.frame_pointer).or_else(|| from(convention.stack_pointer)).or_else(|| (0..32).find_map(from))
    }
}

/// The calling convention's rules about registers.
pub(super) struct Convention {
    pub arguments: &'static [u8; 6],
    pub caller_saved: &'static [u8],
    pub stack_pointer: u8,
    pub frame_pointer: u8,
    /// The register that holds the return address on entry, if it is not on the stack.
    link_register: Option<u8>,
    /// The number of bytes below the stack pointer that signal handlers do not touch.
    red_zone: i64,
}

impl Convention {
    pub fn of(arch: Arch) -> Convention {
        match arch {
            Arch::X86_64 => Convention {
                arguments: &x86::ARGUMENTS,
                caller_saved: &x86::CALLER_SAVED,
                stack_pointer: x86::RSP,
                frame_pointer: x86::RBP,
                link_register: None,
                red_zone: 128,
            },
            Arch::Aarch64 => Convention {
                arguments: &aarch64::ARGUMENTS,
                caller_saved: &aarch64::CALLER_SAVED,
                stack_pointer: aarch64::SP,
                frame_pointer: aarch64::FP,
                link_register: Some(aarch64::LR),
                red_zone: 0,
            },
        }
    }
}

/// What straight-line code leaves in the register of a call's argument, judging by the last instruction that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Another register plus this offset.
    Offset(i64),
    /// The four bytes at this offset from where another register points.
    Loaded(i64),
}

pub(super) fn left_for(insns: &[Insn], argument: usize) -> Option<Left> {
    let convention = Convention::of(insns.first()?.arch);
    let register = *convention.arguments.get(argument)?;
    let mut changes = Vec::new();
    insns.iter().rev().find_map(|insn| {
        changes.clear();
        insn.effects(&mut changes);
        changes.iter().rev().find_map(|change| match *change {
            // Stack memory is not part of any object.
            Effect::Offset { to, from, .. } | Effect::Copy { to, from, .. } | Effect::Load { to, base: from, .. }
                if to == register && from == convention.stack_pointer =>
            {
                Some(None)
            }
            Effect::Offset { to, by, .. } if to == register => Some(Some(Left::Offset(by))),
            Effect::Copy { to, bytes: 8, .. } if to == register => Some(Some(Left::Offset(0))),
            Effect::Load { to, offset, bytes: 4, .. } if to == register => Some(Some(Left::Loaded(offset))),
            Effect::Call | Effect::Unknown => Some(None),
            _ => (change.written() == Some(register)).then_some(None),
        })
    })?
}

/// Returns the offset that these instructions, run in sequence, add to some register to form a call's argument. Copies
/// are followed back to the addition.
pub(super) fn added_for(insns: &[Insn], argument: usize) -> Option<i64> {
    let convention = Convention::of(insns.first()?.arch);
    let mut register = *convention.arguments.get(argument)?;
    let mut changes = Vec::new();
    for insn in insns.iter().rev() {
        changes.clear();
        insn.effects(&mut changes);
        for change in changes.iter().rev() {
            match *change {
                Effect::Offset { to, from, by } if to == register => {
                    return (from != convention.stack_pointer).then_some(by);
                }
                Effect::Copy { to, from, bytes: 8 } if to == register => register = from,
                Effect::Call if !convention.caller_saved.contains(&register) => {}
                Effect::Store { .. } => {}
                _ if change.written().is_some_and(|to| to != register) => {}
                _ => return None,
            }
        }
    }
    None
}

/// The result of the analysis: what is known at the start of every block.
pub(super) struct Values {
    arch: Arch,
    /// Static pointers that never change, by their address.
    pointers: HashMap<u64, u64>,
    /// `None` for a block that is never reached, or where the analysis gave up.
    starts: Vec<Option<State>>,
}

impl Values {
    /// Creates a result for unknown control flow: nothing is known.
    pub fn unknown(arch: Arch, blocks: usize) -> Values {
        Values { arch, pointers: HashMap::new(), starts: vec![None; blocks] }
    }

    pub fn new(insns: &[Insn], blocks: &[Block], graph: &Graph, entry: usize, pointers: HashMap<u64, u64>) -> Values {
        let arch = insns.first().map_or(Arch::HOST, |i| i.arch);
        let mut values = Values { arch, pointers, starts: vec![None; blocks.len()] };
        values.starts[entry] = Some(State::entry(arch));
        let mut visits = vec![0; blocks.len()];
        let mut work = vec![entry];
        let mut queued = vec![false; blocks.len()];
        while let Some(block) = work.pop() {
            queued[block] = false;
            visits[block] += 1;
            if visits[block] > MAX_VISITS {
                // Missing beats wrong.
                values.starts.fill(None);
                return values;
            }
            let Some(end) = values.state(insns, blocks, block, blocks[block].insns.end) else { continue };
            for &next in graph.next[block].iter().filter(|&&n| n < blocks.len()) {
                let changed = match &mut values.starts[next] {
                    Some(known) => known.meet(&end),
                    unseen => {
                        *unseen = Some(end.clone());
                        true
                    }
                };
                if changed && !std::mem::replace(&mut queued[next], true) {
                    work.push(next);
                }
            }
        }
        values
    }

    /// Returns what is known before instruction `upto` of `block`.
    fn state(&self, insns: &[Insn], blocks: &[Block], block: usize, upto: usize) -> Option<State> {
        let mut state = self.starts[block].clone()?;
        let convention = Convention::of(self.arch);
        let mut changes = Vec::new();
        for insn in &insns[blocks[block].insns.start..upto] {
            changes.clear();
            insn.effects(&mut changes);
            changes.iter().for_each(|change| state.apply(change, &convention, &self.pointers));
        }
        Some(state)
    }

    pub fn arguments(&self, insns: &[Insn], blocks: &[Block], block: usize, at: usize) -> [Option<Location>; 6] {
        let Some(state) = self.state(insns, blocks, block, at) else { return [None; 6] };
        let convention = Convention::of(self.arch);
        std::array::from_fn(|index| state.location(index as u8, &convention))
    }

    /// Returns, for each instruction of a block, whether argument `index` is in a known place before it runs.
    pub fn known(&self, insns: &[Insn], block: &Block, number: usize, index: u8) -> Vec<bool> {
        let Some(mut state) = self.starts[number].clone() else { return vec![false; block.insns.len()] };
        let convention = Convention::of(self.arch);
        let mut changes = Vec::new();
        let mut known = Vec::with_capacity(block.insns.len());
        for insn in &insns[block.insns.clone()] {
            known.push(state.location(index, &convention).is_some());
            changes.clear();
            insn.effects(&mut changes);
            changes.iter().for_each(|change| state.apply(change, &convention, &self.pointers));
        }
        known
    }

    /// Returns the stores of one argument into what another points to.
    pub fn stores(&self, insns: &[Insn], blocks: &[Block]) -> HashSet<Keeping> {
        let mut found = HashSet::new();
        self.each_change(insns, blocks, |state, _, change| {
            if let Effect::Store { base, offset, from: Some(from), bytes } = *change {
                found.extend(state.argument_stored(base, offset, from, bytes));
            }
        });
        found
    }

    /// Returns where the function reads or writes what an argument points to: offsets, and numbers of bytes.
    pub fn accessed(&self, insns: &[Insn], blocks: &[Block], argument: u8) -> BTreeSet<(i64, u8)> {
        let mut found = BTreeSet::new();
        self.each_change(insns, blocks, |state, _, change| {
            if let Effect::Store { base, offset, bytes, .. } | Effect::Load { base, offset, bytes, .. } = *change {
                let member = state.get(base).member().filter(|(object, _)| *object == argument);
                found.extend(member.map(|(_, member)| (member.wrapping_add(offset), bytes)));
            }
        });
        found
    }

    /// Returns the direct calls that pass on any of the function's arguments.
    pub fn handed_on(&self, insns: &[Insn], blocks: &[Block]) -> Vec<HandedOn> {
        let registers = Convention::of(self.arch).arguments;
        let mut found = Vec::new();
        self.each_change(insns, blocks, |state, insn, _| {
            let (Flow::Call(Some(callee)) | Flow::Jump(callee)) = insn.flow else { return };
            let arguments = registers.map(|register| match state.get(register) {
                Value::Argument { index, .. } => Some((index, 0)),
                value => value.member(),
            });
            if arguments.iter().any(Option::is_some) {
                found.push(HandedOn { callee, arguments });
            }
        });
        found
    }

    /// Calls `visit` for each change, with the state before it, the instruction, and the change.
    fn each_change(&self, insns: &[Insn], blocks: &[Block], mut visit: impl FnMut(&State, &Insn, &Effect)) {
        let convention = Convention::of(self.arch);
        let mut changes = Vec::new();
        for (block, start) in blocks.iter().zip(&self.starts) {
            let Some(mut state) = start.clone() else { continue };
            for insn in &insns[block.insns.clone()] {
                changes.clear();
                insn.effects(&mut changes);
                if changes.is_empty() && matches!(insn.flow, Flow::Jump(_)) {
                    visit(&state, insn, &Effect::Call);
                }
                for change in &changes {
                    visit(&state, insn, change);
                    state.apply(change, &convention, &self.pointers);
                }
            }
        }
    }

    /// Returns where the return address is: on x86-64 where the call pushed it, on arm64 in x30 until that is
    /// overwritten.
    pub fn return_address(&self, insns: &[Insn], blocks: &[Block], block: usize, at: usize) -> Option<Location> {
        let state = self.state(insns, blocks, block, at)?;
        let convention = Convention::of(self.arch);
        match convention.link_register {
            Some(register) => {
                (state.get(register) == Value::ReturnAddress).then_some(Location::Register { register, bytes: 8 })
            }
            None => state.address(0, &convention).map(|(base, offset)| Location::Stack { base, offset, bytes: 8 }),
        }
    }

    pub fn passed(&self, insns: &[Insn], blocks: &[Block], block: usize, at: usize) -> [Option<Passed>; 6] {
        let Some(state) = self.state(insns, blocks, block, at) else { return [None; 6] };
        Convention::of(self.arch).arguments.map(|register| match state.get(register) {
            Value::Constant(value) => Some(Passed::Constant(value)),
            Value::Content(at) => Some(Passed::Content(at)),
            Value::Argument { index, bytes: 8 } => Some(Passed::Member { argument: index, offset: 0 }),
            Value::Member { index, offset } => Some(Passed::Member { argument: index, offset }),
            _ => None,
        })
    }
}

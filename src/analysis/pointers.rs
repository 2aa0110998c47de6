//! Tracks what a function's calls pass and its stores write, by the origin of each value.
//!
//! [`Values`](super::values) follows a function's arguments. This analysis follows everything that a pointer can start
//! from: an argument, what a call returns, what was read from memory, and whatever two joining paths bring. So two
//! addresses can be known to lie in the same object, at a known distance, without knowing which object that is.
//!
//! Vector registers are followed on x86-64 only.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::cfg::Block;
use super::function::Function;
use super::values::Convention;
use crate::isa::x86::{self, Lane, Lanes};
use crate::isa::{Effect, Flow, Insn};
use crate::symbols::{Arch, Image};

/// The origin of an address or a number inside one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Root {
    /// The function's argument with this number: those in registers first, then those on the stack.
    Argument(u8),
    /// What an instruction leaves in a register.
    Made {
        /// The address of the instruction.
        at: u64,
        /// The register, numbered as in [`super::Location`].
        register: u8,
    },
    /// What is in a register at the start of a block, where joining paths differ in it.
    Met {
        /// The address of the block's first instruction.
        at: u64,
        /// The register, numbered as in [`super::Location`].
        register: u8,
    },
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pointer {
    /// A number, or the address of static data.
    Constant(u64),
    /// A root plus an offset.
    Behind {
        /// The root.
        root: Root,
        /// The offset, in bytes.
        offset: i64,
    },
    /// The low four bytes of a root.
    Low(Root),
    /// The u32 in static data at this address.
    Content(u64),
    /// The u32 that was read at an offset from a root.
    Field {
        /// The root.
        root: Root,
        /// The offset, in bytes.
        offset: i64,
    },
    /// An address on the function's own stack.
    Frame(i64),
    /// Something about which nothing is known.
    Unknown,
}

impl Pointer {
    /// Returns the value with a number added to it.
    pub fn plus(self, by: i64) -> Pointer {
        match self {
            value if by == 0 => value,
            Pointer::Constant(value) => Pointer::Constant(value.wrapping_add_signed(by)),
            Pointer::Behind { root, offset } => Pointer::Behind { root, offset: offset.wrapping_add(by) },
            Pointer::Frame(at) => Pointer::Frame(at.wrapping_add(by)),
            _ => Pointer::Unknown,
        }
    }

    /// Returns the low `bytes` of the value.
    pub fn low(self, bytes: u8) -> Pointer {
        match (self, bytes) {
            (value, 8) => value,
            (Pointer::Constant(value), 4) => Pointer::Constant(value & u64::from(u32::MAX)),
            (Pointer::Behind { root, offset: 0 }, 4) => Pointer::Low(root),
            (value @ (Pointer::Low(_) | Pointer::Content(_) | Pointer::Field { .. }), 4) => value,
            _ => Pointer::Unknown,
        }
    }
}

/// How an instruction produced a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A function returned it.
    Returned {
        /// The link-time address of the function.
        from: u64,
    },
    /// It was read from memory.
    Read {
        /// The address that it was read from.
        at: Pointer,
    },
}

/// A value that the function writes to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The address that it is written to.
    pub to: Pointer,
    /// The value.
    pub value: Pointer,
    /// The number of bytes.
    pub bytes: u8,
}

/// The vector registers, by lane.
type Vectors = [[Pointer; 4]; 32];

const NO_VECTORS: Vectors = [[Pointer::Unknown; 4]; 32];

/// The register of a function's result: rax or x0.
const RESULT: u8 = 0;

/// The most arguments of a call that are followed, in registers and on the stack.
const MAX_ARGUMENTS: usize = 24;

/// The most known stack slots; with more, the analysis of the function is abandoned. Compiled functions stay far below.
const MAX_SLOTS: usize = 1024;

/// The most visits per block, which bounds the iteration.
const MAX_VISITS: usize = 64;

#[derive(Clone, Debug, PartialEq)]
struct State {
    registers: [Pointer; 32],
    /// Known stack contents, by distance from the stack pointer on entry: size and value. No two overlap.
    slots: BTreeMap<i64, (u8, Pointer)>,
    /// The stack arguments that were overwritten, one bit each.
    overwritten: u32,
    /// The lowest addresses from which other code may write to the function's own frame, and to its arguments, because
    /// it may have obtained a pointer there.
    exposed: [i64; 2],
}

/// Other code knows no address on the stack.
const HIDDEN: [i64; 2] = [i64::MAX; 2];

/// What is known about a function.
#[derive(Debug, Default)]
pub struct Pointers {
    passed: HashMap<u64, Vec<Pointer>>,
    returned: Vec<Pointer>,
    origins: HashMap<Root, Origin>,
    stores: Vec<Store>,
    used: BTreeSet<u8>,
    /// Whether values were followed from one block to the next.
    is_followed: bool,
}

/// What is the same throughout a function.
struct Rules {
    arch: Arch,
    convention: Convention,
    /// Static pointers that never change, by their address.
    constants: HashMap<u64, u64>,
}

impl Pointers {
    /// Analyzes a function. If some of its control flow is unknown, nothing is followed from one block to the next.
    pub fn new(image: &Image, function: &Function) -> Pointers {
        let constants =
            function.insns().iter().filter_map(|i| Some((i.memory?, image.got_entry(i.memory?)?))).collect();
        Pointers::with(function, image.arch(), constants)
    }

    /// Analyzes a function. `constants` are static pointers that never change, by their address.
    pub(crate) fn with(function: &Function, arch: Arch, constants: HashMap<u64, u64>) -> Pointers {
        let rules = Rules { arch, convention: Convention::of(arch), constants };
        let walk = Walk::new(function, &rules);
        let starts = walk.starts();
        let mut pointers = Pointers { is_followed: starts.is_some(), ..Pointers::default() };
        let starts = starts.unwrap_or_else(|| function.blocks.iter().map(|b| Some(walk.unrelated(b))).collect());
        for (block, start) in function.blocks.iter().zip(starts) {
            if let Some(start) = start {
                pointers.note(&walk, block, start);
            }
        }
        pointers
    }

    /// Returns the values of the arguments of the call or jump at `addr`, up to the last known one. Of the arguments on
    /// the stack, only those that the function stored there are included.
    pub fn passed(&self, addr: u64) -> &[Pointer] {
        self.passed.get(&addr).map_or(&[], Vec::as_slice)
    }

    /// Returns how a root came about, if an instruction made it in a known way.
    pub fn origin(&self, root: Root) -> Option<Origin> {
        self.origins.get(&root).copied()
    }

    /// Returns the addresses from which the function reads what may be an address.
    pub fn reads(&self) -> impl Iterator<Item = Pointer> + '_ {
        self.origins.values().filter_map(|origin| match origin {
            Origin::Read { at } => Some(*at),
            Origin::Returned { .. } => None,
        })
    }

    /// Returns the known writes of the function to memory other than its own stack.
    pub fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// Returns what the function returns, at each place where it returns.
    pub fn returned(&self) -> &[Pointer] {
        &self.returned
    }

    /// Returns whether the function itself reads this argument, rather than only leaving it to its callees.
    pub fn uses(&self, argument: u8) -> bool {
        self.used.contains(&argument)
    }

    /// Returns whether the function may have a first argument that its name does not list: the address at which the
    /// caller wants a returned object to be constructed. Such a function returns this argument. On arm64 that address
    /// is not among the counted arguments.
    pub fn may_make_what_it_returns(&self, arch: Arch) -> bool {
        let first = Pointer::Behind { root: Root::Argument(0), offset: 0 };
        arch == Arch::X86_64 && (!self.is_followed || self.returned.iter().all(|value| *value == first))
    }

    /// Walks through a block and records what it reads, passes on, returns and writes.
    fn note(&mut self, walk: &Walk, block: &Block, mut state: State) {
        let mut vectors = NO_VECTORS;
        for index in block.insns.clone() {
            let insn = &walk.function.insns[index];
            if let Some(lanes) = lanes(insn, walk.rules.arch) {
                state.apply_lanes(&lanes, &mut vectors, walk.rules, &mut self.stores);
            }
            match insn.flow {
                Flow::Call(to) => {
                    vectors = NO_VECTORS;
                    let root = Root::Made { at: insn.addr, register: RESULT };
                    self.origins.extend(to.map(|from| (root, Origin::Returned { from })));
                    self.passed.insert(insn.addr, walk.rules.passed(&state));
                }
                Flow::Jump(_) | Flow::IndirectJump => {
                    self.passed.insert(insn.addr, walk.rules.passed(&state));
                }
                Flow::Return => self.returned.push(state.get(RESULT)),
                _ => {}
            }
            for effect in &walk.effects[index] {
                self.note_memory(&state, insn, effect);
                self.used.extend(walk.rules.used(&state, effect));
                state.apply(insn, effect, walk.rules);
            }
        }
    }

    fn note_memory(&mut self, state: &State, insn: &Insn, effect: &Effect) {
        match *effect {
            Effect::Load { to, base, offset, bytes: 8 } => {
                let at = state.get(base).plus(offset);
                self.origins.insert(Root::Made { at: insn.addr, register: to }, Origin::Read { at });
            }
            Effect::Store { base, offset, from, bytes } => {
                let to = state.get(base).plus(offset);
                let number = || insn.stored_number().map(Pointer::Constant);
                let value = from.map(|from| state.get(from)).or_else(number);
                if let (Pointer::Constant(_) | Pointer::Behind { .. }, Some(value)) = (to, value) {
                    self.stores.push(Store { to, value: value.low(bytes), bytes });
                }
            }
            _ => {}
        }
    }
}

/// An analysis of a function in progress.
struct Walk<'a> {
    function: &'a Function,
    rules: &'a Rules,
    /// The effects of each instruction.
    effects: Vec<Vec<Effect>>,
}

impl<'a> Walk<'a> {
    fn new(function: &'a Function, rules: &'a Rules) -> Walk<'a> {
        let of = |insn: &Insn| {
            let mut changes = Vec::new();
            insn.effects(&mut changes);
            changes
        };
        Walk { function, rules, effects: function.insns.iter().map(of).collect() }
    }

    /// Returns the state at the start of each block; an unreached block has none. `None` if some control flow is
    /// unknown, or if following it takes too long.
    fn starts(&self) -> Option<Vec<Option<State>>> {
        let f = self.function;
        if !f.is_complete() {
            return None;
        }
        let mut starts: Vec<Option<State>> = vec![None; f.blocks.len()];
        starts[f.entry_block] = Some(self.rules.entry());
        let mut visits = vec![0; f.blocks.len()];
        let mut work = vec![f.entry_block];
        while let Some(block) = work.pop() {
            visits[block] += 1;
            if visits[block] > MAX_VISITS {
                return None;
            }
            let Some(end) = starts[block].clone().map(|start| self.end(&f.blocks[block], start)) else { continue };
            if end.slots.len() > MAX_SLOTS {
                return None;
            }
            for &next in f.graph.next[block].iter().filter(|&&n| n < f.blocks.len()) {
                let at = f.insns[f.blocks[next].insns.start].addr;
                let changed = match &mut starts[next] {
                    Some(known) => known.meet(&end, at),
                    unseen => {
                        *unseen = Some(end.clone());
                        true
                    }
                };
                if changed && !work.contains(&next) {
                    work.push(next);
                }
            }
        }
        Some(starts)
    }

    fn end(&self, block: &Block, mut state: State) -> State {
        for index in block.insns.clone() {
            let insn = &self.function.insns[index];
            self.effects[index].iter().for_each(|effect| state.apply(insn, effect, self.rules));
        }
        state
    }

    /// Returns a state in which nothing is known, except that a register keeps its value until it is written.
    fn unrelated(&self, block: &Block) -> State {
        let at = self.function.insns[block.insns.start].addr;
        let met = |register| Pointer::Behind { root: Root::Met { at, register }, offset: 0 };
        let mut registers = std::array::from_fn(|register| met(register as u8));
        // This is so far below that nothing above it is taken for an argument.
        registers[usize::from(self.rules.convention.stack_pointer)] = Pointer::Frame(i64::MIN / 2);
        // Whether other blocks have exposed stack addresses is not known.
        State { registers, slots: BTreeMap::new(), overwritten: 0, exposed: [i64::MIN; 2] }
    }
}

impl Rules {
    /// Returns the offset of the arguments that are on the stack when a function is entered.
    fn stack_arguments(&self) -> i64 {
        match self.arch {
            Arch::X86_64 => 8,
            Arch::Aarch64 => 0,
        }
    }

    fn arguments(&self) -> impl Iterator<Item = u8> + '_ {
        // arm64 passes two more arguments in registers than are followed elsewhere.
        let more: &[u8] = if self.arch == Arch::Aarch64 { &[6, 7] } else { &[] };
        self.convention.arguments.iter().chain(more).copied()
    }

    fn entry(&self) -> State {
        let mut registers = [Pointer::Unknown; 32];
        for (index, register) in (0..).zip(self.arguments()) {
            registers[usize::from(register)] = Pointer::Behind { root: Root::Argument(index), offset: 0 };
        }
        registers[usize::from(self.convention.stack_pointer)] = Pointer::Frame(0);
        State { registers, slots: BTreeMap::new(), overwritten: 0, exposed: HIDDEN }
    }

    /// Returns the stack arguments that overlap these bytes, one bit each.
    fn arguments_in(&self, begin: i64, end: i64) -> u32 {
        let first = self.stack_arguments();
        let is_in = |number: &u32| {
            let at = first + 8 * i64::from(*number);
            begin < at + 8 && at < end
        };
        (0..MAX_ARGUMENTS as u32).filter(is_in).fold(0, |all, number| all | 1 << number)
    }

    /// Returns the arguments that an instruction reads. A push may store a register only to move the stack pointer, so
    /// it does not count.
    fn used<'s>(&self, state: &'s State, effect: &Effect) -> impl Iterator<Item = u8> + 's {
        let reads = match *effect {
            Effect::Copy { from, .. } | Effect::Offset { from, .. } | Effect::Or { from, .. } => [Some(from), None],
            Effect::Load { base, .. } => [Some(base), None],
            Effect::Store { base, from, .. } => [Some(base), from.filter(|_| base != self.convention.stack_pointer)],
            _ => [None, None],
        };
        reads.into_iter().flatten().filter_map(|register| match state.get(register) {
            Pointer::Behind { root: Root::Argument(number), offset: 0 } => Some(number),
            _ => None,
        })
    }

    fn passed(&self, state: &State) -> Vec<Pointer> {
        let mut passed: Vec<Pointer> = self.arguments().map(|r| state.get(r)).collect();
        if let Pointer::Frame(top) = state.get(self.convention.stack_pointer) {
            let more = MAX_ARGUMENTS - passed.len();
            let on_stack =
                (0..).map(|i| state.slots.get(&top.wrapping_add(i * 8)).map_or(Pointer::Unknown, |slot| slot.1));
            passed.extend(on_stack.take(more));
        }
        let known = passed.iter().rposition(|value| *value != Pointer::Unknown).map_or(0, |last| last + 1);
        passed.truncate(known);
        passed.shrink_to_fit();
        passed
    }
}

fn lanes(insn: &Insn, arch: Arch) -> Option<Lanes> {
    match arch {
        Arch::X86_64 => x86::lanes(insn),
        Arch::Aarch64 => None,
    }
}

impl State {
    fn get(&self, register: u8) -> Pointer {
        self.registers[usize::from(register & 31)]
    }

    fn set(&mut self, register: u8, value: Pointer) {
        self.registers[usize::from(register & 31)] = value;
    }

    /// Records that the register holds a new, unrelated value.
    fn make(&mut self, insn: &Insn, register: u8) {
        let root = Root::Made { at: insn.addr, register };
        self.set(register, Pointer::Behind { root, offset: 0 });
    }

    /// Merges the state of another path to the block at `at`. Returns true if that changed anything.
    fn meet(&mut self, other: &State, at: u64) -> bool {
        let before = (self.registers, self.slots.len(), self.overwritten, self.exposed);
        for (register, (mine, theirs)) in self.registers.iter_mut().zip(&other.registers).enumerate() {
            if mine != theirs {
                *mine = Pointer::Behind { root: Root::Met { at, register: register as u8 }, offset: 0 };
            }
        }
        self.slots.retain(|at, slot| other.slots.get(at) == Some(slot));
        self.overwritten |= other.overwritten;
        self.exposed = std::array::from_fn(|part| self.exposed[part].min(other.exposed[part]));
        before != (self.registers, self.slots.len(), self.overwritten, self.exposed)
    }

    fn apply(&mut self, insn: &Insn, effect: &Effect, rules: &Rules) {
        match *effect {
            Effect::Copy { to, from, bytes } => self.compute(to, from, self.get(from).low(bytes), rules),
            Effect::Offset { to, from, by } => match self.get(from).plus(by) {
                Pointer::Unknown => self.make(insn, to),
                value => self.compute(to, from, value, rules),
            },
            Effect::Constant { to, value } => self.set(to, Pointer::Constant(value)),
            Effect::Insert { to, value, shift } => match self.get(to) {
                Pointer::Constant(old) => {
                    self.set(to, Pointer::Constant(old & !(0xffff << shift) | u64::from(value) << shift));
                }
                _ => self.make(insn, to),
            },
            Effect::Store { base, offset, from, bytes } => {
                let value = from.map_or(Pointer::Unknown, |r| self.get(r));
                self.expose(value, rules);
                if let Pointer::Frame(at) = self.get(base) {
                    self.store(at.wrapping_add(offset), bytes, value, rules);
                }
            }
            Effect::Load { to, base, offset, bytes } => match self.read(self.get(base).plus(offset), bytes, rules) {
                Pointer::Unknown => self.make(insn, to),
                value => self.set(to, value),
            },
            Effect::And { to, .. } | Effect::Or { to, .. } | Effect::Take { to, .. } | Effect::Clobber(to) => {
                self.make(insn, to);
            }
            Effect::Call => {
                rules.convention.caller_saved.iter().for_each(|&r| self.make(insn, r));
                self.forget_what_others_write(rules);
            }
            Effect::Unknown => {
                (0..32).for_each(|r| self.make(insn, r));
                self.slots.clear();
                self.overwritten = u32::MAX;
                self.exposed = [i64::MIN; 2];
            }
        }
    }

    /// Records that the register holds a value computed from another. If a register that does not address the frame
    /// receives a stack address, it is that of an object, which other code may learn.
    fn compute(&mut self, to: u8, from: u8, value: Pointer, rules: &Rules) {
        let Convention { stack_pointer, frame_pointer, .. } = rules.convention;
        let addresses_frame = to == stack_pointer || to == frame_pointer && from == stack_pointer;
        if !addresses_frame {
            self.expose(value, rules);
        }
        self.set(to, value);
    }

    /// Records that other code may learn an address. The size of the object there is not known.
    fn expose(&mut self, value: Pointer, rules: &Rules) {
        if let Pointer::Frame(at) = value {
            let lowest = &mut self.exposed[usize::from(at >= rules.stack_arguments())];
            *lowest = at.min(*lowest);
        }
    }

    /// Applies what a call does to the stack.
    fn forget_what_others_write(&mut self, rules: &Rules) {
        // The callee's frame lies below the stack pointer.
        let top = match self.get(rules.convention.stack_pointer) {
            Pointer::Frame(top) => top,
            _ => i64::MIN,
        };
        let ([own, arguments], first_argument) = (self.exposed, rules.stack_arguments());
        self.slots.retain(|&at, &mut (size, _)| {
            let exposed = if at < first_argument { own } else { arguments };
            at >= top && at.saturating_add(i64::from(size)) <= exposed
        });
        self.overwritten |= rules.arguments_in(arguments, i64::MAX);
    }

    fn apply_lanes(&self, lanes: &Lanes, vectors: &mut Vectors, rules: &Rules, stored: &mut Vec<Store>) {
        match *lanes {
            Lanes::Set { to, from, lane, count, keeps_others } => {
                let values = self.lanes(from, vectors, rules);
                let into = &mut vectors[usize::from(to & 31)];
                if !keeps_others {
                    *into = [Pointer::Constant(0); 4];
                }
                let (lane, count) = (usize::from(lane), usize::from(count));
                into.iter_mut().skip(lane).zip(values).take(count).for_each(|(lane, value)| *lane = value);
            }
            Lanes::Turns { to, with, unit } => {
                let (a, b) = (vectors[usize::from(to & 31)], self.lanes(with, vectors, rules));
                vectors[usize::from(to & 31)] =
                    if unit == 1 { [a[0], b[0], a[1], b[1]] } else { [a[0], a[1], b[0], b[1]] };
            }
            Lanes::Store { to, from, lane, count } => {
                let to = self.address(to);
                if matches!(to, Pointer::Constant(_) | Pointer::Behind { .. }) {
                    let values =
                        vectors[usize::from(from & 31)].iter().skip(usize::from(lane)).take(usize::from(count));
                    stored.extend(values.zip(0..).map(|(&value, i)| Store { to: to.plus(4 * i), value, bytes: 4 }));
                }
            }
            Lanes::Whole { to, from, bytes } => {
                stored.push(Store { to: Pointer::Constant(to), value: self.get(from).low(bytes), bytes });
            }
            Lanes::Unknown(registers) => {
                let written = vectors.iter_mut().enumerate().filter(|(number, _)| registers >> number & 1 == 1);
                written.for_each(|(_, lanes)| *lanes = [Pointer::Unknown; 4]);
            }
        }
    }

    fn lanes(&self, from: Lane, vectors: &Vectors, rules: &Rules) -> [Pointer; 4] {
        match from {
            Lane::Vector(from) => vectors[usize::from(from & 31)],
            Lane::Register(from) => [self.get(from).low(4), Pointer::Unknown, Pointer::Unknown, Pointer::Unknown],
            Lane::Memory { .. } => {
                let at = self.address(from);
                std::array::from_fn(|i| self.read(at.plus(4 * i as i64), 4, rules))
            }
        }
    }

    fn address(&self, lane: Lane) -> Pointer {
        match lane {
            Lane::Memory { base: Some(base), offset } => self.get(base).plus(offset),
            Lane::Memory { base: None, offset } => Pointer::Constant(offset as u64),
            Lane::Vector(_) | Lane::Register(_) => Pointer::Unknown,
        }
    }

    fn store(&mut self, at: i64, bytes: u8, value: Pointer, rules: &Rules) {
        let end = at.saturating_add(i64::from(bytes));
        self.slots.retain(|&from, &mut (size, _)| from >= end || from.saturating_add(i64::from(size)) <= at);
        self.overwritten |= rules.arguments_in(at, end);
        let value = value.low(bytes);
        if value != Pointer::Unknown {
            self.slots.insert(at, (bytes, value));
        }
    }

    fn read(&self, at: Pointer, bytes: u8, rules: &Rules) -> Pointer {
        match at {
            Pointer::Frame(at) => self.slot(at, bytes, rules),
            Pointer::Constant(at) => match (bytes, rules.constants.get(&at)) {
                (8, Some(&to)) => Pointer::Constant(to),
                (4, None) => Pointer::Content(at),
                _ => Pointer::Unknown,
            },
            Pointer::Behind { root, offset } if bytes == 4 => Pointer::Field { root, offset },
            _ => Pointer::Unknown,
        }
    }

    /// Returns what is on the stack: written by the function itself, or an argument.
    fn slot(&self, at: i64, bytes: u8, rules: &Rules) -> Pointer {
        if let Some(&(size, value)) = self.slots.get(&at) {
            return if size >= bytes { value.low(bytes) } else { Pointer::Unknown };
        }
        let from = at.saturating_sub(rules.stack_arguments());
        let in_registers: i64 = if rules.arch == Arch::Aarch64 { 8 } else { 6 };
        let index = from / 8 + in_registers;
        let is_overwritten = rules.arguments_in(at, at.saturating_add(i64::from(bytes))) & self.overwritten != 0;
        if from < 0 || from % 8 != 0 || index >= MAX_ARGUMENTS as i64 || is_overwritten {
            return Pointer::Unknown;
        }
        Pointer::Behind { root: Root::Argument(index as u8), offset: 0 }.low(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x1000;

    fn pointers(bytes: &[u8]) -> Pointers {
        let f = Function::from_bytes(Arch::X86_64, BASE, bytes).expect("a function");
        Pointers::with(&f, Arch::X86_64, HashMap::new())
    }

    const fn behind(root: Root, offset: i64) -> Pointer {
        Pointer::Behind { root, offset }
    }

    /// `movd 0x5000,%xmm1; movd 0x5004,%xmm2; punpckldq %xmm2,%xmm1`, the same with the next two numbers in `%xmm3`,
    /// `punpcklqdq %xmm3,%xmm1; movups %xmm1,0x314(%rdi); mov %esi,0x6000; mov 0x18(%rsp),%edx; ret`
    const FOUR_NUMBERS: [u8; 62] = [
        0x66, 0x0f, 0x6e, 0x0d, 0xf8, 0x3f, 0x00, 0x00, 0x66, 0x0f, 0x6e, 0x15, 0xf4, 0x3f, 0x00, 0x00, 0x66, 0x0f,
        0x62, 0xca, 0x66, 0x0f, 0x6e, 0x1d, 0xec, 0x3f, 0x00, 0x00, 0x66, 0x0f, 0x6e, 0x25, 0xe8, 0x3f, 0x00, 0x00,
        0x66, 0x0f, 0x62, 0xdc, 0x66, 0x0f, 0x6c, 0xcb, 0x0f, 0x11, 0x8f, 0x14, 0x03, 0x00, 0x00, 0x89, 0x35, 0xc7,
        0x4f, 0x00, 0x00, 0x8b, 0x54, 0x24, 0x18, 0xc3,
    ];

    #[test]
    fn numbers_are_followed_through_vector_registers() {
        let stores = pointers(&FOUR_NUMBERS).stores;
        for i in 0..4_u32 {
            let to = behind(Root::Argument(0), 0x314 + 4 * i64::from(i));
            let value = Pointer::Content(0x5000 + 4 * u64::from(i));
            assert!(stores.contains(&Store { to, value, bytes: 4 }), "{stores:x?}");
        }
        let to_static = Store { to: Pointer::Constant(0x6000), value: Pointer::Low(Root::Argument(1)), bytes: 4 };
        assert!(stores.contains(&to_static), "{stores:x?}");
    }

    /// The same numbers, with these four bytes of code in place of `punpcklqdq`.
    fn four_numbers_with(code: [u8; 4]) -> Vec<Store> {
        let mut bytes = FOUR_NUMBERS;
        bytes[40..44].copy_from_slice(&code);
        pointers(&bytes).stores
    }

    #[test]
    fn a_vector_register_that_was_overwritten_is_unknown() {
        let known = |s: &&Store| matches!(s.to, Pointer::Behind { .. }) && s.value != Pointer::Unknown;
        for (code, text) in [
            ([0x66, 0x0f, 0xfe, 0xcb], "paddd %xmm3,%xmm1"),
            ([0x0f, 0x10, 0x0c, 0xce], "movups (%rsi,%rcx,8),%xmm1"),
            ([0xc5, 0xfe, 0x6f, 0x0e], "vmovdqu (%rsi),%ymm1"),
            ([0xc5, 0xf1, 0xfe, 0xcb], "vpaddd %xmm3,%xmm1,%xmm1"),
            ([0xc5, 0xfc, 0x77, 0x90], "vzeroall; nop"),
        ] {
            assert_eq!(four_numbers_with(code).iter().find(known), None, "{text}");
        }
    }

    #[test]
    fn a_number_moved_between_vector_registers_leaves_the_others() {
        // movss %xmm3,%xmm1
        let stores = four_numbers_with([0xf3, 0x0f, 0x10, 0xcb]);
        for (offset, from) in [(0x314, 0x5008), (0x318, 0x5004)] {
            let store = Store { to: behind(Root::Argument(0), offset), value: Pointer::Content(from), bytes: 4 };
            assert!(stores.contains(&store), "{stores:x?}");
        }
    }

    /// `call` to the address 0x100 bytes further on.
    const CALL: [u8; 5] = [0xe8, 0xfb, 0x00, 0x00, 0x00];

    /// Returns what is passed in registers in the last call of a function of these parts.
    fn passed_last(parts: &[&[u8]]) -> Vec<Pointer> {
        let mut code = parts.concat();
        let call = BASE + code.len() as u64;
        code.extend(CALL.iter().chain(&[0xc3]));
        pointers(&code).passed(call)[..6].to_vec()
    }

    #[test]
    fn an_argument_on_the_stack_can_be_overwritten() {
        // mov 0x10(%rsp),%rdi, and mov 0x10(%rsp),%edx
        let (whole, low): ([u8; 5], [u8; 4]) = ([0x48, 0x8b, 0x7c, 0x24, 0x10], [0x8b, 0x54, 0x24, 0x10]);
        let passed = passed_last(&[&whole, &low]);
        assert_eq!((passed[0], passed[2]), (behind(Root::Argument(7), 0), Pointer::Low(Root::Argument(7))));
        // movups %xmm0,0x8(%rsp); mov %eax,0x14(%rsp); mov %rsi,0x10(%rsp)
        let (wide, upper, all): ([u8; 5], [u8; 4], [u8; 5]) =
            ([0x0f, 0x11, 0x44, 0x24, 0x08], [0x89, 0x44, 0x24, 0x14], [0x48, 0x89, 0x74, 0x24, 0x10]);
        // The same, unless %edi is 0.
        let perhaps = [&[0x85, 0xff, 0x74, 0x05][..], &wide].concat();
        for code in [&[&wide[..]][..], &[&upper], &[&all, &upper], &[&perhaps]] {
            let passed = passed_last(&[code, &[&whole, &low]].concat());
            let is_own =
                |p: &Pointer| matches!(p, Pointer::Behind { root: Root::Argument(7 | 1), .. } | Pointer::Low(_));
            assert!(!is_own(&passed[0]) && !is_own(&passed[2]), "{code:x?}: {passed:x?}");
        }
        assert_eq!(passed_last(&[&all, &whole])[0], behind(Root::Argument(1), 0));
    }

    /// `sub $0x28,%rsp; mov %rdi,0x10(%rsp); mov %rsi,0x8(%rsp)`
    const TWO_SLOTS: [u8; 14] = [0x48, 0x83, 0xec, 0x28, 0x48, 0x89, 0x7c, 0x24, 0x10, 0x48, 0x89, 0x74, 0x24, 0x08];
    /// `mov 0x10(%rsp),%rdi; mov 0x8(%rsp),%rsi`
    const BOTH_BACK: [u8; 10] = [0x48, 0x8b, 0x7c, 0x24, 0x10, 0x48, 0x8b, 0x74, 0x24, 0x08];

    #[test]
    fn a_call_may_write_to_what_it_has_the_address_of() {
        let [first, second] = [0, 1].map(|n| behind(Root::Argument(n), 0));
        let passed = passed_last(&[&TWO_SLOTS, &CALL, &BOTH_BACK]);
        assert_eq!(passed[..2], [first, second]);
        // lea 0x10(%rsp),%rdi, and lea 0x10(%rsp,%rcx,8),%rdi
        for lea in [[0x48, 0x8d, 0x7c, 0x24, 0x10], [0x48, 0x8d, 0x7c, 0xcc, 0x10]] {
            let passed = passed_last(&[&TWO_SLOTS, &lea, &CALL, &BOTH_BACK]);
            assert_ne!(passed[0], first, "{lea:x?}");
            assert_eq!(passed[1], second, "what lies below is no part of it");
            // mov 0x8(%rsp),%rax; mov %rax,0x10(%rsp): a later call can write there too.
            let again = [0x48, 0x8b, 0x44, 0x24, 0x08, 0x48, 0x89, 0x44, 0x24, 0x10];
            assert_eq!(passed_last(&[&TWO_SLOTS, &lea, &CALL, &again, &BOTH_BACK])[0], second);
            assert_ne!(passed_last(&[&TWO_SLOTS, &lea, &CALL, &again, &CALL, &BOTH_BACK])[0], second);
        }
    }

    #[test]
    fn a_call_may_write_to_an_argument_that_it_has_the_address_of() {
        // lea 0x10(%rsp),%rdi; call; mov 0x8(%rsp),%rdi; mov 0x10(%rsp),%rsi
        let lea = [0x48, 0x8d, 0x7c, 0x24, 0x10];
        let back = [0x48, 0x8b, 0x7c, 0x24, 0x08, 0x48, 0x8b, 0x74, 0x24, 0x10];
        let passed = passed_last(&[&lea, &CALL, &back]);
        assert_eq!(passed[0], behind(Root::Argument(6), 0));
        assert_ne!(passed[1], behind(Root::Argument(7), 0));
    }

    /// `push %rsi; mov %rdi,%rax; mov %edx,(%rdi); pop %rsi; ret`
    const MAKER: [u8; 8] = [0x56, 0x48, 0x89, 0xf8, 0x89, 0x17, 0x5e, 0xc3];

    #[test]
    fn arguments_are_used_that_are_read() {
        let maker = pointers(&MAKER);
        assert_eq!([0, 1, 2, 3].map(|argument| maker.uses(argument)), [true, false, true, false]);
    }

    #[test]
    fn a_function_that_returns_its_first_argument_may_make_an_object_there() {
        let may = |bytes: &[u8]| pointers(bytes).may_make_what_it_returns(Arch::X86_64);
        assert!(may(&MAKER));
        assert!(!pointers(&MAKER).may_make_what_it_returns(Arch::Aarch64));
        // mov %rsi,%rax; and nothing in %rax
        assert!(!may(&[0x56, 0x48, 0x89, 0xf0, 0x89, 0x17, 0x5e, 0xc3]));
        assert!(!may(&[0xc3]));
        // jmp *%rax: what it returns is not known.
        assert!(may(&[0xff, 0xe0]));
    }

    #[test]
    fn a_vector_register_that_is_emptied_writes_zero() {
        // pxor %xmm0,%xmm0; movups %xmm0,0x10(%rdi); ret
        let stores = pointers(&[0x66, 0x0f, 0xef, 0xc0, 0x0f, 0x11, 0x47, 0x10, 0xc3]).stores;
        let zero =
            |i: i64| Store { to: behind(Root::Argument(0), 0x10 + 4 * i), value: Pointer::Constant(0), bytes: 4 };
        assert_eq!(stores, [0, 1, 2, 3].map(zero));
    }

    /// `push %rbx; mov 0x10(%rdi),%rbx; test %esi,%esi; je 1f; mov 0x18(%rdi),%rbx; 1: lea 0x198(%rbx),%rdi; call; lea
    /// 0x28(%rbx),%rsi; call; pop %rbx; ret`
    const TWO_WAYS: [u8; 36] = [
        0x53, 0x48, 0x8b, 0x5f, 0x10, 0x85, 0xf6, 0x74, 0x04, 0x48, 0x8b, 0x5f, 0x18, 0x48, 0x8d, 0xbb, 0x98, 0x01,
        0x00, 0x00, 0xe8, 0xfb, 0x00, 0x00, 0x00, 0x48, 0x8d, 0x73, 0x28, 0xe8, 0xfb, 0x00, 0x00, 0x00, 0x5b, 0xc3,
    ];

    #[test]
    fn members_of_one_object_are_known_as_such() {
        let pointers = pointers(&TWO_WAYS);
        let object = Root::Met { at: BASE + 0xd, register: 3 };
        assert_eq!(pointers.passed(BASE + 0x14)[0], behind(object, 0x198));
        assert_eq!(pointers.passed(BASE + 0x1d)[1], behind(object, 0x28));
        // What the first call left in the register is a different value.
        assert_ne!(pointers.passed(BASE + 0x1d)[0], behind(object, 0x198));
    }

    #[test]
    fn an_object_that_was_exchanged_is_another() {
        let mut bytes = TWO_WAYS;
        // mov %rax,%rbx and a nop instead of the second lea
        bytes[25..29].copy_from_slice(&[0x48, 0x89, 0xc3, 0x90]);
        let pointers = pointers(&bytes);
        let made = Root::Made { at: BASE + 0x14, register: 0 };
        assert_eq!(pointers.passed(BASE + 0x1d)[1], behind(Root::Made { at: BASE + 0x14, register: 6 }, 0));
        assert_ne!(pointers.passed(BASE + 0x14)[0], behind(made, 0x198));
    }
}

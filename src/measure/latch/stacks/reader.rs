//! Reads what threads wait for from their registers, their stacks and the server's memory.

use std::ops::Range;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use super::code::{Meaning, WaitCode, WaitFrame};
use super::identify::{Identifier, LibrarySleep};
use super::unwind::{Registers, Stack, Unwinder, REGISTERS};
use crate::bpf::latch::types;
use crate::catalog::CELL_BYTES;
use crate::measure::latch::keys::{key_of, latch_key, MapKey, PTHREAD};
use crate::measure::latch::plan::{ip_offset, register_offset, Plan};
use crate::measure::latch::pthread;
use crate::server::{file_mappings, Memory, Target};
use crate::symbols::{stack_pointer, Arch};

/// How much of a stack is read, in bytes. From the system call to the code that wants the latch, the servers' functions
/// need less than half of it.
const STACK: usize = 1536;

/// How many pages of a stack are copied at once to find all of a thread's calls, and the smallest page size. Some
/// functions take five. The end of a stack may be followed by a page that cannot be read.
const PAGES: usize = 8;
const PAGE: usize = 4096;
/// The most calls of a thread that are unwound.
const MOST_CALLS: usize = 64;

/// The most frames of the C library, and of the program, that are unwound.
const LIBRARY_FRAMES: usize = 8;
const PROGRAM_FRAMES: usize = 16;

/// The most frames between the code in which a thread sleeps and the function that waits for the latch.
const BEFORE_WAIT: usize = 6;

/// Sleeps for no latch, like those of idle threads, are looked at again after this many looks.
const TRUST: u32 = 50;

/// Where probes check what is assumed, the stack of one in so many threads is read that sleep on the same word. The
/// others are taken to sleep for what was last found there. Which are read is drawn at random: threads that stay asleep
/// are seen in the same order again and again.
const ONE_ON_WORD: u32 = 4;
/// The same for the words of condition variables: usually, all threads that sleep there are in the same function.
const ONE_ON_CONDITION: u32 = 8;

/// After this many threads that were interrupted in the same code and waited for no latch, one in so many is read.
const QUIET: u32 = 64;
const ONE_IN_QUIET: u32 = 8;

/// The most identities that are remembered.
const MOST_KNOWN: usize = 16_384;

/// The futex operations without flags, and those that sleep (`include/uapi/linux/futex.h`).
const OPERATION: u64 = 0x7f;
const FUTEX_WAIT: u64 = 0;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::measure::latch) struct Waiter {
    /// The thread, by index among those of the look.
    pub thread: usize,
    pub latch: MapKey,
    /// The address of the latch, or of the word on which the thread sleeps.
    pub example: u64,
    /// The waiting code: a file name's address and a line, or a return address and 0.
    pub callsite: (u64, u64),
    pub is_asleep: bool,
    /// Whether the thread ran until the look was made on its CPU.
    pub ran_here: bool,
}

/// A copy of a part of a stack.
struct Part {
    start: u64,
    bytes: Vec<u8>,
}

impl Part {
    fn stack(&self) -> Stack<'_> {
        Stack { start: self.start, bytes: &self.bytes }
    }
}

/// Reads the threads of one server.
pub(in crate::measure::latch) struct Reader {
    target: Arc<Target>,
    memory: Memory,
    code: WaitCode,
    unwinder: Unwinder,
    /// What the C library's functions mean, by the address in the process.
    library: HashMap<u64, types::primitive>,
    /// Where the process has the code of libraries.
    libraries: Vec<Range<u64>>,
    identifier: Identifier,
    known: Known,
    space: Space,
}

/// Memory that is used again in each look.
#[derive(Default)]
struct Space {
    /// The threads whose stacks are read, by index among those that may wait, with their registers.
    busy: Vec<(usize, Registers)>,
    starts: Vec<u64>,
    copies: Vec<u8>,
}

/// What was found before.
#[derive(Default)]
struct Known {
    /// Whether probes check what is assumed of threads. Otherwise nothing is assumed of those that may wait for
    /// latches.
    is_checked: bool,
    latches: HashMap<Place, Option<types::latch_key>>,
    /// What threads that slept on a word waited for.
    words: HashMap<u64, Word>,
    /// How many threads in a row that were interrupted in the code of a row of the unwind table waited for no latch, by
    /// where the row begins.
    quiet: HashMap<u64, u32>,
    /// For how many more looks a thread is taken to sleep for no latch, by its ID, its stack pointer and the word.
    idle: HashMap<(u32, u64, u64), u32>,
}

/// A word on which threads sleep.
#[derive(Clone, Copy)]
struct Word {
    /// What the thread waited for whose stack was read last.
    waits: [Option<Waiter>; 2],
    /// One in so many stacks is read.
    one_in: u32,
}

/// What identifies a latch here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Function(u8, u64, u64),
    Cell(u64, u64),
    Library(LibrarySleep),
}

/// What a stack says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    /// The latch's address, the wait function, and the waiting code.
    Latch(u64, u8, (u64, u64)),
    /// The address of a cell.
    Cell(u64),
}

impl Reader {
    /// Reads the code of the wait functions of `plan`. `is_checked` says whether probes check what is assumed of
    /// threads.
    pub fn new(target: &Arc<Target>, plan: &Arc<Plan>, is_checked: bool) -> Reader {
        let mut library = HashMap::new();
        let mut rows = HashMap::new();
        for (address, place) in pthread::places(target.pid) {
            library.insert(address, types::primitive(place.primitive));
            rows.insert(address, place.unwind);
        }
        let arch = target.image.arch();
        Reader {
            memory: Memory::new(target.pid),
            code: WaitCode::new(&target.image, target.family, plan, target.bias),
            unwinder: Unwinder::new(arch, target.bias, rows),
            library,
            identifier: Identifier::new(target, plan),
            libraries: libraries(target),
            target: Arc::clone(target),
            known: Known { is_checked, ..Known::default() },
            space: Space::default(),
        }
    }

    /// Forgets what identifies latches. Their memory may belong to others meanwhile.
    pub fn forget(&mut self) {
        self.known.latches.clear();
        self.known.words.clear();
    }

    /// Finds what those threads of a look wait for that may wait, given with their index among all. `each` says whether
    /// what is found has to be true of each of them, rather than on average.
    pub fn read(&mut self, seen: &[(usize, types::seen_thread)], each: bool, found: &mut Vec<Waiter>) {
        let arch = self.target.image.arch();
        let own = usize::from(stack_pointer(arch));
        let mut space = std::mem::take(&mut self.space);
        space.busy.clear();
        for (n, (index, thread)) in seen.iter().enumerate() {
            let at = registers(arch, thread);
            if !self.is_assumed(*index, thread, &at, each, found) {
                space.busy.push((n, at));
            }
        }
        space.starts.clear();
        space.starts.extend(space.busy.iter().map(|(_, at)| at.general[own]));
        let is_copied = self.memory.read_pieces(&space.starts, STACK, &mut space.copies);
        let all = space.busy.iter().zip(space.copies.chunks_exact(STACK)).zip(is_copied);
        for ((n, at), bytes) in all.filter_map(|(thread, is_copied)| is_copied.then_some(thread)) {
            let (index, thread) = &seen[*n];
            let stack = Stack { start: at.general[own], bytes };
            let before = found.len();
            match types::seen_in(thread.place.into()) {
                types::seen_in::SEEN_IN_CODE => {
                    self.add_interrupted(at, stack, found);
                    self.note_interrupted(at, found.len() > before);
                }
                types::seen_in::SEEN_IN_YIELD => self.add_yielding(thread, at, stack, found),
                _ => self.add_asleep(thread, at, stack, found),
            }
            if thread.word != 0 {
                self.known.note(thread, at.general[own], found, before);
            }
            let ran_here = thread.ran_here != 0;
            found[before..].iter_mut().for_each(|waiter| (waiter.thread, waiter.ran_here) = (*index, ran_here));
        }
        self.space = space;
    }

    /// Returns whether a thread's stack need not be read, and adds what it is taken to wait for.
    fn is_assumed(
        &mut self,
        index: usize,
        thread: &types::seen_thread,
        at: &Registers,
        each: bool,
        found: &mut Vec<Waiter>,
    ) -> bool {
        let own = usize::from(stack_pointer(self.target.image.arch()));
        match types::seen_in(thread.place.into()) {
            types::seen_in::SEEN_IN_IO => true,
            types::seen_in::SEEN_IN_CODE => !each && self.is_quiet(at),
            types::seen_in::SEEN_IN_YIELD => false,
            _ => {
                self.known.rests((thread.tid, at.general[own], thread.word))
                    || (!each && self.known.add_known(index, thread, found))
            }
        }
    }

    /// Returns whether a thread is not read that was interrupted in code where threads wait for no latch.
    fn is_quiet(&mut self, at: &Registers) -> bool {
        let row = self.code_row(at);
        row.is_some_and(|row| self.known.is_quiet(row))
    }

    /// Takes note of whether a thread that was interrupted in some code waited for a latch.
    fn note_interrupted(&mut self, at: &Registers, waits: bool) {
        if let Some(row) = self.code_row(at) {
            self.known.note_interrupted(row, waits);
        }
    }

    /// Returns what stands for the code in which a thread was interrupted; `None` if that is of no use.
    fn code_row(&mut self, at: &Registers) -> Option<u64> {
        self.known.is_checked.then(|| self.unwinder.row_begin(&self.target.image, at.ip))
    }

    /// Returns in which of the program's functions a thread is, by the function's address in the process, with these
    /// registers. Functions that wait for latches do not count. `None` if its stack does not say.
    pub fn function_of(&mut self, thread: &types::seen_thread) -> Option<u64> {
        let arch = self.target.image.arch();
        let from = registers(arch, thread);
        let start = from.general[usize::from(stack_pointer(arch))];
        let bytes: [u8; STACK] = self.memory.array(start)?;
        let stack = Stack { start, bytes: &bytes };
        let is_interrupted = types::seen_in(thread.place.into()) == types::seen_in::SEEN_IN_CODE;
        let mut at = if is_interrupted { from } else { self.leave_library(thread, from, stack)?.1 };
        let mut is_called = !is_interrupted;
        for _ in 0..BEFORE_WAIT {
            if !self.code.is_of_waiting(at.ip) {
                break;
            }
            at = self.unwinder.caller(&self.target.image, &at, stack, is_called)?;
            is_called = true;
        }
        let bias = self.target.bias;
        let function = self.target.image.function_at(at.ip.wrapping_sub(bias).wrapping_sub(is_called.into()))?;
        Some(function.start.wrapping_add(bias))
    }

    /// Returns where a thread is in each of the program's functions that it has called, the innermost first: addresses
    /// in the process. `None` if it is in none, or its stack cannot be read to its end.
    pub fn calls(&mut self, thread: &types::seen_thread) -> Option<Vec<u64>> {
        let arch = self.target.image.arch();
        let from = registers(arch, thread);
        let own = usize::from(stack_pointer(arch));
        let mut part = self.stack_at(from.general[own]);
        let is_interrupted = types::seen_in(thread.place.into()) == types::seen_in::SEEN_IN_CODE;
        let mut at = if is_interrupted { from } else { self.leave_library(thread, from, part.stack())?.1 };
        let mut is_called = !is_interrupted;
        let extent = self.target.image.extent();
        let in_program = |ip: u64, bias: u64| extent.contains(&ip.wrapping_sub(bias));
        let mut calls = Vec::new();
        while in_program(at.ip, self.target.bias) {
            if calls.len() == MOST_CALLS {
                return Some(calls);
            }
            calls.push(at.ip.wrapping_sub(is_called.into()));
            let mut caller = self.unwinder.caller(&self.target.image, &at, part.stack(), is_called);
            if caller.is_none() && part.start != at.general[own] {
                // The function's part of the stack may go on beyond the copy.
                part = self.stack_at(at.general[own]);
                caller = self.unwinder.caller(&self.target.image, &at, part.stack(), is_called);
            }
            (at, is_called) = (caller?, true);
        }
        // Threads are started by the C library. What ends elsewhere was changed while it was read.
        let is_whole = self.libraries.iter().any(|library| library.contains(&at.ip));
        (is_whole && !calls.is_empty()).then_some(calls)
    }

    /// Copies the next pages of a stack: as many as can be read.
    fn stack_at(&self, start: u64) -> Part {
        let first = PAGE - start as usize % PAGE;
        let sizes = std::iter::once(first).chain(std::iter::repeat_n(PAGE, PAGES - 1));
        let pieces: Vec<(u64, usize)> = sizes
            .scan(start, |at, size| {
                let begin = *at;
                *at = at.wrapping_add(size as u64);
                Some((begin, size))
            })
            .collect();
        let mut bytes = Vec::new();
        let is_read = self.memory.read_ranges(&pieces, &mut bytes);
        let read = pieces.iter().zip(is_read).take_while(|(_, is_read)| *is_read);
        bytes.truncate(read.map(|((_, size), _)| size).sum());
        Part { start, bytes }
    }

    /// Adds what a thread waits for that was interrupted in the server's code.
    fn add_interrupted(&mut self, at: &Registers, stack: Stack<'_>, found: &mut Vec<Waiter>) {
        if let Some(Found::Latch(latch, function, callsite)) = self.walk(at, stack, None, false) {
            found.extend(self.waiter(Place::Function(function, latch, callsite.0), latch, callsite, false));
        }
    }

    /// Adds what a thread waits for that lets others run before it tries again.
    fn add_yielding(&mut self, thread: &types::seen_thread, at: &Registers, stack: Stack<'_>, found: &mut Vec<Waiter>) {
        let Some((_, at)) = self.leave_library(thread, *at, stack) else { return };
        if let Some(Found::Latch(latch, function, callsite)) = self.walk(&at, stack, None, true) {
            found.extend(self.waiter(Place::Function(function, latch, callsite.0), latch, callsite, false));
        }
    }

    /// Adds what a thread sleeps for.
    fn add_asleep(&mut self, thread: &types::seen_thread, at: &Registers, stack: Stack<'_>, found: &mut Vec<Waiter>) {
        let Some((sleep, at)) = self.leave_library(thread, *at, stack) else { return };
        let primitive = types::primitive(sleep.primitive);
        let is_of_library = primitive != types::primitive::PRIMITIVE_OTHER;
        let word = (!is_of_library).then_some(thread.word);
        let is_mutex = matches!(primitive, types::primitive::PRIMITIVE_MUTEX | types::primitive::PRIMITIVE_REACQUIRE);
        let waits = self.walk(&at, stack, word, true);
        let waiter = match waits {
            Some(Found::Latch(latch, function, callsite)) => {
                self.waiter(Place::Function(function, latch, callsite.0), latch, callsite, true)
            }
            Some(Found::Cell(cell)) => self.of_cell(cell),
            None => None,
        };
        found.extend(waiter);
        // While it waits for a latch, only a C library mutex counts as another wait.
        if is_of_library && (waits.is_none() || is_mutex) {
            found.extend(self.waiter(Place::Library(sleep), sleep.word, (sleep.caller, 0), true));
        }
    }

    /// Unwinds the C library's functions. Returns what the thread sleeps for there, and the registers in the program.
    fn leave_library(
        &mut self,
        thread: &types::seen_thread,
        mut at: Registers,
        stack: Stack<'_>,
    ) -> Option<(LibrarySleep, Registers)> {
        use types::primitive as primitives;
        let (mut primitive, mut innermost) = (primitives::PRIMITIVE_NONE, primitives::PRIMITIVE_NONE);
        for frame in 0..LIBRARY_FRAMES {
            let Some(meaning) = self.library.get(&at.ip).copied() else { break };
            if meaning != primitives::PRIMITIVE_NONE {
                primitive = meaning;
            }
            if frame == 0 {
                innermost = meaning;
            }
            at = self.unwinder.caller(&self.target.image, &at, stack, true)?;
        }
        // A FUTEX_WAIT of the condition variable's function itself waits for the condition, as in glibc before 2.34.
        let plain_wait = thread.op & OPERATION == FUTEX_WAIT && innermost != primitives::PRIMITIVE_COND;
        if primitive == primitives::PRIMITIVE_COND && plain_wait {
            let is_prlock = self.identifier.is_prlock(at.ip);
            primitive = if is_prlock { primitives::PRIMITIVE_MUTEX } else { primitives::PRIMITIVE_REACQUIRE };
        }
        Some((LibrarySleep { word: thread.word, primitive: primitive.0, plain_wait, caller: at.ip }, at))
    }

    /// Walks up the program's functions from one whose registers these are, and returns the outermost wait there.
    /// `word` is the word on which the thread sleeps if the innermost of them may have called the kernel.
    fn walk(&mut self, from: &Registers, stack: Stack<'_>, word: Option<u64>, is_called: bool) -> Option<Found> {
        let (mut at, mut is_called) = (*from, is_called);
        let mut found: Option<(u64, WaitFrame, Registers)> = None;
        let mut cell = None;
        for depth in 0..PROGRAM_FRAMES {
            match self.code.meaning(at.ip, is_called) {
                Meaning::Wait(frame) => {
                    let by_word = word.filter(|_| found.is_none()).zip(frame.word);
                    let by_word = by_word.map(|(word, offset)| word.wrapping_add_signed(-offset));
                    let latch = by_word.or_else(|| at.value(frame.latch?, stack, self.target.bias));
                    match (latch, &found) {
                        (Some(latch), None) => found = Some((latch, frame, at)),
                        // The function is called by another wait function, whose wait it is.
                        (Some(latch), Some((inner, _, _))) if latch == *inner => found = Some((latch, frame, at)),
                        _ => break,
                    }
                }
                Meaning::Cell(place) => cell = at.value(place, stack, self.target.bias),
                Meaning::Wrapper => {}
                Meaning::Other if found.is_some() || depth >= BEFORE_WAIT => break,
                Meaning::Other => {}
            }
            let Some(caller) = self.unwinder.caller(&self.target.image, &at, stack, is_called) else { break };
            (at, is_called) = (caller, true);
        }
        match found {
            Some((latch, frame, inside)) => {
                let passed = frame.file_and_line.and_then(|places| {
                    let [file, line] = places.map(|place| inside.value(place, stack, self.target.bias));
                    Some((file?, line? & u64::from(u32::MAX)))
                });
                let callsite = passed.unwrap_or(if frame.by_caller { (at.ip, 0) } else { (0, 0) });
                Some(Found::Latch(latch, frame.function, callsite))
            }
            None => cell.and_then(|at| stack.u64(at).or_else(|| self.memory.u64(at))).map(Found::Cell),
        }
    }

    /// Returns what a cell of the sync array says.
    fn of_cell(&mut self, cell: u64) -> Option<Waiter> {
        let bytes: [u8; CELL_BYTES] = self.memory.array(cell)?;
        let (words, _) = bytes.as_chunks::<8>();
        let [latch, kind, file, line] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(words[i]));
        let callsite = (file, line & u64::from(u32::MAX));
        self.waiter(Place::Cell(kind, latch), latch, callsite, true).filter(|_| latch != 0)
    }

    fn waiter(&mut self, place: Place, example: u64, callsite: (u64, u64), is_asleep: bool) -> Option<Waiter> {
        if self.known.latches.len() >= MOST_KNOWN {
            self.known.latches.clear();
        }
        let identifier = &self.identifier;
        let key = *self.known.latches.entry(place).or_insert_with(|| match place {
            Place::Function(function, latch, caller) => identifier.latch(function, latch, caller),
            Place::Cell(kind, latch) => identifier.latch_of_cell(kind, latch),
            Place::Library(sleep) => identifier.lock(&sleep),
        });
        Some(Waiter { thread: 0, latch: key_of(&key?), example, callsite, is_asleep, ran_here: false })
    }
}

impl Known {
    /// Takes note of what a thread sleeps for: what was found from `before` on. A thread may wake between the look at
    /// its registers and that at its stack, which then says nothing; it is taken to have slept for what others did.
    fn note(&mut self, thread: &types::seen_thread, stack: u64, found: &mut Vec<Waiter>, before: usize) {
        if self.words.len() >= MOST_KNOWN {
            self.words.clear();
        }
        let waits = [found.get(before).copied(), found.get(before + 1).copied()];
        if waits[0].is_some() {
            let one_in = one_in(&waits, self.is_checked);
            self.words.insert(thread.word, Word { waits, one_in });
        } else if let Some(word) = self.words.get(&thread.word) {
            found.extend(word.waits.iter().flatten());
        } else {
            self.idle.insert((thread.tid, stack, thread.word), TRUST);
        }
    }

    /// Adds what a thread that sleeps on a word is taken to wait for, and from where: that is right on average. Returns
    /// whether it is known.
    fn add_known(&mut self, index: usize, thread: &types::seen_thread, found: &mut Vec<Waiter>) -> bool {
        let Some(word) = self.words.get(&thread.word).filter(|word| !is_drawn(word.one_in)) else { return false };
        let of_this = |waiter: &Waiter| Waiter { thread: index, ran_here: thread.ran_here != 0, ..*waiter };
        found.extend(word.waits.iter().flatten().map(of_this));
        true
    }

    /// Returns whether a thread is not read that was interrupted in the code of this row.
    fn is_quiet(&self, row: u64) -> bool {
        self.quiet.get(&row).is_some_and(|quiet| *quiet >= QUIET) && !is_drawn(ONE_IN_QUIET)
    }

    /// Takes note of whether a thread that was interrupted in the code of this row waited for a latch.
    fn note_interrupted(&mut self, row: u64, waits: bool) {
        if self.quiet.len() >= MOST_KNOWN {
            self.quiet.clear();
        }
        let quiet = self.quiet.entry(row).or_default();
        *quiet = if waits { 0 } else { QUIET.min(*quiet + 1) };
    }

    /// Returns whether a thread is taken to sleep for no latch.
    fn rests(&mut self, thread: (u32, u64, u64)) -> bool {
        if self.idle.len() >= MOST_KNOWN {
            self.idle.clear();
        }
        match self.idle.get_mut(&thread) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}

/// Returns true once in so many times.
fn is_drawn(one_in: u32) -> bool {
    fastrand::u32(..one_in) == 0
}

/// Returns of how many threads that sleep on a word one is read if one of them waits for this. Threads sleep on the
/// word of a C library mutex to take it, or to take it again after a condition variable: one says little of others.
fn one_in(waits: &[Option<Waiter>; 2], is_checked: bool) -> u32 {
    let of = |waiter: &Waiter| {
        let key = latch_key(&waiter.latch);
        match types::primitive(key.primitive.into()) {
            types::primitive::PRIMITIVE_COND if key.function == PTHREAD => ONE_ON_CONDITION,
            _ if key.function == PTHREAD || !is_checked => 1,
            _ => ONE_ON_WORD,
        }
    };
    waits.iter().flatten().map(of).min().unwrap_or(1)
}

/// Returns where a process has the code of files other than its program.
fn libraries(target: &Target) -> Vec<Range<u64>> {
    let program = target.image.extent();
    let is_library = |start: u64| !program.contains(&start.wrapping_sub(target.bias));
    let code = file_mappings(target.pid).into_iter().filter(|mapping| mapping.is_code && is_library(mapping.start));
    code.map(|mapping| mapping.start..mapping.end).collect()
}

/// Returns a thread's registers in the order of their numbers.
fn registers(arch: Arch, seen: &types::seen_thread) -> Registers {
    let at = |offset: u16| seen.registers.get(usize::from(offset) / 8).copied().unwrap_or_default();
    let last = match arch {
        Arch::X86_64 => 16,
        Arch::Aarch64 => REGISTERS,
    };
    let general = std::array::from_fn(|n| if n < last { at(register_offset(arch, n as u8)) } else { 0 });
    Registers { general, ip: at(ip_offset(arch)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::primitive as primitives;

    fn waiter(function: u8, primitive: primitives) -> Waiter {
        let key = types::latch_key { function, primitive: primitive.0 as u8, ..types::latch_key::default() };
        let callsite = (0x40, 12);
        Waiter { thread: 9, latch: key_of(&key), example: 1, callsite, is_asleep: true, ran_here: false }
    }

    fn asleep_on(word: u64) -> types::seen_thread {
        types::seen_thread { tid: 7, word, ..types::seen_thread::default() }
    }

    /// Returns for how many threads out of four hundred that sleep on a word the stack is read, all of which wait so.
    fn read(is_checked: bool, waits: &[Waiter]) -> usize {
        let mut known = Known { is_checked, ..Known::default() };
        let is_read = |known: &mut Known| {
            let mut found = Vec::new();
            if known.add_known(3, &asleep_on(0x1000), &mut found) {
                assert!(found.iter().all(|waiter| waiter.thread == 3), "{found:?}");
                assert_eq!(found.len(), waits.len());
                return false;
            }
            found.extend(waits);
            known.note(&asleep_on(0x1000), 0x7000, &mut found, 0);
            true
        };
        (0..400).filter(|_| is_read(&mut known)).count()
    }

    #[test]
    fn what_one_thread_sleeps_for_is_taken_for_what_others_do() {
        let latch = waiter(3, primitives::PRIMITIVE_NONE);
        let [mutex, condition] =
            [primitives::PRIMITIVE_MUTEX, primitives::PRIMITIVE_COND].map(|primitive| waiter(PTHREAD, primitive));
        fastrand::seed(7);
        assert!((70..130).contains(&read(true, &[latch])));
        assert_eq!(read(false, &[latch]), 400, "nothing checks it");
        assert!((30..70).contains(&read(true, &[condition])) && (30..70).contains(&read(false, &[condition])));
        assert_eq!(read(true, &[mutex]), 400, "it may be taken again after a condition variable");
        assert_eq!(read(true, &[latch, mutex]), 400);
    }

    /// A word is taken for what was found last, not for what was found most often. Threads that stay asleep are seen in
    /// the same order in each look.
    #[test]
    fn shares_stay_what_they_are() {
        let [first, second] = [3, 4].map(|function| waiter(function, primitives::PRIMITIVE_NONE));
        for order in [&[first, second][..], &[first, first, first, second]] {
            let mut known = Known { is_checked: true, ..Known::default() };
            fastrand::seed(3);
            let mut seconds = 0;
            for thread in order.iter().cycle().take(20_000) {
                let mut found = Vec::new();
                if !known.add_known(3, &asleep_on(0x1000), &mut found) {
                    found.push(*thread);
                    known.note(&asleep_on(0x1000), 0x7000, &mut found, 0);
                }
                seconds += usize::from(found[0].latch == second.latch);
            }
            let expected = 20_000 / order.len();
            assert!(seconds.abs_diff(expected) < expected / 10, "{seconds} of {expected}");
        }
    }

    #[test]
    fn code_in_which_nobody_waits_is_read_rarely() {
        let mut known = Known::default();
        fastrand::seed(5);
        let read = |known: &mut Known, waits: bool| {
            let is_read = !known.is_quiet(5);
            if is_read {
                known.note_interrupted(5, waits);
            }
            is_read
        };
        assert_eq!((0..QUIET).filter(|_| read(&mut known, false)).count(), QUIET as usize);
        let rarely = (0..800).filter(|_| read(&mut known, false)).count();
        assert!((70..130).contains(&rarely), "{rarely}");
        while !read(&mut known, true) {}
        assert_eq!((0..QUIET).filter(|_| read(&mut known, false)).count(), QUIET as usize, "all are read again");
    }
}

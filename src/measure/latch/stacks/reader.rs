//! Reads what threads wait for from their registers, their stacks and the server's memory.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use super::code::{Meaning, WaitCode, WaitFrame};
use super::identify::{Identifier, LibrarySleep};
use super::unwind::{Registers, Stack, Unwinder, REGISTERS};
use crate::bpf::latch::types;
use crate::catalog::CELL_BYTES;
use crate::measure::latch::keys::{key_of, MapKey};
use crate::measure::latch::plan::{ip_offset, register_offset, Plan};
use crate::measure::latch::pthread;
use crate::server::{Memory, Target};
use crate::symbols::{stack_pointer, Arch};

/// How much of a stack is read, in bytes. From the system call to the code that wants the latch, the servers' functions
/// need less than half of it.
const STACK: usize = 1536;

/// The most frames of the C library, and of the program, that are unwound.
const LIBRARY_FRAMES: usize = 8;
const PROGRAM_FRAMES: usize = 16;

/// The most frames between the code in which a thread sleeps and the function that waits for the latch.
const BEFORE_WAIT: usize = 6;

/// Sleeps for no latch, like those of idle threads, are looked at again after this many looks.
const TRUST: u32 = 50;

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

/// Reads the threads of one server.
pub(in crate::measure::latch) struct Reader {
    target: Arc<Target>,
    memory: Memory,
    code: WaitCode,
    unwinder: Unwinder,
    /// What the C library's functions mean, by the address in the process.
    library: HashMap<u64, types::primitive>,
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
    latches: HashMap<Place, Option<types::latch_key>>,
    /// What threads that slept on a word waited for.
    words: HashMap<u64, Waiter>,
    /// For how many more looks a thread is taken to sleep for no latch, by its ID, its stack pointer and the word.
    idle: HashMap<(u32, u64, u64), u32>,
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
    pub fn new(target: &Arc<Target>, plan: &Arc<Plan>) -> Reader {
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
            target: Arc::clone(target),
            known: Known::default(),
            space: Space::default(),
        }
    }

    /// Forgets what identifies latches. Their memory may belong to others meanwhile.
    pub fn forget(&mut self) {
        self.known.latches.clear();
        self.known.words.clear();
    }

    /// Finds what those threads of a look wait for that may wait, given with their index among all.
    pub fn read(&mut self, seen: &[(usize, types::seen_thread)], found: &mut Vec<Waiter>) {
        let arch = self.target.image.arch();
        let own = usize::from(stack_pointer(arch));
        let mut space = std::mem::take(&mut self.space);
        space.busy.clear();
        for (n, (_, thread)) in seen.iter().enumerate() {
            let at = registers(arch, thread);
            if types::seen_in(thread.place.into()) == types::seen_in::SEEN_IN_IO {
                continue;
            }
            if !self.known.rests((thread.tid, at.general[own], thread.word)) {
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
                types::seen_in::SEEN_IN_CODE => self.add_interrupted(at, stack, found),
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
        match found.get(before) {
            Some(waiter) => _ = self.words.insert(thread.word, *waiter),
            None => match self.words.get(&thread.word) {
                Some(other) => found.push(*other),
                None => _ = self.idle.insert((thread.tid, stack, thread.word), TRUST),
            },
        }
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

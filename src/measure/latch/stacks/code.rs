//! What it means that a function is on the stack of a thread: which latch it waits for, and where that is.

use std::collections::HashSet;

use foldhash::{HashMap, HashMapExt};

use crate::analysis::{direct_calls, imported_calls, Function, Location};
use crate::catalog::{Callsite, Family, Found, Shape, WaitFunction};
use crate::discovery::location_arguments;
use crate::isa::{Flow, Insn};
use crate::measure::latch::Plan;
use crate::symbols::Image;

/// The C library's functions by which a thread lets others run.
const YIELDS: [&str; 2] = ["sched_yield", "pthread_yield"];

/// The most instructions whose meaning is remembered.
const MOST_KNOWN: usize = 16_384;

/// Where the return address of a wait function leads to is the waiting code, unless that is a wrapper.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WaitFrame {
    /// The wait function, by index in the catalog.
    pub function: u8,
    /// Where the latch's address is.
    pub latch: Option<Location>,
    /// The offset in the latch of the word on which threads sleep in this function, if that is part of the latch.
    pub word: Option<i64>,
    /// Where the file and the line of the waiting code are, if the function gets them.
    pub file_and_line: Option<[Location; 2]>,
    /// Whether the waiting code is identified by the return address instead.
    pub by_caller: bool,
}

/// The meaning of an instruction of the program on the stack of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    /// The thread waits in this function.
    Wait(WaitFrame),
    /// The thread sleeps for what the sync array says, in the cell to which the pointer at this location points.
    Cell(Location),
    /// The code is a wrapper of wait functions.
    Wrapper,
    Other,
}

/// The functions of a program in which threads wait.
pub(super) struct WaitCode {
    bias: u64,
    waits: Vec<Wait>,
    /// The functions in which threads with a cell sleep, and which argument leads to the cell.
    cells: Vec<(Function, usize)>,
    wrappers: HashSet<u64>,
    known: HashMap<(u64, bool), Meaning>,
}

struct Wait {
    index: u8,
    of: &'static WaitFunction,
    function: Function,
    /// Where it continues after calls of functions that wait.
    slow: HashSet<u64>,
    location: Option<[usize; 2]>,
}

impl WaitCode {
    /// Takes the functions that `plan` has found in a program, which is loaded `bias` bytes above its link-time
    /// addresses.
    pub fn new(image: &Image, family: &Family, plan: &Plan, bias: u64) -> WaitCode {
        let yields = yields(image);
        let waits = plan.wait_functions().filter_map(|(index, range)| {
            let of = &family.wait_functions[usize::from(index)];
            // A thread that waits until another function is called does not have this one on its stack.
            if matches!(of.shape, Shape::Until { .. }) {
                return None;
            }
            let location = match of.callsite {
                Callsite::FileLine => location_arguments(image, of, range.start),
                Callsite::Caller => None,
            };
            let function = Function::new(image, range)?;
            Some(Wait { index, of, slow: slow_returns(image, of, &function, &yields), function, location })
        });
        let waits = waits.collect();
        let cells = family.cells.into_iter().flat_map(|cells| {
            let functions = image.functions_named(cells.function).filter_map(|symbol| image.function_at(symbol.addr));
            functions.filter_map(|range| Some((Function::new(image, range)?, cells.argument)))
        });
        let wrappers = plan.wrapper_returns.iter().copied().collect();
        WaitCode { bias, cells: cells.collect(), waits, wrappers, known: HashMap::new() }
    }

    /// Returns the meaning of an instruction, by its address in the process. `is_called` says whether the thread will
    /// return there, rather than being there.
    pub fn meaning(&mut self, ip: u64, is_called: bool) -> Meaning {
        if let Some(known) = self.known.get(&(ip, is_called)) {
            return *known;
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        let meaning = self.find(ip.wrapping_sub(self.bias), is_called);
        self.known.insert((ip, is_called), meaning);
        meaning
    }

    /// Returns whether an address in the process is in code for waiting, as which a call site is no help.
    pub fn is_of_waiting(&self, ip: u64) -> bool {
        let addr = ip.wrapping_sub(self.bias);
        let functions =
            self.cells.iter().map(|(function, _)| function).chain(self.waits.iter().map(|wait| &wait.function));
        functions.into_iter().any(|function| function.contains(addr)) || self.wrappers.contains(&addr)
    }

    fn find(&self, addr: u64, is_called: bool) -> Meaning {
        if let Some((function, argument)) = self.cells.iter().find(|(function, _)| function.contains(addr)) {
            return function.arguments_at(addr)[*argument].map_or(Meaning::Other, Meaning::Cell);
        }
        if let Some(wait) = self.waits.iter().find(|wait| wait.function.contains(addr)) {
            return match wait.waits_at(addr, is_called) {
                true => Meaning::Wait(wait.frame(addr)),
                false => Meaning::Other,
            };
        }
        if self.wrappers.contains(&addr) {
            return Meaning::Wrapper;
        }
        Meaning::Other
    }
}

/// Returns the functions that let others run: the C library's, and the server's own around them.
fn yields(image: &Image) -> Vec<u64> {
    /// The size in bytes up to which a function does nothing else.
    const SMALL: u64 = 64;
    let stubs: HashSet<u64> = YIELDS.iter().flat_map(|name| imported_calls(image, name)).collect();
    let calls = direct_calls(image, &stubs);
    let around = calls.iter().filter_map(|(site, _)| image.function_at(*site));
    let around: Vec<u64> = around.filter(|range| range.end - range.start <= SMALL).map(|range| range.start).collect();
    stubs.into_iter().chain(around).collect()
}

/// Returns where a function continues after calls of those in which it spins, sleeps or lets others run.
fn slow_returns(image: &Image, of: &WaitFunction, function: &Function, yields: &[u64]) -> HashSet<u64> {
    let Shape::Contended { spin, sleep } = of.shape else { return HashSet::new() };
    let names = spin.iter().chain(sleep);
    let named = names.flat_map(|name| image.functions_named(name)).map(|symbol| symbol.addr);
    let slow: HashSet<u64> = named.chain(yields.iter().copied()).collect();
    let is_slow = |insn: &&Insn| matches!(insn.flow, Flow::Call(Some(to)) if slow.contains(&to));
    function.insns().iter().filter(is_slow).map(Insn::end).collect()
}

impl Wait {
    /// Returns whether a thread at this instruction waits. A function that also takes free latches waits only where it
    /// calls what waits.
    fn waits_at(&self, addr: u64, is_called: bool) -> bool {
        match self.of.shape {
            Shape::Contended { .. } => is_called && self.slow.contains(&addr),
            _ => true,
        }
    }

    fn frame(&self, addr: u64) -> WaitFrame {
        let arguments = self.function.arguments_at(addr);
        let argument = |n: usize| arguments.get(n).copied().flatten();
        let file_and_line = self.location.and_then(|[file, line]| Some([argument(file)?, argument(line)?]));
        WaitFrame {
            function: self.index,
            latch: argument(self.of.latch_argument),
            word: match self.of.found {
                Found::Futex(_, shape) => Some(shape.word),
                Found::Symbol(_) | Found::CallerOf { .. } => None,
            },
            file_and_line,
            by_caller: self.location.is_none(),
        }
    }
}

//! Finds the instruments of MySQL's rw-locks, and of mutexes from before latch ids, by the source location that creates
//! a latch.
//!
//! Each of these latches remembers the file and line that created it, whether or not it is instrumented. The creating
//! code loads the value of the instrument's key variable, registers the latch, and then calls `rw_lock_create_func` (or
//! `mutex_create_func`) with file and line. So each call of that function identifies one instrument. Files and lines
//! are read from the binary; no line number is known beforehand.

use std::collections::{HashMap, HashSet};

use crate::analysis::{direct_calls, Function, Passed};
use crate::catalog::{Created, MysqlNames};
use crate::isa::Flow;
use crate::names::psi::Instruments;
use crate::names::references::References;
use crate::symbols::{parameters, Parameter};

/// The largest distance from the load of the key variable to the call, in instructions.
const NEAR: usize = 96;

/// The most functions between one that creates a latch and the one that knows the location.
const WRAPPERS: usize = 2;

/// The key of latches that are deliberately not instrumented, in builds where it is not a variable.
const NOT_INSTRUMENTED: u64 = u32::MAX as u64;

/// One source location that creates latches.
#[derive(Clone, Debug)]
pub struct CreationSite {
    /// The file name as in the binary: `/build/…/storage/innobase/dict/dict0dict.cc`.
    pub file: String,
    /// The line, with all of its bits.
    pub line: u32,
    /// The kind of latch that is created there.
    pub created: &'static Created,
    /// The instrument, as far as the code shows it.
    pub key: Key,
}

/// What the code shows about the instrument of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The key variable of its instrument, by link-time address.
    Instrument(u64),
    /// The lock is deliberately not instrumented.
    None,
    /// Unknown, for example because the key comes from a caller.
    Unknown,
}

/// Functions that create latches, by address: the number of the file argument, which the line follows, and what they
/// create.
type Makers = HashMap<u64, (usize, &'static Created)>;

/// Returns all places in the binary that create latches with a constant file and line.
pub fn sites(code: &References, catalog: &'static MysqlNames, instruments: &Instruments) -> Vec<CreationSite> {
    let functions = catalog.created.iter().flat_map(|c| code.image.functions_named(c.by).map(move |s| (s, c)));
    let mut makers: Makers = functions
        .filter_map(|(s, c)| Some((s.addr, (parameters(s.name)?.iter().position(|p| *p == Parameter::File)?, c))))
        .collect();
    let keys = Keys { instruments, not_instrumented: code.image.symbol(catalog.not_instrumented).map(|s| s.addr) };
    let mut found = Vec::new();
    for _ in 0..=WRAPPERS {
        let wrappers = sites_of(code, &makers, &keys, &mut found);
        if wrappers.is_empty() {
            break;
        }
        makers = wrappers;
    }
    found
}

/// Finds the places that call these functions, and returns the functions that pass file and line on to them. Where
/// nothing is inlined, as in a debug build, the callers of those functions create the latches.
fn sites_of(code: &References, makers: &Makers, keys: &Keys, found: &mut Vec<CreationSite>) -> Makers {
    let targets: HashSet<u64> = makers.keys().copied().collect();
    let mut wrappers = Makers::new();
    let mut function: Option<Function> = None;
    for (at, maker) in direct_calls(code.image, &targets) {
        if !function.as_ref().is_some_and(|f| f.insns().iter().any(|i| i.addr == at)) {
            function = code.image.function_at(at).and_then(|range| Function::new(code.image, range));
        }
        let Some(function) = &function else { continue };
        let Some(&(number, created)) = makers.get(&maker) else { continue };
        match function.passed_at(at).get(number..number + 2) {
            Some(&[Some(Passed::Constant(file)), Some(Passed::Constant(line))]) => {
                let (Some(file), Ok(line)) = (code.image.cstr(file), u32::try_from(line)) else { continue };
                let key = key_before(code, function, at, &targets, keys).unwrap_or(Key::Unknown);
                found.push(CreationSite { file: file.to_owned(), line, created, key });
            }
            Some(
                &[Some(Passed::Member { argument: file, offset: 0 }), Some(Passed::Member { argument: line, offset: 0 })],
            ) if line == file + 1 => {
                wrappers.insert(function.entry(), (usize::from(file), created));
            }
            _ => {}
        }
    }
    wrappers
}

/// The forms in which keys occur in the code.
struct Keys<'a> {
    instruments: &'a Instruments,
    /// The variable with the key of latches that are deliberately not instrumented.
    not_instrumented: Option<u64>,
}

impl Keys<'_> {
    fn of_variable(&self, address: u64) -> Option<Key> {
        let is_instrument = self.instruments.by_key(address).is_some();
        let is_none = || Some(address) == self.not_instrumented;
        is_instrument.then_some(Key::Instrument(address)).or_else(|| is_none().then_some(Key::None))
    }
}

/// Returns the last key that is mentioned before the call at `at`, but after any earlier call that creates another
/// lock. A latch that is not instrumented has a key too: performance_schema, which is called through a pointer,
/// receives a number that says so. If no key is seen, nothing is known.
fn key_before(code: &References, function: &Function, at: u64, targets: &HashSet<u64>, keys: &Keys) -> Option<Key> {
    let insns = function.insns();
    let end = insns.partition_point(|i| i.addr < at);
    let near = (end.saturating_sub(NEAR)..end).rev();
    let mut behind_others =
        near.take_while(|&i| !matches!(insns[i].flow, Flow::Call(Some(to)) if targets.contains(&to)));
    behind_others.find_map(|index| {
        let registers_none = insns[index].flow == Flow::Call(None)
            && function.constants_at(insns[index].addr)[0] == Some(NOT_INSTRUMENTED);
        let variable = || keys.of_variable(code.of(insns, index)?);
        registers_none.then_some(Key::None).or_else(variable)
    })
}

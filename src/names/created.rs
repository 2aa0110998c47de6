//! MySQL's rw-locks, and mutexes before there were latch ids: from the place in the source that makes a latch to its
//! instrument.
//!
//! Each remembers the file and line that made it, whether or not it is instrumented. In the code that makes it
//! the value of the instrument's key variable is loaded, then the latch is registered, then `rw_lock_create_func` (or
//! `mutex_create_func`) is called with file and line: so each call of that function names one instrument. Files and lines are
//! read from the binary; no line number is known beforehand.

use std::collections::{HashMap, HashSet};

use super::psi::Instruments;
use super::references::References;
use crate::catalog::{Created, MysqlNames};
use crate::code::{direct_calls, Flow, Function, Passed};
use crate::symbols::{parameters, Parameter};

/// The key variable is loaded at most this many instructions before the call.
const NEAR: usize = 96;

/// So many functions may lie between one that makes a latch and the one that says where.
const WRAPPERS: usize = 2;

/// The key of latches that are deliberately not instrumented, where it is no variable.
const NOT_INSTRUMENTED: u64 = u32::MAX as u64;

/// One place that makes latches.
#[derive(Clone, Debug)]
pub struct Site {
    /// As in the binary: `/build/…/storage/innobase/dict/dict0dict.cc`
    pub file: String,
    pub line: u32,
    /// What is made there.
    pub created: &'static Created,
    /// Link-time address of the instrument's key variable.
    pub key: Key,
}

/// What the code says about the instrument of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Instrument(u64),
    /// The lock is deliberately not instrumented.
    None,
    /// Not clear: the key comes from a caller, say.
    Unknown,
}

/// Functions that make latches, by address: which argument is the file, with the line behind it, and what they make.
type Makers = HashMap<u64, (usize, &'static Created)>;

/// All places of the binary that make latches with a file and line that are constants there.
pub fn sites(code: &References, catalog: &'static MysqlNames, instruments: &Instruments) -> Vec<Site> {
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

/// Finds the places that call these functions, and returns the functions that hand file and line on to them: where nothing is
/// inlined, as in a debug build, it is their callers that make latches.
fn sites_of(code: &References, makers: &Makers, keys: &Keys, found: &mut Vec<Site>) -> Makers {
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
                found.push(Site { file: file.to_owned(), line, created, key });
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

/// What keys look like in the code.
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

/// The last key that is mentioned before the call at `at`, but behind a call before it that makes another lock. A latch that is
/// not instrumented has a key too: performance_schema, which is called through a pointer, is given a number that says so. That no
/// key is seen says nothing.
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

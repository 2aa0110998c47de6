//! The functions in which threads wait for latches: how they are found, what part of them waits, and how their latches
//! and call sites are identified.

use super::IdentifiedBy;
use crate::model::Mode;

/// A function in which threads wait for latches.
#[derive(Debug)]
pub struct WaitFunction {
    /// How it is found in a binary.
    pub found: Found,
    /// A short, stable name for its probes.
    pub label: &'static str,
    /// The mode in which its callers want the latch, unless `identity` gives one for each kind of wait.
    pub mode: Mode,
    /// Which part of it waits.
    pub shape: Shape,
    /// The number of the argument that points to the latch, counted from 0.
    pub latch_argument: usize,
    /// How the waiting code is identified.
    pub callsite: Callsite,
    /// How its latches are identified.
    pub identity: IdentityIn,
}

/// How a wait function is found in a binary.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// By its name.
    Symbol(Function),
    /// By its name. In a stripped program, where a function that is not exported has no name, it is the only function
    /// other than the listed ones that calls both of these.
    CallerOf {
        /// Its name.
        name: Function,
        /// The functions that it calls.
        calls: [Function; 2],
    },
    /// By its name or, among functions without a name, by how it waits in a futex.
    Futex(Function, FutexShape),
}

/// The beginning of a function's mangled name: its name and its first parameter types. What follows differs between
/// versions, so the parameters that matter are found by their types.
pub type Function = &'static str;

/// The properties that distinguish lock primitives with their own futex wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutexShape {
    /// The offset in the latch of the futex word.
    pub word: i64,
    /// Whether it wakes all other sleepers after acquiring the latch.
    pub wakes_all: bool,
    /// Whether it spins in rounds first, that is, reads the number of rounds (`innodb_sync_spin_loops`).
    pub spins: bool,
}

/// The part of a function that runs only when a latch is contended.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// The whole function.
    Whole,
    /// The part of a hot function that spins by calling one of `spin`, or sleeps by calling one of `sleep`.
    Contended {
        /// The functions for one round of spinning.
        spin: &'static [Function],
        /// The functions for waiting after spinning has failed.
        sleep: &'static [Function],
    },
    /// The whole function and what follows, until another function is called.
    Until {
        /// The function whose call ends the wait.
        end: Function,
    },
    /// The last function that waiters call, where the rest of a mutex is inlined. Each call outside of the other wait
    /// functions is a wait.
    Inlined {
        /// The functions for one round of spinning, with which the wait begins.
        spin: &'static [Function],
    },
    /// The whole function, in builds in which some of its inlined callers are not recognized.
    Rest,
}

/// How the call site of a wait is identified.
#[derive(Clone, Copy, Debug)]
pub enum Callsite {
    /// By the source file and line that the caller passes as arguments; their numbers follow from the parameter types.
    FileLine,
    /// By the return address.
    Caller,
}

/// How the latches of a wait function are identified.
#[derive(Clone, Copy, Debug)]
pub enum IdentityIn {
    /// Always in the same way, in the function's mode.
    Always(IdentifiedBy),
    /// By the kind of wait, whose number is an argument.
    ByKind {
        /// The number of that argument, counted from 0.
        argument: usize,
        /// The kinds of wait. Others are not measured.
        kinds: &'static [WaitKind],
    },
    /// By the latch id that the waiting code reads, where the compiler inlined that code.
    LookedAt {
        /// The number of the argument for the kind of wait, counted from 0. A call that passes a constant in it is no
        /// such wait.
        argument: usize,
        /// The latch ids that the code may read.
        ids: &'static [IdentifiedBy],
    },
}

/// A kind of wait, where one function waits for several kinds of latches.
#[derive(Clone, Copy, Debug)]
pub struct WaitKind {
    /// The number that the function is called with.
    pub number: u16,
    /// The mode in which the latch is wanted.
    pub mode: Mode,
    /// How the latch is identified.
    pub identity: IdentifiedBy,
}

impl WaitFunction {
    /// Describes a function that waits for an `rw_lock_t`, its first argument.
    pub(super) const fn rw_lock(
        symbol: Function,
        label: &'static str,
        mode: Mode,
        shape: Shape,
        identity: IdentifiedBy,
    ) -> WaitFunction {
        WaitFunction {
            found: Found::Symbol(symbol),
            label,
            mode,
            shape,
            latch_argument: 0,
            callsite: Callsite::FileLine,
            identity: IdentityIn::Always(identity),
        }
    }

    /// Returns the beginning of its mangled name.
    pub fn name(&self) -> Function {
        match self.found {
            Found::Symbol(name) | Found::Futex(name, _) | Found::CallerOf { name, .. } => name,
        }
    }

    /// Returns what its latches can be identified by.
    pub fn identities(&self) -> impl Iterator<Item = IdentifiedBy> {
        let (always, kinds, ids) = match self.identity {
            IdentityIn::Always(identity) => (Some(identity), &[][..], &[][..]),
            IdentityIn::ByKind { kinds, .. } => (None, kinds, &[][..]),
            IdentityIn::LookedAt { ids, .. } => (None, &[][..], ids),
        };
        always.into_iter().chain(kinds.iter().map(|kind| kind.identity)).chain(ids.iter().copied())
    }
}

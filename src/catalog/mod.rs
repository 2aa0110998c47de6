//! What we know of each server family, as data: which functions wait for a latch, how their arguments
//! lie, and how a latch is identified.
//!
//! A family is a range of server versions that share one set of functions and structures. A new server
//! version is an entry here and a test, not new code. Nothing here is an address: functions are found by
//! symbol, or by what they call.

mod identify;
pub mod mariadb;
pub mod mysql;

pub use identify::{identify, Flavor, Server, Unsupported};
pub use mariadb::MariadbLayout;
pub use mysql::MysqlLayout;

use crate::model::Mode;

/// The functions and structures that a range of server versions has in common.
#[derive(Debug)]
pub struct Family {
    /// For messages and tests: `mysql`, `mariadb-srw`.
    pub name: &'static str,
    /// Every function in which a thread waits for an InnoDB latch.
    pub wait_functions: &'static [WaitFunction],
    /// Functions that are called only once a latch was found taken; the contended part of a hot function
    /// begins where all paths to them part from the fast path.
    pub slow_callees: &'static [Symbols],
    pub layout: Layout,
}

/// Mangled names of one function, newest first: signatures change between versions.
pub type Symbols = &'static [&'static str];

/// A function in which a thread waits for a latch.
#[derive(Debug)]
pub struct WaitFunction {
    /// A short, stable name for the probe: `mutex_enter_inline`.
    pub label: &'static str,
    pub find: Find,
    /// The mode waited for. Where the same code waits for mutexes too, it is the mode of the rw-lock; a
    /// latch that turns out to be a mutex has none.
    pub mode: Mode,
    pub shape: Shape,
    /// Which argument is the address of the latch, counted from 0.
    pub latch_arg: u8,
    pub callsite: Callsite,
    pub identity: IdentitySource,
}

/// How a function is found in a binary.
#[derive(Clone, Copy, Debug)]
pub enum Find {
    /// By any of these symbols. A symbol that a build does not have is no error: the compiler inlined it.
    Symbols(Symbols),
    /// A local function without a symbol: the only function with an unwind entry, but no symbol, that calls
    /// `callee` with the constant `value` as argument `argument`.
    Caller { callee: Symbols, argument: u8, value: u64 },
}

/// Which part of a function runs only when the latch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All of it: the function is called only then. The wait is from its entry to its return.
    Whole,
    /// A block inside a function that runs for every acquisition. Its entry must not be probed.
    Contended,
}

/// How the place that waits is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callsite {
    /// The server passes its own source position: arguments that hold the file name and the line.
    FileLine { file_arg: u8, line_arg: u8 },
    /// By the return address only.
    Caller,
}

/// What the kernel side reads from a latch to identify it. Offsets are in bytes from the latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    /// A u32 latch id in the latch.
    LatchId { offset: u8 },
    /// The position in the source where the latch was made: a pointer to the file name and a u64 line.
    Created { file_offset: u8, line_offset: u8 },
    /// A bare lock word: the performance_schema object in front of it if there is one (see [`PsiChain`]),
    /// its address if it is static data, else the function that waits.
    Word(PsiChain),
    /// All latches of this function are of the one instrument with this name.
    Fixed(&'static str),
}

/// The way from a latch to its performance_schema event name, when that is on.
///
/// `*(latch + psi)` is the instrumented object or null; `*(object + class)` its class; at `class + name`
/// begins the event name, at most 128 bytes with its NUL. None of it may be trusted before that name was
/// seen to begin with `wait/synch/`: where a latch is not instrumented, something else lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsiChain {
    pub psi: i16,
    pub class: u16,
    pub name: u16,
}

/// Structure layouts that naming needs.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    Mysql(&'static MysqlLayout),
    Mariadb(&'static MariadbLayout),
}

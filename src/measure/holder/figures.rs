//! The figures of who holds latches.

use crate::measure::latch::HolderState;
use crate::model::{cumulative, Mode};

/// The figures of who holds the latches that threads wait for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The time waited, by what the holder did.
    pub blocked: Vec<BlockedBy>,
}

/// What a latch's holder does while a thread waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    /// The event name of the latch.
    pub latch: String,
    /// The mode in which the thread waits.
    pub mode: Mode,
    /// What the holder does.
    pub state: HolderState,
    /// Where the holder is in the server's code: a function, or `file.cc:123` if it waits for another latch. `None` if
    /// that is not known, as for a thread that runs.
    pub site: Option<String>,
    /// The event name of the latch that the holder waits for itself.
    pub waits_for: Option<String>,
}

impl Holding {
    /// Returns the same without what has many values.
    pub fn without_place(self) -> Holding {
        Holding { site: None, waits_for: None, ..self }
    }
}

/// The time of waiters that were seen while a latch's holder did something.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockedBy {
    /// What the holder did.
    pub holding: Holding,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
}

impl BlockedBy {
    /// Returns whether threads waited for this latch in this mode.
    pub fn is_of(&self, latch: &str, mode: Mode) -> bool {
        self.holding.latch == latch && self.holding.mode == mode
    }
}

cumulative!(BlockedBy { wait_ns });

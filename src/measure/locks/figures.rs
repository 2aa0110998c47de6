//! The figures of waits for locks of the database.

use crate::model::{cumulative, Histogram};

/// The name of row locks. Metadata locks have the names that the server shows: `table metadata lock`.
pub const ROW_LOCK: &str = "row lock";

/// The figures of waits for locks of the database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The waits that have ended since attach, by lock. What is measured is among them also if nobody has waited.
    pub waits: Vec<LockWaits>,
    /// The waits that go on, by lock; empty if that is not known, as in a recording.
    pub waiting: Vec<WaitingNow>,
    /// Whether nothing is measured at the moment, because the probes take more than their part of the budget. Then
    /// `waits` are as they were before. A recording does not hold it.
    pub rests: bool,
    /// For how long that was so; empty if it never was.
    pub rested: Vec<Rested>,
}

/// A time in which waits were not measured, because the probes took more than their part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rested {
    /// Its length since attach, in nanoseconds.
    pub ns: u64,
}

/// The waits for one kind of lock.
#[derive(Clone, Debug, PartialEq)]
pub struct LockWaits {
    /// The kind: [`ROW_LOCK`], `table metadata lock`, `global read lock`.
    pub lock: String,
    /// How long they were.
    pub waits: Histogram,
}

/// The waits for one kind of lock that have not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingNow {
    /// The kind; see [`LockWaits::lock`].
    pub lock: String,
    /// The number of threads that wait.
    pub threads: u64,
    /// How long the first of them has waited so far, in nanoseconds; 0 if none waits.
    pub longest_ns: u64,
}

cumulative!(LockWaits {} with waits);
cumulative!(Rested { ns });

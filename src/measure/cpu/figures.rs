//! The figures of the server's CPU time.

use crate::measure::latch::shares::{Client, Statement};
use crate::measure::latch::Account;
use crate::model::{self, CpuClass};

/// The figures of CPU time, counted since attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// CPU time of the server's threads, one entry per (class, function); empty if it is not sampled.
    pub time: Vec<CpuTime>,
    /// The part of it in instructions that order memory, by instruction and function.
    pub ordering: Vec<OrderingTime>,
    /// What threads executed that ran, most often seen first; empty if statements are not read.
    pub statements: Vec<StatementCpu>,
    /// The number of `getcpu` system calls of the server's threads; `None` if they are not counted, as for servers
    /// whose C library needs none.
    pub getcpu_calls: Option<u64>,
}

/// CPU time that the server's threads spent in one function.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTime {
    /// The purpose of the function, or of the instruction in it.
    pub class: CpuClass,
    /// The function's name, or [`CpuTime::OTHER`].
    pub function: String,
    /// CPU time, in nanoseconds.
    pub ns: u64,
}

impl CpuTime {
    /// Stands in place of a function for all of the class that have no row of their own.
    pub const OTHER: &str = model::OTHER;

    /// Returns the sum of these rows, in nanoseconds.
    pub fn sum<'a>(rows: impl Iterator<Item = &'a CpuTime>) -> u64 {
        rows.map(|row| row.ns).fold(0, u64::saturating_add)
    }
}

/// CPU time that one kind of instruction that orders memory took in one function.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderingTime {
    /// The instruction: `lock cmpxchg`, `dmb ish`.
    pub instruction: String,
    /// The function's name, or [`CpuTime::OTHER`].
    pub function: String,
    /// CPU time, in nanoseconds.
    pub ns: u64,
}

/// How often threads were seen that ran, in the kernel too, and executed a statement. Its share of all samples is its
/// share of the server's CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementCpu {
    /// The hash of the statement without its values, in hexadecimal digits; empty if this is no single statement.
    pub digest: String,
    /// The statement without its values, or its first word; or what stands in its place, as in
    /// [`StatementWaits`](crate::measure::latch::StatementWaits::statement).
    pub statement: String,
    /// For whom the statement was executed.
    pub account: Account,
    /// The number of times that a thread was seen.
    pub samples: u64,
    /// The number of times that it was at an instruction that orders memory.
    pub ordering_samples: u64,
}

impl StatementCpu {
    /// Stands in place of a statement for all that have no row of their own.
    pub const OTHER: &str = model::OTHER;

    /// Returns the statement.
    pub fn statement(&self) -> Statement<'_> {
        Statement { digest: &self.digest, text: &self.statement }
    }

    /// Returns for whom it was executed.
    pub fn client(&self) -> Client<'_> {
        self.statement().client(&self.account)
    }
}

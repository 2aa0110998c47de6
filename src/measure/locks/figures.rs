//! The figures of waits for locks of the database.

use crate::measure::latch::StatementWaits;
use crate::measure::rest::Timed;
use crate::model::{cumulative, Histogram};

/// The name of row locks. Metadata locks have the names that the server shows: `table metadata lock`.
pub const ROW_LOCK: &str = "row lock";

/// The figures of waits for locks of the database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The waits that have ended since attach, by lock. What is measured is among them also if nobody has waited.
    pub waits: Vec<LockWaits>,
    /// How often threads were seen to wait for each object since attach.
    pub objects: Vec<LockedObject>,
    /// How often threads were seen that each connection blocked since attach.
    pub blockers: Vec<LockBlocker>,
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

impl Timed for LockWaits {
    fn name(&self) -> &String {
        &self.lock
    }

    fn histogram(&mut self) -> &mut Histogram {
        &mut self.waits
    }
}

/// How often threads were seen to wait for a lock of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedObject {
    /// The kind of lock; see [`LockWaits::lock`].
    pub lock: String,
    /// The object: a table as `schema.table`, a schema, or the name of a user lock; or [`LockedObject::OTHER`] or
    /// [`LockedObject::UNKNOWN`].
    pub object: String,
    /// The index that contains the locked row; empty for other locks.
    pub index: String,
    /// The number of times.
    pub samples: u64,
}

impl LockedObject {
    /// The object of locks that are not counted by object, because there were too many.
    pub const OTHER: &'static str = "other";
    /// The object of locks for which none was found, or that have none.
    pub const UNKNOWN: &'static str = "unknown";

    /// Returns the object, and the index if there is one: `shop.orders (PRIMARY)`.
    pub fn name(&self) -> String {
        object_name(&self.object, &self.index)
    }
}

/// How often threads were seen that waited for a lock, directly or behind others, until a connection's transaction
/// ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockBlocker {
    /// The kind of lock; see [`LockWaits::lock`].
    pub lock: String,
    /// The connection's ID, by which the server's `KILL` ends it; 0 if this stands for several or none.
    pub connection: u32,
    /// What it executed: a statement without its values, or its first word; or [`LockBlocker::IDLE_IN_TRANSACTION`],
    /// [`LockBlocker::IDLE`] or [`LockBlocker::UNREAD`]. Empty if statements are not read. Without a connection it can
    /// be [`LockBlocker::NO_CONNECTION`], [`LockBlocker::OTHER`] or [`LockBlocker::UNKNOWN`].
    pub statement: String,
    /// The number of times.
    pub samples: u64,
}

impl LockBlocker {
    /// Stands in place of a statement for connections that have a transaction and execute none.
    pub const IDLE_IN_TRANSACTION: &'static str = "idle in a transaction";
    /// The same for connections that may not have a transaction, but a lock.
    pub const IDLE: &'static str = "idle";
    /// Stands in place of statements that could not be read, or that changed meanwhile.
    pub const UNREAD: &'static str = StatementWaits::UNREAD;
    /// Stands for transactions without a connection: those that are prepared, or rolled back after a restart.
    pub const NO_CONNECTION: &'static str = "a transaction without a connection";
    /// Stands for those that have no row of their own.
    pub const OTHER: &'static str = "other";
    /// Stands for those that were not found.
    pub const UNKNOWN: &'static str = "unknown";

    /// Returns what distinguishes the row from others: the lock, the connection and the statement.
    pub fn place(&self) -> (&str, u32, &str) {
        (&self.lock, self.connection, &self.statement)
    }

    /// Returns who it is, without a statement's text: `connection 12, executing a statement`.
    pub fn connection_name(&self) -> String {
        match (self.connection, self.statement.as_str()) {
            (0, Self::NO_CONNECTION | Self::OTHER | Self::UNKNOWN) => self.name(),
            (1.., "" | Self::IDLE_IN_TRANSACTION | Self::IDLE | Self::UNREAD) => self.name(),
            (0, _) => "several connections".to_owned(),
            (connection, _) => format!("connection {connection}, executing a statement"),
        }
    }

    /// Returns who it is, with the statement if there is one: `connection 12, idle in a transaction`, `connection 12:
    /// UPDATE shop.orders SET n = n + ?`.
    pub fn name(&self) -> String {
        blocker_name(self.connection, &self.statement)
    }
}

/// Formats who blocks others.
pub(super) fn blocker_name(connection: u32, statement: &str) -> String {
    match (connection, statement) {
        (0, statement) => statement.to_owned(),
        (connection, "") => format!("connection {connection}"),
        (connection, state @ (LockBlocker::IDLE_IN_TRANSACTION | LockBlocker::IDLE | LockBlocker::UNREAD)) => {
            format!("connection {connection}, {state}")
        }
        (connection, statement) => format!("connection {connection}: {statement}"),
    }
}

/// Formats an object, and its index unless that is empty.
pub(super) fn object_name(object: &str, index: &str) -> String {
    match index {
        "" => object.to_owned(),
        index => format!("{object} ({index})"),
    }
}

/// What threads that wait were seen with.
pub trait Sampled {
    /// The number of times.
    fn samples(&self) -> u64;
    /// What it is called.
    fn name(&self) -> String;
}

impl Sampled for LockedObject {
    fn samples(&self) -> u64 {
        self.samples
    }

    fn name(&self) -> String {
        LockedObject::name(self)
    }
}

impl Sampled for LockBlocker {
    fn samples(&self) -> u64 {
        self.samples
    }

    fn name(&self) -> String {
        LockBlocker::name(self)
    }
}

/// Returns each with its share of the samples of all of these, 0 to 1, the largest first.
pub fn shares<S: Sampled>(mut seen: Vec<S>) -> Vec<(S, f64)> {
    seen.sort_by(|a, b| b.samples().cmp(&a.samples()).then_with(|| a.name().cmp(&b.name())));
    let all: u64 = seen.iter().map(S::samples).sum();
    let with_share = |one: S| {
        let share = one.samples() as f64 / all as f64;
        (one, share)
    };
    seen.into_iter().filter(|one| one.samples() > 0).map(with_share).collect()
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
cumulative!(LockedObject { samples });
cumulative!(LockBlocker { samples });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blockers_have_names_with_and_without_statements() {
        let names = |connection, statement: &str| {
            let statement = statement.to_owned();
            let blocker = LockBlocker { lock: ROW_LOCK.to_owned(), connection, statement, samples: 1 };
            [blocker.name(), blocker.connection_name()]
        };
        assert_eq!(names(12, LockBlocker::IDLE_IN_TRANSACTION), ["connection 12, idle in a transaction"; 2]);
        assert_eq!(names(12, ""), ["connection 12"; 2]);
        assert_eq!(names(12, "COMMIT"), ["connection 12: COMMIT", "connection 12, executing a statement"]);
        assert_eq!(names(0, "COMMIT"), ["COMMIT", "several connections"]);
        assert_eq!(names(0, LockBlocker::NO_CONNECTION), [LockBlocker::NO_CONNECTION; 2]);
    }
}

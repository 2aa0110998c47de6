//! The figures of waits for locks of the database.

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

/// Formats an object, and its index unless that is empty.
pub(super) fn object_name(object: &str, index: &str) -> String {
    match index {
        "" => object.to_owned(),
        index => format!("{object} ({index})"),
    }
}

/// Returns each object with its share of the samples of all of these, 0 to 1, the largest first.
pub fn shares(mut objects: Vec<LockedObject>) -> Vec<(LockedObject, f64)> {
    objects.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name().cmp(&b.name())));
    let all: u64 = objects.iter().map(|object| object.samples).sum();
    let with_share = |object: LockedObject| {
        let share = object.samples as f64 / all as f64;
        (object, share)
    };
    objects.into_iter().filter(|object| object.samples > 0).map(with_share).collect()
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

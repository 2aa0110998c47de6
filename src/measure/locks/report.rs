//! Waits for locks of the database, in a report.

use std::time::Duration;

use serde::Serialize;

use super::figures::{blocker_name, object_name, LockBlocker, LockWaits, LockedObject};
use crate::present::format;
use crate::recording::report::{seconds, Part, Report, Section};
use crate::recording::Recording;

/// The most objects and blockers of a kind of lock that are shown in words.
const SHOWN: usize = 3;

/// The waits for locks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LocksReport {
    /// The locks that threads waited for, the one with the most wait time first.
    pub lock_waits: Vec<LockReport>,
    /// For how long they were not measured, because the probes took more than their part of the budget, in seconds.
    pub lock_waits_not_measured: f64,
}

/// The waits for one kind of lock that ended during the recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockReport {
    /// The kind: `row lock`, `table metadata lock`.
    pub lock: String,
    /// The number of waits.
    pub waits: u64,
    /// The time that all threads together waited, in seconds.
    pub wait: f64,
    /// The longest wait, in seconds.
    pub max: f64,
    /// The objects whose locks were waited for, most first, by samples of the waiting threads; absent if none were
    /// seen, as for waits that were short and few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectReport>,
    /// Who blocked the threads that waited, most first, by the same samples; absent if that is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<BlockerReport>,
}

/// An object whose locks were waited for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObjectReport {
    /// A table as `schema.table`, a schema, or the name of a user lock; `other` for those that are not counted by
    /// object, and `unknown` where none was found.
    pub object: String,
    /// The index that contains the locked rows; absent for other locks.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub index: String,
    /// The number of times that a thread was seen to wait.
    pub samples: u64,
    /// The share of the samples for this kind of lock, 0 to 1: that of the wait time.
    pub share: f64,
}

/// A connection that blocked others: directly, or those that waited for the same behind others.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BlockerReport {
    /// The connection's ID; 0 if this stands for several or none.
    pub connection: u32,
    /// What it executed: a statement without its values, `idle in a transaction`, `idle` or `not read`; empty if
    /// statements are not read. Without a connection, what this stands for: `other`, `unknown`, `a transaction without
    /// a connection`.
    pub statement: String,
    /// The number of times that a thread was seen to wait.
    pub samples: u64,
    /// The share of the samples for this kind of lock, 0 to 1: that of the wait time.
    pub share: f64,
}

impl Part for LocksReport {
    fn new(recording: &Recording) -> LocksReport {
        LocksReport {
            lock_waits: recording.lock_waits().iter().map(|row| LockReport::new(recording, row)).collect(),
            lock_waits_not_measured: seconds(recording.lock_rest_ns()),
        }
    }
}

impl LockReport {
    fn new(recording: &Recording, row: &LockWaits) -> LockReport {
        let mut objects = recording.locked_objects(&row.lock);
        // Some locks have no object: a global read lock.
        if objects.iter().all(|(seen, _)| seen.object == LockedObject::UNKNOWN) {
            objects.clear();
        }
        let objects = objects.into_iter().map(|(seen, share)| ObjectReport {
            object: seen.object,
            index: seen.index,
            samples: seen.samples,
            share,
        });
        let mut blockers = recording.lock_blockers(&row.lock);
        if blockers.iter().all(|(seen, _)| seen.name() == LockBlocker::UNKNOWN) {
            blockers.clear();
        }
        let blockers = blockers.into_iter().map(|(seen, share)| BlockerReport {
            connection: seen.connection,
            statement: seen.statement,
            samples: seen.samples,
            share,
        });
        LockReport {
            lock: row.lock.clone(),
            waits: row.waits.count,
            wait: seconds(row.waits.sum_ns),
            max: seconds(row.waits.max_ns),
            objects: objects.collect(),
            blockers: blockers.collect(),
        }
    }
}

impl Section for LocksReport {
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        let facts = |row: &LockReport| {
            let waits = (format!("waits for a {}", row.lock), row.fact());
            let blocked = row.blocked_by().map(|who| (format!("a {} blocked by", row.lock), who));
            [Some(waits), blocked].into_iter().flatten()
        };
        let waits = self.lock_waits.iter().flat_map(facts);
        let missing = (self.lock_waits_not_measured > 0.0).then(|| {
            let time = format::span(Duration::from_secs(self.lock_waits_not_measured.ceil() as u64));
            let why = format!("not measured for {time}: measuring so many would have exceeded the budget");
            ("waits for locks, incomplete".to_owned(), why)
        });
        waits.chain(missing).collect()
    }
}

impl LockReport {
    /// Returns how many waits there were, how long, and for what: `10 waits, 3.00s in all, 301ms at most: 80%
    /// shop.orders (PRIMARY); 20% shop.items (PRIMARY)`.
    fn fact(&self) -> String {
        let waits = if self.waits == 1 { "wait" } else { "waits" };
        let [all, longest] = [self.wait, self.max].map(|seconds| format::nanoseconds(seconds * 1e9));
        // A recording that begins later does not know the longest if an earlier one was longer.
        let longest = if self.max > 0.0 { format!(", {longest} at most") } else { String::new() };
        let objects = self.objects.iter().map(|row| (row.share, object_name(&row.object, &row.index)));
        let objects = with_shares(objects).map(|objects| format!(": {objects}")).unwrap_or_default();
        format!("{} {waits}, {all} in all{longest}{objects}", format::count(self.waits as f64))
    }

    /// Returns who blocked the waits: `80% connection 12, idle in a transaction; 20% connection 7: UPDATE t SET a = ?`.
    fn blocked_by(&self) -> Option<String> {
        let blockers = self.blockers.iter().map(|row| (row.share, blocker_name(row.connection, &row.statement)));
        with_shares(blockers)
    }
}

/// Formats the first of these with their shares.
fn with_shares(seen: impl Iterator<Item = (f64, String)>) -> Option<String> {
    let shown: Vec<String> = seen.take(SHOWN).map(|(share, name)| format!("{:.0}% {name}", 100.0 * share)).collect();
    (!shown.is_empty()).then(|| shown.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_and_timed() {
        let row = |waits| LockReport {
            lock: "row lock".to_owned(),
            waits,
            wait: 3.0,
            max: 0.301,
            objects: Vec::new(),
            blockers: Vec::new(),
        };
        assert_eq!(row(10).fact(), "10 waits, 3.00s in all, 301ms at most");
        assert_eq!(LockReport { max: 0.0, ..row(10) }.fact(), "10 waits, 3.00s in all");
        assert!(row(1).fact().starts_with("1 wait, "));
        let object = |object: &str, index: &str, samples| ObjectReport {
            object: object.to_owned(),
            index: index.to_owned(),
            samples,
            share: samples as f64 / 10.0,
        };
        let objects = vec![object("shop.orders", "PRIMARY", 8), object("shop.items", "", 2)];
        let blocker = |connection, statement: &str, share| BlockerReport {
            connection,
            statement: statement.to_owned(),
            samples: 5,
            share,
        };
        let blockers = vec![
            blocker(12, LockBlocker::IDLE_IN_TRANSACTION, 0.6),
            blocker(7, "COMMIT", 0.3),
            blocker(0, "other", 0.1),
        ];
        let blocked = LockReport { blockers, ..row(10) }.blocked_by();
        let expected = "60% connection 12, idle in a transaction; 30% connection 7: COMMIT; 10% other";
        assert_eq!((blocked.as_deref(), row(10).blocked_by()), (Some(expected), None));
        let shown = LockReport { objects, ..row(10) }.fact();
        assert_eq!(shown, "10 waits, 3.00s in all, 301ms at most: 80% shop.orders (PRIMARY); 20% shop.items");
    }
}

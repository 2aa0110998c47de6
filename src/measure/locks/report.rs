//! Waits for locks of the database, in a report.

use std::time::Duration;

use serde::Serialize;

use super::figures::LockWaits;
use crate::present::format;
use crate::recording::report::{seconds, Part, Report, Section};
use crate::recording::Recording;

/// The waits for locks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LocksReport {
    /// The locks that threads waited for, longest waits first.
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
}

impl Part for LocksReport {
    fn new(recording: &Recording) -> LocksReport {
        LocksReport {
            lock_waits: recording.lock_waits().iter().map(LockReport::from).collect(),
            lock_waits_not_measured: seconds(recording.lock_rest_ns()),
        }
    }
}

impl From<&LockWaits> for LockReport {
    fn from(row: &LockWaits) -> LockReport {
        LockReport {
            lock: row.lock.clone(),
            waits: row.waits.count,
            wait: seconds(row.waits.sum_ns),
            max: seconds(row.waits.max_ns),
        }
    }
}

impl Section for LocksReport {
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        let waits = self.lock_waits.iter().map(|row| (format!("waits for a {}", row.lock), row.fact()));
        let missing = (self.lock_waits_not_measured > 0.0).then(|| {
            let time = format::span(Duration::from_secs(self.lock_waits_not_measured.ceil() as u64));
            let why = format!("not measured for {time}: measuring so many would have exceeded the budget");
            ("waits for locks, incomplete".to_owned(), why)
        });
        waits.chain(missing).collect()
    }
}

impl LockReport {
    /// Returns how many waits there were, and how long: `10 waits, 3.00s in all, 301ms at most`.
    fn fact(&self) -> String {
        let waits = if self.waits == 1 { "wait" } else { "waits" };
        let [all, longest] = [self.wait, self.max].map(|seconds| format::nanoseconds(seconds * 1e9));
        // A recording that begins later does not know the longest if an earlier one was longer.
        let longest = if self.max > 0.0 { format!(", {longest} at most") } else { String::new() };
        format!("{} {waits}, {all} in all{longest}", format::count(self.waits as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_and_timed() {
        let row = |waits| LockReport { lock: "row lock".to_owned(), waits, wait: 3.0, max: 0.301 };
        assert_eq!(row(10).fact(), "10 waits, 3.00s in all, 301ms at most");
        assert_eq!(LockReport { max: 0.0, ..row(10) }.fact(), "10 waits, 3.00s in all");
        assert!(row(1).fact().starts_with("1 wait, "));
    }
}

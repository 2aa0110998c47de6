//! Waits for locks of the database, in a report.

use serde::Serialize;

use super::figures::LockWaits;
use super::probes::PROBES;
use crate::model::ProbeState;
use crate::present::format;
use crate::recording::report::{seconds, Part, Report, Section};
use crate::recording::Recording;

const INCOMPLETE: &str =
    "not measured all the time: there were so many that the probes took more than their part of the \
                          budget";

/// The waits for locks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LocksReport {
    /// The locks that threads waited for, longest waits first.
    pub lock_waits: Vec<LockReport>,
    /// Whether waits may be missing, because the probes were not attached all the time.
    pub lock_waits_are_incomplete: bool,
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
        let probes = recording.end.iter().flat_map(|end| &end.probes);
        let mut states =
            probes.filter(|probe| PROBES.contains(&probe.probe.as_str())).map(|probe| probe.state.as_str());
        LocksReport {
            lock_waits: recording.lock_waits().iter().map(LockReport::from).collect(),
            lock_waits_are_incomplete: states.any(|state| state == ProbeState::DutyCycle.as_str()),
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
        let missing =
            self.lock_waits_are_incomplete.then(|| ("more waits for locks".to_owned(), INCOMPLETE.to_owned()));
        waits.chain(missing).collect()
    }
}

impl LockReport {
    /// Returns how many waits there were, and how long: `10 waits, 3.00s in all, 301ms at most`.
    fn fact(&self) -> String {
        let waits = if self.waits == 1 { "wait" } else { "waits" };
        let [all, longest] = [self.wait, self.max].map(|seconds| format::nanoseconds(seconds * 1e9));
        format!("{} {waits}, {all} in all, {longest} at most", format::count(self.waits as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_and_timed() {
        let row = |waits| LockReport { lock: "row lock".to_owned(), waits, wait: 3.0, max: 0.301 };
        assert_eq!(row(10).fact(), "10 waits, 3.00s in all, 301ms at most");
        assert!(row(1).fact().starts_with("1 wait, "));
    }
}

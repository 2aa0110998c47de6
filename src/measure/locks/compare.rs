//! Waits for locks of the database, in a comparison.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::ROW_LOCK;
use super::stages::TABLE_LOCK;
use crate::present::format;
use crate::recording::compare::{Figure, Pair, Part, Per, Section, Side};
use crate::recording::Recording;

/// The waits for locks of two systems that have measured them nearly all the time; otherwise there are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LocksComparison {
    /// The locks that either has waited for, those with the largest difference first.
    pub lock_waits: Vec<LockRow>,
    #[serde(skip)]
    per: Per,
}

/// The waits for one kind of lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockRow {
    /// The kind: `row lock`, `table metadata lock`.
    pub lock: String,
    /// Seconds waited, by the unit that latches are ranked by.
    pub wait: Pair,
}

/// The largest share of a recording for which the waits may not have been measured. In the first second, probes may
/// rest by a price that is assumed.
const MOST_REST: f64 = 0.01;

/// Seconds waited in each second, by lock; none if that was not measured nearly all the time.
type Waits = BTreeMap<String, Vec<f64>>;

/// Returns whether a system measures waits for this lock: it has a row for each wait function that has probes.
fn measures(waits: &Waits, lock: &str) -> bool {
    waits.contains_key(if lock == ROW_LOCK { ROW_LOCK } else { TABLE_LOCK.as_str() })
}

impl Part for LocksComparison {
    type Side = Waits;

    fn side(recording: &Recording) -> Waits {
        if recording.lock_rest_ns() as f64 > MOST_REST * recording.duration().as_nanos() as f64 {
            return Waits::new();
        }
        let row = |lock: &String| (lock.clone(), vec![0.0; recording.seconds.len()]);
        let locks = &recording.rows.lock_waits;
        let mut waits: Waits = locks.iter().map(row).collect();
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.lock_waits {
                let row = waits.get_mut(&locks[delta.row]);
                row.into_iter().for_each(|row| row[i] += delta.wait_ns as f64 / 1e9);
            }
        }
        waits
    }

    fn new(sides: [&Side; 2], own: [&Waits; 2], ranked_by: Per) -> LocksComparison {
        let [a, b] = own;
        let both = a.keys().chain(b.keys().filter(|lock| !a.contains_key(*lock)));
        let both = both.filter(|lock| own.iter().all(|waits| measures(waits, lock)));
        let row = |lock: &String| {
            let samples = |i: usize| sides[i].samples(ranked_by, own[i].get(lock).map(Vec::as_slice));
            let wait = Pair::new(&samples(0)?, &samples(1)?)?;
            (wait.a > 0.0 || wait.b > 0.0).then(|| LockRow { lock: lock.clone(), wait })
        };
        let mut lock_waits: Vec<LockRow> = both.filter_map(row).collect();
        lock_waits.sort_by(|a, b| b.wait.difference().total_cmp(&a.wait.difference()));
        LocksComparison { lock_waits, per: ranked_by }
    }
}

impl Section for LocksComparison {
    fn figures(&self) -> Vec<Figure> {
        let figure = |row: &LockRow| {
            let [a, b] = [row.wait.a, row.wait.b].map(|seconds| format::nanoseconds(seconds * 1e9));
            Figure { name: format!("wait for a {}, {}", row.lock, self.per.as_str()), a, b, ratio: row.wait.ratio }
        };
        self.lock_waits.iter().map(figure).collect()
    }
}

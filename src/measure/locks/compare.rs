//! Waits for locks of the database, in a comparison.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::probes::PROBES;
use crate::model::ProbeState;
use crate::present::format;
use crate::recording::compare::{Figure, Pair, Part, Per, Section, Side};
use crate::recording::Recording;

/// The waits for locks of two systems that have measured them all the time; otherwise there are none.
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

/// Seconds waited in each second, by lock; `None` if that was not measured all the time.
type Waits = Option<BTreeMap<String, Vec<f64>>>;

impl Part for LocksComparison {
    type Side = Waits;

    fn side(recording: &Recording) -> Waits {
        let mut probes =
            recording.end.as_ref()?.probes.iter().filter(|p| PROBES.contains(&p.probe.as_str())).peekable();
        probes.peek()?;
        probes.all(|probe| probe.state != ProbeState::DutyCycle.as_str()).then_some(())?;
        let mut waits: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.lock_waits {
                let lock = &recording.rows.lock_waits[delta.row];
                let row = waits.entry(lock.clone()).or_insert_with(|| vec![0.0; recording.seconds.len()]);
                row[i] += delta.wait_ns as f64 / 1e9;
            }
        }
        Some(waits)
    }

    fn new(sides: [&Side; 2], own: [&Waits; 2], ranked_by: Per) -> LocksComparison {
        let [Some(a), Some(b)] = own else { return LocksComparison { lock_waits: Vec::new(), per: ranked_by } };
        let locks: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let row = |lock: &String| {
            let samples = |side: &Side, waits: &BTreeMap<String, Vec<f64>>| {
                side.samples(ranked_by, waits.get(lock).map(Vec::as_slice))
            };
            let wait = Pair::new(&samples(sides[0], a)?, &samples(sides[1], b)?)?;
            (wait.a > 0.0 || wait.b > 0.0).then(|| LockRow { lock: lock.clone(), wait })
        };
        let mut lock_waits: Vec<LockRow> = locks.into_iter().filter_map(row).collect();
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

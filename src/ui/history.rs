//! The snapshots that the newest one is compared with.

use std::collections::VecDeque;
use std::time::Duration;

use crate::attach::CYCLE_TIME;
use crate::model::Snapshot;

/// Snapshots of the last seconds: as many as it takes to look back over a whole cycle of turns. Over less, probes that take
/// turns would seem to see much in one moment and nothing in the next.
#[derive(Default)]
pub struct History(VecDeque<Snapshot>);

impl History {
    /// Adds the newest.
    pub fn push(&mut self, snapshot: Snapshot) {
        // A tick of a clock that comes a little early still ends a cycle.
        let old = CYCLE_TIME.mul_f64(0.9);
        while self.0.get(1).is_some_and(|second| age(second, &snapshot) >= old) {
            self.0.pop_front();
        }
        self.0.push_back(snapshot);
    }

    /// The one before `now` that figures are a difference from: a cycle older, or the oldest there is.
    pub fn before(&self, now: &Snapshot) -> Option<&Snapshot> {
        let old = CYCLE_TIME.mul_f64(0.9);
        self.0.iter().rev().find(|earlier| age(earlier, now) >= old).or(self.0.front())
    }
}

fn age(earlier: &Snapshot, now: &Snapshot) -> Duration {
    now.elapsed.saturating_sub(earlier.elapsed)
}

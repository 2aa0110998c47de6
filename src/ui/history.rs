//! The snapshots that the newest one is compared with.

use std::collections::VecDeque;

use crate::attach::CYCLE_TIME;
use crate::measure::Snapshot;

/// Snapshots of the last seconds: as many as it takes to look back over a whole cycle of turns. Over less, probes that take
/// turns would seem to see much in one moment and nothing in the next.
#[derive(Default)]
pub struct History(VecDeque<Snapshot>);

impl History {
    /// Adds the newest.
    pub fn push(&mut self, snapshot: Snapshot) {
        while self.0.get(1).is_some_and(|second| is_a_cycle_before(second, &snapshot)) {
            self.0.pop_front();
        }
        self.0.push_back(snapshot);
    }

    /// The one before `now` that figures are a difference from: a cycle older, or the oldest there is.
    pub fn before(&self, now: &Snapshot) -> Option<&Snapshot> {
        self.0.iter().rev().find(|earlier| is_a_cycle_before(earlier, now)).or(self.0.front())
    }
}

fn is_a_cycle_before(earlier: &Snapshot, now: &Snapshot) -> bool {
    // A tick of a clock that comes a little early still ends a cycle.
    now.elapsed.saturating_sub(earlier.elapsed) >= CYCLE_TIME.mul_f64(0.9)
}

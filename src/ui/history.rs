//! Keeps the snapshots that the newest one is compared with.

use std::collections::VecDeque;

use crate::attach::CYCLE_TIME;
use crate::measure::Snapshot;

/// The snapshots of the last seconds, long enough to cover a whole duty cycle. Over a shorter time, duty-cycled probes
/// would seem to see many waits at one moment and none at the next.
#[derive(Default)]
pub struct History(VecDeque<Snapshot>);

impl History {
    /// Adds the newest snapshot, and drops those that are no longer needed.
    pub fn push(&mut self, snapshot: Snapshot) {
        while self.0.get(1).is_some_and(|second| is_a_cycle_before(second, &snapshot)) {
            self.0.pop_front();
        }
        self.0.push_back(snapshot);
    }

    /// Returns the snapshot from which figures at `now` are a difference: one a duty cycle older, or else the oldest.
    pub fn before(&self, now: &Snapshot) -> Option<&Snapshot> {
        self.0.iter().rev().find(|earlier| is_a_cycle_before(earlier, now)).or(self.0.front())
    }
}

fn is_a_cycle_before(earlier: &Snapshot, now: &Snapshot) -> bool {
    // A tick that comes slightly early still ends a cycle.
    now.elapsed.saturating_sub(earlier.elapsed) >= CYCLE_TIME.mul_f64(0.9)
}

//! Keeps the snapshots that the newest one is compared with.

use std::collections::VecDeque;
use std::time::Duration;

use crate::measure::Snapshot;

/// The time that figures look back: over a second or two, estimates rest on too few looks at the server's threads.
const LOOK_BACK: Duration = Duration::from_secs(4);

/// The snapshots of the last seconds.
#[derive(Default)]
pub struct History(VecDeque<Snapshot>);

impl History {
    /// Adds the newest snapshot, and drops those that are no longer needed. Where time stands still, as at the end of a
    /// replay, it replaces the one before.
    pub fn push(&mut self, snapshot: Snapshot) {
        if self.0.back().is_some_and(|last| last.elapsed == snapshot.elapsed) {
            self.0.pop_back();
        }
        while self.0.get(1).is_some_and(|second| is_old_enough(second, &snapshot)) {
            self.0.pop_front();
        }
        self.0.push_back(snapshot);
    }

    /// Returns the snapshot from which figures at `now` are a difference: one old enough, or else the oldest.
    pub fn before(&self, now: &Snapshot) -> Option<&Snapshot> {
        self.0.iter().rev().find(|earlier| is_old_enough(earlier, now)).or(self.0.front())
    }
}

fn is_old_enough(earlier: &Snapshot, now: &Snapshot) -> bool {
    // Ticks may come slightly early.
    now.elapsed.saturating_sub(earlier.elapsed) >= LOOK_BACK.mul_f64(0.9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Snapshot {
        Snapshot { elapsed: Duration::from_secs(second), ..Snapshot::default() }
    }

    #[test]
    fn it_does_not_grow_and_keeps_the_last_seconds_where_time_stands_still() {
        let mut history = History::default();
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8].map(at).into_iter().for_each(|now| history.push(now));
        assert!(history.0.len() <= 6, "{}", history.0.len());
        assert_eq!(history.before(&at(8)).map(|earlier| earlier.elapsed.as_secs()), Some(4));
    }
}

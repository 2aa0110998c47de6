//! What is shown of the waits: nothing that was counted while probes that had rested were tried. Otherwise the first
//! figures after a rest would have the waits of all that time. While nothing is measured, what was shown last stays: a
//! counter that goes away and comes back would seem to have counted all of it at once.

use super::figures::LockWaits;
use crate::model::{merged, since};

/// What was shown last, and what stays hidden.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// All that was counted when it was last shown.
    last: Vec<LockWaits>,
    /// What was counted before each end of a trial, and after the last showing before.
    hidden: Vec<LockWaits>,
    /// How often the probes had rested then.
    rests: u64,
}

impl Shown {
    /// Returns what is shown of all that was `counted`, after so many `rests`.
    pub fn of(&mut self, counted: Vec<LockWaits>, rests: u64) -> Vec<LockWaits> {
        if std::mem::replace(&mut self.rests, rests) != rests {
            let more = since(&counted, &self.last, |row| &row.lock);
            let all = self.hidden.drain(..).chain(more).map(|row| (row.lock.clone(), row));
            self.hidden = merged(all).into_values().collect();
        }
        let shown = since(&counted, &self.hidden, |row| &row.lock);
        self.last = counted;
        shown
    }

    /// Returns what was shown last.
    pub fn last(&self) -> Vec<LockWaits> {
        since(&self.last, &self.hidden, |row| &row.lock)
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::ROW_LOCK;
    use super::*;
    use crate::model::Histogram;

    fn row(lock: &str, count: u64) -> LockWaits {
        LockWaits { lock: lock.to_owned(), waits: Histogram { count, sum_ns: 10 * count, ..Histogram::default() } }
    }

    #[test]
    fn what_was_counted_in_a_trial_stays_hidden() {
        let mut shown = Shown::default();
        assert_eq!(shown.of(vec![row(ROW_LOCK, 5)], 0), [row(ROW_LOCK, 5)]);
        assert_eq!(shown.last(), [row(ROW_LOCK, 5)]);
        // A storm, a rest, and a trial, in which also another lock was waited for.
        let after_trial = vec![row(ROW_LOCK, 105), row("user lock", 3)];
        assert_eq!(shown.of(after_trial, 1), [row(ROW_LOCK, 5), row("user lock", 0)]);
        let now = vec![row(ROW_LOCK, 107), row("user lock", 4)];
        assert_eq!(shown.of(now, 1), [row(ROW_LOCK, 7), row("user lock", 1)]);
        assert_eq!(shown.of(vec![row(ROW_LOCK, 200)], 3), [row(ROW_LOCK, 7)]);
        assert_eq!(shown.of(vec![row(ROW_LOCK, 201)], 3), [row(ROW_LOCK, 8)]);
    }
}

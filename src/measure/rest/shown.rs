//! What is shown of the waits: nothing that was counted while probes that had rested were tried. Otherwise the first
//! figures after a rest would have the waits of all that time. While nothing is measured, what was shown last stays: a
//! counter that goes away and comes back would seem to have counted all of it at once.

use crate::model::{merged, since, Cumulative, Histogram, BUCKET_BOUNDS_NS};

/// A row with a histogram.
pub(in crate::measure) trait Timed: Cumulative {
    /// What distinguishes it from others.
    fn name(&self) -> &String;
    /// Its histogram.
    fn histogram(&mut self) -> &mut Histogram;
}

/// What was shown last, and what stays hidden.
pub(in crate::measure) struct Shown<R> {
    /// All that was counted when it was last shown.
    last: Vec<R>,
    /// What was counted before each end of a trial, and after the last showing before.
    hidden: Vec<R>,
    /// How often the probes had rested then.
    rests: u64,
}

impl<R> Default for Shown<R> {
    fn default() -> Shown<R> {
        Shown { last: Vec::new(), hidden: Vec::new(), rests: 0 }
    }
}

impl<R: Timed> Shown<R> {
    /// Returns what is shown of all that was `counted`, after so many `rests`.
    pub fn of(&mut self, counted: Vec<R>, rests: u64) -> Vec<R> {
        if std::mem::replace(&mut self.rests, rests) != rests {
            let more = since(&counted, &self.last, R::name);
            let all = self.hidden.drain(..).chain(more).map(|row| (row.name().clone(), row));
            self.hidden = merged(all).into_values().collect();
        }
        self.last = counted;
        self.last()
    }

    /// Returns what was shown last.
    pub fn last(&self) -> Vec<R> {
        let mut rows = since(&self.last, &self.hidden, R::name);
        rows.iter_mut().map(R::histogram).for_each(|waits| waits.max_ns = longest(waits));
        rows
    }
}

/// Returns how long the longest of these waits can have been at most: the maximum may be that of a hidden one.
fn longest(waits: &Histogram) -> u64 {
    let last = waits.buckets.iter().rposition(|count| *count > 0);
    let bound = last.and_then(|last| BUCKET_BOUNDS_NS.get(last)).copied().unwrap_or(u64::MAX);
    waits.max_ns.min(bound).min(waits.sum_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::locks::{LockWaits, ROW_LOCK};

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

    #[test]
    fn the_longest_wait_is_not_a_hidden_one() {
        let of = |waits: &[u64]| {
            let mut row = row(ROW_LOCK, waits.len() as u64);
            row.waits.sum_ns = waits.iter().sum();
            row.waits.max_ns = waits.iter().copied().max().unwrap_or_default();
            for ns in waits {
                row.waits.buckets[BUCKET_BOUNDS_NS.partition_point(|bound| bound < ns)] += 1;
            }
            vec![row]
        };
        let mut shown = Shown::default();
        assert_eq!(shown.of(of(&[3_000_000]), 0), of(&[3_000_000]));
        assert_eq!(shown.of(of(&[3_000_000, 14_000_000_000]), 1), of(&[3_000_000]));
        let now = shown.of(of(&[3_000_000, 14_000_000_000, 2_500_000, 2_600_000]), 1);
        // Within the bucket.
        assert_eq!(now[0].waits.max_ns, 4_000_000);
    }
}

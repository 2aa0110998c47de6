//! What probes did not see while they were off: the waits that they did see, scaled up.

use std::collections::HashMap;

use anyhow::Result;

use super::collect::{bytes_of, LatchKey};
use super::Maps;
use crate::bpf::latch::types;
use crate::model::BUCKETS;
use crate::probe::maps::entries;

/// Estimates of waits, beyond those that were seen.
#[derive(Default)]
pub(crate) struct Missed {
    latches: HashMap<LatchKey, Estimate>,
    callsites: HashMap<CallsiteKey, Sum>,
    pages: HashMap<PageKey, Sum>,
    handoffs: HashMap<HandoffKey, Sum>,
    seen: Seen,
}

/// A latch, and the address and line of a call site.
type CallsiteKey = (LatchKey, u64, u64);

/// Tablespace, type, level, index and wait function.
type PageKey = (u32, u16, u16, u64, u32);

/// A latch, and from where to where.
type HandoffKey = (LatchKey, u8, u8);

/// What was seen when estimates were last made.
#[derive(Default)]
struct Seen {
    latches: HashMap<LatchKey, types::waits>,
    callsites: HashMap<CallsiteKey, types::callsite_waits>,
    pages: HashMap<PageKey, types::page_waits>,
    handoffs: HashMap<HandoffKey, types::handoffs>,
}

/// Waits for a latch that were not seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub sum_ns: f64,
    pub buckets: [f64; BUCKETS],
    /// Sleep in all waits that were not watched, whether they were seen or not; and how often.
    pub sleep_ns: f64,
    pub sleeps: f64,
    /// How many of those waits slept, and how many did not.
    pub slept: f64,
    pub won: f64,
    /// Of those waits, the time of which it is still open how much was slept.
    unwatched_ns: f64,
}

/// Waits at a call site, or for pages, that were not seen.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub count: f64,
    pub sum_ns: f64,
}

impl Missed {
    /// Takes the waits that were seen since the last time as many times more as `factors` say, by wait function, and what
    /// was slept in waits that were not watched to be the same part as in those that were.
    ///
    /// # Errors
    /// When the programs' maps cannot be read.
    pub(super) fn estimate(&mut self, maps: &Maps, factors: &[f64]) -> Result<()> {
        let factor = |function: usize| factors.get(function).copied().unwrap_or_default();
        let no_waits = types::waits::default();
        let mut seen = Seen::default();
        for (key, waits) in entries::<types::latch_key, types::waits>(&maps.latches)? {
            let id = bytes_of(&key);
            let before = self.seen.latches.get(&id).unwrap_or(&no_waits);
            self.latches.entry(id).or_default().add(before, &waits, factor(key.function.into()));
            seen.latches.insert(id, waits);
        }
        for (key, waits) in entries::<types::callsite_key, types::callsite_waits>(&maps.callsites)? {
            let id = (bytes_of(&key.latch), key.r#where, key.line);
            let factor = factor(key.latch.function.into());
            if factor > 0.0 {
                let before = self.seen.callsites.get(&id).copied().unwrap_or_default();
                let new = (waits.count.saturating_sub(before.count), waits.sum_ns.saturating_sub(before.sum_ns));
                self.callsites.entry(id).or_default().add(new, factor);
            }
            seen.callsites.insert(id, waits);
        }
        for (key, waits) in entries::<types::page_key, types::page_waits>(&maps.pages)? {
            let id = page_id(&key);
            let factor = factor(key.function as usize);
            if factor > 0.0 {
                let before = self.seen.pages.get(&id).copied().unwrap_or_default();
                let new = (waits.count.saturating_sub(before.count), waits.sum_ns.saturating_sub(before.sum_ns));
                self.pages.entry(id).or_default().add(new, factor);
            }
            seen.pages.insert(id, waits);
        }
        for (key, handoffs) in entries::<types::handoff_key, types::handoffs>(&maps.handoffs)? {
            let id = (bytes_of(&key.latch), key.from, key.to);
            let factor = factor(key.latch.function.into());
            if factor > 0.0 {
                let before = self.seen.handoffs.get(&id).copied().unwrap_or_default();
                let new = (handoffs.count.saturating_sub(before.count), handoffs.sum_ns.saturating_sub(before.sum_ns));
                self.handoffs.entry(id).or_default().add(new, factor);
            }
            seen.handoffs.insert(id, handoffs);
        }
        self.seen = seen;
        Ok(())
    }

    pub(super) fn latch(&self, key: &LatchKey) -> Option<&Estimate> {
        self.latches.get(key)
    }

    pub(super) fn page(&self, key: &types::page_key) -> Sum {
        self.pages.get(&page_id(key)).copied().unwrap_or_default()
    }

    pub(super) fn handoff(&self, latch: LatchKey, from: u8, to: u8) -> Sum {
        self.handoffs.get(&(latch, from, to)).copied().unwrap_or_default()
    }

    pub(super) fn callsite(&self, latch: LatchKey, place: u64, line: u64) -> Sum {
        self.callsites.get(&(latch, place, line)).copied().unwrap_or_default()
    }
}

fn page_id(key: &types::page_key) -> PageKey {
    (key.space, key.r#type, key.level, key.index, key.function)
}

impl Sum {
    fn add(&mut self, (count, sum_ns): (u64, u64), factor: f64) {
        self.count += factor * count as f64;
        self.sum_ns += factor * sum_ns as f64;
    }
}

impl Estimate {
    fn add(&mut self, before: &types::waits, now: &types::waits, factor: f64) {
        let new = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let seen_ns = new(now.sum_ns, before.sum_ns);
        let watched_ns = new(now.watched_ns, before.watched_ns);
        self.sum_ns += factor * seen_ns;
        for (i, bucket) in self.buckets.iter_mut().enumerate() {
            *bucket += factor * new(now.buckets[i], before.buckets[i]);
        }
        self.unwatched_ns += factor * seen_ns + (seen_ns - watched_ns).max(0.0);
        if now.watched_ns > 0 {
            let ratio = std::mem::take(&mut self.unwatched_ns) / now.watched_ns as f64;
            self.sleep_ns += ratio * now.sleep_ns as f64;
            self.sleeps += ratio * now.sleeps as f64;
            self.slept += ratio * now.slept as f64;
            self.won += ratio * now.watched.saturating_sub(now.slept) as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many waits of 100 ns, a part of them watched; of those half slept for 80 ns.
    fn waits(seen: u64, watched: u64) -> types::waits {
        let mut waits = types::waits {
            sum_ns: 100 * seen,
            watched,
            watched_ns: 100 * watched,
            sleep_ns: 40 * watched,
            sleeps: watched,
            slept: watched / 2,
            ..Default::default()
        };
        waits.buckets[3] = seen;
        waits
    }

    #[test]
    fn only_what_is_new_is_scaled_up() {
        let mut estimate = Estimate::default();
        estimate.add(&waits(0, 0), &waits(10, 10), 4.0);
        estimate.add(&waits(10, 10), &waits(12, 12), 1.5);
        let mut buckets = [0.0; BUCKETS];
        buckets[3] = 43.0;
        let expected = Estimate {
            sum_ns: 4300.0,
            buckets,
            sleep_ns: 1720.0,
            sleeps: 43.0,
            slept: 21.5,
            won: 21.5,
            unwatched_ns: 0.0,
        };
        assert_eq!(estimate, expected);
    }

    #[test]
    fn what_was_not_watched_slept_as_what_was() {
        let mut estimate = Estimate::default();
        estimate.add(&waits(0, 0), &waits(10, 2), 0.0);
        assert_eq!((estimate.sum_ns, estimate.sleep_ns), (0.0, 320.0));
        // Twice as much was not seen, and none of it watched.
        estimate.add(&waits(10, 2), &waits(15, 2), 2.0);
        assert_eq!((estimate.sum_ns, estimate.sleep_ns), (1000.0, 320.0 + 15.0 * 40.0));
    }

    #[test]
    fn sleep_is_made_up_for_when_something_was_watched() {
        let mut estimate = Estimate::default();
        estimate.add(&waits(0, 0), &waits(10, 0), 1.0);
        assert_eq!(estimate.sleep_ns, 0.0);
        estimate.add(&waits(10, 0), &waits(12, 2), 0.0);
        assert_eq!(estimate.sleep_ns, 800.0);
    }
}

//! Estimates what probes did not see while they were off, by scaling up the waits that they did see.

use std::collections::HashMap;

use super::keys::{key_of, MapKey};
use super::maps::Counts;
use crate::bpf::latch::types;
use crate::model::BUCKETS;

/// Estimates of waits, beyond those that were seen.
#[derive(Default)]
pub(crate) struct Missed {
    latches: HashMap<MapKey, Estimate>,
    parts: HashMap<Part, Sum>,
    seen: Seen,
}

/// The keys by which waits for a latch are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// Address and line.
    Callsite(MapKey, u64, u64),
    /// Tablespace, type, level, index and wait function.
    Page(u32, u16, u16, u64, u32),
    /// From which domain to which.
    Handoff(MapKey, u8, u8),
    /// The handoffs whose waiter moved meanwhile.
    Migration(MapKey, u8, u8),
}

/// What had been seen when estimates were last made.
#[derive(Default)]
struct Seen {
    latches: HashMap<MapKey, types::waits>,
    /// Waits and nanoseconds.
    parts: HashMap<Part, (u64, u64)>,
}

/// The waits for a latch that were not seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub sum_ns: f64,
    pub buckets: [f64; BUCKETS],
    /// The sleep in all waits that were not watched, whether they were seen or not, and the number of sleeps.
    pub sleep_ns: f64,
    pub sleeps: f64,
    /// How many of those waits slept, and how many did not.
    pub slept: f64,
    pub won: f64,
    /// The time of those waits whose share of sleep is not known yet.
    unwatched_ns: f64,
}

/// The waits at a call site, or for pages, that were not seen.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub count: f64,
    pub sum_ns: f64,
}

impl Missed {
    /// Adds `factors` times the waits seen since the last call, by wait function. The share of sleep in waits that were
    /// not watched is taken to be the same as in those that were.
    pub(super) fn estimate(&mut self, counts: &Counts, factors: &[f64]) {
        let factor = |function: usize| factors.get(function).copied().unwrap_or_default();
        let no_waits = types::waits::default();
        let mut seen = Seen::default();
        for (key, waits) in &counts.latches {
            let id = key_of(key);
            let before = self.seen.latches.get(&id).unwrap_or(&no_waits);
            self.latches.entry(id).or_default().add(before, waits, factor(key.function.into()));
            seen.latches.insert(id, *waits);
        }
        let mut parts = Vec::new();
        for (key, waits) in &counts.callsites {
            let part = Part::Callsite(key_of(&key.latch), key.address, key.line);
            parts.push((part, factor(key.latch.function.into()), (waits.count, waits.sum_ns)));
        }
        for (key, waits) in &counts.pages {
            parts.push((page_part(key), factor(key.function as usize), (waits.count, waits.sum_ns)));
        }
        for (key, handoffs) in &counts.handoffs {
            let (latch, factor) = (key_of(&key.latch), factor(key.latch.function.into()));
            parts.push((Part::Handoff(latch, key.from, key.to), factor, (handoffs.count, handoffs.sum_ns)));
            parts.push((Part::Migration(latch, key.from, key.to), factor, (handoffs.migrations, 0)));
        }
        for (part, factor, now) in parts {
            if factor > 0.0 {
                let before = self.seen.parts.get(&part).copied().unwrap_or_default();
                self.parts.entry(part).or_default().add(before, now, factor);
            }
            seen.parts.insert(part, now);
        }
        self.seen = seen;
    }

    pub(super) fn latch(&self, key: &MapKey) -> Option<&Estimate> {
        self.latches.get(key)
    }

    pub(super) fn page(&self, key: &types::page_key) -> Sum {
        self.part(page_part(key))
    }

    pub(super) fn handoff(&self, latch: MapKey, from: u8, to: u8) -> Sum {
        self.part(Part::Handoff(latch, from, to))
    }

    pub(super) fn migrations(&self, latch: MapKey, from: u8, to: u8) -> f64 {
        self.part(Part::Migration(latch, from, to)).count
    }

    pub(super) fn callsite(&self, latch: MapKey, address: u64, line: u64) -> Sum {
        self.part(Part::Callsite(latch, address, line))
    }

    fn part(&self, part: Part) -> Sum {
        self.parts.get(&part).copied().unwrap_or_default()
    }
}

fn page_part(key: &types::page_key) -> Part {
    Part::Page(key.space, key.r#type, key.level, key.index, key.function)
}

impl Sum {
    fn add(&mut self, before: (u64, u64), now: (u64, u64), factor: f64) {
        self.count += factor * now.0.saturating_sub(before.0) as f64;
        self.sum_ns += factor * now.1.saturating_sub(before.1) as f64;
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

    /// Waits of 100 ns, some of them watched; half of those slept for 80 ns.
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
        // Twice as many were not seen, and none of them was watched.
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

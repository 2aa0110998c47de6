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
    seen: Seen,
}

/// A latch, and the address and line of a call site.
type CallsiteKey = (LatchKey, u64, u64);

/// Tablespace, type, level, index and wait function.
type PageKey = (u32, u16, u16, u64, u32);

/// What was seen when estimates were last made.
#[derive(Default)]
struct Seen {
    latches: HashMap<LatchKey, types::waits>,
    callsites: HashMap<CallsiteKey, types::callsite_waits>,
    pages: HashMap<PageKey, types::page_waits>,
}

/// How many times as much as was seen was not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Factors {
    pub waits: f64,
    /// Of the sleeps in them.
    pub sleeps: f64,
}

/// Waits for a latch that were not seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub sum_ns: f64,
    pub sleep_ns: f64,
    pub sleeps: f64,
    pub slept: f64,
    pub buckets: [f64; BUCKETS],
}

/// Waits at a call site, or for pages, that were not seen.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub count: f64,
    pub sum_ns: f64,
}

impl Missed {
    /// Takes the waits that were seen since the last time as many times more as `factors` say, by wait function.
    ///
    /// # Errors
    /// When the programs' maps cannot be read.
    pub(super) fn estimate(&mut self, maps: &Maps, factors: &[Factors]) -> Result<()> {
        let factors = |function: usize| factors.get(function).copied().unwrap_or_default();
        let no_waits = types::waits::default();
        let mut seen = Seen::default();
        for (key, waits) in entries::<types::latch_key, types::waits>(&maps.latches)? {
            let id = bytes_of(&key);
            let factors = factors(key.function.into());
            if factors != Factors::default() {
                let before = self.seen.latches.get(&id).unwrap_or(&no_waits);
                self.latches.entry(id).or_default().add(before, &waits, factors);
            }
            seen.latches.insert(id, waits);
        }
        for (key, waits) in entries::<types::callsite_key, types::callsite_waits>(&maps.callsites)? {
            let id = (bytes_of(&key.latch), key.r#where, key.line);
            let factor = factors(key.latch.function.into()).waits;
            if factor > 0.0 {
                let before = self.seen.callsites.get(&id).copied().unwrap_or_default();
                let new = (waits.count.saturating_sub(before.count), waits.sum_ns.saturating_sub(before.sum_ns));
                self.callsites.entry(id).or_default().add(new, factor);
            }
            seen.callsites.insert(id, waits);
        }
        for (key, waits) in entries::<types::page_key, types::page_waits>(&maps.pages)? {
            let id = page_id(&key);
            let factor = factors(key.function as usize).waits;
            if factor > 0.0 {
                let before = self.seen.pages.get(&id).copied().unwrap_or_default();
                let new = (waits.count.saturating_sub(before.count), waits.sum_ns.saturating_sub(before.sum_ns));
                self.pages.entry(id).or_default().add(new, factor);
            }
            seen.pages.insert(id, waits);
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
    fn add(&mut self, before: &types::waits, now: &types::waits, factors: Factors) {
        let more = |factor: f64, now: u64, before: u64| factor * now.saturating_sub(before) as f64;
        self.sum_ns += more(factors.waits, now.sum_ns, before.sum_ns);
        self.sleep_ns += more(factors.sleeps, now.sleep_ns, before.sleep_ns);
        self.sleeps += more(factors.sleeps, now.sleeps, before.sleeps);
        self.slept += more(factors.sleeps, now.slept, before.slept);
        for (i, bucket) in self.buckets.iter_mut().enumerate() {
            *bucket += more(factors.waits, now.buckets[i], before.buckets[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_scaled_up() {
        let waits = |n: u64| {
            let mut waits =
                types::waits { sum_ns: 100 * n, sleep_ns: 60 * n, sleeps: 2 * n, slept: n, ..Default::default() };
            waits.buckets[3] = n;
            waits
        };
        let mut estimate = Estimate::default();
        estimate.add(&waits(0), &waits(10), Factors { waits: 4.0, sleeps: 9.0 });
        estimate.add(&waits(10), &waits(12), Factors { waits: 1.5, sleeps: 2.0 });
        let mut buckets = [0.0; BUCKETS];
        buckets[3] = 43.0;
        let expected = Estimate { sum_ns: 4300.0, sleep_ns: 5640.0, sleeps: 188.0, slept: 94.0, buckets };
        assert_eq!(estimate, expected);
    }
}

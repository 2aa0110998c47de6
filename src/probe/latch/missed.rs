//! What probes did not see while they were off: the waits that they did see, scaled up.

use std::collections::HashMap;

use anyhow::Result;

use super::collect::{bytes_of, entries, LatchKey};
use super::Maps;
use crate::bpf::latch::types;
use crate::model::BUCKETS;

/// Estimates of waits, beyond those that were seen.
#[derive(Default)]
pub(crate) struct Missed {
    latches: HashMap<LatchKey, Estimate>,
    callsites: HashMap<CallsiteKey, CallsiteEstimate>,
    seen: Seen,
}

/// A latch, and the address and line of a call site.
type CallsiteKey = (LatchKey, u64, u64);

/// What was seen when estimates were last made.
#[derive(Default)]
struct Seen {
    latches: HashMap<LatchKey, types::waits>,
    callsites: HashMap<CallsiteKey, types::callsite_waits>,
}

/// Waits for a latch that were not seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub sum_ns: f64,
    pub sleep_ns: f64,
    pub sleeps: f64,
    pub buckets: [f64; BUCKETS],
}

#[derive(Clone, Copy, Default)]
pub(super) struct CallsiteEstimate {
    pub count: f64,
    pub sum_ns: f64,
}

impl Missed {
    /// Takes the waits that were seen since the last time as many times more as `factors` say, by wait function.
    ///
    /// # Errors
    /// When the programs' maps cannot be read.
    pub fn estimate(&mut self, maps: &Maps, factors: &[f64]) -> Result<()> {
        let factor = |key: &types::latch_key| factors.get(usize::from(key.function)).copied().unwrap_or(0.0);
        let no_waits = types::waits::default();
        let mut seen = Seen::default();
        for (key, waits) in entries::<types::latch_key, types::waits>(&maps.latches)? {
            let id = bytes_of(&key);
            if factor(&key) > 0.0 {
                let before = self.seen.latches.get(&id).unwrap_or(&no_waits);
                self.latches.entry(id).or_default().add(before, &waits, factor(&key));
            }
            seen.latches.insert(id, waits);
        }
        for (key, waits) in entries::<types::callsite_key, types::callsite_waits>(&maps.callsites)? {
            let id = (bytes_of(&key.latch), key.r#where, key.line);
            if factor(&key.latch) > 0.0 {
                let before = self.seen.callsites.get(&id).copied().unwrap_or_default();
                let estimate = self.callsites.entry(id).or_default();
                estimate.count += factor(&key.latch) * waits.count.saturating_sub(before.count) as f64;
                estimate.sum_ns += factor(&key.latch) * waits.sum_ns.saturating_sub(before.sum_ns) as f64;
            }
            seen.callsites.insert(id, waits);
        }
        self.seen = seen;
        Ok(())
    }

    pub(super) fn latch(&self, key: &LatchKey) -> Option<&Estimate> {
        self.latches.get(key)
    }

    pub(super) fn callsite(&self, latch: LatchKey, place: u64, line: u64) -> CallsiteEstimate {
        self.callsites.get(&(latch, place, line)).copied().unwrap_or_default()
    }
}

impl Estimate {
    fn add(&mut self, before: &types::waits, now: &types::waits, factor: f64) {
        let more = |now: u64, before: u64| factor * now.saturating_sub(before) as f64;
        self.sum_ns += more(now.sum_ns, before.sum_ns);
        self.sleep_ns += more(now.sleep_ns, before.sleep_ns);
        self.sleeps += more(now.sleeps, before.sleeps);
        for (i, bucket) in self.buckets.iter_mut().enumerate() {
            *bucket += more(now.buckets[i], before.buckets[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_scaled_up() {
        let waits = |n: u64| {
            let mut waits = types::waits { sum_ns: 100 * n, sleep_ns: 60 * n, sleeps: n, ..Default::default() };
            waits.buckets[3] = n;
            waits
        };
        let mut estimate = Estimate::default();
        estimate.add(&waits(0), &waits(10), 4.0);
        estimate.add(&waits(10), &waits(12), 1.5);
        let mut buckets = [0.0; BUCKETS];
        buckets[3] = 43.0;
        assert_eq!(estimate, Estimate { sum_ns: 4300.0, sleep_ns: 2580.0, sleeps: 43.0, buckets });
    }
}

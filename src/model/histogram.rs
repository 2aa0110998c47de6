//! Wait-time histograms with the buckets that are exported to Prometheus, so that `le` is exact.

/// The number of buckets, of which the last is unbounded. The BPF programs' `BUCKETS` is the same.
pub const BUCKETS: usize = 25;

/// The upper bounds of all buckets except the last, in nanoseconds. They are inclusive. Over the range in which latch
/// waits matter they are powers of two, so that the BPF programs find a bucket with few comparisons.
pub const BUCKET_BOUNDS_NS: [u64; BUCKETS - 1] = [
    1_000,
    2_000,
    4_000,
    8_000,
    16_000,
    32_000,
    64_000,
    128_000,
    256_000,
    512_000,
    1_000_000,
    2_000_000,
    4_000_000,
    8_000_000,
    16_000_000,
    32_000_000,
    64_000_000,
    128_000_000,
    256_000_000,
    512_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// A distribution of durations with exact sum, count and maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The number of durations in each bucket. Buckets are not cumulative.
    pub buckets: [u64; BUCKETS],
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub sum_ns: u64,
    /// The longest duration, in nanoseconds.
    pub max_ns: u64,
}

impl Histogram {
    /// Adds the waits of another histogram to this one.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine = mine.saturating_add(theirs);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns what was counted after `earlier`, an older state of the same histogram. The maximum of a difference is
    /// unknown, so it stays the maximum since attach.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut buckets = self.buckets;
        for (now, before) in buckets.iter_mut().zip(earlier.buckets) {
            *now = now.saturating_sub(before);
        }
        Histogram {
            buckets,
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            max_ns: self.max_ns,
        }
    }

    /// Returns the mean in nanoseconds, or `None` if the histogram is empty.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// Returns the `q` quantile (0 to 1) in nanoseconds, interpolated within its bucket and never above the maximum, or
    /// `None` if the histogram is empty.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = q * self.count as f64;
        let mut below = 0u64;
        for (i, &n) in self.buckets.iter().enumerate() {
            if n > 0 && (below + n) as f64 >= rank {
                let low = if i == 0 { 0 } else { BUCKET_BOUNDS_NS[i - 1] };
                let high = BUCKET_BOUNDS_NS.get(i).copied().unwrap_or(self.max_ns).min(self.max_ns);
                let part = ((rank - below as f64) / n as f64).clamp(0.0, 1.0);
                return Some(low as f64 + part * high.saturating_sub(low) as f64);
            }
            below += n;
        }
        Some(self.max_ns as f64)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(waits: &[u64]) -> Histogram {
        let mut h = Histogram::default();
        for &ns in waits {
            h.buckets[BUCKET_BOUNDS_NS.partition_point(|&bound| bound < ns)] += 1;
            h.count += 1;
            h.sum_ns += ns;
            h.max_ns = h.max_ns.max(ns);
        }
        h
    }

    #[test]
    fn bounds_are_inclusive() {
        let h = of(&[1_000, 1_001]);
        assert_eq!((h.buckets[0], h.buckets[1]), (1, 1));
    }

    #[test]
    fn quantiles_stay_within_the_range_of_the_waits() {
        let h = of(&[1_500, 1_600, 1_700, 90_000]);
        assert!((1_000.0..=2_000.0).contains(&h.quantile_ns(0.5).unwrap()));
        assert_eq!(h.quantile_ns(1.0), Some(90_000.0));
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
    }

    #[test]
    fn the_unbounded_bucket_ends_at_the_maximum() {
        let h = of(&[20_000_000_000]);
        assert_eq!(h.quantile_ns(0.99).map(|q| q > 10e9 && q <= 20e9), Some(true));
    }

    #[test]
    fn a_difference_counts_only_later_waits() {
        let early = of(&[5_000]);
        let mut late = early.clone();
        late.merge(&of(&[7_000, 300_000]));
        let new = late.since(&early);
        assert_eq!((new.count, new.sum_ns), (2, 307_000));
    }

    /// Histograms whose figures are all below `limit`, consistent or not.
    pub(crate) fn histograms(limit: u64) -> impl Strategy<Value = Histogram> {
        let buckets = proptest::array::uniform25(0..limit);
        (buckets, 0..limit, 0..limit, 0..limit).prop_map(|(buckets, count, sum_ns, max_ns)| Histogram {
            buckets,
            count,
            sum_ns,
            max_ns,
        })
    }

    fn merged(a: &Histogram, b: &Histogram) -> Histogram {
        let mut sum = a.clone();
        sum.merge(b);
        sum
    }

    proptest! {
        #[test]
        fn merging_is_commutative_and_associative_and_never_overflows(
            a in histograms(u64::MAX),
            b in histograms(u64::MAX),
            c in histograms(u64::MAX),
        ) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        }

        #[test]
        fn a_difference_undoes_a_merge(a in histograms(1 << 62), b in histograms(1 << 62)) {
            let sum = merged(&a, &b);
            prop_assert_eq!(sum.since(&a), Histogram { max_ns: sum.max_ns, ..b });
        }

        #[test]
        fn a_difference_never_overflows(a in histograms(u64::MAX), b in histograms(u64::MAX)) {
            let difference = a.since(&b);
            prop_assert!(difference.count <= a.count && difference.sum_ns <= a.sum_ns);
        }
    }
}

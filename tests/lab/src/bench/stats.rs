//! Medians of a few noisy ratios, with confidence intervals.

/// The number of bootstrap resamples, enough for the ends of an interval to be stable in the third digit.
const RESAMPLES: usize = 4000;

/// The median and the spread of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The number of values.
    pub count: usize,
    /// The median.
    pub median: f64,
    /// The first and the third quartile.
    pub quartiles: (f64, f64),
    /// The 95 % bootstrap interval of the median.
    pub interval: (f64, f64),
}

impl Summary {
    /// Summarises a sample. Returns `None` if it is empty.
    pub fn of(sample: &[f64]) -> Option<Summary> {
        if sample.is_empty() {
            return None;
        }
        let sorted = sorted(sample.to_vec());
        Some(Summary {
            count: sorted.len(),
            median: quantile(&sorted, 0.5),
            quartiles: (quantile(&sorted, 0.25), quantile(&sorted, 0.75)),
            interval: interval(&sorted),
        })
    }

    /// Returns whether more pairs are unnecessary: the interval of a ratio is within ±1 %, or within a tenth of the
    /// measured cost if that is more.
    pub fn settled(&self) -> bool {
        let wanted = f64::max(0.01, 0.1 * (1.0 - self.median).abs());
        self.interval.1 - self.median <= wanted && self.median - self.interval.0 <= wanted
    }
}

/// Several samples of ratios combined, equally weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Together {
    /// The number of samples.
    pub samples: usize,
    /// The number of values in all samples.
    pub count: usize,
    /// The geometric mean of the samples' medians.
    pub mean: f64,
    /// The 95 % interval of that mean, by bootstrap within each sample.
    pub interval: (f64, f64),
}

impl Together {
    /// Combines the samples that are not empty. Returns `None` if there is none.
    pub fn of(samples: &[Vec<f64>]) -> Option<Together> {
        let samples: Vec<Vec<f64>> = samples.iter().filter(|s| !s.is_empty()).cloned().map(sorted).collect();
        if samples.is_empty() {
            return None;
        }
        let mut random = SplitMix64(42);
        let mean = |median: &mut dyn FnMut(&Vec<f64>) -> f64| {
            let logs: f64 = samples.iter().map(|sample| median(sample).ln()).sum();
            (logs / samples.len() as f64).exp()
        };
        let means = sorted((0..RESAMPLES).map(|_| mean(&mut |sample| resampled(sample, &mut random))).collect());
        Some(Together {
            samples: samples.len(),
            count: samples.iter().map(Vec::len).sum(),
            mean: mean(&mut |sample| quantile(sample, 0.5)),
            interval: (quantile(&means, 0.025), quantile(&means, 0.975)),
        })
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Returns a quantile of a sorted sample, interpolated linearly between the two nearest values.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    low + (high - low) * rank.fract()
}

/// Returns the 95 % bootstrap interval of the median. The same sample always gives the same interval.
fn interval(sample: &[f64]) -> (f64, f64) {
    let mut random = SplitMix64(42);
    let medians = sorted((0..RESAMPLES).map(|_| resampled(sample, &mut random)).collect());
    (quantile(&medians, 0.025), quantile(&medians, 0.975))
}

/// Returns the median of one bootstrap resample: values drawn with replacement, of the same number as the sample.
fn resampled(sample: &[f64], random: &mut SplitMix64) -> f64 {
    let values = (0..sample.len()).map(|_| sample[random.below(sample.len())]).collect();
    quantile(&sorted(values), 0.5)
}

/// The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * limit as u128) >> 64) as usize
    }
}

//! What a few noisy ratios say, and how sure that is.

/// Resamples for the interval: enough that its ends are steady in the third digit.
const RESAMPLES: usize = 4000;

/// The middle and the spread of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub count: usize,
    pub median: f64,
    /// The middle half of the sample lies between these.
    pub quartiles: (f64, f64),
    /// 95 % interval of the median, by bootstrap.
    pub interval: (f64, f64),
}

impl Summary {
    /// `None` for an empty sample.
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

    /// Whether more pairs would tell nothing that matters: the interval of a ratio is within ±1 %, or within a tenth of
    /// the cost it shows where that is more.
    pub fn settled(&self) -> bool {
        let wanted = f64::max(0.01, 0.1 * (1.0 - self.median).abs());
        self.interval.1 - self.median <= wanted && self.median - self.interval.0 <= wanted
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Between the two values around that place of a sorted sample.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// 95 % bootstrap interval of the median. The same sample always gives the same interval.
fn interval(sample: &[f64]) -> (f64, f64) {
    let mut random = SplitMix64(42);
    let resample = |_| {
        let values = (0..sample.len()).map(|_| sample[random.below(sample.len())]).collect();
        quantile(&sorted(values), 0.5)
    };
    let medians = sorted((0..RESAMPLES).map(resample).collect());
    (quantile(&medians, 0.025), quantile(&medians, 0.975))
}

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * limit as u128) >> 64) as usize
    }
}

//! Computes how certain ratios are, and how throughput grows with threads, from plain numbers.

use std::collections::BTreeMap;

use serde::Serialize;

/// The fewest seconds for which an interval has a meaning.
pub const LEAST_SAMPLES: usize = 10;
/// The fewest hosts of each system for an interval over hosts.
pub const LEAST_HOSTS: usize = 2;
/// The most samples. Longer recordings are pooled into this many, so that resampling takes no longer.
const MOST_SAMPLES: usize = 240;
const RESAMPLES: usize = 2000;
/// The share of the resampled ratios inside an interval.
const CONFIDENCE: f64 = 0.95;
/// A fixed seed, so that the same recordings always compare alike.
const SEED: u64 = 0x61726d74_72616365;

/// An amount in one second and the units to divide it by, such as nanoseconds and statements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The amount.
    pub amount: f64,
    /// The units.
    pub per: f64,
    /// The host that it is of; the same number on A and on B if it is the same host.
    pub host: usize,
}

/// A figure of the second of two systems, divided by that of the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ratio {
    /// The quotient.
    pub value: f64,
    /// The ends of the 95 % interval; `None` if there are too few seconds for one.
    // In JSON, an end that is infinite is null.
    #[cfg_attr(test, schemars(with = "Option<[Option<f64>; 2]>"))]
    pub interval: Option<[f64; 2]>,
}

impl Ratio {
    /// Returns whether the two clearly differ: there is an interval, and it does not cover 1.
    pub fn is_clear(&self) -> bool {
        self.interval.is_some_and(|[low, high]| low > 1.0 || high < 1.0)
    }

    /// Returns the ratio and its interval, multiplied by a factor.
    pub fn scaled(self, factor: f64) -> Ratio {
        Ratio { value: self.value * factor, interval: self.interval.map(|ends| ends.map(|end| end * factor)) }
    }
}

/// Returns `b`'s amount per unit, divided by `a`'s; `None` if either is zero or has no units.
///
/// The interval is a percentile bootstrap. Adjacent seconds are drawn together in blocks, because what happens in one
/// second continues in the next. Drawn one by one, they would make the interval too narrow.
///
/// If both have several hosts, the interval is over hosts instead: the windows of one host are too much alike to count
/// as so many observations.
pub fn ratio(a: &[Sample], b: &[Sample]) -> Option<Ratio> {
    let value = rate(b)? / rate(a)?;
    (value.is_finite() && value > 0.0).then_some(())?;
    let hosts = [by_host(a), by_host(b)];
    if hosts.iter().all(|hosts| hosts.len() >= LEAST_HOSTS) {
        return Some(Ratio { value, interval: over_hosts(value, &hosts) });
    }
    let (a, b) = (pooled(a), pooled(b));
    let interval = (a.len() >= LEAST_SAMPLES && b.len() >= LEAST_SAMPLES).then(|| interval(&a, &b)).flatten();
    Some(Ratio { value, interval })
}

/// Returns the amount per unit; `None` without units.
pub fn rate(samples: &[Sample]) -> Option<f64> {
    let sum = sum(samples.iter());
    (sum.per > 0.0).then(|| sum.amount / sum.per)
}

fn sum<'a>(samples: impl Iterator<Item = &'a Sample>) -> Sample {
    samples.fold(Sample::default(), |sum, s| Sample {
        amount: sum.amount + s.amount,
        per: sum.per + s.per,
        host: s.host,
    })
}

/// Returns the sum of each host's samples.
fn by_host(samples: &[Sample]) -> BTreeMap<usize, Sample> {
    let mut hosts = BTreeMap::<usize, Sample>::new();
    for sample in samples {
        let host = hosts.entry(sample.host).or_default();
        host.amount += sample.amount;
        host.per += sample.per;
    }
    hosts
}

/// Returns the interval of a ratio of two systems with several hosts each.
///
/// A rate is a sum of amounts over a sum of units. To first order, a host moves its logarithm by its own amount beyond
/// what its units would have at the system's rate, over the sum of all amounts; the spread of these contributions among
/// hosts gives the error. If both systems are the same hosts, as before and after an upgrade, each is compared with
/// itself, so that what hosts differ in does not count. Quantiles are those of Student's t, because hosts may be few.
fn over_hosts(ratio: f64, hosts: &[BTreeMap<usize, Sample>; 2]) -> Option<[f64; 2]> {
    let [a, b] = [contributions(&hosts[0])?, contributions(&hosts[1])?];
    let (variance, freedom) = if a.keys().eq(b.keys()) {
        let differences: Vec<f64> = a.iter().map(|(host, of_a)| b[host] - of_a).collect();
        (variance_of_sum(&differences), differences.len() as f64 - 1.0)
    } else {
        welch([a, b].map(|of| of.into_values().collect()))
    };
    let half = student(freedom) * variance.sqrt();
    Some([ratio * (-half).exp(), ratio * half.exp()])
}

/// Returns what each host adds to the logarithm of its system's rate.
fn contributions(hosts: &BTreeMap<usize, Sample>) -> Option<BTreeMap<usize, f64>> {
    let all = sum(hosts.values());
    let rate = all.amount / all.per;
    (rate > 0.0).then(|| hosts.iter().map(|(host, own)| (*host, (own.amount - rate * own.per) / all.amount)).collect())
}

/// Returns the variance of the sum of independent numbers whose mean is 0, from the numbers themselves.
fn variance_of_sum(numbers: &[f64]) -> f64 {
    let n = numbers.len() as f64;
    n / (n - 1.0) * numbers.iter().map(|number| number * number).sum::<f64>()
}

/// Returns the variance of the difference of two independent sums, and its degrees of freedom after Welch and
/// Satterthwaite.
fn welch(numbers: [Vec<f64>; 2]) -> (f64, f64) {
    let variances = numbers.each_ref().map(|numbers| variance_of_sum(numbers));
    let all: f64 = variances.iter().sum();
    let parts =
        variances.iter().zip(&numbers).map(|(variance, numbers)| variance * variance / (numbers.len() as f64 - 1.0));
    let parts: f64 = parts.sum();
    (all, if parts > 0.0 { all * all / parts } else { 1.0 })
}

/// Returns the 97.5th percentile of Student's t; for a broken number of degrees of freedom, that of the whole number
/// below it, which is wider.
fn student(freedom: f64) -> f64 {
    const FEW: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const NORMAL: f64 = 1.959_964;
    // Two equal variances have a whole number, but for rounding.
    let whole = (freedom + 1e-6).floor().max(1.0);
    match FEW.get(whole as usize - 1) {
        Some(quantile) => *quantile,
        // The first terms of the expansion in 1 / freedom: right to 0.001 from 11 on.
        None => NORMAL + 2.3722 / whole + 2.8225 / whole.powi(2) + 2.556 / whole.powi(3),
    }
}

fn pooled(samples: &[Sample]) -> Vec<Sample> {
    samples.chunks(samples.len().div_ceil(MOST_SAMPLES).max(1)).map(|chunk| sum(chunk.iter())).collect()
}

/// Returns whether the amount is clearly above zero: whether nearly all resamples, of hosts if there are several, have
/// some.
pub fn is_there(samples: &[Sample]) -> bool {
    let hosts = by_host(samples);
    if hosts.len() >= LEAST_HOSTS {
        let with_none = hosts.values().filter(|host| host.amount <= 0.0).count();
        let all_have_none = (with_none as f64 / hosts.len() as f64).powi(hosts.len() as i32);
        return all_have_none < (1.0 - CONFIDENCE) / 2.0;
    }
    let samples = pooled(samples);
    let mut random = fastrand::Rng::with_seed(SEED);
    let with_none = (0..RESAMPLES).filter(|_| resampled(&samples, &mut random).amount <= 0.0).count();
    samples.len() >= LEAST_SAMPLES && (with_none as f64) < (1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64
}

fn interval(a: &[Sample], b: &[Sample]) -> Option<[f64; 2]> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| (resampled(a, &mut random), resampled(b, &mut random)))
        .map(|(a, b)| (b.amount / b.per) / (a.amount / a.per))
        .filter(|ratio| !ratio.is_nan())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let end = |q: f64| ratios.get((q * ratios.len().saturating_sub(1) as f64).round() as usize).copied();
    let outside = (1.0 - CONFIDENCE) / 2.0;
    Some([end(outside)?, end(1.0 - outside)?])
}

/// Draws as many samples as there are, in blocks with random beginnings, and returns their sum.
fn resampled(samples: &[Sample], random: &mut fastrand::Rng) -> Sample {
    let block = (samples.len() as f64).cbrt().ceil() as usize;
    let mut drawn = Sample::default();
    let mut left = samples.len();
    while left > 0 {
        let (first, length) = (random.usize(..samples.len()), block.min(left));
        let one = sum(samples.iter().cycle().skip(first).take(length));
        drawn.amount += one.amount;
        drawn.per += one.per;
        left -= length;
    }
    drawn
}

/// The Universal Scalability Law: throughput at `n` threads is `λn / (1 + σ(n - 1) + κn(n - 1))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ScalabilityLaw {
    /// λ, the throughput of one thread, in statements per second.
    pub lambda: f64,
    /// σ, contention: the share of the work that only one thread can do at a time.
    pub sigma: f64,
    /// κ, coherency: the cost of agreement for each pair of threads, as a share of the work.
    pub kappa: f64,
    /// The root mean square of the relative differences between the law and what was measured.
    pub error: f64,
}

/// The fewest numbers of threads to fit the law to. Three parameters would fit any three numbers.
pub const LEAST_POINTS: usize = 4;

impl ScalabilityLaw {
    /// Fits the law to points, each a number of threads and its throughput; returns `None` if there are too few.
    ///
    /// `n / throughput` is linear in `1/λ`, `σ/λ` and `κ/λ`, so the least squares of the relative differences have one
    /// solution, which is computed directly. A parameter that would be negative, which has no meaning, is set to 0.
    pub fn fit(points: &[(f64, f64)]) -> Option<ScalabilityLaw> {
        let mut threads: Vec<f64> = points.iter().map(|(n, _)| *n).collect();
        threads.sort_by(f64::total_cmp);
        threads.dedup();
        if threads.len() < LEAST_POINTS || points.iter().any(|(n, throughput)| *n < 1.0 || *throughput <= 0.0) {
            return None;
        }
        let with = |use_sigma: bool, use_kappa: bool| {
            let row = |(n, throughput): &(f64, f64)| {
                let (sigma, kappa) = (n - 1.0, n * (n - 1.0));
                let terms = [1.0, if use_sigma { sigma } else { 0.0 }, if use_kappa { kappa } else { 0.0 }];
                terms.map(|term| term * throughput / n)
            };
            let [a, b, c] = least_squares(&points.iter().map(row).collect::<Vec<_>>())?;
            let law = ScalabilityLaw { lambda: 1.0 / a, sigma: b / a, kappa: c / a, error: 0.0 };
            let is_possible = law.lambda > 0.0 && law.lambda.is_finite() && law.sigma >= 0.0 && law.kappa >= 0.0;
            is_possible.then(|| ScalabilityLaw { error: law.error(points), ..law })
        };
        let laws = [with(true, true), with(true, false), with(false, true), with(false, false)];
        laws.into_iter().flatten().min_by(|a, b| a.error.total_cmp(&b.error))
    }

    /// Returns the throughput at `n` threads.
    pub fn throughput(&self, n: f64) -> f64 {
        self.lambda * n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }

    /// Returns the number of threads beyond which throughput falls; `None` if the law has no such point.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0 && self.sigma < 1.0).then(|| ((1.0 - self.sigma) / self.kappa).sqrt())
    }

    fn error(&self, points: &[(f64, f64)]) -> f64 {
        let squares = points.iter().map(|(n, throughput)| (self.throughput(*n) / throughput - 1.0).powi(2));
        (squares.sum::<f64>() / points.len() as f64).sqrt()
    }
}

/// Returns the three factors with which the sum of each row's terms is closest to 1. A term that is 0 in all rows has
/// the factor 0.
fn least_squares(rows: &[[f64; 3]]) -> Option<[f64; 3]> {
    // Terms are scaled to one size, so that small ones are not lost.
    let sizes: [f64; 3] = std::array::from_fn(|i| rows.iter().map(|row| row[i].abs()).fold(0.0, f64::max));
    let used: Vec<usize> = (0..3).filter(|i| sizes[*i] > 0.0).collect();
    let mut equations: Vec<Vec<f64>> = used
        .iter()
        .map(|&i| {
            let left = used.iter().map(|&j| rows.iter().map(|r| r[i] / sizes[i] * (r[j] / sizes[j])).sum());
            left.chain([rows.iter().map(|r| r[i] / sizes[i]).sum()]).collect()
        })
        .collect();
    let solution = solve(&mut equations)?;
    let mut factors = [0.0; 3];
    for (&i, value) in used.iter().zip(solution) {
        factors[i] = value / sizes[i];
    }
    Some(factors)
}

/// Solves linear equations, each with its right side last; `None` if they do not determine the unknowns.
fn solve(equations: &mut [Vec<f64>]) -> Option<Vec<f64>> {
    let n = equations.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|a, b| equations[*a][column].abs().total_cmp(&equations[*b][column].abs()))?;
        equations.swap(column, pivot);
        if equations[column][column].abs() < 1e-12 {
            return None;
        }
        let base = equations[column].clone();
        for (_, equation) in equations.iter_mut().enumerate().filter(|(row, _)| *row != column) {
            let factor = equation[column] / base[column];
            equation.iter_mut().zip(&base).for_each(|(value, base)| *value -= factor * base);
        }
    }
    Some((0..n).map(|i| equations[i][n] / equations[i][i]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(amounts: &[f64], per: f64) -> Vec<Sample> {
        amounts.iter().map(|&amount| Sample { amount, per, host: 0 }).collect()
    }

    /// Values around a mean, without chance.
    fn wavy(mean: f64, spread: f64, n: usize) -> Vec<f64> {
        (0..n).map(|i| mean + spread * ((i * 37 % 11) as f64 / 5.0 - 1.0)).collect()
    }

    #[test]
    fn a_ratio_is_of_rates_not_of_means_of_rates() {
        // 30 ms in 300 statements, and 30 ms in 100: three times as much for each.
        let a = [(10.0, 200.0), (20.0, 100.0)].map(|(amount, per)| Sample { amount, per, host: 0 });
        let b = [(25.0, 50.0), (5.0, 50.0)].map(|(amount, per)| Sample { amount, per, host: 0 });
        let ratio = ratio(&a, &b).unwrap();
        assert!((ratio.value - 3.0).abs() < 1e-12, "{ratio:?}");
        assert_eq!(ratio.interval, None, "two seconds tell nothing of how sure that is");
        assert!(!ratio.is_clear());
    }

    #[test]
    fn a_clear_difference_is_claimed_and_noise_is_not() {
        let a = samples(&wavy(100.0, 10.0, 60), 1.0);
        let more = ratio(&a, &samples(&wavy(150.0, 10.0, 60), 1.0)).unwrap();
        let [low, high] = more.interval.unwrap();
        assert!(low > 1.4 && low < more.value && more.value < high && high < 1.6 && more.is_clear(), "{more:?}");
        let same = ratio(&a, &samples(&wavy(101.0, 60.0, 60), 1.0)).unwrap();
        let [low, high] = same.interval.unwrap();
        assert!(low < 1.0 && high > 1.0 && !same.is_clear(), "{same:?}");
    }

    #[test]
    fn the_interval_of_constant_figures_is_a_point() {
        let ratio = ratio(&samples(&[2.0; 30], 1.0), &samples(&[5.0; 30], 1.0)).unwrap();
        assert_eq!((ratio.value, ratio.interval), (2.5, Some([2.5, 2.5])));
        assert_eq!(ratio.scaled(2.0).interval, Some([5.0, 5.0]));
    }

    #[test]
    fn seconds_that_are_alike_in_a_row_make_an_interval_wider() {
        let alternating: Vec<f64> = (0..64).map(|i| if i % 2 == 0 { 50.0 } else { 150.0 }).collect();
        let in_blocks: Vec<f64> = (0..64).map(|i| if i / 16 % 2 == 0 { 50.0 } else { 150.0 }).collect();
        let width = |amounts: &[f64]| {
            let [low, high] = ratio(&samples(&[100.0; 64], 1.0), &samples(amounts, 1.0)).unwrap().interval.unwrap();
            high - low
        };
        assert!(width(&in_blocks) > 1.5 * width(&alternating), "{} {}", width(&in_blocks), width(&alternating));
    }

    #[test]
    fn nothing_to_compare_with_is_no_ratio() {
        let some = samples(&[1.0; 20], 1.0);
        assert_eq!(ratio(&samples(&[0.0; 20], 1.0), &some), None);
        assert_eq!(ratio(&samples(&[1.0; 20], 0.0), &some), None);
        assert_eq!(ratio(&[], &[]), None);
        assert_eq!(ratio(&some, &samples(&[0.0; 20], 1.0)), None);
    }

    #[test]
    fn what_happened_once_may_as_well_not_have() {
        let in_seconds =
            |n: usize| samples(&(0..60).map(|i| if i % (60 / n) == 0 { 1.0 } else { 0.0 }).collect::<Vec<_>>(), 1.0);
        assert!(!is_there(&in_seconds(1)) && !is_there(&in_seconds(2)));
        assert!(is_there(&in_seconds(20)));
        assert!(!is_there(&samples(&[1.0; 5], 1.0)) && !is_there(&[]), "too few seconds");
    }

    /// Returns ten samples of each host, with these amounts in each.
    fn of_hosts(amounts: &[(usize, f64)]) -> Vec<Sample> {
        amounts.iter().flat_map(|&(host, amount)| [Sample { amount, per: 1.0, host }; 10]).collect()
    }

    fn ends(a: &[(usize, f64)], b: &[(usize, f64)]) -> [f64; 2] {
        ratio(&of_hosts(a), &of_hosts(b)).unwrap().interval.unwrap()
    }

    #[test]
    fn several_hosts_have_an_interval_over_hosts() {
        // By hand: hosts at 9 and 11 are off by 1/20 each of the sum, so the variance is 2 (1/400 + 1/400) on either
        // side, 0.02 in all, and Student's t with 2 degrees of freedom is 4.303.
        let [low, high] = ends(&[(0, 9.0), (1, 11.0)], &[(2, 18.0), (3, 22.0)]);
        let half = 4.303 * 0.02_f64.sqrt();
        assert!((low / (2.0 * (-half).exp()) - 1.0).abs() < 1e-9 && (high / (2.0 * half.exp()) - 1.0).abs() < 1e-9);
        // More windows of the same hosts are no further evidence, and hosts that are alike are.
        let [low, high] = ends(&[(0, 9.9), (1, 10.1), (2, 10.0)], &[(3, 20.1), (4, 19.9), (5, 20.0)]);
        assert!(low > 1.9 && high < 2.1, "{low} to {high}");
    }

    #[test]
    fn the_same_hosts_are_compared_with_themselves() {
        let (a, b) = ([(0, 1.0), (1, 10.0), (2, 20.0)], [(0, 2.0), (1, 20.0), (2, 40.0)]);
        let [low, high] = ends(&a, &b);
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9, "each host has twice as much: {low} to {high}");
        let others = b.map(|(host, amount)| (host + 3, amount));
        let [low, high] = ends(&a, &others);
        assert!(low < 0.5 && high > 8.0, "{low} to {high}");
    }

    /// As tables have them.
    #[test]
    fn quantiles_are_those_of_students_t() {
        for (freedom, quantile) in
            [(0.5, 12.706), (1.0, 12.706), (2.9, 4.303), (10.0, 2.228), (11.0, 2.201), (20.0, 2.086), (1e9, 1.960)]
        {
            assert!((student(freedom) - quantile).abs() < 0.001, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn what_only_some_hosts_have_may_be_chance() {
        assert!(is_there(&of_hosts(&[(0, 1.0), (1, 1.0)])));
        assert!(!is_there(&of_hosts(&[(0, 1.0), (1, 0.0)])));
        assert!(!is_there(&of_hosts(&[(0, 1.0), (1, 1.0), (2, 0.0)])), "3.7 % of all draws have only the third");
        assert!(is_there(&of_hosts(&[(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.0)])));
    }

    /// An hour is as quick as minutes, and no less right.
    #[test]
    fn long_recordings_are_put_together() {
        let hour = samples(&wavy(100.0, 10.0, 3600), 1.0);
        assert!(pooled(&hour).len() <= MOST_SAMPLES);
        assert!((rate(&pooled(&hour)).unwrap() - rate(&hour).unwrap()).abs() < 1e-9);
    }

    fn measured(law: ScalabilityLaw, threads: &[f64]) -> Vec<(f64, f64)> {
        threads.iter().map(|&n| (n, law.throughput(n))).collect()
    }

    #[test]
    fn the_law_is_found_again() {
        let law = ScalabilityLaw { lambda: 1000.0, sigma: 0.05, kappa: 0.001, error: 0.0 };
        // By hand: 16 threads: 16000 / (1 + 0.75 + 0.24).
        assert!((law.throughput(16.0) - 16_000.0 / 1.99).abs() < 1e-9);
        let fitted =
            ScalabilityLaw::fit(&measured(law, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])).unwrap();
        assert!((fitted.lambda - 1000.0).abs() < 1e-3, "{fitted:?}");
        assert!((fitted.sigma - 0.05).abs() < 1e-6 && (fitted.kappa - 0.001).abs() < 1e-7, "{fitted:?}");
        // By hand: √(0.95 / 0.001).
        assert!((fitted.peak().unwrap() - 30.822).abs() < 1e-2, "{fitted:?}");
    }

    #[test]
    fn parameters_are_never_negative() {
        // More than in proportion, as no such law allows.
        let points = [(1.0, 100.0), (2.0, 210.0), (4.0, 430.0), (8.0, 900.0)];
        let law = ScalabilityLaw::fit(&points).unwrap();
        assert_eq!((law.sigma, law.kappa, law.peak()), (0.0, 0.0, None));
        assert!(law.error > 0.01 && law.error < 0.2, "{law:?}");
        let amdahl = ScalabilityLaw { lambda: 100.0, sigma: 0.2, kappa: 0.0, error: 0.0 };
        let law = ScalabilityLaw::fit(&measured(amdahl, &[1.0, 2.0, 4.0, 8.0])).unwrap();
        assert!((law.sigma - 0.2).abs() < 1e-6 && law.kappa < 1e-9, "{law:?}");
    }

    #[test]
    fn too_few_numbers_of_threads_fit_nothing() {
        assert_eq!(ScalabilityLaw::fit(&[(1.0, 1.0), (2.0, 2.0), (4.0, 3.0), (4.0, 3.1)]), None);
        assert_eq!(ScalabilityLaw::fit(&[(1.0, 1.0), (2.0, 2.0), (4.0, 0.0), (8.0, 3.1)]), None);
    }
}

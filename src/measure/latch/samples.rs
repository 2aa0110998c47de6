//! What looks at the server's threads have shown: how many waited for each latch while its probes were off.

use foldhash::HashMap;

use super::keys::MapKey;

/// What looks at the threads have shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// The number of looks, and of glances.
    pub looks: u64,
    pub glances: u64,
    pub latches: HashMap<MapKey, Waiters>,
    /// Which wait functions belong to groups of which enough is known.
    pub learned: Vec<u8>,
}

/// How many threads are taken to wait for a latch unseen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Waiters {
    /// Those that looks have shown. If there were glances, these are awake.
    seen: Series,
    /// Those that glances have shown asleep, and the square of the standard error of their sum, as far as it comes from
    /// dividing those that sleep on the same word among latches.
    glanced: Series,
    divided: f64,
    /// The relative standard error of predictions.
    error: f64,
}

/// A number of threads at moments that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Series {
    /// The sum of the number, of its square, and of its product with the number before.
    sum: f64,
    squares: f64,
    products: f64,
    /// The last number.
    last: f64,
}

/// The highest correlation of numbers that follow each other which is taken to be true.
const MOST_ALIKE: f64 = 0.98;

/// Between looks, at least this part of the waiters is taken to change.
const LEAST_PART: f64 = 0.05;

impl Samples {
    /// Adds a look.
    pub fn add(&mut self, waiters: &HashMap<MapKey, f64>) {
        self.looks += 1;
        for key in waiters.keys() {
            self.latches.entry(*key).or_default();
        }
        for (key, waiting) in &mut self.latches {
            waiting.add(waiters.get(key).copied().unwrap_or_default());
        }
    }

    /// Adds glances, each of which shows how many threads sleep for every latch. `divided` is the square of the
    /// standard error of the sum for each, as far as it comes from dividing sleepers.
    pub fn add_glances(&mut self, latches: &[MapKey], glances: &[Vec<f64>], divided: &[f64]) {
        self.glances += glances.len() as u64;
        for latch in latches {
            self.latches.entry(*latch).or_default();
        }
        let index: HashMap<MapKey, usize> = latches.iter().copied().zip(0..).collect();
        for (latch, waiters) in &mut self.latches {
            let at = index.get(latch).copied();
            // A latch that appears later had no sleepers.
            let sleepers = |glance: &Vec<f64>| at.and_then(|at| glance.get(at).copied()).unwrap_or_default();
            glances.iter().for_each(|glance| waiters.glanced.add(sleepers(glance)));
            waiters.divided += at.map_or(0.0, |at| divided[at]);
        }
    }

    /// Returns the beginning of the next samples.
    pub fn after(&self) -> Samples {
        let latches = self.latches.iter().map(|(key, waiters)| (*key, waiters.after())).collect();
        Samples { latches, ..Samples::default() }
    }

    /// Returns the time waited for a latch in waits that were not seen, and the square of its standard error, in
    /// nanoseconds, where the looks were made in a time; `None` if too little was learned.
    pub fn missed(&self, latch: MapKey, function: u8, elapsed_ns: f64) -> Option<(f64, f64)> {
        let is_known = self.looks > 0 && self.learned.contains(&function);
        is_known.then(|| {
            self.latches.get(&latch).map_or((0.0, 0.0), |waiters| waiters.missed(self.looks, self.glances, elapsed_ns))
        })
    }
}

impl Waiters {
    fn add(&mut self, waiters: f64) {
        self.seen.add(waiters);
    }

    /// Sets how good predictions are: the standard error of their sum, as a part of it.
    pub fn set_error(&mut self, error: f64) {
        self.error = error;
    }

    /// Returns the beginning of the next count.
    fn after(&self) -> Waiters {
        Waiters { seen: self.seen.after(), glanced: self.glanced.after(), ..Waiters::default() }
    }

    fn missed(&self, looks: u64, glances: u64, elapsed_ns: f64) -> (f64, f64) {
        let (seen, glanced) = (self.seen.mean(looks), self.glanced.mean(glances));
        let mean = seen.0 + glanced.0;
        let divided = self.divided / (glances.max(1) as f64).powi(2);
        let of_mean = seen.1 + glanced.1 + divided + (self.error * mean).powi(2);
        (mean * elapsed_ns, of_mean * elapsed_ns * elapsed_ns)
    }

    /// Returns the time waited between the looks, and the square of its standard error. What looks that follow each
    /// other have in common is also true of the time between them.
    pub(super) fn between(&self, looks: u64, elapsed_ns: f64) -> (f64, f64) {
        let (looks, seen) = (looks as f64, &self.seen);
        let mean = seen.sum / looks;
        let half_square_of_difference = (seen.squares - seen.products) / looks;
        let variance = half_square_of_difference.max(LEAST_PART * mean) / looks;
        (mean * elapsed_ns, variance * elapsed_ns * elapsed_ns)
    }
}

impl Series {
    fn add(&mut self, number: f64) {
        self.sum += number;
        self.squares += number * number;
        self.products += number * self.last;
        self.last = number;
    }

    fn after(&self) -> Series {
        Series { last: self.last, ..Series::default() }
    }

    /// Returns the mean of so many numbers, and the square of its standard error.
    fn mean(&self, numbers: u64) -> (f64, f64) {
        if self.sum <= 0.0 {
            return (0.0, 0.0);
        }
        let numbers = numbers as f64;
        let mean = self.sum / numbers;
        let variance = (self.squares / numbers - mean * mean).max(mean / numbers);
        let correlation = ((self.products / numbers - mean * mean) / variance).clamp(0.0, MOST_ALIKE);
        (mean, variance / numbers * (1.0 + correlation) / (1.0 - correlation))
    }
}

#[cfg(test)]
impl Samples {
    /// A hundred looks, at each of which so many threads waited for a latch.
    pub fn constant(latch: MapKey, function: u8, waiters: f64) -> Samples {
        let mut samples = Samples { learned: vec![function], ..Samples::default() };
        (0..100).for_each(|_| samples.add(&HashMap::from_iter([(latch, waiters)])));
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiters(numbers: impl IntoIterator<Item = f64>) -> Waiters {
        let mut waiters = Waiters::default();
        numbers.into_iter().for_each(|number| waiters.add(number));
        waiters
    }

    #[test]
    fn wait_time_is_the_mean_number_of_waiters() {
        let (ns, _) = waiters([0.0, 1.0, 3.0, 0.0]).missed(4, 0, 1e9);
        assert_eq!(ns, 1e9);
        assert_eq!(Waiters::default().missed(4, 0, 1e9), (0.0, 0.0));
    }

    /// A waiter comes and goes at random, and stays for one look or for ten on average.
    #[test]
    fn the_error_allows_for_waits_that_several_looks_see() {
        for stays in [1, 10] {
            let mut random = fastrand::Rng::with_seed(5);
            let mut squares = 0.0;
            let mut waits = 0.0;
            for _ in 0..400 {
                let numbers: Vec<f64> = (0..1000)
                    .map(|_| {
                        if random.u8(..stays) == 0 {
                            waits = f64::from(u8::from(random.u8(..4) == 0));
                        }
                        waits
                    })
                    .collect();
                let (ns, variance) = waiters(numbers).missed(1000, 0, 1.0);
                squares += (ns - 0.25).powi(2) / variance;
            }
            let ratio = (squares / 400.0).sqrt();
            assert!((0.9..1.15).contains(&ratio), "{stays}: {ratio}");
        }
    }

    /// Between looks at a number that changes slowly, it is nearly known.
    #[test]
    fn the_time_between_looks_is_known_the_better_the_less_changes() {
        let steady = waiters((0..1000).map(|look| f64::from(look / 100 % 2)));
        let changing = waiters((0..1000).map(|look| f64::from(look % 2)));
        let [steady, changing] = [steady, changing].map(|waiters| waiters.between(1000, 1.0));
        assert_eq!((steady.0, changing.0), (0.5, 0.5));
        assert!(changing.1 > 10.0 * steady.1 && steady.1 > 0.0, "{steady:?} {changing:?}");
        let independent = 0.25 / 1000.0;
        assert!((changing.1 / independent - 2.0).abs() < 0.1, "{changing:?}");
    }

    #[test]
    fn glances_add_those_asleep_to_those_that_looks_show() {
        let [latch, later] = [7, 8].map(|byte| [byte; size_of::<MapKey>()]);
        let mut samples = Samples { learned: vec![2], ..Samples::default() };
        (0..100).for_each(|_| samples.add(&HashMap::from_iter([(latch, 0.5)])));
        let glances: Vec<Vec<f64>> = (0..1000).map(|n| if n < 500 { vec![1.0] } else { vec![1.0, 2.0] }).collect();
        samples.add_glances(&[latch, later], &glances, &[0.0, 100.0 * 100.0]);
        let [(first, error), (second, _)] = [latch, later].map(|latch| samples.missed(latch, 2, 1.0).unwrap());
        assert_eq!((first, second), (1.5, 1.0));
        assert!(error < 1e-3, "{error}");
        let divided = samples.latches[&later].divided / 1e6;
        assert!((divided.sqrt() - 0.1).abs() < 1e-9, "{divided}");
    }

    #[test]
    fn what_was_learned_has_an_error_too() {
        let mut steady = waiters([1.0; 100]);
        let (_, before) = steady.missed(100, 0, 1.0);
        steady.set_error(0.2);
        let (ns, after) = steady.missed(100, 0, 1.0);
        assert!(before < 1e-3 && ((after - before).sqrt() - 0.2 * ns).abs() < 1e-9, "{before} {after}");
    }
}

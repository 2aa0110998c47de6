//! What a sample stands for.

/// Divides the server's CPU time, which the kernel knows exactly, among samples.
///
/// A sample could stand for the sampling period. But the number of samples is a few percent off where a clock
/// interrupts late, as in virtual machines, and varies by chance where there are few. As shares of a known sum, their
/// errors affect only the distribution.
#[derive(Debug)]
pub struct Shares {
    /// The sampling period of a CPU, in nanoseconds.
    period_ns: u64,
    /// The part of the server's CPU time that samples stand for so far; `None` if it is not known.
    divided_ns: Option<u64>,
}

impl Shares {
    /// Starts when the server has used `cpu_ns` nanoseconds of CPU time.
    pub fn new(period_ns: u64, cpu_ns: Option<u64>) -> Shares {
        Shares { period_ns, divided_ns: cpu_ns }
    }

    /// Changes the sampling period of a CPU.
    pub fn set_period(&mut self, period_ns: u64) {
        self.period_ns = period_ns;
    }

    /// Returns how many nanoseconds each of these new samples stands for, now that the server has used `cpu_ns`. Time
    /// without a sample goes to the next ones.
    pub fn per_sample(&mut self, samples: u64, cpu_ns: Option<u64>) -> f64 {
        if samples == 0 {
            return 0.0;
        }
        // A server that has just ended leaves samples, but no CPU time to read.
        let Some((then, now)) = self.divided_ns.zip(cpu_ns) else { return self.period_ns as f64 };
        self.divided_ns = Some(now.max(then));
        now.saturating_sub(then) as f64 / samples as f64
    }

    /// Skips what the server has used until now, `cpu_ns` in all.
    pub fn pass_over(&mut self, cpu_ns: Option<u64>) {
        self.divided_ns = cpu_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_share_the_time_that_passed() {
        let mut shares = Shares::new(10, Some(1_000));
        assert_eq!(shares.per_sample(4, Some(1_100)), 25.0);
        assert_eq!(shares.per_sample(10, Some(1_200)), 10.0);
    }

    #[test]
    fn without_cpu_time_a_sample_stands_for_the_present_period() {
        let mut shares = Shares::new(10, None);
        assert_eq!(shares.per_sample(4, None), 10.0);
        shares.set_period(20);
        assert_eq!(shares.per_sample(4, None), 20.0);
    }

    #[test]
    fn time_without_samples_goes_to_the_next() {
        let mut shares = Shares::new(10, Some(0));
        assert_eq!(shares.per_sample(0, Some(50)), 0.0);
        assert_eq!(shares.per_sample(2, Some(60)), 30.0);
        // The kernel's CPU time advances in steps.
        assert_eq!(shares.per_sample(3, Some(60)), 0.0);
    }

    #[test]
    fn time_that_nobody_looked_at_goes_to_no_sample() {
        let mut shares = Shares::new(10, Some(0));
        shares.pass_over(Some(100));
        assert_eq!(shares.per_sample(2, Some(120)), 10.0);
    }

    #[test]
    fn where_the_time_is_not_known_a_sample_is_a_period() {
        assert_eq!(Shares::new(10, None).per_sample(3, Some(60)), 10.0);
        assert_eq!(Shares::new(10, Some(5)).per_sample(3, None), 10.0);
    }
}

//! How often the past is kept.

use std::time::Duration;

use super::SECOND;
use crate::measure::Snapshot;

/// The part of the budget that keeping the past may take.
const PART: f64 = 0.1;

/// A server is taken to use at least this many CPUs.
const LEAST_CPUS: f64 = 0.2;

/// The longest time that has only one set of figures.
const LONGEST: Duration = Duration::from_secs(5);

/// The weight of the last time in the average of what keeping takes.
const WEIGHT: f64 = 0.2;

/// The interval at which the past is kept: a second, unless that takes too large a part of the budget. Keeping a second
/// takes some milliseconds of CPU time, whatever the server does.
#[derive(Debug)]
pub struct Pace {
    /// The budget as a share of the server's CPU time, 0 to 1.
    budget: f64,
    /// What keeping takes, on average.
    takes: Option<Duration>,
    /// The time since attach, and the server's CPU time in nanoseconds, at the last time.
    last: (Duration, u64),
}

impl Pace {
    /// Keeps to a budget, as a share of the server's CPU time, 0 to 1.
    pub fn new(budget: f64) -> Pace {
        Pace { budget, takes: None, last: (Duration::ZERO, 0) }
    }

    /// Returns how long to wait for the next time, after keeping what was measured `now` has taken this CPU time.
    pub fn next(&mut self, now: &Snapshot, took: Duration) -> Duration {
        let before = self.takes.unwrap_or(took).as_secs_f64();
        let takes = before + WEIGHT * (took.as_secs_f64() - before);
        self.takes = Some(Duration::from_secs_f64(takes));
        let cpu_ns = now.server_cpu_ns.unwrap_or(self.last.1);
        let elapsed = now.elapsed.saturating_sub(self.last.0).as_secs_f64().max(f64::MIN_POSITIVE);
        let cpus = cpu_ns.saturating_sub(self.last.1) as f64 / 1e9 / elapsed;
        self.last = (now.elapsed, cpu_ns);
        let allowed = PART * self.budget * cpus.max(LEAST_CPUS);
        let seconds = takes / allowed.max(f64::MIN_POSITIVE);
        Duration::from_secs_f64(seconds.clamp(SECOND.as_secs_f64(), LONGEST.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the last of ten intervals on a server that uses so many CPUs, with this budget, where keeping takes so
    /// many milliseconds.
    fn interval(budget: f64, cpus: f64, ms: u64) -> f64 {
        let mut pace = Pace::new(budget);
        let mut at = Duration::ZERO;
        let mut interval = SECOND;
        for _ in 0..10 {
            at += interval;
            let server_cpu_ns = Some((at.as_secs_f64() * cpus * 1e9) as u64);
            let now = Snapshot { elapsed: at, server_cpu_ns, ..Snapshot::default() };
            interval = pace.next(&now, Duration::from_millis(ms));
        }
        interval.as_secs_f64()
    }

    #[test]
    fn a_second_is_kept_where_that_takes_little() {
        assert_eq!(interval(0.01, 8.0, 4), 1.0);
        assert_eq!(interval(1.0, 1.5, 4), 1.0, "nothing is limited");
    }

    #[test]
    fn small_servers_have_longer_intervals() {
        let seconds = interval(0.01, 1.5, 4);
        assert!((seconds - 0.004 / 0.0015).abs() < 1e-6, "{seconds}");
        assert_eq!(interval(0.01, 0.0, 4), 5.0, "at most");
        assert_eq!([4, 0].map(|ms| interval(0.0, 1.5, ms)), [5.0, 1.0], "without a budget");
    }

    #[test]
    fn one_that_took_long_counts_little() {
        let mut pace = Pace::new(0.01);
        let at = |seconds| Snapshot {
            elapsed: Duration::from_secs(seconds),
            server_cpu_ns: Some(4_000_000_000 * seconds),
            ..Snapshot::default()
        };
        for second in 1..10 {
            assert_eq!(pace.next(&at(second), Duration::from_millis(2)), SECOND);
        }
        let after = pace.next(&at(10), Duration::from_millis(12));
        assert_eq!(after, SECOND, "a stall of this thread");
    }
}

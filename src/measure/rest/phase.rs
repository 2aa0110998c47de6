//! Decides when probes rest.

use std::time::{Duration, Instant};

/// The interval at which the cost is checked.
pub(in crate::measure) const INTERVAL: Duration = Duration::from_millis(500);

/// Hits come in bursts: what was not used in this time may be used at once.
const BURST: Duration = Duration::from_secs(10);

/// How many CPUs a server is taken to use at least: one that waits for locks uses next to none.
const LEAST_CPUS: f64 = 0.2;

/// How long the probes rest. Longer than the interval over which most rates are formed, so that few contain both.
pub(super) const REST: Duration = Duration::from_secs(300);

/// How long probes that have rested must keep to their part before anything is shown again.
const TRIAL: Duration = Duration::from_secs(15);

/// What the server and the probes have used so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub at: Instant,
    /// The server's CPU time, in nanoseconds.
    pub server_ns: u64,
    /// What the probes are charged, in nanoseconds.
    pub charged_ns: f64,
}

/// What the probes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// They are attached, and all is shown.
    Measures,
    /// They are detached until this time.
    Rests(Instant),
    /// They are attached again, and all is shown from this time on if they keep to their part.
    Tries(Instant),
}

/// Decides when the probes rest.
#[derive(Debug)]
pub(super) struct Rest {
    /// The share of the server's CPU time that they may take, 0 to 1.
    share: f64,
    /// What they may still take, in nanoseconds.
    left_ns: f64,
    last: Used,
    phase: Phase,
}

impl Rest {
    /// Begins with probes that are attached, and that may take this share of the server's CPU time, 0 to 1.
    pub fn new(share: f64, now: Used) -> Rest {
        Rest { share, left_ns: at_first(share), last: now, phase: Phase::Measures }
    }

    /// Returns what the probes do.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Begins anew, because what hits cost is now known: what was decided by an assumption is void.
    pub fn begin_anew(&mut self, now: Used) {
        *self = Rest { left_ns: at_first(self.share), last: now, phase: Phase::Measures, ..*self };
    }

    /// Goes on after a time that does not count, as a pause, or after a change of prices. A trial begins again.
    pub fn go_on(&mut self, now: Used) {
        self.last = now;
        if matches!(self.phase, Phase::Tries(_)) {
            self.phase = Phase::Tries(now.at + TRIAL);
        }
    }

    /// Returns what the probes have to do from now on.
    pub fn look(&mut self, now: Used) -> Phase {
        let keeps_within = self.pay(now);
        self.phase = match self.phase {
            Phase::Measures | Phase::Tries(_) if !keeps_within => Phase::Rests(now.at + REST),
            Phase::Tries(until) if now.at >= until => Phase::Measures,
            Phase::Rests(until) if now.at >= until => {
                self.left_ns = at_first(self.share);
                Phase::Tries(now.at + TRIAL)
            }
            phase => phase,
        };
        self.phase
    }

    /// Returns the part that the probes took of what they may take since the last call of [`Rest::look`].
    pub fn part_taken(&self, now: Used) -> f64 {
        (now.charged_ns - self.last.charged_ns) / self.earned(now)
    }

    /// Returns what the probes may take for the time since the last call, in nanoseconds.
    fn earned(&self, now: Used) -> f64 {
        let ns = now.at.saturating_duration_since(self.last.at).as_nanos() as f64;
        let server_ns = now.server_ns.saturating_sub(self.last.server_ns) as f64;
        self.share * server_ns.max(LEAST_CPUS * ns)
    }

    /// Takes what the probes cost since the last call from what they may take. Returns whether there was enough.
    fn pay(&mut self, now: Used) -> bool {
        let ns = now.at.saturating_duration_since(self.last.at).as_nanos() as f64;
        let more = self.earned(now);
        let most = more * BURST.as_nanos() as f64 / ns.max(1.0);
        self.left_ns = (self.left_ns + more).min(most) - (now.charged_ns - self.last.charged_ns);
        self.last = now;
        self.left_ns >= 0.0
    }
}

fn at_first(share: f64) -> f64 {
    share * LEAST_CPUS * BURST.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that uses two CPUs, and probes that take a share of its time.
    struct Load {
        now: Used,
        rest: Rest,
    }

    impl Load {
        fn new(share: f64) -> Load {
            let now = Used { at: Instant::now(), server_ns: 0, charged_ns: 0.0 };
            Load { now, rest: Rest::new(share, now) }
        }

        /// Returns what the probes do after a time in which they took this share of the server's CPU time.
        fn after(&mut self, time: Duration, share: f64) -> Phase {
            let end = self.now.at + time;
            while self.now.at < end {
                let is_on = !matches!(self.rest.phase(), Phase::Rests(_));
                self.now.at += INTERVAL;
                let server_ns = 2 * INTERVAL.as_nanos() as u64;
                self.now.server_ns += server_ns;
                self.now.charged_ns += if is_on { share * server_ns as f64 } else { 0.0 };
                self.rest.look(self.now);
            }
            self.rest.phase()
        }
    }

    #[test]
    fn the_part_that_is_taken_is_that_of_their_share() {
        let mut load = Load::new(0.005);
        let mut later = load.now;
        later.at += INTERVAL;
        later.server_ns = 2 * INTERVAL.as_nanos() as u64;
        later.charged_ns = 0.004 * later.server_ns as f64;
        assert!((load.rest.part_taken(later) - 0.8).abs() < 1e-9);
        load.rest.look(later);
        assert!(load.rest.part_taken(later).is_nan(), "no time has passed");
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn probes_that_keep_to_their_part_measure_on() {
        assert_eq!(Load::new(0.005).after(HOUR, 0.0049), Phase::Measures);
        assert_eq!(Load::new(0.5).after(HOUR, 0.06), Phase::Measures, "no budget");
    }

    #[test]
    fn a_burst_is_no_reason_to_rest() {
        let mut load = Load::new(0.005);
        for _ in 0..10 {
            assert_eq!(load.after(Duration::from_secs(19), 0.0), Phase::Measures);
            assert_eq!(load.after(Duration::from_secs(1), 0.05), Phase::Measures);
        }
    }

    /// Storms that last cost less than the budget, and are not shown in pieces.
    #[test]
    fn probes_that_cost_too_much_rest() {
        let mut load = Load::new(0.005);
        assert!(matches!(load.after(Duration::from_secs(2), 0.056), Phase::Rests(_)));
        let before = load.now;
        let mut phases = Vec::new();
        while load.now.at < before.at + HOUR {
            phases.push(load.after(INTERVAL, 0.056));
        }
        assert!(!phases.contains(&Phase::Measures), "a trial was shown");
        assert!(phases.iter().any(|phase| matches!(phase, Phase::Tries(_))), "there was no trial");
        let share = (load.now.charged_ns - before.charged_ns) / (load.now.server_ns - before.server_ns) as f64;
        assert!(share < 0.001, "{share}");
    }

    #[test]
    fn after_a_storm_all_is_shown_again() {
        let mut load = Load::new(0.005);
        load.after(Duration::from_secs(2), 0.056);
        assert!(matches!(load.after(REST, 0.001), Phase::Tries(_)));
        assert_eq!(load.after(TRIAL, 0.001), Phase::Measures);
    }

    #[test]
    fn a_known_price_ends_a_rest_and_another_price_does_not() {
        let mut load = Load::new(0.005);
        load.after(Duration::from_secs(2), 0.056);
        load.rest.go_on(load.now);
        assert!(matches!(load.rest.phase(), Phase::Rests(_)));
        load.rest.begin_anew(load.now);
        assert_eq!(load.rest.phase(), Phase::Measures);
    }

    /// What probes do while they are off is no trial.
    #[test]
    fn a_trial_begins_again_after_a_pause() {
        let mut load = Load::new(0.005);
        load.after(Duration::from_secs(2), 0.056);
        load.after(REST, 0.0);
        load.now.at += 2 * TRIAL;
        load.rest.go_on(load.now);
        assert!(matches!(load.after(INTERVAL, 0.0), Phase::Tries(_)));
        assert_eq!(load.after(TRIAL, 0.0), Phase::Measures);
    }
}

//! Takes samples of waits that probes see end. Programs take one for each period of time waited, so each stands for as
//! much of it, whatever the statement and however the thread waited.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use super::executed::executes;
use crate::bpf::latch::{types, LatchSkel};
use crate::bpf::{bytes_of, sample};
use crate::measure::latch::keys::{key_of, MapKey};
use crate::measure::latch::texts::Texts;

/// How many samples are wanted a second. Each costs user space some microseconds.
const PER_SECOND: f64 = 100.0;

/// The kernel has room for so many samples that nobody has taken yet.
pub(in crate::measure::latch) const ROOM: u32 = 400;

/// The first period, in nanoseconds, and the limits of what it may become. The first is long: a short one would have
/// so many samples at first that what comes later would hardly count.
const FIRST_PERIOD_NS: u64 = 100_000_000;
const SHORTEST_PERIOD_NS: u64 = 1_000_000;
const LONGEST_PERIOD_NS: u64 = 4_000_000_000;

/// The period becomes longer as soon as there have been twice as many samples as are wanted, and shorter after this
/// time with less than half as many: probes take turns, and some seconds have no samples.
const UNTIL_SHORTER: Duration = Duration::from_secs(4);

/// The most by which the period changes at once.
const MOST_CHANGE: f64 = 4.0;

/// The samples that programs take of one server's waits.
pub(super) struct EndedWaits {
    /// Samples that the kernel keeps.
    queue: MapHandle,
    /// What the programs are told.
    sampling: MapHandle,
    pace: Mutex<Pace>,
}

/// How much waiting there is for each sample.
#[derive(Debug)]
struct Pace {
    period_ns: u64,
    /// How often samples were taken out.
    round: u64,
    /// How many there were since the period was last considered, and when that was.
    samples: u64,
    since: Instant,
}

impl EndedWaits {
    /// Lets loaded programs take samples.
    ///
    /// # Errors
    /// Fails if a map cannot be used.
    pub fn begin(skel: &LatchSkel<'_>) -> Result<EndedWaits> {
        let ended = EndedWaits {
            queue: MapHandle::try_from(&skel.maps.waiting_statements)?,
            sampling: MapHandle::try_from(&skel.maps.wait_sampling)?,
            pace: Mutex::new(Pace::new(Instant::now())),
        };
        ended.tell(&ended.pace.lock())?;
        Ok(ended)
    }

    /// Takes the samples out of the kernel, and counts them in `texts`.
    ///
    /// # Errors
    /// Fails if a map cannot be used.
    pub fn take(&self, texts: &Mutex<Texts<MapKey>>) -> Result<()> {
        let mut pace = self.pace.lock();
        let mut samples = 0;
        // More may come meanwhile.
        for _ in 0..ROOM {
            let next = self.queue.lookup_and_delete(&[]).context("reading statements that waited")?;
            let Some(bytes) = next else { break };
            let waited: &types::waiting_statement =
                plain::from_bytes(&bytes).ok().context("a statement that waited has an unexpected size")?;
            count(waited, &mut texts.lock());
            samples += u64::from(waited.weight);
        }
        pace.adapt(samples, Instant::now());
        self.tell(&pace)
    }

    fn tell(&self, pace: &Pace) -> Result<()> {
        let sampling = types::wait_sampling { period_ns: pace.period_ns, round: pace.round };
        self.sampling.update(&0_u32.to_ne_bytes(), bytes_of(&sampling), MapFlags::ANY).context("sampling waits")
    }
}

/// Counts a sample.
fn count(waited: &types::waiting_statement, texts: &mut Texts<MapKey>) {
    // The programs share this structure, but each has a type of its own for it.
    let Ok(executed) = plain::from_bytes::<sample::types::executed>(bytes_of(&waited.executed)) else { return };
    let (executes, account) = executes(executed);
    executes.add_to(&account, texts, key_of(&waited.latch), waited.weight.into());
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { period_ns: FIRST_PERIOD_NS, round: 0, samples: 0, since: now }
    }

    /// Adapts the period to the number of samples that were taken out. A wait that takes some periods stands for as
    /// many samples.
    fn adapt(&mut self, taken: u64, now: Instant) {
        self.round += 1;
        self.samples += taken;
        let elapsed = now - self.since;
        // A moment's samples say little about a second's.
        let wanted = PER_SECOND * elapsed.as_secs_f64().max(1.0);
        let rate = self.samples as f64 / wanted;
        if rate <= 2.0 && elapsed < UNTIL_SHORTER {
            return;
        }
        if !(0.5..=2.0).contains(&rate) {
            let period = self.period_ns as f64 * rate.clamp(1.0 / MOST_CHANGE, MOST_CHANGE);
            self.period_ns = (period as u64).clamp(SHORTEST_PERIOD_NS, LONGEST_PERIOD_NS);
        }
        (self.samples, self.since) = (0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the period after some seconds, each with as many samples as `of` says for a period in milliseconds.
    fn period_ms(seconds: u64, of: impl Fn(u64, f64) -> f64) -> f64 {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        for second in 1..=seconds {
            let samples = of(second, pace.period_ns as f64 / 1e6);
            pace.adapt(samples as u64, begin + Duration::from_secs(second));
        }
        pace.period_ns as f64 / 1e6
    }

    #[test]
    fn there_are_about_as_many_samples_whatever_waits() {
        // 200 ms, 2 s and 500 s are waited each second.
        let of = |waited_ms: f64| period_ms(60, |_, period_ms| waited_ms / period_ms);
        assert!((1.0..4.0).contains(&of(200.0)), "{}", of(200.0));
        assert!((10.0..40.0).contains(&of(2_000.0)), "{}", of(2_000.0));
        assert!((2_500.0..=4_000.0).contains(&of(500_000.0)), "{}", of(500_000.0));
        assert_eq!(of(0.0), 1.0);
    }

    /// Probes of which each turn has 200 samples, once in four seconds, lead to no other period each second.
    #[test]
    fn turns_do_not_make_the_period_swing() {
        let turns = |second, period_ms: f64| if second % 4 == 0 { 2_000.0 / period_ms } else { 0.0 };
        let periods: Vec<f64> = (20..40).map(|seconds| period_ms(seconds, turns)).collect();
        assert!(periods.iter().all(|period| (period - periods[0]).abs() < 1e-9), "{periods:?}");
    }
}

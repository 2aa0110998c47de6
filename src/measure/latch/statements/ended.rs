//! Takes samples of waits that probes see end. Programs take one whenever so much has been waited, so a statement
//! counts by the time that it waited, however it did.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use super::executed::executes;
use crate::bpf::latch::{types, LatchSkel};
use crate::bpf::{bytes_of, sample};
use crate::measure::latch::keys::{key_of, MapKey};
use crate::measure::latch::texts::Texts;
use crate::measure::maps::of_cpus;

/// The time waited for which a statement counts as seen once, in nanoseconds: a thread that waits all the time is seen
/// twenty times a second.
const UNIT_NS: u64 = 50_000_000;

/// The most samples that are wanted a second: each costs user space some microseconds. If there would be more, each
/// stands for more time.
const MOST_PER_SECOND: f64 = 400.0;

/// The most units for which a sample stands.
const MOST_UNITS: u64 = 1024;

/// The kernel has room for so many samples that nobody has taken yet.
pub(in crate::measure::latch) const ROOM: u32 = 600;

/// The samples that programs take of one server's waits.
pub(super) struct EndedWaits {
    /// Samples that the kernel keeps.
    queue: MapHandle,
    /// What the programs are told, and how far each CPU is.
    sampling: MapHandle,
    samplers: MapHandle,
    pace: Mutex<Pace>,
}

/// How much waiting there is for each sample.
#[derive(Debug)]
struct Pace {
    /// For how much waiting each sample stands, in units.
    units: u64,
    /// How often samples were taken out.
    round: u64,
    /// How much had been waited when the pace was last considered, in nanoseconds, and when that was.
    waited_ns: u64,
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
            samplers: MapHandle::try_from(&skel.maps.wait_samplers)?,
            pace: Mutex::new(Pace { units: 1, round: 0, waited_ns: 0, since: Instant::now() }),
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
        // More may come meanwhile.
        for _ in 0..ROOM {
            let next = self.queue.lookup_and_delete(&[]).context("reading statements that waited")?;
            let Some(bytes) = next else { break };
            let waited = plain::from_bytes(&bytes).ok().context("a statement that waited has an unexpected size")?;
            count(waited, &mut texts.lock());
        }
        let samplers = of_cpus::<types::wait_sampler>(&self.samplers, 0)?;
        pace.adapt(samplers.iter().map(|sampler| sampler.waited_ns).sum(), Instant::now());
        self.tell(&pace)
    }

    fn tell(&self, pace: &Pace) -> Result<()> {
        let sampling = types::wait_sampling { period_ns: pace.units * UNIT_NS, round: pace.round };
        self.sampling.update(&0_u32.to_ne_bytes(), bytes_of(&sampling), MapFlags::ANY).context("sampling waits")
    }
}

/// Counts a sample.
fn count(waited: &types::waiting_statement, texts: &mut Texts<MapKey>) {
    // The programs share this structure, but each has a type of its own for it.
    let Ok(executed) = plain::from_bytes::<sample::types::executed>(bytes_of(&waited.executed)) else { return };
    let (executes, account) = executes(executed);
    executes.add_to(&account, texts, key_of(&waited.latch), waited.ns / UNIT_NS);
}

impl Pace {
    /// Adapts what samples stand for to the time that was waited so far, in nanoseconds.
    fn adapt(&mut self, waited_ns: u64, now: Instant) {
        self.round += 1;
        let elapsed = now - self.since;
        // A moment says little about a second.
        if elapsed < Duration::from_millis(500) {
            return;
        }
        let units = waited_ns.saturating_sub(self.waited_ns) as f64 / UNIT_NS as f64 / elapsed.as_secs_f64();
        self.units = ((units / MOST_PER_SECOND).ceil() as u64).clamp(1, MOST_UNITS);
        (self.waited_ns, self.since) = (waited_ns, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::latch::texts::Shown;

    #[test]
    fn there_are_not_too_many_samples_whatever_waits() {
        let begin = Instant::now();
        let mut pace = Pace { units: 1, round: 0, waited_ns: 0, since: begin };
        let mut waited_ns = 0;
        // How many threads wait in each second
        let units = [0, 1, 20, 21, 1000, 20, 1_000_000].map(|threads| {
            waited_ns += threads * 1_000_000_000;
            pace.adapt(waited_ns, pace.since + Duration::from_secs(1));
            pace.units
        });
        assert_eq!(units, [1, 1, 1, 2, 50, 1, MOST_UNITS]);
        pace.adapt(waited_ns + 1_000_000_000, pace.since + Duration::from_millis(100));
        assert_eq!((pace.units, pace.round), (MOST_UNITS, 8), "a moment says nothing");
    }

    #[test]
    fn a_sample_counts_for_the_time_that_it_stands_for() {
        let mut texts = Texts::new(10, str::to_owned);
        let waited = |ns| types::waiting_statement { ns, ..Default::default() };
        count(&waited(UNIT_NS), &mut texts);
        count(&waited(3 * UNIT_NS), &mut texts);
        let all: Vec<(Shown, u64)> = texts.all().into_iter().map(|sample| (sample.shown, sample.samples)).collect();
        assert_eq!(all, [(Shown::Nothing, 4)]);
    }
}

//! Shows what threads wait for without any probe: looks at their registers and stacks at intervals.
//!
//! The kernel shows where each thread sleeps, or was interrupted. Its stack then leads to the wait function, and the
//! analysis of that function's code says where the latch is. No thread of the server is stopped, and nothing in the
//! server changes; a look costs CPU time of this process only.

mod code;
mod identify;
mod reader;
pub(crate) mod unwind;

use std::io;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;
use rustix::thread::{sched_setaffinity, CpuSet};

pub(super) use self::reader::{Reader, Waiter};
use super::keys::MapKey;
use super::looks::{at_intervals, Looker};
use super::samples::Samples;
use crate::host::Machine;
use crate::worker::Worker;

/// A thread that samples the server's threads until it is dropped.
pub(super) struct StackSampler {
    shared: Arc<Mutex<Shared>>,
    _worker: Worker,
}

#[derive(Default)]
struct Shared {
    /// How many CPUs the looks may take.
    cpus: f64,
    seen: Sampled,
    look_ns: f64,
}

/// What looks have shown of waiting threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampled {
    pub samples: Samples,
    /// The number of threads seen, over all looks, that slept for each latch.
    pub asleep: HashMap<MapKey, f64>,
    /// The same for waiting code: a file name's address and a line, or a return address and 0.
    pub callsites: HashMap<(MapKey, u64, u64), f64>,
    /// The address of one latch of each identity.
    pub examples: HashMap<MapKey, u64>,
}

impl StackSampler {
    /// Starts to sample with what `begin` returns. No look is made until [`StackSampler::allow`].
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(begin: impl FnOnce() -> Looker + Send + 'static) -> io::Result<StackSampler> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let own = Arc::clone(&shared);
        let worker = Worker::start("sampler", move |stop| {
            let mut looker = begin();
            let cpus = Machine::this().online_cpus();
            // The thread that the look interrupts shows what threads do that run.
            let mut is_random = move_to(&cpus);
            let look = |look_ns| {
                let stands_for = if is_random { cpus.len() } else { 1 };
                let waiters = &looker.look(stands_for as u64)?.waiters;
                let mut shared = own.lock();
                shared.seen.add(waiters, stands_for);
                shared.look_ns = look_ns;
                drop(shared);
                is_random = move_to(&cpus);
                Ok(())
            };
            at_intervals(stop, || (own.lock().cpus, 0.0), look);
        })?;
        Ok(StackSampler { shared, _worker: worker })
    }

    /// Sets how many CPUs the looks may take; 0: none are made.
    pub fn allow(&self, cpus: f64) {
        self.shared.lock().cpus = cpus;
    }

    /// Returns what was seen since the last call.
    pub fn take(&self) -> Sampled {
        let mut shared = self.shared.lock();
        tracing::debug!("{} looks of {:.0} us", shared.seen.samples.looks, shared.look_ns / 1e3);
        let next = Sampled { samples: shared.seen.samples.after(), ..Sampled::default() };
        std::mem::replace(&mut shared.seen, next)
    }
}

impl Sampled {
    /// Adds a look that was made on one of `cpus` CPUs, chosen at random: a thread that runs is only seen there.
    fn add(&mut self, waiters: &[Waiter], cpus: usize) {
        let mut numbers: HashMap<MapKey, f64> = HashMap::new();
        for waiter in waiters {
            let weight = if waiter.ran_here { cpus as f64 } else { 1.0 };
            *numbers.entry(waiter.latch).or_default() += weight;
            if waiter.is_asleep {
                *self.asleep.entry(waiter.latch).or_default() += weight;
            }
            let (address, line) = waiter.callsite;
            *self.callsites.entry((waiter.latch, address, line)).or_default() += weight;
            self.examples.insert(waiter.latch, waiter.example);
        }
        self.samples.add(&numbers);
    }
}

/// Lets this thread run on one of these CPUs, chosen at random. Returns whether it may.
fn move_to(cpus: &[i32]) -> bool {
    let Some(cpu) = fastrand::choice(cpus).and_then(|cpu| usize::try_from(*cpu).ok()) else { return false };
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATCH: MapKey = [7; size_of::<MapKey>()];

    fn waiter(is_asleep: bool, ran_here: bool) -> Waiter {
        Waiter { thread: 0, latch: LATCH, example: 0x1000, callsite: (0x40, 12), is_asleep, ran_here }
    }

    #[test]
    fn waiters_are_counted_by_what_they_do_and_from_where() {
        let mut sampled = Sampled::default();
        sampled.add(&[waiter(true, false), waiter(false, true)], 4);
        sampled.add(&[], 4);
        assert_eq!(sampled.samples.looks, 2);
        assert_eq!((sampled.asleep[&LATCH], sampled.callsites[&(LATCH, 0x40, 12)]), (1.0, 5.0));
        let (ns, _) = sampled.samples.latches[&LATCH].between(2, 1e9);
        assert_eq!(ns, 2.5e9);
    }
}

//! Shows what threads wait for without any probe: looks at their registers and stacks at intervals.
//!
//! The kernel shows where each thread sleeps, or was interrupted. Its stack then leads to the wait function, and the
//! analysis of that function's code says where the latch is. No thread of the server is stopped, and nothing in the
//! server changes; a look costs CPU time of this process only.

mod code;
mod identify;
mod reader;
pub(crate) mod unwind;

use std::io::{self, Read};
use std::mem::offset_of;
use std::sync::Arc;
use std::thread;

use foldhash::{HashMap, HashMapExt};
use libbpf_rs::{Iter, Link};
use parking_lot::Mutex;
use rustix::thread::{sched_setaffinity, CpuSet};

use self::reader::{Reader, Waiter};
use super::keys::MapKey;
use super::plan::{registers_bytes, Plan};
use super::sampler::{be_punctual, interval, WEIGHT};
use super::samples::Samples;
use crate::bpf::latch::types;
use crate::host::{clock::now_ns, Machine};
use crate::server::Target;
use crate::worker::{Stop, Worker};

/// What a look takes, in nanoseconds, before that is known.
const FIRST_GUESS_NS: f64 = 200_000.0;

/// After being taken so many times, what identifies latches is read again: their memory may belong to others.
const OLD: u32 = 20;

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
    /// How many times what was seen has been taken since it was last read what identifies latches.
    age: u32,
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
    /// Starts to sample with an attached program. No look is made until [`StackSampler::allow`].
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(link: Link, target: Arc<Target>, plan: Arc<Plan>) -> io::Result<StackSampler> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let own = Arc::clone(&shared);
        let worker = Worker::start("sampler", move |stop| {
            let reader = Reader::new(&target, &plan);
            target.image.release_memory();
            let registers = registers_bytes(target.image.arch()) as usize;
            sample(&link, reader, registers, &own, stop);
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
        shared.age += 1;
        let next = Sampled { samples: shared.seen.samples.after(), ..Sampled::default() };
        std::mem::replace(&mut shared.seen, next)
    }
}

impl Sampled {
    fn add(&mut self, waiters: &[Waiter]) {
        let mut numbers: HashMap<MapKey, f64> = HashMap::new();
        for waiter in waiters {
            *numbers.entry(waiter.latch).or_default() += waiter.weight;
            if waiter.is_asleep {
                *self.asleep.entry(waiter.latch).or_default() += waiter.weight;
            }
            let (address, line) = waiter.callsite;
            *self.callsites.entry((waiter.latch, address, line)).or_default() += waiter.weight;
            self.examples.insert(waiter.latch, waiter.example);
        }
        self.samples.add(&numbers);
    }
}

fn sample(link: &Link, mut reader: Reader, registers: usize, shared: &Mutex<Shared>, stop: &Stop) {
    be_punctual();
    let cpus = Machine::this().online_cpus();
    let mut look_ns = FIRST_GUESS_NS;
    let mut begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    let mut bytes = Vec::new();
    while !stop.is_told() {
        let allowed = shared.lock().cpus;
        // The thread that the look interrupts shows what threads do that run.
        let is_random = move_to(&cpus);
        thread::sleep(interval(look_ns, allowed));
        if allowed <= 0.0 {
            continue;
        }
        bytes.clear();
        let read = Iter::new(link).map_err(io::Error::other).and_then(|mut all| all.read_to_end(&mut bytes));
        if let Err(error) = read {
            tracing::warn!("the server's threads cannot be sampled: {error}");
            return;
        }
        let waiters = reader.read(&threads(&bytes, registers), if is_random { cpus.len() } else { 1 });
        let mut shared = shared.lock();
        shared.seen.add(&waiters);
        shared.look_ns = look_ns;
        if shared.age >= OLD {
            shared.age = 0;
            reader.forget();
        }
        drop(shared);
        let now = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        look_ns += WEIGHT * ((now - begin) as f64 - look_ns);
        begin = now;
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

/// Returns the threads in the records of one look, each of which ends with this many bytes of registers.
fn threads(records: &[u8], registers: usize) -> Vec<types::seen_thread> {
    let bytes = offset_of!(types::seen_thread, registers) + registers;
    let thread = |record: &[u8]| {
        let mut whole = [0; size_of::<types::seen_thread>()];
        whole.get_mut(..bytes)?.copy_from_slice(record);
        let mut thread = types::seen_thread::default();
        plain::copy_from_bytes(&mut thread, &whole).ok()?;
        Some(thread)
    };
    records.chunks_exact(bytes).filter_map(thread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATCH: MapKey = [7; size_of::<MapKey>()];

    fn waiter(is_asleep: bool, weight: f64) -> Waiter {
        Waiter { latch: LATCH, example: 0x1000, callsite: (0x40, 12), is_asleep, weight }
    }

    #[test]
    fn waiters_are_counted_by_what_they_do_and_from_where() {
        let mut sampled = Sampled::default();
        sampled.add(&[waiter(true, 1.0), waiter(false, 4.0)]);
        sampled.add(&[]);
        assert_eq!(sampled.samples.looks, 2);
        assert_eq!((sampled.asleep[&LATCH], sampled.callsites[&(LATCH, 0x40, 12)]), (1.0, 5.0));
        let (ns, _) = sampled.samples.latches[&LATCH].between(2, 1e9);
        assert_eq!(ns, 2.5e9);
    }

    #[test]
    fn records_end_with_as_many_registers_as_there_are() {
        let before = offset_of!(types::seen_thread, registers);
        let mut bytes = vec![0; 2 * (before + 16)];
        bytes[..4].copy_from_slice(&5_u32.to_ne_bytes());
        bytes[before + 8..before + 16].copy_from_slice(&9_u64.to_ne_bytes());
        bytes.push(1);
        let seen = threads(&bytes, 16);
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].tid, seen[0].registers[..3].to_vec(), seen[1].tid), (5, vec![0, 9, 0], 0));
        assert_eq!(threads(&bytes, 4096).len(), 0);
    }
}

//! Shows what threads wait for without any probe: looks at their registers and stacks at intervals.
//!
//! The kernel shows where each thread sleeps, or was interrupted. Its stack then leads to the wait function, and the
//! analysis of that function's code says where the latch is. No thread of the server is stopped, and nothing in the
//! server changes; a look costs CPU time of this process only.

mod code;
mod identify;
mod reader;
mod unwind;

use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt};
use libbpf_rs::{Iter, Link};
use parking_lot::Mutex;

use self::reader::{Reader, Waiter};
use super::keys::MapKey;
use super::plan::Plan;
use super::sampler::{be_punctual, LONGEST, SHORTEST};
use super::samples::Samples;
use crate::bpf::latch::types;
use crate::host::clock::now_ns;
use crate::server::Target;
use crate::worker::{Stop, Worker};

/// What a look takes, in nanoseconds, before that is known.
const FIRST_GUESS_NS: f64 = 200_000.0;

/// The weight of a new look in the average of what looks take.
const WEIGHT: f64 = 0.1;

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
    /// What identifies latches is to be read again.
    is_old: bool,
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
            sample(&link, reader, &own, stop);
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
        shared.is_old = true;
        let next = Sampled { samples: shared.seen.samples.after(), ..Sampled::default() };
        std::mem::replace(&mut shared.seen, next)
    }
}

impl Sampled {
    fn add(&mut self, waiters: &[Waiter]) {
        let mut numbers: HashMap<MapKey, f64> = HashMap::new();
        for waiter in waiters {
            *numbers.entry(waiter.latch).or_default() += 1.0;
            if waiter.is_asleep {
                *self.asleep.entry(waiter.latch).or_default() += 1.0;
            }
            let (address, line) = waiter.callsite;
            *self.callsites.entry((waiter.latch, address, line)).or_default() += 1.0;
            self.examples.insert(waiter.latch, waiter.example);
        }
        self.samples.add(&numbers);
    }
}

fn sample(link: &Link, mut reader: Reader, shared: &Mutex<Shared>, stop: &Stop) {
    be_punctual();
    let mut look_ns = FIRST_GUESS_NS;
    let mut begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    let mut bytes = Vec::new();
    while !stop.is_told() {
        let cpus = shared.lock().cpus;
        thread::sleep(interval(look_ns, cpus));
        if cpus <= 0.0 {
            continue;
        }
        bytes.clear();
        let read = Iter::new(link).map_err(io::Error::other).and_then(|mut all| all.read_to_end(&mut bytes));
        if let Err(error) = read {
            tracing::warn!("the server's threads cannot be sampled: {error}");
            return;
        }
        let waiters = reader.read(&threads(&bytes));
        let mut shared = shared.lock();
        shared.seen.add(&waiters);
        if std::mem::take(&mut shared.is_old) {
            reader.forget();
        }
        drop(shared);
        let now = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        look_ns += WEIGHT * ((now - begin) as f64 - look_ns);
        begin = now;
    }
}

fn interval(look_ns: f64, cpus: f64) -> Duration {
    let ns = look_ns / cpus.max(f64::MIN_POSITIVE);
    Duration::from_nanos(ns as u64).clamp(SHORTEST, LONGEST)
}

/// Returns the threads in the records of one look.
fn threads(records: &[u8]) -> Vec<types::seen_thread> {
    let records = records.chunks_exact(size_of::<types::seen_thread>());
    records
        .filter_map(|record| {
            let mut thread = types::seen_thread::default();
            plain::copy_from_bytes(&mut thread, record).ok()?;
            Some(thread)
        })
        .collect()
}

//! Looks at all threads of the server at intervals, also while probes are off.
//!
//! While the probes of a group are on, each look shows what threads do that wait for a latch: on which word they sleep,
//! or in which code they spin. While the probes are off, threads are taken to wait for a latch as often as threads that
//! did the same waited for it before. No thread of the server is stopped; the looks cost CPU time of this process only.
//! A look finds cold caches, so it only copies what it sees, and that is evaluated later, many looks at a time.

use std::io::{self, Read};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt};
use libbpf_rs::{libbpf_sys, AsRawLibbpf, Iter, IterOpts, Link, MapCore, MapFlags, MapHandle, ProgramMut};
use parking_lot::Mutex;

use super::keys::{key_of, MapKey};
use super::predict::Predictor;
use super::samples::Samples;
use crate::bpf::latch::types;
use crate::host::clock::now_ns;
use crate::worker::{Stop, Worker};

/// The interval of looks, which is longer if they are expensive.
const SHORTEST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_millis(500);

/// What a look takes, in nanoseconds, before that is known.
const FIRST_GUESS_NS: f64 = 100_000.0;

/// Soon after probes are on, some threads are in waits whose beginning was not seen, so nothing is learned.
const EDGE_NS: u64 = 50_000_000;

/// The most bytes that wait to be evaluated. Looks beyond that are not made.
const MOST_BYTES: usize = 16 << 20;

/// The weight of a new look in the average of what looks take.
pub(super) const WEIGHT: f64 = 0.1;

/// A thread that samples the server's threads until it is dropped.
pub(super) struct Sampler {
    shared: Arc<Mutex<Shared>>,
    /// The map of the words on which threads sleep for latches.
    words: MapHandle,
    predictor: Predictor,
    _worker: Worker,
}

#[derive(Default)]
struct Shared {
    /// How many CPUs the looks may take.
    cpus: f64,
    /// Since when and until when the waits of each group that begin are counted, by `CLOCK_MONOTONIC`.
    turns: Vec<(u64, u64)>,
    looks: Looks,
    /// The average CPU time of a look and of its evaluation.
    look_ns: f64,
    evaluation_ns: f64,
}

/// Looks that wait to be evaluated.
#[derive(Default)]
struct Looks {
    bytes: Vec<u8>,
    /// The end of each look in `bytes`, and whether the probes of each group saw the waits.
    ends: Vec<(usize, Vec<Probes>)>,
}

/// Whether the probes of a group see the waits at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probes {
    On,
    Off,
    /// They see some of them.
    Partly,
}

/// What a look has shown of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Thread {
    /// What it does, as the programs describe it.
    pub doing: u64,
    /// The latch that it waits for, in a wait that the probes see, and its wait function.
    pub seen: Option<(MapKey, u8)>,
}

impl Sampler {
    /// Starts to sample with an attached program. The groups have these wait functions.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(link: Link, words: MapHandle, groups: &[Vec<u8>]) -> io::Result<Sampler> {
        let turns = vec![(0, 0); groups.len()];
        let shared = Arc::new(Mutex::new(Shared { turns, look_ns: FIRST_GUESS_NS, ..Shared::default() }));
        let own = Arc::clone(&shared);
        let worker = Worker::start("sampler", move |stop| sample(&link, &own, stop))?;
        Ok(Sampler { shared, words, predictor: Predictor::new(groups), _worker: worker })
    }

    /// Sets how many CPUs the looks may take; 0: none are made.
    pub fn allow(&self, cpus: f64) {
        self.shared.lock().cpus = cpus;
    }

    /// Notes until when the waits of a group are counted; `u64::MAX` if that is not known. They are counted from now on
    /// if they were not before.
    pub fn note_turn(&self, group: usize, until_ns: u64) {
        let now = now_ns(libc::CLOCK_MONOTONIC);
        let turn = &mut self.shared.lock().turns[group];
        if now >= turn.1 && until_ns > now {
            turn.0 = now;
        }
        turn.1 = until_ns;
    }

    /// Returns what was seen since the last call.
    pub fn take(&mut self) -> Samples {
        let begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        let looks = self.shared.lock().looks.take();
        let mut samples = self.predictor.begin();
        let mut known: HashMap<u64, Option<(MapKey, u8)>> = HashMap::new();
        let words = &self.words;
        let mut latch_of = |doing| *known.entry(doing).or_insert_with(|| latch_of_word(words, doing));
        let mut start = 0;
        for (end, probes) in &looks.ends {
            self.predictor.add(threads(&looks.bytes[start..*end]), probes, &mut latch_of, &mut samples);
            start = *end;
        }
        self.predictor.finish(&mut samples);
        if samples.looks > 0 {
            let ns = (now_ns(libc::CLOCK_THREAD_CPUTIME_ID) - begin) as f64 / samples.looks as f64;
            self.shared.lock().evaluation_ns = ns;
        }
        samples
    }
}

impl Looks {
    /// Takes all, and leaves space for as many.
    fn take(&mut self) -> Looks {
        let bytes = Vec::with_capacity(self.bytes.capacity());
        let ends = Vec::with_capacity(self.ends.capacity());
        std::mem::replace(self, Looks { bytes, ends })
    }
}

/// Returns the latch for which threads slept on a word.
fn latch_of_word(words: &MapHandle, doing: u64) -> Option<(MapKey, u8)> {
    if doing >> types::doing_bit::DOING_KIND.0 != 0 {
        return None;
    }
    let bytes = words.lookup(&doing.to_ne_bytes(), MapFlags::ANY).ok()??;
    let latch = plain::from_bytes::<types::latch_key>(&bytes).ok()?;
    Some((key_of(latch), latch.function))
}

/// Returns the threads in the records of one look.
fn threads(mut records: &[u8]) -> impl Iterator<Item = Thread> + '_ {
    const SEEN: u64 = 1 << types::doing_bit::DOING_WAIT_SEEN.0;
    std::iter::from_fn(move || {
        let (number, rest) = records.split_first_chunk()?;
        let number = u64::from_ne_bytes(*number);
        records = rest;
        let mut seen = None;
        if number & SEEN != 0 {
            let (latch, rest) = records.split_at_checked(size_of::<types::latch_key>())?;
            let latch = plain::from_bytes::<types::latch_key>(latch).ok()?;
            seen = Some((key_of(latch), latch.function));
            records = rest;
        }
        Some(Thread { doing: number & !SEEN, seen })
    })
}

/// Lets this thread run as soon as it wakes. A thread that has to wait for a CPU sees the server's threads at moments
/// when many of them sleep. A look takes some ten microseconds.
pub(super) fn be_punctual() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: changes this thread only, and reads the parameter during the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &lowest) } != 0 {
        tracing::debug!("sampling is not punctual: {}", io::Error::last_os_error());
    }
}

fn sample(link: &Link, shared: &Mutex<Shared>, stop: &Stop) {
    be_punctual();
    let mut begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    while !stop.is_told() {
        let interval = {
            let shared = shared.lock();
            interval(shared.look_ns + shared.evaluation_ns, shared.cpus)
        };
        // Waiting for the stop takes more CPU time.
        thread::sleep(interval);
        let mut shared = shared.lock();
        if shared.cpus <= 0.0 {
            continue;
        }
        if let Err(error) = shared.look(link) {
            tracing::warn!("the server's threads cannot be sampled: {error}");
            return;
        }
        let now = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        shared.look_ns += WEIGHT * ((now - begin) as f64 - shared.look_ns);
        begin = now;
    }
}

/// Returns the interval of looks that take this long, so that they use so many CPUs.
pub(super) fn interval(ns: f64, cpus: f64) -> Duration {
    let interval = ns / cpus.max(f64::MIN_POSITIVE);
    Duration::from_nanos(interval as u64).clamp(SHORTEST, LONGEST)
}

impl Shared {
    /// Reads the records of all threads.
    fn look(&mut self, link: &Link) -> io::Result<()> {
        if self.looks.bytes.len() > MOST_BYTES {
            return Ok(());
        }
        let mut threads = Iter::new(link).map_err(io::Error::other)?;
        threads.read_to_end(&mut self.looks.bytes)?;
        let now = now_ns(libc::CLOCK_MONOTONIC);
        let probes = self.turns.iter().map(|turn| probes(*turn, now)).collect();
        self.looks.ends.push((self.looks.bytes.len(), probes));
        Ok(())
    }
}

/// Returns whether the probes of a group that has this turn see the waits at this time.
fn probes((since, until): (u64, u64), now: u64) -> Probes {
    if now >= until {
        Probes::Off
    } else if now >= since + EDGE_NS {
        Probes::On
    } else {
        Probes::Partly
    }
}

/// Attaches the program that looks at the threads of a process. Kernels before 6.1 let it look at all threads.
///
/// # Errors
/// Fails if the kernel refuses.
pub(super) fn attach(program: &ProgramMut<'_>, pid: i32) -> libbpf_rs::Result<Link> {
    let mut of = libbpf_sys::bpf_iter_link_info::default();
    of.task = libbpf_sys::bpf_iter_link_info__bindgen_ty_3 { pid: pid as u32, ..Default::default() };
    let options = libbpf_sys::bpf_iter_attach_opts {
        sz: size_of::<libbpf_sys::bpf_iter_attach_opts>() as libbpf_sys::size_t,
        link_info: &mut of,
        link_info_len: size_of_val(&of) as u32,
        ..Default::default()
    };
    // SAFETY: the program is loaded, and libbpf reads the options only during the call.
    let link = unsafe { libbpf_sys::bpf_program__attach_iter(program.as_libbpf_object().as_ptr(), &options) };
    match NonNull::new(link) {
        // SAFETY: libbpf has returned the link for us to own.
        Some(link) => Ok(unsafe { Link::from_ptr(link) }),
        None => program.attach_iter_with_opts(IterOpts::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATCH: types::latch_key =
        types::latch_key { id: 0x1000, line: 0, identity: 0, mode: 0, function: 3, primitive: 0 };

    #[test]
    fn records_are_as_long_as_they_must_be() {
        let waits = 0x7f00 | 1 << types::doing_bit::DOING_WAIT_SEEN.0;
        let mut records = 5u64.to_ne_bytes().to_vec();
        records.extend(u64::to_ne_bytes(waits));
        records.extend(key_of(&LATCH));
        records.extend(6u64.to_ne_bytes());
        let seen = |doing, seen| Thread { doing, seen };
        let all: Vec<Thread> = threads(&records).collect();
        assert_eq!(all, [seen(5, None), seen(0x7f00, Some((key_of(&LATCH), 3))), seen(6, None)]);
        let cut = records.len() - 12;
        assert_eq!(threads(&records[..cut]).collect::<Vec<_>>(), all[..1]);
    }

    #[test]
    fn soon_after_its_begin_a_turn_is_seen_in_part() {
        let turn = (1_000_000_000, 2_000_000_000);
        let at = [1_000_000_000, 1_049_999_999, 1_050_000_000, 1_999_999_999, 2_000_000_000];
        let expected = [Probes::Partly, Probes::Partly, Probes::On, Probes::On, Probes::Off];
        assert_eq!(at.map(|now| probes(turn, now)), expected);
        assert_eq!(probes((0, 0), 5), Probes::Off);
    }

    #[test]
    fn looks_are_rarer_where_they_are_expensive() {
        assert_eq!(interval(100_000.0, 0.01), Duration::from_millis(10));
        assert_eq!(interval(20_000.0, 0.1), SHORTEST);
        assert_eq!(interval(90_000.0, 0.0), LONGEST);
    }
}

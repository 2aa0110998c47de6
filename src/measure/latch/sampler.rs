//! Looks at all threads of the server at intervals, also while probes are off.
//!
//! While the probes of a group are on, each look shows what threads do that wait for a latch: what their stacks say, on
//! which word they sleep, or in which code they spin. While the probes are off, threads are taken to wait for a latch
//! as often as threads that did the same waited for it before. A look finds cold caches, so what it has seen is
//! evaluated later, many looks at a time.

use std::io;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use super::glances::{self, Glancer, Glances};
use super::keys::{key_of, MapKey};
use super::looks::{at_intervals, Look, Looker, SeenThread};
use super::predict::{Glanced, Predictor, Thread};
use super::samples::Samples;
use crate::bpf::latch::types;
use crate::host::clock::now_ns;
use crate::worker::Worker;

/// Soon after probes are on, some threads are in waits whose beginning was not seen, so nothing is learned.
const EDGE_NS: u64 = 50_000_000;

/// The most threads in looks, and in glances, that wait to be evaluated. Looks beyond that are not made.
const MOST_THREADS: usize = 200_000;

/// How much glances may take while probes are off, as a share of what sampling may take.
const GLANCES_PART: f64 = 0.3;

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
    /// How many CPUs sampling may take.
    cpus: f64,
    /// Whether glances are of use, and how many of the CPUs they take.
    wants_glances: bool,
    glancing: f64,
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
    threads: Vec<Thread>,
    /// The end of each look in `threads`, and whether the probes of each group saw the waits.
    ends: Vec<(usize, Vec<Probes>)>,
    glanced: Glanced,
}

/// Whether the probes of a group see the waits at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probes {
    On,
    Off,
    /// They see some of them.
    Partly,
}

impl Sampler {
    /// Starts to sample with what `begin` returns. The groups have these wait functions, and stacks show all of their
    /// waits or not.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(
        begin: impl FnOnce() -> (Looker, Option<Glancer>) + Send + 'static,
        words: MapHandle,
        groups: &[(Vec<u8>, bool)],
    ) -> io::Result<Sampler> {
        let turns = vec![(0, 0); groups.len()];
        let shared = Arc::new(Mutex::new(Shared { turns, ..Shared::default() }));
        let own = Arc::clone(&shared);
        let worker = Worker::start("sampler", move |stop| {
            let (mut looker, mut glancer) = begin();
            let allowed = || {
                let shared = own.lock();
                (shared.for_looks(), shared.evaluation_ns)
            };
            let mut glances = Glances::default();
            let mut threads = 0;
            let look = |look_ns| {
                if let Some(glancer) = &mut glancer {
                    let cpus = if threads <= glances::MOST_THREADS { own.lock().for_glances() } else { 0.0 };
                    own.lock().glancing = glancer.glance(cpus);
                    glancer.take(&mut glances);
                }
                let Some(probes) = own.lock().begin_look(look_ns) else { return Ok(()) };
                let look = looker.look(1)?;
                threads = look.threads.len();
                own.lock().end_look(look, probes, &glances);
                Ok(())
            };
            at_intervals(stop, allowed, look);
        })?;
        Ok(Sampler { shared, words, predictor: Predictor::new(groups), _worker: worker })
    }

    /// Sets how many CPUs sampling may take; 0: there is none. `wants_glances` says whether some probes are off at
    /// times.
    pub fn allow(&self, cpus: f64, wants_glances: bool) {
        let mut shared = self.shared.lock();
        (shared.cpus, shared.wants_glances) = (cpus, wants_glances);
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
        let glances = looks.glanced.ends.len();
        let has_glances = glances > looks.ends.len();
        for (end, probes) in &looks.ends {
            let threads = &looks.threads[start..*end];
            self.predictor.add(threads, probes, has_glances, &mut latch_of, &mut samples);
            start = *end;
        }
        if has_glances {
            self.predictor.add_glances(&looks.glanced, &mut latch_of, &mut samples);
        }
        self.predictor.finish(&mut samples);
        if !looks.ends.is_empty() {
            let ns = (now_ns(libc::CLOCK_THREAD_CPUTIME_ID) - begin) as f64 / looks.ends.len() as f64;
            let mut shared = self.shared.lock();
            shared.evaluation_ns = ns;
            tracing::debug!(
                "{} looks of {:.0} us, {:.0} us to evaluate, and {} glances, which take {:.2} ms a second",
                looks.ends.len(),
                shared.look_ns / 1e3,
                ns / 1e3,
                glances,
                shared.glancing * 1e3
            );
        }
        samples
    }
}

impl Looks {
    /// Takes all, and leaves space for as many.
    fn take(&mut self) -> Looks {
        let threads = Vec::with_capacity(self.threads.capacity());
        let ends = Vec::with_capacity(self.ends.capacity());
        let glanced = Glanced {
            words: Vec::with_capacity(self.glanced.words.capacity()),
            ends: Vec::with_capacity(self.glanced.ends.capacity()),
        };
        std::mem::replace(self, Looks { threads, ends, glanced })
    }

    fn add(&mut self, look: &Look, probes: Vec<Probes>) {
        let begin = self.threads.len();
        let plain = |seen: &SeenThread| Thread { doing: seen.doing, waits: [None; 2], seen: seen.seen };
        self.threads.extend(look.threads.iter().map(plain));
        for waiter in &look.waiters {
            let waits = &mut self.threads[begin + waiter.thread].waits;
            let free = waits.iter_mut().find(|wait| wait.is_none());
            free.into_iter().for_each(|wait| *wait = Some((waiter.latch, waiter.is_asleep)));
        }
        self.ends.push((self.threads.len(), probes));
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

impl Shared {
    /// Returns what the probes of each group see now; `None` if no look is to be made.
    fn begin_look(&mut self, look_ns: f64) -> Option<Vec<Probes>> {
        self.look_ns = look_ns;
        let now = now_ns(libc::CLOCK_MONOTONIC);
        let has_room = self.looks.threads.len() <= MOST_THREADS;
        has_room.then(|| self.turns.iter().map(|turn| probes(*turn, now)).collect())
    }

    /// Returns how many CPUs looks may take. Glances are given less time with the next look, so there has to be one:
    /// when a server comes to a standstill, they take more than all that is left for a moment.
    fn for_looks(&self) -> f64 {
        (self.cpus - self.glancing).max((1.0 - GLANCES_PART) * self.cpus)
    }

    /// Returns how many CPUs glances may take.
    fn for_glances(&self) -> f64 {
        let has_room = self.looks.glanced.words.len() <= MOST_THREADS;
        if self.wants_glances && has_room {
            GLANCES_PART * self.cpus
        } else {
            0.0
        }
    }

    /// Adds a look, and the glances before it.
    fn end_look(&mut self, look: &Look, of_look: Vec<Probes>, glances: &Glances) {
        self.looks.add(look, of_look);
        let before = self.looks.glanced.words.len();
        self.looks.glanced.words.extend(&glances.words);
        for (time, end) in &glances.ends {
            let are_off = self.turns.iter().map(|turn| probes(*turn, *time) == Probes::Off);
            let off = are_off.zip(0..).fold(0, |all, (is_off, group)| all | u64::from(is_off) << group);
            self.looks.glanced.ends.push((before + end, off));
        }
    }
}

/// Returns whether the probes of a group that has this turn see the waits at this time.
fn probes((since, until): (u64, u64), now: u64) -> Probes {
    if now >= until || now < since {
        Probes::Off
    } else if now >= since + EDGE_NS {
        Probes::On
    } else {
        Probes::Partly
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::latch::stacks::Waiter;

    const LATCH: MapKey = [4; size_of::<MapKey>()];

    #[test]
    fn soon_after_its_begin_a_turn_is_seen_in_part() {
        let turn = (1_000_000_000, 2_000_000_000);
        let at = [1_000_000_000, 1_049_999_999, 1_050_000_000, 1_999_999_999, 2_000_000_000];
        let expected = [Probes::Partly, Probes::Partly, Probes::On, Probes::On, Probes::Off];
        assert_eq!(at.map(|now| probes(turn, now)), expected);
        assert_eq!(probes((0, 0), 5), Probes::Off);
    }

    #[test]
    fn threads_have_what_their_stacks_say() {
        let state = types::thread_state::THREAD_ASLEEP;
        let scheduled = Default::default();
        let thread = |doing| SeenThread { tid: 0, state, pointer: 0, doing, seen: None, scheduled };
        let waiter = Waiter { thread: 1, latch: LATCH, example: 1, callsite: (0, 0), is_asleep: true, ran_here: false };
        let look = Look { threads: vec![thread(5), thread(6)], waiters: vec![waiter; 3], ..Look::default() };
        let mut looks = Looks::default();
        looks.add(&Look { threads: vec![thread(4)], ..Look::default() }, vec![Probes::On]);
        looks.add(&look, vec![Probes::Off]);
        let waits: Vec<usize> = looks.threads.iter().map(|thread| thread.waits.iter().flatten().count()).collect();
        assert_eq!(waits, [0, 0, 2]);
        assert_eq!(looks.ends, [(1, vec![Probes::On]), (3, vec![Probes::Off])]);
        assert_eq!(looks.threads[2].waits[0], Some((LATCH, true)));
    }

    #[test]
    fn looks_go_on_when_a_server_comes_to_a_standstill() {
        let shared = Shared { cpus: 0.0018, glancing: 0.0021, ..Shared::default() };
        assert!((shared.for_looks() - 0.7 * 0.0018).abs() < 1e-9);
        let shared = Shared { cpus: 0.01, glancing: 0.001, ..Shared::default() };
        assert!((shared.for_looks() - 0.009).abs() < 1e-9);
        assert_eq!(Shared { glancing: 0.001, ..Shared::default() }.for_looks(), 0.0, "there are none");
    }

    /// The first group's probes were on from 1 s to 2 s, and those of the second are on since 3 s.
    #[test]
    fn glances_know_which_probes_were_off() {
        const SECOND: u64 = 1_000_000_000;
        let mut shared = Shared { turns: vec![(SECOND, 2 * SECOND), (3 * SECOND, u64::MAX)], ..Shared::default() };
        let glances =
            Glances { words: vec![7, 8, 9], ends: vec![(SECOND + EDGE_NS, 1), (2 * SECOND, 1), (4 * SECOND, 3)] };
        (0..2).for_each(|_| shared.end_look(&Look::default(), Vec::new(), &glances));
        assert_eq!(shared.looks.glanced.words, [7, 8, 9, 7, 8, 9]);
        assert_eq!(shared.looks.glanced.ends, [(1, 0b10), (1, 0b11), (3, 0b01), (4, 0b10), (4, 0b11), (6, 0b01)]);
    }
}

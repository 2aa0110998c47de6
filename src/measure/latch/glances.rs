//! Glances at the words on which the server's threads sleep, by a program that the clocks of CPU samples run. Without
//! CPU samples, there are none.

use std::mem::{offset_of, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use memmap2::{MmapOptions, MmapRaw};

use super::meter::SHADOW;
use crate::attach::clock_sees_threads;
use crate::bpf::latch::{types, LatchSkelBuilder};
use crate::host::Machine;

const CPUS: usize = types::limit::GLANCE_CPUS.0 as usize;
const SLOTS: u64 = types::limit::GLANCE_SLOTS.0 as u64;
const HEAD: u64 = types::limit::GLANCE_HEAD.0 as u64;

/// After this time, other CPUs glance.
const STAY: Duration = Duration::from_secs(1);

/// What the program takes for a glance, in nanoseconds, before that is known.
const FIRST_GUESS_NS: f64 = 20_000.0;

/// The weight of a new glance in the average of what they take.
const WEIGHT: f64 = 0.01;

/// What glances have shown.
#[derive(Default)]
pub(super) struct Glances {
    /// The words on which threads slept.
    pub words: Vec<u64>,
    /// When each glance was, by `CLOCK_MONOTONIC`, and its end in `words`.
    pub ends: Vec<(u64, usize)>,
}

/// Returns whether this kernel loads the program for glances.
pub(super) fn are_possible() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| clock_sees_threads() && loads().unwrap_or(false))
}

/// Tries the program alone: if it were refused, no other could be loaded with it.
fn loads() -> libbpf_rs::Result<bool> {
    let mut storage = MaybeUninit::uninit();
    let mut open = LatchSkelBuilder::default().open(&mut storage)?;
    open.open_object_mut().progs_mut().for_each(|mut program| program.set_autoload(false));
    open.progs.glance_by_clock.set_autoload(true);
    let loaded = open.load();
    Ok(loaded.is_ok())
}

/// Lets clocks run the program that glances at the threads, until it is dropped.
pub(super) struct Glancer {
    program: OwnedFd,
    /// The program that the clocks of CPU samples run too.
    at_clock: MapHandle,
    memory: MmapRaw,
    /// How much each CPU had written the last time.
    written: [u64; CPUS],
    /// What the program takes on average, in nanoseconds.
    program_ns: f64,
    /// When other CPUs are to glance.
    until: Instant,
    /// How many glances there were since CPUs were chosen.
    glances: u32,
    /// How many CPUs glance, and how many CPUs the glances of each take.
    glancing: usize,
    of_cpu: f64,
    is_on: bool,
}

impl Glancer {
    /// Prepares glances by a loaded program, which writes into the map `glances` and is to be put into `at_clock`.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn new(program: &impl AsFd, glances: &impl AsFd, at_clock: MapHandle) -> Result<Glancer> {
        let program = program.as_fd().try_clone_to_owned()?;
        let length = CPUS * size_of::<types::glances>();
        let memory = MmapOptions::new().len(length).map_raw(glances.as_fd().as_raw_fd());
        Ok(Glancer {
            program,
            at_clock,
            memory: memory.context("mapping the glances")?,
            written: [0; CPUS],
            program_ns: FIRST_GUESS_NS,
            until: Instant::now(),
            glances: 0,
            glancing: 0,
            of_cpu: 0.0,
            is_on: false,
        })
    }

    /// Glances as often as this many CPUs allow. Returns how many CPUs that takes, with what it costs the threads that
    /// are interrupted. To be called at least once a second.
    pub fn glance(&mut self, cpus: f64) -> f64 {
        let is_wanted = cpus > 0.0;
        if is_wanted != self.is_on {
            self.set_program(is_wanted);
        } else if Instant::now() < self.until || !is_wanted {
            return self.takes();
        }
        self.until = Instant::now() + STAY;
        let glances = f64::from(std::mem::take(&mut self.glances));
        if self.glancing > 0 {
            self.of_cpu = glances * (1.0 + SHADOW) * self.program_ns / STAY.as_nanos() as f64 / self.glancing as f64;
        }
        let most = affordable(cpus, self.of_cpu, fastrand::f64());
        self.let_glance(&chosen(Machine::this().online_cpus(), most));
        self.takes()
    }

    fn takes(&self) -> f64 {
        self.glancing as f64 * self.of_cpu
    }

    /// Lets these CPUs glance at each interrupt.
    fn let_glance(&mut self, cpus: &[i32]) {
        self.glancing = cpus.len();
        for n in 0..CPUS {
            let cpu = cpus.get(n).map_or(0, |cpu| *cpu as u64 + 1);
            self.place(n, offset_of!(types::glances, cpu)).store(cpu, Ordering::Release);
        }
    }

    /// Says whether the clocks run the program.
    fn set_program(&mut self, is_on: bool) {
        self.is_on = is_on;
        let key = 0u32.to_ne_bytes();
        let done = match is_on {
            true => self.at_clock.update(&key, &self.program.as_raw_fd().to_ne_bytes(), MapFlags::ANY),
            false => self.at_clock.delete(&key),
        };
        _ = done.inspect_err(|error| tracing::debug!("glances cannot be switched: {error}"));
    }

    /// Replaces what is in `into` by the glances before the last call and after the one before it: what was written
    /// since then may not be in memory yet.
    pub fn take(&mut self, into: &mut Glances) {
        into.words.clear();
        into.ends.clear();
        (0..CPUS).for_each(|n| self.take_from(n, into));
        self.glances += into.ends.len() as u32;
    }

    fn take_from(&mut self, n: usize, into: &mut Glances) {
        let now = self.number(n, offset_of!(types::glances, written));
        let until = std::mem::replace(&mut self.written[n], now);
        let read = offset_of!(types::glances, read);
        let mut at = self.number(n, read);
        while at + HEAD <= until {
            let [time, sleepers, ns] = [at, at + 1, at + 2].map(|place| self.slot(n, place));
            let end = at + HEAD + sleepers;
            if end > until {
                break;
            }
            into.words.extend((at + HEAD..end).map(|place| self.slot(n, place)));
            into.ends.push((time, into.words.len()));
            self.program_ns += WEIGHT * (ns as f64 - self.program_ns);
            at = end;
        }
        self.place(n, read).store(until, Ordering::Release);
    }

    fn slot(&self, n: usize, place: u64) -> u64 {
        self.number(n, offset_of!(types::glances, slots) + (place % SLOTS) as usize * size_of::<u64>())
    }

    fn number(&self, n: usize, offset: usize) -> u64 {
        self.place(n, offset).load(Ordering::Acquire)
    }

    /// Returns the number at an offset in the glances of a CPU.
    fn place(&self, n: usize, offset: usize) -> &AtomicU64 {
        let at = self.memory.as_mut_ptr().wrapping_add(n * size_of::<types::glances>() + offset);
        // SAFETY: the offset is that of an aligned number in the mapped memory, which others write as a whole.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }
}

impl Drop for Glancer {
    fn drop(&mut self) {
        if self.is_on {
            self.set_program(false);
        }
    }
}

/// Returns how many CPUs may glance if all of them may take `cpus` CPUs and the glances of each take `of_cpu`. `random`
/// is a random number from 0 to 1, which decides about the last one.
fn affordable(cpus: f64, of_cpu: f64, random: f64) -> usize {
    if cpus <= 0.0 {
        return 0;
    }
    if of_cpu <= 0.0 {
        return 1;
    }
    ((cpus / of_cpu + random) as usize).min(CPUS)
}

/// Returns so many of these CPUs, chosen at random.
fn chosen(mut cpus: Vec<i32>, most: usize) -> Vec<i32> {
    fastrand::shuffle(&mut cpus);
    cpus.truncate(most);
    cpus
}

#[cfg(test)]
mod tests {
    use libbpf_rs::{libbpf_sys, MapType};

    use super::*;

    /// A glancer whose memory is a file instead of the programs' map.
    fn glancer() -> Glancer {
        let file = tempfile::tempfile().unwrap();
        file.set_len((CPUS * size_of::<types::glances>()) as u64).unwrap();
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some("test"), 4, 4, 1, &options).unwrap();
        Glancer::new(&file, &file, map).unwrap()
    }

    /// Writes a glance as the program does.
    fn write(glancer: &Glancer, n: usize, time: u64, words: &[u64]) {
        let written = glancer.place(n, offset_of!(types::glances, written));
        let begin = written.load(Ordering::Relaxed);
        let numbers = [&[time, words.len() as u64, 5], words].concat();
        for (place, number) in (begin..).zip(&numbers) {
            let slot = offset_of!(types::glances, slots) + (place % SLOTS) as usize * 8;
            glancer.place(n, slot).store(*number, Ordering::Relaxed);
        }
        written.store(begin + numbers.len() as u64, Ordering::Relaxed);
    }

    fn take(glancer: &mut Glancer) -> (Vec<u64>, Vec<(u64, usize)>) {
        let mut glances = Glances::default();
        glancer.take(&mut glances);
        (glances.words, glances.ends)
    }

    #[test]
    fn each_glance_is_read_once_and_a_call_later() {
        let mut glancer = glancer();
        write(&glancer, 0, 1, &[7, 8]);
        write(&glancer, 7, 2, &[]);
        assert!(take(&mut glancer).1.is_empty());
        write(&glancer, 0, 3, &[9]);
        assert_eq!(take(&mut glancer), (vec![7, 8], vec![(1, 2), (2, 2)]));
        assert_eq!(take(&mut glancer), (vec![9], vec![(3, 1)]));
        assert!(take(&mut glancer).1.is_empty());
        assert!(glancer.program_ns < FIRST_GUESS_NS, "{}", glancer.program_ns);
    }

    #[test]
    fn the_memory_is_used_again() {
        let mut glancer = glancer();
        let words: Vec<u64> = (0..1000).collect();
        for time in 0..200 {
            write(&glancer, 1, time, &words);
            let (words_read, ends) = take(&mut glancer);
            assert_eq!(ends.iter().map(|(time, _)| *time).collect::<Vec<_>>(), time.checked_sub(1).as_slice());
            assert!(time == 0 || words_read == words);
        }
    }

    #[test]
    fn some_of_many_cpus_glance() {
        let mut some = chosen((0..100).collect(), CPUS);
        some.sort_unstable();
        some.dedup();
        assert_eq!((some.len(), chosen(vec![3], CPUS)), (CPUS, vec![3]));
        let mut glancer = glancer();
        glancer.let_glance(&[4, 0]);
        let cpus = [0, 1, 2].map(|n| glancer.number(n, offset_of!(types::glances, cpu)));
        assert_eq!(cpus, [5, 1, 0]);
    }

    #[test]
    fn as_many_cpus_glance_as_may() {
        assert_eq!([affordable(0.0, 0.0, 0.9), affordable(0.1, 0.0, 0.9), affordable(1.0, 0.001, 0.0)], [0, 1, CPUS]);
        let seconds = (0..100).map(|second| affordable(0.001, 0.004, f64::from(second) / 100.0));
        assert_eq!(seconds.sum::<usize>(), 25);
    }
}

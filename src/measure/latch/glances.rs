//! Glances at the words on which the server's threads sleep, by a program that the clocks of CPU samples run. Without
//! CPU samples, there are none.

use std::io;
use std::mem::{offset_of, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};
use memmap2::{MmapOptions, MmapRaw};

use super::maps::Maps;
use super::meter::SHADOW;
use super::plan::{futex_call, library_registers};
use super::status::Status;
use crate::bpf::glance::{types, GlanceSkelBuilder};
use crate::host::Machine;
use crate::model::ProbeState;
use crate::server::Target;

/// The most threads of a server that glances pass over.
pub(super) const MOST_THREADS: usize = types::glance_limit::MAX_GLANCED.0 as usize;

const CPUS: usize = types::glance_limit::GLANCE_CPUS.0 as usize;
const SLOTS: u64 = types::glance_limit::GLANCE_SLOTS.0 as u64;
const HEAD: u64 = types::glance_limit::GLANCE_HEAD.0 as u64;

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

/// Lets clocks run the program that glances at the threads, until it is dropped.
pub(super) struct Glancer {
    program: OwnedFd,
    maps: Arc<Maps>,
    status: Arc<Status>,
    memory: Memory,
    /// What the program takes on average, in nanoseconds.
    program_ns: f64,
    /// Since when the same CPUs glance, and how many glances there were since then.
    since: Instant,
    glances: u32,
    /// How many CPUs glances take.
    takes: f64,
    is_on: bool,
}

/// The memory that the program shares with us.
struct Memory {
    map: MmapRaw,
    /// How much each CPU had written the last time.
    written: [u64; CPUS],
}

impl Glancer {
    /// Loads the program for a server whose waits are counted in these maps.
    ///
    /// # Errors
    /// Fails if the kernel refuses, as Linux before 6.12 does.
    pub fn load(target: &Target, maps: Arc<Maps>, status: Arc<Status>) -> Result<Glancer> {
        let mut storage = MaybeUninit::uninit();
        let mut open = GlanceSkelBuilder::default().open(&mut storage)?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("the program has no constants")?;
        let (arch, call) = (target.image.arch(), futex_call(target.image.arch()));
        rodata.target_tgid = target.pid as u32;
        (rodata.futex_nr, rodata.nr_register, rodata.word_register) = (call.nr, call.nr_register, call.word_register);
        (rodata.op_register, _, _) = library_registers(arch);
        open.maps.hits.reuse_fd(maps.hits.as_fd())?;
        let skel = open.load()?;
        let program = skel.progs.glance_by_clock.as_fd().try_clone_to_owned()?;
        let memory = Memory::new(&skel.maps.glances).context("mapping the glances")?;
        *status.glances.lock() = Some(ProbeState::Detached);
        let (program_ns, since) = (FIRST_GUESS_NS, Instant::now());
        Ok(Glancer { program, maps, status, memory, program_ns, since, glances: 0, takes: 0.0, is_on: false })
    }

    /// Glances as often as this many CPUs allow. Returns how many CPUs that takes, with what it costs the threads that
    /// are interrupted. To be called at least once a second.
    pub fn glance(&mut self, cpus: f64) -> f64 {
        let is_wanted = cpus > 0.0;
        if is_wanted != self.is_on {
            self.switch(is_wanted);
        } else if !is_wanted || self.since.elapsed() < STAY {
            return self.takes;
        }
        let each = (1.0 + SHADOW) * self.program_ns / 1e9;
        self.takes = f64::from(self.glances) * each / self.since.elapsed().as_secs_f64();
        (self.since, self.glances) = (Instant::now(), 0);
        if is_wanted {
            let chosen = chosen(Machine::this().online_cpus());
            self.memory.let_glance(&chosen, chosen.len() as f64 * each / cpus);
        }
        self.takes
    }

    /// Says whether the clocks of CPU samples run the program too.
    fn switch(&mut self, is_on: bool) {
        self.is_on = is_on;
        let (key, at_clock) = (0u32.to_ne_bytes(), &self.maps.at_clock);
        let (done, state) = match is_on {
            true => {
                let program = self.program.as_raw_fd().to_ne_bytes();
                (at_clock.update(&key, &program, MapFlags::ANY), ProbeState::Attached)
            }
            false => (at_clock.delete(&key), ProbeState::Detached),
        };
        *self.status.glances.lock() = Some(state);
        _ = done.inspect_err(|error| tracing::debug!("glances cannot be switched: {error}"));
    }

    /// Replaces what is in `into` by new glances.
    pub fn take(&mut self, into: &mut Glances) {
        into.words.clear();
        into.ends.clear();
        let mean_ns = &mut self.program_ns;
        for n in 0..CPUS {
            self.memory.take(n, into, |ns| *mean_ns += WEIGHT * (ns as f64 - *mean_ns));
        }
        self.glances += into.ends.len() as u32;
    }
}

impl Memory {
    fn new(glances: &impl AsFd) -> io::Result<Memory> {
        let length = CPUS * size_of::<types::glances>();
        let map = MmapOptions::new().len(length).map_raw(glances.as_fd().as_raw_fd())?;
        Ok(Memory { map, written: [0; CPUS] })
    }

    /// Lets these CPUs glance at interrupts, each once in so many seconds.
    fn let_glance(&self, cpus: &[i32], seconds: f64) {
        for n in 0..CPUS {
            let cpu = cpus.get(n).map_or(0, |cpu| *cpu as u64 + 1);
            self.place(n, offset_of!(types::glances, interval_ns)).store((seconds * 1e9) as u64, Ordering::Relaxed);
            self.place(n, offset_of!(types::glances, cpu)).store(cpu, Ordering::Release);
        }
    }

    /// Adds a CPU's glances before the last call and after the one before it: what was written since then may not be
    /// in memory yet. Passes on how long each took, in nanoseconds.
    fn take(&mut self, n: usize, into: &mut Glances, mut took: impl FnMut(u64)) {
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
            took(ns);
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
        let at = self.map.as_mut_ptr().wrapping_add(n * size_of::<types::glances>() + offset);
        // SAFETY: the offset is that of an aligned number in the mapped memory, which others write as a whole.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }
}

impl Drop for Glancer {
    fn drop(&mut self) {
        if self.is_on {
            self.switch(false);
        }
    }
}

/// Returns as many of these CPUs as may glance, chosen at random.
fn chosen(mut cpus: Vec<i32>) -> Vec<i32> {
    fastrand::shuffle(&mut cpus);
    cpus.truncate(CPUS);
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file instead of the programs' map.
    fn memory() -> Memory {
        let file = tempfile::tempfile().unwrap();
        file.set_len((CPUS * size_of::<types::glances>()) as u64).unwrap();
        Memory::new(&file).unwrap()
    }

    /// Writes a glance as the program does.
    fn write(memory: &Memory, n: usize, time: u64, words: &[u64]) {
        let written = memory.place(n, offset_of!(types::glances, written));
        let begin = written.load(Ordering::Relaxed);
        let numbers = [&[time, words.len() as u64, 5], words].concat();
        for (place, number) in (begin..).zip(&numbers) {
            let slot = offset_of!(types::glances, slots) + (place % SLOTS) as usize * 8;
            memory.place(n, slot).store(*number, Ordering::Relaxed);
        }
        written.store(begin + numbers.len() as u64, Ordering::Relaxed);
    }

    /// Returns the words of all glances, when each was and where it ends, and how long all took.
    fn take(memory: &mut Memory) -> (Vec<u64>, Vec<(u64, usize)>, u64) {
        let (mut glances, mut took) = (Glances::default(), 0);
        (0..CPUS).for_each(|n| memory.take(n, &mut glances, |ns| took += ns));
        (glances.words, glances.ends, took)
    }

    #[test]
    fn each_glance_is_read_once_and_a_call_later() {
        let mut memory = memory();
        write(&memory, 0, 1, &[7, 8]);
        write(&memory, 7, 2, &[]);
        assert!(take(&mut memory).1.is_empty());
        write(&memory, 0, 3, &[9]);
        assert_eq!(take(&mut memory), (vec![7, 8], vec![(1, 2), (2, 2)], 10));
        assert_eq!(take(&mut memory), (vec![9], vec![(3, 1)], 5));
        assert!(take(&mut memory).1.is_empty());
    }

    #[test]
    fn the_memory_is_used_again() {
        let mut memory = memory();
        let words: Vec<u64> = (0..1000).collect();
        for time in 0..200 {
            write(&memory, 1, time, &words);
            let (read, ends, _) = take(&mut memory);
            assert_eq!(ends.iter().map(|(time, _)| *time).collect::<Vec<_>>(), time.checked_sub(1).as_slice());
            assert!(time == 0 || read == words);
        }
    }

    #[test]
    fn some_of_many_cpus_glance() {
        let mut some = chosen((0..100).collect());
        some.sort_unstable();
        some.dedup();
        assert_eq!((some.len(), chosen(vec![3])), (CPUS, vec![3]));
        let memory = memory();
        memory.let_glance(&[4, 0], 0.025);
        let cpus = [0, 1, 2].map(|n| memory.number(n, offset_of!(types::glances, cpu)));
        assert_eq!(cpus, [5, 1, 0]);
        assert_eq!(memory.number(1, offset_of!(types::glances, interval_ns)), 25_000_000);
    }
}

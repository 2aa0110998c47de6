//! Measures what one probe hit costs on this machine, using this process.
//!
//! A uprobe costs one trap, or a trap and a single step where the kernel cannot emulate the probed instruction. The
//! cost differs by a factor of ten between machines. So the agent probes two functions of its own, calls them, and
//! subtracts the time of the same calls without a probe. Between calls it fills the CPU's caches with other data, as a
//! server does: hits in a tight loop cost half as much, and hits of the futex programs a fifth.

use std::arch::global_asm;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::ProgramMut;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use rustix::thread::futex;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

use super::clock::{attach_clock, open_own_clock};
use super::futex::{attach_futex, futex_wait_is_traceable, FutexPrograms};
use super::sites::{attach_one, attach_together, SiteAddress};
use super::Link;
use crate::bpf::calibrate::{CalibrateSkel, CalibrateSkelBuilder};
use crate::host::clock;

// `armtrace_emulated` begins with an instruction that the kernel emulates, `armtrace_stepped` with one that it
// single-steps.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl armtrace_emulated",
    ".type armtrace_emulated, @function",
    "armtrace_emulated: push rbp",
    "pop rbp",
    "ret",
    ".globl armtrace_stepped",
    ".type armtrace_stepped, @function",
    "armtrace_stepped: mov rax, rdi",
    "ret",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl armtrace_emulated",
    ".type armtrace_emulated, %function",
    "armtrace_emulated: b 1f",
    "1: ret",
    ".globl armtrace_stepped",
    ".type armtrace_stepped, %function",
    "armtrace_stepped: mov x0, x1",
    "ret",
);

extern "C" {
    fn armtrace_emulated();
    fn armtrace_stepped();
}

const OWN_PROGRAM: &str = "/proc/self/exe";

/// The number of calls that are timed one by one with cold caches; together they take a few milliseconds per class.
const COLD_CALLS: usize = 75;
/// The amount of memory that evicts a CPU's private caches.
const CACHES: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// The number of calls per timed batch, and the number of batches.
const CALLS: u32 = 300;
const BATCHES: usize = 5;

/// How often a noisy measurement is repeated. Without a cost the agent cannot report its overhead for as long as it
/// runs.
const ATTEMPTS: usize = 5;

/// The kinds of probe that differ in cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, EnumIter, Serialize, Deserialize)]
#[strum(serialize_all = "lowercase")]
pub enum ProbeClass {
    /// A uprobe on an instruction that the kernel emulates.
    #[strum(serialize = "uprobe_emulated")]
    Emulated,
    /// A uprobe on any other instruction.
    #[strum(serialize = "uprobe_stepped")]
    Stepped,
    /// A uretprobe on a function that begins with an emulated instruction, including the hit at entry.
    #[strum(serialize = "uretprobe")]
    Return,
    /// The beginning or the end of a futex wait.
    Futex,
    /// One of the kernel's tracepoints, at which a program runs without further ado.
    Tracepoint,
    /// An interrupt of the clock that samples a CPU.
    Clock,
}

impl ProbeClass {
    /// Returns the class in words, as users see it.
    pub fn title(self) -> &'static str {
        match self {
            ProbeClass::Emulated => "uprobe on an emulated instruction",
            ProbeClass::Stepped => "uprobe on a single-stepped instruction",
            ProbeClass::Return => "uretprobe, with its entry",
            ProbeClass::Futex => "futex wait, entry or exit",
            ProbeClass::Tracepoint => "raw tracepoint",
            ProbeClass::Clock => "clock interrupt that takes a sample",
        }
    }

    /// Returns the value of the `class` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The cost of a hit on this machine, in nanoseconds; `None` where it could not be measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    /// The cost of [`ProbeClass::Emulated`].
    pub emulated: Option<f64>,
    /// The cost of [`ProbeClass::Stepped`].
    pub stepped: Option<f64>,
    /// The cost of [`ProbeClass::Return`].
    pub uretprobe: Option<f64>,
    /// The cost of [`ProbeClass::Futex`].
    pub futex: Option<f64>,
    /// The cost of [`ProbeClass::Tracepoint`].
    pub tracepoint: Option<f64>,
    /// The cost of [`ProbeClass::Clock`].
    pub clock: Option<f64>,
}

/// What a hit costs, in nanoseconds, while that is not known: more than on physical machines and most virtual ones, so
/// that the budget holds nevertheless.
const ASSUMED_NS: f64 = 5_000.0;

/// Costs that differ by this factor have changed. Two measurements of the same cost differ by less.
const DRIFT: f64 = 1.5;

impl Costs {
    /// Returns what to charge for a hit of this class, in nanoseconds: its cost, or a high one where that is not known.
    pub fn charge(&self, class: ProbeClass) -> f64 {
        self.of(class).unwrap_or(ASSUMED_NS)
    }

    /// Returns the cost of a hit of this class, in nanoseconds; `None` if it could not be measured.
    pub fn of(&self, class: ProbeClass) -> Option<f64> {
        match class {
            ProbeClass::Emulated => self.emulated,
            ProbeClass::Stepped => self.stepped,
            ProbeClass::Return => self.uretprobe,
            ProbeClass::Futex => self.futex,
            ProbeClass::Tracepoint => self.tracepoint,
            ProbeClass::Clock => self.clock,
        }
    }

    /// Returns whether the costs of all classes that can be probed here were measured.
    pub fn are_known(&self) -> bool {
        [self.emulated, self.stepped, self.futex].iter().all(Option::is_some)
    }

    /// Returns whether others, measured later, are so different that these should not be used any longer.
    pub fn have_drifted(&self, later: &Costs) -> bool {
        let changed = |class| match (self.of(class), later.of(class)) {
            (Some(old), Some(new)) => new > DRIFT * old || old > DRIFT * new,
            (None, new) => new.is_some(),
            // It could not be measured this time.
            (Some(_), None) => false,
        };
        ProbeClass::iter().any(changed)
    }

    /// Returns each measured class with its nanoseconds per hit.
    pub fn by_class(&self) -> Vec<(&'static str, f64)> {
        ProbeClass::iter().filter_map(|class| Some((class.as_str(), self.of(class)?))).collect()
    }
}

/// The calibration programs, which stay loaded until this process ends.
///
/// A thread that falls asleep in `futex_wait` while a program is attached to its end returns through the kernel's
/// trampoline, however much later. By changing an instruction of the trampoline, the kernel makes it skip a program
/// that has been detached since. On one emulated arm64 machine, threads executed the old instruction: they ran a
/// program that was not there any more, and the kernel ended them. A program that is still loaded does no harm.
static PROGRAMS: Mutex<Option<CalibrateSkel<'static>>> = Mutex::new(None);

/// Loads the calibration programs if they are not loaded yet.
///
/// # Errors
/// Fails when they cannot be loaded.
pub(super) fn calibration_programs() -> Result<MappedMutexGuard<'static, CalibrateSkel<'static>>> {
    let mut programs = PROGRAMS.lock();
    if programs.is_none() {
        *programs = Some(load_calibration_programs()?);
    }
    Ok(MutexGuard::map(programs, |programs| programs.as_mut().expect("they are loaded")))
}

fn load_calibration_programs() -> Result<CalibrateSkel<'static>> {
    let storage = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = CalibrateSkelBuilder::default().open(storage).context("opening the calibration programs")?;
    let traceable = futex_wait_is_traceable();
    open.progs.empty_multi.set_autoload(uprobe_multi_works());
    open.progs.empty_wait_enter.set_autoload(traceable);
    open.progs.empty_wait_exit.set_autoload(traceable);
    open.load().context("loading the calibration programs")
}

/// Measures the cost of one hit of each class. This takes some tens of milliseconds, most of it for detaching.
///
/// # Errors
/// Fails when the calibration programs cannot be loaded at all. A class that cannot be attached is `None`.
pub fn calibrate() -> Result<Costs> {
    let skel = calibration_programs()?;
    let traceable = futex_wait_is_traceable();
    let has_multi = uprobe_multi_works();
    let progs = &skel.progs;
    let own = OwnPrograms { multi: has_multi.then_some(&progs.empty_multi), single: &progs.empty };
    let probed = |function: unsafe extern "C" fn(), retprobe: bool| {
        price(|| {
            let bare = nanoseconds_of_cold_call(|| call(function));
            let link = own.attach(function, retprobe).ok()?;
            let with = nanoseconds_of_cold_call(|| call(function));
            drop(link);
            Some(with - bare)
        })
    };
    Ok(Costs {
        emulated: probed(armtrace_emulated, false),
        stepped: probed(armtrace_stepped, false),
        uretprobe: probed(armtrace_emulated, true),
        futex: futex_cost(&FutexPrograms {
            function: traceable.then_some([&progs.empty_wait_enter, &progs.empty_wait_exit]),
            system_call: [&progs.empty_tracepoint, &progs.empty_tracepoint],
        }),
        tracepoint: tracepoint_cost(&progs.empty_raw_tracepoint),
        clock: clock_cost(&progs.empty_sample),
    })
}

/// Returns whether this kernel can attach one program to several sites at once, pass each site's cookie, and see hits
/// of all threads. The first kernels with such links saw only the thread whose id equals the process id.
pub fn uprobe_multi_works() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(try_uprobe_multi)
}

fn try_uprobe_multi() -> bool {
    let mut storage = MaybeUninit::uninit();
    let Ok(mut open) = CalibrateSkelBuilder::default().open(&mut storage) else { return false };
    open.progs.empty_wait_enter.set_autoload(false);
    open.progs.empty_wait_exit.set_autoload(false);
    let Ok(skel) = open.load() else { return false };
    let functions = [armtrace_emulated, armtrace_stepped];
    let sites = [own_site(functions[0], 0), own_site(functions[1], 1)].map(Option::unwrap_or_default);
    let Ok(link) = attach_together(&skel.progs.empty_multi, false, own_pid(), Path::new(OWN_PROGRAM), &sites) else {
        return false;
    };
    // Where the system starts no thread, this is not known, and the other kind of link works too.
    let caller = std::thread::Builder::new().spawn(move || functions.into_iter().for_each(call));
    let called = caller.is_ok_and(|thread| thread.join().is_ok());
    drop(link);
    called && skel.maps.bss_data.as_deref().is_some_and(|bss| bss.multi_hits == [1, 1])
}

fn call(function: unsafe extern "C" fn()) {
    // SAFETY: the two functions defined above take no arguments, change no callee-saved register, and return.
    unsafe { function() }
}

/// Returns the CPU time of this thread, so that time which other threads take on the same CPU does not count.
pub fn thread_time_ns() -> f64 {
    clock::now_ns(libc::CLOCK_THREAD_CPUTIME_ID) as f64
}

/// Returns the median time of a call with cold caches; single interruptions do not move a median.
fn nanoseconds_of_cold_call(mut call: impl FnMut()) -> f64 {
    let mut other = vec![0u8; CACHES];
    let mut times: Vec<u128> = (0..COLD_CALLS)
        .map(|_| {
            other.iter_mut().step_by(CACHE_LINE).for_each(|byte| *byte = byte.wrapping_add(1));
            std::hint::black_box(&mut other);
            let start = Instant::now();
            call();
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    times[COLD_CALLS / 2] as f64
}

/// Returns the time per call as the median over batches, which an interruption of one batch does not move.
fn nanoseconds_per_call(mut call: impl FnMut()) -> f64 {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = thread_time_ns();
            for _ in 0..CALLS {
                call();
            }
            (thread_time_ns() - start) / f64::from(CALLS)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}

/// The programs for functions of this process. They are attached in the way in which those for the server are: kernels
/// may want another privilege for the other way.
struct OwnPrograms<'a, 'obj> {
    /// The form for many sites, if the kernel supports it.
    multi: Option<&'a ProgramMut<'obj>>,
    /// The form for a single site.
    single: &'a ProgramMut<'obj>,
}

impl OwnPrograms<'_, '_> {
    fn attach(&self, function: unsafe extern "C" fn(), retprobe: bool) -> Result<Link> {
        let site = own_site(function, 0).context("finding this program's own file offset")?;
        let file = Path::new(OWN_PROGRAM);
        match self.multi {
            Some(program) => attach_together(program, retprobe, own_pid(), file, &[site]),
            None => attach_one(self.single, retprobe, own_pid(), file, &site),
        }
    }
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

/// Finds the offset of a function of this process in its program file.
fn own_site(function: unsafe extern "C" fn(), cookie: u64) -> Option<SiteAddress> {
    let addr = function as usize as u64;
    let maps = procfs::process::Process::myself().ok()?.maps().ok()?;
    let map = maps.iter().find(|m| (m.address.0..m.address.1).contains(&addr))?;
    Some(SiteAddress { file_offset: addr - map.address.0 + map.offset, cookie })
}

/// Measures half of what both programs add to a futex wait that returns at once.
fn futex_cost(programs: &FutexPrograms<'_, '_>) -> Option<f64> {
    let word = AtomicU32::new(0);
    // It does not sleep, because the word is not 1.
    let wait = || _ = futex::wait(&word, futex::Flags::PRIVATE, 1, None);
    price(|| {
        let bare = nanoseconds_of_cold_call(wait);
        let [Ok(_enter), Ok(_exit)] = attach_futex(programs).links else { return None };
        Some((nanoseconds_of_cold_call(wait) - bare) / 2.0)
    })
}

/// Measures the event that a thread gets a name, in which this thread keeps its own.
fn tracepoint_cost(program: &ProgramMut<'_>) -> Option<f64> {
    let name = rustix::thread::name().ok()?;
    let rename = || _ = rustix::thread::set_name(&name);
    price(|| {
        let bare = nanoseconds_of_cold_call(rename);
        let _link = program.attach_raw_tracepoint("task_rename").ok()?;
        Some(nanoseconds_of_cold_call(rename) - bare)
    })
}

/// Measures one interrupt of this thread by its own clock, program included: the difference between a fixed computation
/// with and without the clock.
fn clock_cost(program: &ProgramMut<'_>) -> Option<f64> {
    /// The shortest period at which the kernel does not throttle the clock, so that the difference is visible.
    const PERIOD_NS: u64 = 25_000;
    let work = || {
        let sum: u64 = (0..10_000u64).map(std::hint::black_box).sum();
        std::hint::black_box(sum);
    };
    price(|| {
        let bare = nanoseconds_per_call(work);
        let _link = attach_clock(program, open_own_clock(PERIOD_NS).ok()?).ok()?;
        let with = nanoseconds_per_call(work);
        // The thread's time consists of periods, and each period contains one interrupt.
        Some((with - bare) / with * PERIOD_NS as f64)
    })
}

/// Turns a difference of two timings, in nanoseconds, into a cost. Returns `None` where the difference cannot be
/// measured, or where the machine is too noisy to show one.
fn price(mut difference: impl FnMut() -> Option<f64>) -> Option<f64> {
    (0..ATTEMPTS).map_while(|_| difference()).find(|&nanoseconds| nanoseconds > 0.0)
}

//! What one hit of a probe costs on this machine, measured on this process.
//!
//! A uprobe costs a trap or, where the kernel cannot emulate the probed instruction, a trap and a single
//! step; how much differs by a factor of ten between machines. So the agent probes two functions of its own,
//! calls them, and takes the difference to calls that are not probed. Between two calls it fills the CPU's caches with something
//! else, as a server does: hits in a loop take half as long, and those of the futex programs a fifth.

use std::arch::global_asm;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, ProgramMut};

use super::clock::{attach_clock, open_own_clock};
use super::detach;
use super::futex::{attach_futex, futex_wait_is_traceable, FutexPrograms};
use super::sites::{attach_one, attach_together, SiteAddress};
use crate::bpf::calibrate::CalibrateSkelBuilder;
use crate::clock;

// One function that begins with an instruction the kernel emulates, and one that begins with one that it
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

/// Calls timed one by one, each with caches that hold other things: together some milliseconds per class.
const COLD_CALLS: usize = 75;
/// As large as the caches that a CPU has to itself.
const CACHES: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// Calls timed per batch, and batches.
const CALLS: u32 = 300;
const BATCHES: usize = 5;

/// How often a price is asked for: without one nothing can be said of the overhead for as long as the agent runs.
const ATTEMPTS: usize = 5;

/// The kinds of probe whose price differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeClass {
    /// A uprobe on an instruction that the kernel emulates.
    Emulated,
    /// A uprobe on any other instruction.
    Stepped,
    /// A uretprobe on a function that begins with an emulated instruction, entry included.
    Return,
    /// The begin or the end of a futex wait.
    Futex,
    /// An interrupt by the clock that samples a CPU.
    Clock,
}

impl ProbeClass {
    pub const ALL: [ProbeClass; 5] =
        [ProbeClass::Emulated, ProbeClass::Stepped, ProbeClass::Return, ProbeClass::Futex, ProbeClass::Clock];

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            ProbeClass::Emulated => "uprobe on an emulated instruction",
            ProbeClass::Stepped => "uprobe on a single-stepped instruction",
            ProbeClass::Return => "uretprobe, with its entry",
            ProbeClass::Futex => "futex wait, begin or end",
            ProbeClass::Clock => "clock interrupt that takes a sample",
        }
    }

    /// The value of the `class` label.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeClass::Emulated => "uprobe_emulated",
            ProbeClass::Stepped => "uprobe_stepped",
            ProbeClass::Return => "uretprobe",
            ProbeClass::Futex => "futex",
            ProbeClass::Clock => "clock",
        }
    }
}

/// Nanoseconds per hit on this machine; `None` where it could not be measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    pub emulated: Option<f64>,
    pub stepped: Option<f64>,
    pub uretprobe: Option<f64>,
    pub futex: Option<f64>,
    pub clock: Option<f64>,
}

impl Costs {
    pub fn of(&self, class: ProbeClass) -> Option<f64> {
        match class {
            ProbeClass::Emulated => self.emulated,
            ProbeClass::Stepped => self.stepped,
            ProbeClass::Return => self.uretprobe,
            ProbeClass::Futex => self.futex,
            ProbeClass::Clock => self.clock,
        }
    }

    /// Class and nanoseconds per hit, of those that could be measured.
    pub fn by_class(&self) -> Vec<(&'static str, f64)> {
        ProbeClass::ALL.iter().filter_map(|&class| Some((class.as_str(), self.of(class)?))).collect()
    }
}

/// Measures the cost of one hit for each class. Takes some tens of milliseconds, most of it detaching.
///
/// # Errors
/// When the measuring program cannot be loaded at all; a class that cannot be attached is `None`.
pub fn calibrate() -> Result<Costs> {
    let mut storage = MaybeUninit::uninit();
    let mut open = CalibrateSkelBuilder::default().open(&mut storage).context("opening the calibration programs")?;
    let traceable = futex_wait_is_traceable();
    open.progs.empty_multi.set_autoload(false);
    open.progs.empty_wait_enter.set_autoload(traceable);
    open.progs.empty_wait_exit.set_autoload(traceable);
    let skel = open.load().context("loading the calibration programs")?;
    let progs = &skel.progs;
    let probed = |function: unsafe extern "C" fn(), retprobe: bool| {
        price(|| {
            let bare = nanoseconds_of_cold_call(|| call(function));
            let link = attach_to_self(&progs.empty, function, retprobe).ok()?;
            let with = nanoseconds_of_cold_call(|| call(function));
            detach(link);
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
        clock: clock_cost(&progs.empty_sample),
    })
}

/// Whether this kernel attaches one program to several places at once, tells them apart, and sees hits of all the
/// process's threads: the first kernels with such links saw only the thread that the process id names.
pub fn uprobe_multi_works() -> bool {
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
    let called = std::thread::spawn(move || functions.into_iter().for_each(call)).join().is_ok();
    detach(link);
    called && skel.maps.bss_data.as_deref().is_some_and(|bss| bss.multi_hits == [1, 1])
}

fn call(function: unsafe extern "C" fn()) {
    // SAFETY: the two functions defined above take nothing, change no callee-saved register and return.
    unsafe { function() }
}

/// CPU time of this thread: what other threads take of the CPU meanwhile is not in it.
pub fn thread_time_ns() -> f64 {
    clock::now_ns(libc::CLOCK_THREAD_CPUTIME_ID) as f64
}

/// The median, which interruptions do not move.
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

/// The median over batches, which an interruption of one of them does not move.
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

fn attach_to_self(program: &ProgramMut<'_>, function: unsafe extern "C" fn(), retprobe: bool) -> Result<Link> {
    let site = own_site(function, 0).context("finding this program's own file offset")?;
    attach_one(program, retprobe, own_pid(), Path::new(OWN_PROGRAM), &site)
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

/// Where a function of this process lies in its program file.
fn own_site(function: unsafe extern "C" fn(), cookie: u64) -> Option<SiteAddress> {
    let addr = function as usize as u64;
    let maps = procfs::process::Process::myself().ok()?.maps().ok()?;
    let map = maps.iter().find(|m| (m.address.0..m.address.1).contains(&addr))?;
    Some(SiteAddress { file_offset: addr - map.address.0 + map.offset, cookie })
}

/// Half of what both programs add to a futex wait that ends at once.
fn futex_cost(programs: &FutexPrograms<'_, '_>) -> Option<f64> {
    let word = 0u32;
    let wait = || {
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let no_limit = std::ptr::null::<libc::timespec>();
        // SAFETY: `word` is valid for the call, which does not sleep because the word is not 1.
        unsafe { libc::syscall(libc::SYS_futex, &word, operation, 1, no_limit) };
    };
    price(|| {
        let bare = nanoseconds_of_cold_call(wait);
        let [Ok(_enter), Ok(_exit)] = attach_futex(programs).links else { return None };
        Some((nanoseconds_of_cold_call(wait) - bare) / 2.0)
    })
}

/// What an interrupt of this thread by its own clock takes, with the program: what stays of a span of computing less the
/// same without.
fn clock_cost(program: &ProgramMut<'_>) -> Option<f64> {
    /// As often as the kernel takes without slowing a clock down, so that the difference shows.
    const PERIOD_NS: u64 = 25_000;
    let work = || {
        let sum: u64 = (0..10_000u64).map(std::hint::black_box).sum();
        std::hint::black_box(sum);
    };
    price(|| {
        let bare = nanoseconds_per_call(work);
        let _link = attach_clock(program, open_own_clock(PERIOD_NS).ok()?).ok()?;
        let with = nanoseconds_per_call(work);
        // All of the thread's time is divided among interrupts, one in each period of it.
        Some((with - bare) / with * PERIOD_NS as f64)
    })
}

/// A difference of two timings in nanoseconds, as a price; none where it cannot be taken, and on a machine that is too noisy to
/// show one.
fn price(mut difference: impl FnMut() -> Option<f64>) -> Option<f64> {
    (0..ATTEMPTS).map_while(|_| difference()).find(|&nanoseconds| nanoseconds > 0.0)
}

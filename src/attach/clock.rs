//! A per-CPU clock that interrupts whatever runs there.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{libbpf_sys, ProgramMut};

use super::perf::{event, open_event, Scope};
use super::Link;
use crate::bpf::glance::GlanceSkelBuilder;

/// Opens an event that, once enabled, fires on `cpu` every `period_ns` nanoseconds of that CPU's time.
///
/// The event uses the kernel's high-resolution timer rather than a hardware counter. A sample therefore stands for a
/// span of time at any CPU frequency, and sampling works in virtual machines. Code that runs with interrupts disabled
/// is sampled at the point where it enables them again. The event fires also while the CPU has nothing to do.
///
/// # Errors
/// Fails when the kernel refuses: missing privilege, or no such CPU.
pub fn open_clock(cpu: i32, period_ns: u64) -> io::Result<OwnedFd> {
    open(Scope::Cpu(cpu), period_ns)
}

/// Returns whether a program that a clock runs may walk over the threads of a process (Linux 6.12).
pub fn clock_sees_threads() -> bool {
    let mut storage = MaybeUninit::uninit();
    let Ok(open) = GlanceSkelBuilder::default().open(&mut storage) else { return false };
    let loaded = open.load();
    loaded.is_ok()
}

/// Opens the same kind of event for the calling thread, on whatever CPU it runs.
///
/// # Errors
/// Fails when the kernel refuses.
pub fn open_own_clock(period_ns: u64) -> io::Result<OwnedFd> {
    open(Scope::OwnThread, period_ns)
}

fn open(scope: Scope, period_ns: u64) -> io::Result<OwnedFd> {
    let mut clock = event(libbpf_sys::PERF_TYPE_SOFTWARE, u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK));
    clock.__bindgen_anon_1.sample_period = period_ns;
    clock.set_disabled(1);
    open_event(&clock, scope)
}

/// Runs a program each time an event fires.
///
/// # Errors
/// Fails when the kernel refuses.
pub fn attach_clock(program: &ProgramMut<'_>, event: OwnedFd) -> libbpf_rs::Result<Link> {
    let link = program.attach_perf_event(event.as_raw_fd())?;
    // The link closes the event.
    std::mem::forget(event);
    Ok(link.into())
}

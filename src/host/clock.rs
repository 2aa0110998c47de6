//! Reads the kernel's clocks.

use rustix::time::{clock_gettime, ClockId};

/// Returns the time of a clock of `clock_gettime(2)`, in nanoseconds.
///
/// # Panics
/// Panics if the kernel has no such clock. Pass only clocks that every Linux has.
pub fn now_ns(id: libc::clockid_t) -> u64 {
    let now = clock_gettime(ClockId::try_from(id).expect("a clock that every Linux has"));
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the CPU time, user and system, of this process's children that have ended and were waited for, in seconds.
pub fn children_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::zeroed();
    // SAFETY: writes to `usage`. If the call fails it stays zeroed, which is a valid value.
    let usage: libc::rusage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6).sum()
}

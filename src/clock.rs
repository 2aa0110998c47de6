//! The kernel's clocks.

/// What a clock of `clock_gettime(2)` says, nanoseconds.
///
/// # Panics
/// When the kernel has no such clock: `id` is one that every Linux has.
pub fn now_ns(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `now`, which lives as long as the call.
    let result = unsafe { libc::clock_gettime(id, &mut now) };
    assert_eq!(result, 0, "no clock {id}");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time, user and system, of this process's children that have ended and were waited for, seconds.
pub fn children_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::zeroed();
    // SAFETY: writes to `usage`, of which zeroes are a valid value should the call fail.
    let usage: libc::rusage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6).sum()
}

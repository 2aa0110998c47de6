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

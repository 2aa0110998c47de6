//! Keeps the agent's own memory small.

/// Makes all threads allocate from one arena, so that they reuse each other's freed memory. By default glibc gives each
/// thread an arena of its own, which only helps programs that allocate all the time. Large allocations go back to the
/// system when they are freed; by default glibc raises that threshold with each larger one that it sees freed.
///
/// Call this before any thread is started.
pub fn share() {
    // SAFETY: takes only numbers, and no other thread allocates yet.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Returns freed memory that the allocator still holds to the system. Call this after large, rare work.
pub fn give_back() {
    // SAFETY: takes only a number, and leaves memory in use alone.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

//! The agent's own memory.

/// Gives what the allocator keeps of freed memory back to the system. For after something large and rare: glibc would keep
/// most of it in the arena of the thread that did it.
pub fn give_back() {
    // SAFETY: takes a number, and changes no memory that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

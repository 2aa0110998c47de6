//! The agent's own memory.

/// To be called before there are threads: they all get their memory from one place, so that what one freed serves the next.
/// glibc would give each a place of its own, which only programs need that allocate all the time. And large pieces go back to
/// the system when they are freed: glibc would keep ever larger ones, once it has seen them freed.
pub fn share() {
    // SAFETY: takes numbers, and there is no other thread that allocates.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Gives what the allocator keeps of freed memory back to the system. For after something large and rare.
pub fn give_back() {
    // SAFETY: takes a number, and changes no memory that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

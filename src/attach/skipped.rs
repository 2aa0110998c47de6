//! How often the kernel has skipped programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{libbpf_sys, Program};

/// Programs that the kernel skips while one is running on the same CPU already: for example, one that an interrupt
/// would start meanwhile. It counts this by itself.
pub struct Skipped(Vec<OwnedFd>);

impl Skipped {
    /// Watches these programs, which must be loaded.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn of<'a>(programs: impl Iterator<Item = Program<'a>>) -> io::Result<Skipped> {
        programs.map(|program| program.as_fd().try_clone_to_owned()).collect::<io::Result<_>>().map(Skipped)
    }

    /// Returns how often a program was not run. Kernels before 5.12 do not count that, and yield zero.
    ///
    /// # Errors
    /// Fails if the kernel does not describe a program.
    pub fn runs(&self) -> io::Result<u64> {
        self.0.iter().map(skipped).sum()
    }
}

fn skipped(program: &OwnedFd) -> io::Result<u64> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes; the structure asks for no arrays, because all their lengths are
    // zero.
    let result = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if result == 0 {
        Ok(info.recursion_misses)
    } else {
        Err(io::Error::from_raw_os_error(-result))
    }
}

//! The contents of a file in memory that the kernel can reclaim.
//!
//! Reading a mapped file beyond its end raises SIGBUS, so whoever can truncate a file can kill the processes that map
//! it. Files are therefore copied. Only a running program is mapped itself: it cannot be written to (ETXTBSY), so a
//! copy would cost time and space for nothing. But that ends with the process, does not hold on Linux 6.11 and 6.12,
//! and says nothing of a file system whose owner answers as he likes. Pages of such a mapping that are gone read as
//! zeros.

use std::fs::File;
use std::io::{self, Seek};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;

use memmap2::Mmap;
use parking_lot::Mutex;

/// The most running programs that are mapped at a time; further ones are copied.
const MOST_GUARDED: usize = 64;

/// A file's contents.
pub(super) struct Mapped {
    /// Dropped before the mapping is.
    guard: Option<Guard>,
    map: Mmap,
}

impl Mapped {
    /// Copies a file that has at most this many bytes. The copy has no name.
    pub(super) fn copy(mut file: &File, most: u64) -> io::Result<Mapped> {
        let mut copy = tempfile::tempfile()?;
        // A sparse file takes no longer to refuse than any other, and a file that grows meanwhile is cut off.
        if file.metadata()?.len() > most {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large for a copy"));
        }
        file.rewind()?;
        io::copy(&mut io::Read::take(file, most), &mut copy)?;
        // SAFETY: nothing else has access to the copy, which has no name.
        let map = unsafe { Mmap::map(&copy) }?;
        Ok(Mapped { guard: None, map })
    }

    /// Maps the file of a running program, or copies it if it has at most this many bytes and too many are mapped.
    pub(super) fn running(file: &File, most: u64) -> io::Result<Mapped> {
        // SAFETY: the mapping is private and read-only. While the program runs nobody can write to its file; if the
        // file is truncated later, the guard keeps the mapping readable.
        let map = unsafe { Mmap::map(file) }?;
        match Guard::of(&map) {
            Some(guard) => Ok(Mapped { guard: Some(guard), map }),
            None => Mapped::copy(file, most),
        }
    }

    /// Returns whether some of the file could not be read, and was taken for zeros.
    pub(super) fn is_cut(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.0.is_cut.load(Ordering::Relaxed))
    }

    /// Releases the memory of what was read so far; it is read again on demand.
    pub(super) fn release_memory(&self) {
        // SAFETY: the mapping is never written to, so its pages can be dropped and read again at any time.
        _ = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// A mapping that stays readable. The handler of the signal reads this while any thread may change it.
struct Guarded {
    /// The first address; 0 while the place is free.
    begin: AtomicUsize,
    /// The address after the last one.
    end: AtomicUsize,
    is_cut: AtomicBool,
}

static GUARDED: [Guarded; MOST_GUARDED] =
    [const { Guarded { begin: AtomicUsize::new(0), end: AtomicUsize::new(0), is_cut: AtomicBool::new(false) } };
        MOST_GUARDED];

/// Held while a place is taken.
static TAKING: Mutex<()> = Mutex::new(());

/// The handler before ours, and the size of a page. Set before any mapping is guarded.
static BEFORE: OnceLock<(libc::sigaction, usize)> = OnceLock::new();

/// Keeps a mapping readable until it is dropped.
struct Guard(&'static Guarded);

impl Guard {
    /// Guards a mapping, if there is a place for it and signals can be handled.
    fn of(map: &Mmap) -> Option<Guard> {
        let _taking = TAKING.lock();
        if BEFORE.get().is_none() {
            handle_signals()?;
        }
        let free = GUARDED.iter().find(|place| place.begin.load(Ordering::Relaxed) == 0)?;
        let begin = map.as_ptr() as usize;
        free.is_cut.store(false, Ordering::Relaxed);
        free.end.store(begin + map.len(), Ordering::Relaxed);
        free.begin.store(begin, Ordering::Release);
        Some(Guard(free))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.begin.store(0, Ordering::Release);
    }
}

/// Begins to handle SIGBUS.
fn handle_signals() -> Option<()> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the kernel fills in all of `before` if it succeeds. `patch` is what it expects, and stays within what a
    // handler may do.
    unsafe {
        // Its stack may be the one that Rust gives its threads for such handlers.
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = patch as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).ok()?;
        if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
            return None;
        }
        BEFORE.set((before.assume_init(), page)).ok()?;
        (libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) == 0).then_some(())
    }
}

/// Handles SIGBUS: puts a page of zeros where a page of a guarded mapping is gone, so that reading it again succeeds.
/// Any other cause is left to the handler before, which is called when the instruction is executed again.
extern "C" fn patch(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let Some((before, page)) = BEFORE.get() else { return };
    // SAFETY: the kernel passes a valid `info`, which has an address for this signal. The new page replaces one of a
    // mapping that is guarded, so it exists, and that nobody can read anyway. The calls are plain system calls.
    unsafe {
        let errno = *libc::__errno_location();
        if !put_zeros((*info).si_addr() as usize, *page) {
            libc::sigaction(libc::SIGBUS, before, ptr::null_mut());
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts zeros into the page that contains this address. Returns false if it is not part of a guarded mapping.
///
/// # Safety
/// The page must be one that cannot be read.
unsafe fn put_zeros(address: usize, page: usize) -> bool {
    let contains = |place: &&Guarded| {
        let begin = place.begin.load(Ordering::Acquire);
        begin != 0 && (begin..place.end.load(Ordering::Relaxed)).contains(&address)
    };
    let Some(place) = GUARDED.iter().find(contains) else { return false };
    place.is_cut.store(true, Ordering::Relaxed);
    let at = (address & !(page - 1)) as *mut libc::c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    libc::mmap(at, page, libc::PROT_READ, flags, -1, 0) == at
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const SIZE: usize = 1 << 20;

    fn ones() -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![1; SIZE]).expect("space for it");
        file
    }

    fn sum(data: &[u8]) -> usize {
        data.iter().map(|&byte| usize::from(byte)).sum()
    }

    #[test]
    fn a_copy_stays_as_it_was() {
        let file = ones();
        let copy = Mapped::copy(&file, u64::MAX).expect("a copy");
        file.set_len(0).expect("an empty file");
        assert_eq!((sum(&copy), copy.is_cut()), (SIZE, false));
        assert!(Mapped::copy(&ones(), SIZE as u64 - 1).is_err());
    }

    #[test]
    fn what_is_cut_off_a_mapped_file_reads_as_zeros() {
        let file = ones();
        let mapped = Mapped::running(&file, u64::MAX).expect("a mapping");
        assert_eq!((sum(&mapped), mapped.is_cut()), (SIZE, false));
        file.set_len(SIZE as u64 / 2).expect("half a file");
        assert_eq!((sum(&mapped), mapped.is_cut()), (SIZE / 2, true));
        mapped.release_memory();
        assert_eq!(sum(&mapped), SIZE / 2);
    }

    #[test]
    fn what_cannot_be_guarded_is_copied() {
        let file = ones();
        let all: Vec<_> = (0..=MOST_GUARDED).map(|_| Mapped::running(&file, u64::MAX).expect("contents")).collect();
        file.set_len(0).expect("an empty file");
        assert_eq!(sum(all.last().expect("one")), SIZE);
        assert_eq!(sum(&all[0]), 0);
    }

    /// What else raises the signal ends the process, as without guards.
    #[test]
    fn other_errors_are_not_hidden() {
        if std::env::var_os("ARMTRACE_TEST_SIGBUS").is_some() {
            let (_guarded, file) = (Mapped::running(&ones(), u64::MAX).expect("a mapping"), ones());
            // SAFETY: it is not: this is what the test is about.
            let other = unsafe { Mmap::map(&file) }.expect("a mapping");
            file.set_len(0).expect("an empty file");
            std::process::exit(sum(&other).min(1) as i32);
        }
        let mut this = Command::new(std::env::current_exe().expect("this test"));
        let name = "symbols::mapped::tests::other_errors_are_not_hidden";
        let ended = this.args(["--exact", name]).env("ARMTRACE_TEST_SIGBUS", "1").output().expect("a process");
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}

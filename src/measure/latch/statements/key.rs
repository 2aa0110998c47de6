//! Finds where the C library keeps a thread's variables by their keys.
//!
//! glibc has them in the structure that describes a thread: 32 pairs of a sequence number and the variable, for the
//! first 32 keys, and behind them the pointer to these pairs. So a word with the address of what lies 512 bytes before it
//! shows where they are. Neither the structure's length nor the place in it is the same in all versions.

use std::ops::Range;

use crate::analysis::ThreadOffset;
use crate::measure::thread_pointers::ThreadPointers;
use crate::server::{listens, Memory, Target};
use crate::symbols::Arch;

/// The number of keys whose variables are in the thread's own structure, and the bytes that each takes.
const KEYS: u32 = 32;
const PAIR: i64 = 16;

/// The variable's offset in its pair.
const VARIABLE: i64 = 8;

/// No thread's structure is longer, in bytes.
const LONGEST: i64 = 4096;

/// The most threads that are looked at, and the most that have to show the same.
const LOOKED_AT: usize = 64;
const THREADS: usize = 4;

/// Returns the same place as a distance from the thread pointer if it is that of a key's variable. `None` if that is not
/// found in the running server.
pub(super) fn resolved(target: &Target, at: ThreadOffset) -> Option<ThreadOffset> {
    let ThreadOffset::OfKey(key) = at else { return Some(at) };
    let memory = Memory::new(target.pid);
    // Zero is the first key. While the server starts, it is also what there is before it has made its key.
    let is_made = |key: &u32| (1..KEYS).contains(key) || *key == 0 && listens(target.pid);
    let key = memory.u32(key.wrapping_add(target.bias)).filter(is_made)?;
    let threads = ThreadPointers::new(target.pid).ok()?.list()?;
    // A thread that ends meanwhile shows nothing.
    let pairs = |pointer| pairs(&memory, target.image.arch(), pointer);
    let looked_at = threads.iter().take(LOOKED_AT);
    let mut shown = looked_at.filter_map(|thread| pairs(thread.pointer)).take(THREADS);
    let first = shown.next()?;
    shown.all(|pairs| pairs == first).then_some(ThreadOffset::Fixed(first + PAIR * i64::from(key) + VARIABLE))
}

/// Returns the distance from the thread pointer of the pairs of a thread; `None` if nothing shows it, or too much does.
fn pairs(memory: &Memory, arch: Arch, pointer: u64) -> Option<i64> {
    let distances: Vec<i64> = structure(arch).step_by(8).collect();
    let at: Vec<u64> = distances.iter().map(|distance| pointer.wrapping_add_signed(*distance)).collect();
    let words = memory.read_many::<8>(&at).into_iter().map(|word| word.map(u64::from_le_bytes));
    let before = i64::from(KEYS) * PAIR;
    let points_back = |at: u64, word: Option<u64>| word == Some(at.wrapping_add_signed(-before));
    let found = distances.iter().zip(&at).zip(words).filter(|((_, at), word)| points_back(**at, *word));
    let mut found = found.map(|((distance, _), _)| distance - before);
    found.next().filter(|_| found.next().is_none())
}

/// Returns where the structure is that describes a thread, as distances from the thread pointer.
fn structure(arch: Arch) -> Range<i64> {
    match arch {
        Arch::X86_64 => 0..LONGEST,
        Arch::Aarch64 => -LONGEST..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library of this test is one.
    #[test]
    fn the_pairs_of_this_thread_are_found() {
        let mut key = 0;
        // SAFETY: the key is written, and used as it was made.
        let (made, value) = unsafe {
            let made = libc::pthread_key_create(&mut key, None);
            libc::pthread_setspecific(key, 0x5a5a_5a5a as *const libc::c_void);
            (made, 0x5a5a_5a5a)
        };
        assert!(made == 0 && key < KEYS, "{key}");
        let memory = Memory::new(std::process::id() as i32);
        let pointer = pointer();
        let pairs = pairs(&memory, Arch::HOST, pointer).expect("glibc");
        let at = pointer.wrapping_add_signed(pairs + PAIR * i64::from(key) + VARIABLE);
        assert_eq!(memory.u64(at), Some(value));
    }

    #[cfg(target_arch = "x86_64")]
    fn pointer() -> u64 {
        let pointer;
        // SAFETY: reads the first word of the thread's structure, which is its address.
        unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly)) };
        pointer
    }

    #[cfg(target_arch = "aarch64")]
    fn pointer() -> u64 {
        let pointer;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem)) };
        pointer
    }
}

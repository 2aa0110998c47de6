//! Finds where the C library keeps a thread's variables by their keys.
//!
//! glibc has them in the structure that describes a thread: 32 pairs of a sequence number and the variable, for the
//! first 32 keys, and behind them the pointer to these pairs. So a word with the address of what lies 512 bytes before
//! it shows where they are. Neither the structure's length nor the place in it is the same in all versions.

use std::ops::Range;

use super::NotRead;
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

/// Returns the distance of a thread's variable from the thread pointer in a running server.
///
/// # Errors
/// Fails if the server does not show the distance, or the kernel its threads.
pub(super) fn distance(target: &Target, at: ThreadOffset) -> Result<i64, NotRead> {
    let memory = Memory::new(target.pid);
    let key = match at {
        ThreadOffset::Fixed(distance) => return Ok(distance),
        ThreadOffset::InSlot(slot) => {
            let distance = memory.u64(slot.wrapping_add(target.bias)).ok_or(NotRead::NoMemory)?;
            return Ok(distance as i64);
        }
        ThreadOffset::OfKey(key) => memory.u32(key.wrapping_add(target.bias)).ok_or(NotRead::NoMemory)?,
    };
    // Zero is the first key. While the server starts, it is also what there is before it has made its key.
    if key == 0 && !listens(target.pid) {
        return Err(NotRead::NoKey);
    }
    let threads = ThreadPointers::new(target.pid).and_then(|threads| threads.list()).map_err(|why| {
        tracing::debug!("threads cannot be listed: {why:#}");
        NotRead::NoThreads
    })?;
    let pointers = threads.iter().map(|thread| thread.pointer);
    of_key(&memory, target.image.arch(), key, pointers).ok_or(NotRead::NoKey)
}

/// Returns the distance of a key's variable from the thread pointer, as some of these threads show it. `None` if none
/// does, or if they contradict each other.
fn of_key(memory: &Memory, arch: Arch, key: u32, pointers: impl Iterator<Item = u64>) -> Option<i64> {
    // A thread that ends meanwhile shows nothing.
    let mut shown = pointers.take(LOOKED_AT).filter_map(|pointer| pairs(memory, arch, pointer)).take(THREADS);
    let first = shown.next().filter(|_| key < KEYS)?;
    shown.all(|pairs| pairs == first).then_some(first + PAIR * i64::from(key) + VARIABLE)
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

    const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    fn own() -> Memory {
        Memory::new(std::process::id() as i32)
    }

    /// This test's C library is such a one.
    #[test]
    fn a_variable_of_this_thread_is_found() {
        const VALUE: u64 = 0x5a5a_5a5a;
        let mut key = 0;
        // SAFETY: the key is written, and used as it was made.
        let made = unsafe {
            let made = libc::pthread_key_create(&mut key, None);
            libc::pthread_setspecific(key, VALUE as *const libc::c_void);
            made
        };
        assert_eq!(made, 0);
        let pointer = pointer();
        // A thread that has ended, and this one
        let distance = of_key(&own(), Arch::HOST, key, [16, pointer, pointer].into_iter()).expect("glibc");
        assert_eq!(own().u64(pointer.wrapping_add_signed(distance)), Some(VALUE));
    }

    /// Returns threads whose structures have their pairs at these words of 1,536, with pointers to them.
    fn threads<const N: usize>(arch: Arch, at: [&[usize]; N]) -> ([Vec<u64>; N], [u64; N]) {
        let structures = at.map(|at| {
            let mut words = vec![0; 1536];
            for word in at {
                words[word + 64] = words[*word..].as_ptr() as u64;
            }
            words
        });
        let from = match arch {
            Arch::X86_64 => 256,
            Arch::Aarch64 => 1024,
        };
        let pointers = structures.each_ref().map(|words| words[from..].as_ptr() as u64);
        (structures, pointers)
    }

    #[test]
    fn threads_have_to_show_the_same() {
        for arch in ARCHES {
            let of = |key, at: [&[usize]; 2]| {
                let (_structures, pointers) = threads(arch, at);
                of_key(&own(), arch, key, pointers.into_iter())
            };
            let begin = of(0, [&[600], &[600]]).expect("a distance");
            assert_eq!(of(31, [&[600], &[600]]), Some(begin + 31 * 16), "{arch:?}");
            assert_eq!(of(0, [&[], &[600]]), Some(begin), "one shows nothing");
            assert_eq!(of(0, [&[600], &[602]]), None);
            assert_eq!(of(0, [&[600, 700], &[]]), None, "two places");
            assert_eq!(of(32, [&[600], &[600]]), None, "a key of the second level");
            assert_eq!(of(0, [&[], &[]]), None);
        }
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

//! Reads from the server's memory which threads hold latches, of those that keep their owner.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use crate::bpf::latch::types;
use crate::catalog::Naming;
use crate::discovery::{rw_lock_owner, RwLockOwner};
use crate::measure::latch::keys::PTHREAD;
use crate::measure::latch::pthread;
use crate::server::{Memory, Target};
use crate::symbols::Arch;

/// How much of a latch is read, in bytes: up to the last member of any that is used.
const WINDOW: usize = 48;

/// The offset of the owner's thread ID in glibc's `pthread_mutex_t`, on both architectures. Like the next one, it is
/// part of the ABI: programs contain initialised locks.
const MUTEX_OWNER: usize = 8;

/// The offsets in glibc's `pthread_rwlock_t`, on both architectures, of the words on which threads sleep (which lie
/// side by side) and of the writer's thread ID.
const RWLOCK_WORDS: u64 = 8;
const RWLOCK_WRITER: usize = 24;

/// `__readers` of `pthread_rwlock_t`: the bit that says that a writer has it, and where the number of readers begins.
/// The lowest bit says whose turn it is, and stays after a writer has left.
const WRITE_LOCKED: i32 = 2;
const READERS_SHIFT: u32 = 3;

/// In glibc before 2.25: the offsets of the numbers of threads that wait to read and to write, which is padding in
/// newer versions, and of the number of readers. The words above and the writer are where they are now.
const OLD_RWLOCK_WAITING: [usize; 2] = [16, 20];
const OLD_RWLOCK_READERS: usize = 4;

/// Where a member with a thread may be in MariaDB's latches, which begin with a lock word: each has one at most.
const AFTER_WORDS: [usize; 4] = [8, 16, 24, 32];

/// `lock_word` of InnoDB's rw-locks: the highest value while a writer or a thread in the mode between has the lock, and
/// how many readers may share it with the latter. In versions without that mode, free locks have less than that.
const HALF: i32 = 0x1000_0000;
const MOST_READERS: i32 = 0x1_0000;

/// Where a thread's descriptor on x86-64 points to itself, which is part of the ABI: `%fs:0x10`.
const SELF: u64 = 0x10;

/// The most descriptors of threads that are remembered.
const MOST_KNOWN: usize = 16_384;

/// A latch that threads wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub key: types::latch_key,
    /// Its address, or that of the word on which threads sleep for it.
    pub address: u64,
}

/// How a latch keeps its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Mutex,
    Rwlock,
    RwLock(RwLockOwner),
    /// Somewhere after its lock words, if at all.
    AfterWords,
}

/// Who holds a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The thread with this ID.
    Thread(u32),
    /// Nobody: whoever waits for it has not got it yet.
    Nobody,
}

/// A thread that may be an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// By its ID.
    Id(u32),
    /// By its descriptor, a `pthread_t`.
    Descriptor(u64),
}

/// Reads the owners of one server's latches.
pub(super) struct Owners {
    memory: Memory,
    arch: Arch,
    rw_lock: Option<RwLockOwner>,
    has_words: bool,
    /// Where a thread's descriptor has its ID.
    id_offset: Option<u64>,
    /// The IDs in descriptors that were read; `None` if it is no thread's.
    threads: HashMap<u64, Option<u32>>,
    // Memory that is used again in each look.
    bases: Vec<u64>,
    copies: Vec<u8>,
}

impl Owners {
    pub fn new(target: &Arc<Target>) -> Owners {
        Owners {
            memory: Memory::new(target.pid),
            arch: target.image.arch(),
            rw_lock: rw_lock_owner(&target.image),
            has_words: matches!(target.family.naming, Naming::Mariadb(_)),
            id_offset: pthread::thread_id_offset_in(target.pid).map(u64::from),
            threads: HashMap::new(),
            bases: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// Returns whether latches of this kind keep their owner.
    pub fn keeps(&self, key: &types::latch_key) -> bool {
        self.how(key).is_some()
    }

    /// Finds who holds each latch; `None` if that is not known. `is_thread` says whether an ID is that of a thread of
    /// the server: any other value is no owner.
    pub fn find(&mut self, wanted: &[Wanted], is_thread: impl Fn(u32) -> bool) -> Vec<Option<Holder>> {
        let how: Vec<Option<Keeps>> = wanted.iter().map(|latch| self.how(&latch.key)).collect();
        let (mut bases, mut copies) = (std::mem::take(&mut self.bases), std::mem::take(&mut self.copies));
        bases.clear();
        bases.extend(wanted.iter().zip(&how).map(|(latch, how)| base(latch.address, *how)));
        let is_copied = self.memory.read_pieces(&bases, WINDOW, &mut copies);
        let all = how.into_iter().zip(copies.chunks_exact(WINDOW)).zip(is_copied);
        let found = all.map(|((how, bytes), is_copied)| self.holder(how.filter(|_| is_copied)?, bytes, &is_thread));
        let found = found.collect();
        (self.bases, self.copies) = (bases, copies);
        found
    }

    fn how(&self, key: &types::latch_key) -> Option<Keeps> {
        if key.function == PTHREAD {
            return match types::primitive(key.primitive.into()) {
                types::primitive::PRIMITIVE_MUTEX => Some(Keeps::Mutex),
                types::primitive::PRIMITIVE_RWLOCK_READ | types::primitive::PRIMITIVE_RWLOCK_WRITE => {
                    Some(Keeps::Rwlock)
                }
                _ => None,
            };
        }
        let has_mode = u32::from(key.mode) != types::mode::MODE_NONE.0;
        match types::identity(key.identity.into()) {
            types::identity::IDENTITY_CREATED if has_mode => self.rw_lock.map(Keeps::RwLock),
            _ if self.has_words => Some(Keeps::AfterWords),
            _ => None,
        }
    }

    /// Returns who holds a latch with these bytes.
    fn holder(&mut self, how: Keeps, bytes: &[u8], is_thread: impl Fn(u32) -> bool) -> Option<Holder> {
        if is_free(how, bytes) {
            return Some(Holder::Nobody);
        }
        let named: Vec<u32> = named(how, bytes).filter_map(|thread| self.id(thread, &is_thread)).collect();
        match named[..] {
            [one] => Some(Holder::Thread(one)),
            // A latch has one owner: this is something else.
            _ => None,
        }
    }

    /// Returns the ID of a thread of the server.
    fn id(&mut self, thread: Named, is_thread: impl Fn(u32) -> bool) -> Option<u32> {
        match thread {
            Named::Id(id) => Some(id).filter(|id| is_thread(*id)),
            Named::Descriptor(at) => {
                if self.threads.len() >= MOST_KNOWN {
                    self.threads.clear();
                }
                // The memory of a thread that has ended becomes another's.
                if let Some(known) = self.threads.get(&at).filter(|known| known.is_none_or(&is_thread)) {
                    return *known;
                }
                let id = self.read_id(at).filter(|id| is_thread(*id));
                self.threads.insert(at, id);
                id
            }
        }
    }

    /// Forgets which descriptors belong to which threads, or to none: their memory may belong to others meanwhile.
    pub fn forget(&mut self) {
        self.threads.clear();
    }

    fn read_id(&self, at: u64) -> Option<u32> {
        let is_own = || self.memory.u64(at.wrapping_add(SELF)) == Some(at);
        if self.arch == Arch::X86_64 && !is_own() {
            return None;
        }
        self.memory.u32(at.wrapping_add(self.id_offset?))
    }
}

/// Returns where a latch begins.
fn base(address: u64, how: Option<Keeps>) -> u64 {
    match how {
        Some(Keeps::Rwlock) => (address & !7).wrapping_sub(RWLOCK_WORDS),
        _ => address,
    }
}

/// Returns whether the bytes of a latch say that neither a reader nor a writer has it. How MariaDB's latches say that
/// differs between versions.
fn is_free(how: Keeps, bytes: &[u8]) -> bool {
    let word = |at: usize| bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map(|word| i32::from_le_bytes(*word));
    match how {
        Keeps::Mutex => word(0) == Some(0),
        Keeps::Rwlock => {
            let is_zero = |at| word(at) == Some(0);
            // The next word counts those that wait to write.
            let has_no_readers = || word(0).is_some_and(|word| word & WRITE_LOCKED == 0 && word >> READERS_SHIFT == 0);
            let is_old = OLD_RWLOCK_WAITING.into_iter().any(|at| !is_zero(at));
            is_zero(RWLOCK_WRITER) && if is_old { is_zero(OLD_RWLOCK_READERS) } else { has_no_readers() }
        }
        Keeps::RwLock(_) => word(0) == Some(2 * HALF),
        Keeps::AfterWords => false,
    }
}

/// Returns the threads that the bytes of a latch may name.
fn named(how: Keeps, bytes: &[u8]) -> impl Iterator<Item = Named> + '_ {
    let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let id = |at| u32_at(at).filter(|id| *id != 0).map(Named::Id);
    let descriptor = |at: usize| {
        let value = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        (value != 0 && value % 16 == 0).then_some(Named::Descriptor(value))
    };
    let (one, several): (Option<Named>, &[usize]) = match how {
        Keeps::Mutex => (id(MUTEX_OWNER), &[]),
        Keeps::Rwlock => (id(RWLOCK_WRITER), &[]),
        Keeps::RwLock(owner) => {
            let word = u32_at(0).map(|word| word as i32);
            let is_held = word.is_some_and(|word| word <= 0 || (word <= HALF && word > HALF - MOST_READERS));
            let belongs = bytes.get(usize::from(owner.belongs)) == Some(&1);
            (descriptor(owner.writer.into()).filter(|_| is_held && belongs), &[])
        }
        Keeps::AfterWords => (None, &AFTER_WORDS),
    };
    one.into_iter().chain(several.iter().filter_map(move |at| descriptor(*at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u64 = 0x7f00_1234_5640;

    /// The bytes of a latch with these numbers of four and eight bytes.
    fn latch(small: &[(usize, u32)], large: &[(usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; WINDOW];
        small.iter().for_each(|(at, value)| bytes[*at..at + 4].copy_from_slice(&value.to_le_bytes()));
        large.iter().for_each(|(at, value)| bytes[*at..at + 8].copy_from_slice(&value.to_le_bytes()));
        bytes
    }

    fn all(how: Keeps, bytes: &[u8]) -> Vec<Named> {
        named(how, bytes).collect()
    }

    #[test]
    fn locks_of_the_c_library_name_threads_by_their_ids() {
        assert_eq!(all(Keeps::Mutex, &latch(&[(0, 2), (8, 77)], &[])), [Named::Id(77)]);
        assert_eq!(all(Keeps::Rwlock, &latch(&[(0, 2), (8, 3), (24, 78)], &[])), [Named::Id(78)]);
        assert_eq!(all(Keeps::Rwlock, &latch(&[(0, 16)], &[])), [], "readers have it");
        for word in [0x1008, 0x100c] {
            assert_eq!(base(word, Some(Keeps::Rwlock)), 0x1000);
        }
        assert_eq!(base(0x1008, Some(Keeps::Mutex)), 0x1008);
    }

    #[test]
    fn an_rw_lock_names_its_writer_while_it_has_one() {
        let how = Keeps::RwLock(RwLockOwner { writer: 16, belongs: 5 });
        let of = |word: i32, belongs: u32| all(how, &latch(&[(0, word as u32), (4, belongs << 8)], &[(16, THREAD)]));
        let writer = [Named::Descriptor(THREAD)];
        for held in [0, -1, -0x2000_0000, HALF, HALF - 3] {
            assert_eq!(of(held, 1), writer, "{held:#x}");
            assert_eq!(of(held, 0), [], "a read of a page will end it");
        }
        for free in [2 * HALF, 2 * HALF - 3, HALF + 1, 0x10_0000, 0x10_0000 - 3] {
            assert_eq!(of(free, 1), [], "{free:#x}");
        }
    }

    #[test]
    fn a_latch_may_be_free_while_who_waited_has_no_cpu() {
        let how = Keeps::RwLock(RwLockOwner { writer: 16, belongs: 5 });
        for (how, word, taken) in [(Keeps::Mutex, 0, 1), (how, 0x2000_0000, 0x2000_0001)] {
            assert!(is_free(how, &latch(&[(0, word)], &[(16, THREAD)])), "{how:?}");
            assert!(!is_free(how, &latch(&[(0, taken)], &[])), "{how:?}");
        }
        // A writer has left, and another waits; a writer, and one and two readers have it.
        assert!(is_free(Keeps::Rwlock, &latch(&[(0, 1), (4, 1)], &[])));
        for taken in [3, 8, 16 | 4] {
            assert!(!is_free(Keeps::Rwlock, &latch(&[(0, taken)], &[])), "{taken}");
        }
        // Of an old library: a writer, two readers and nobody has it, and a thread waits to write or to read.
        for waiting in [16, 20] {
            let old = |at, value| is_free(Keeps::Rwlock, &latch(&[(waiting, 1), (at, value)], &[]));
            assert_eq!([old(24, 78), old(4, 2), old(4, 0)], [false, false, true], "{waiting}");
        }
        assert!(!is_free(Keeps::AfterWords, &latch(&[], &[])));
    }

    #[test]
    fn of_a_latch_whose_layout_is_not_known_all_is_tried() {
        let bytes = latch(&[(0, 0x8000_0001)], &[(16, 0x5555_0001), (24, THREAD)]);
        assert_eq!(all(Keeps::AfterWords, &bytes), [Named::Descriptor(THREAD)]);
    }
}

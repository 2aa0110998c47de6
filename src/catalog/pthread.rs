//! The SQL layer's locks, which are C library locks with an instrument after each: where the instrument is, and the few
//! locks in static objects that have a different name.
//!
//! Offsets were read from running MySQL 9.7.4 and MariaDB 11.4.5 with performance_schema on. Those of metadata locks
//! were read from the code that creates them, on both architectures, and from debug information.

use crate::model::Kind;
use crate::symbols::Arch;

/// Returns the size of glibc's `pthread_mutex_t`, in bytes.
pub const fn mutex_size(arch: Arch) -> u32 {
    match arch {
        Arch::X86_64 => 40,
        Arch::Aarch64 => 48,
    }
}
/// The size of a `pthread_cond_t`, in bytes, on both architectures.
const COND_SIZE: u32 = 48;
/// The size of a `pthread_rwlock_t`, in bytes, on both architectures.
const RWLOCK_SIZE: u32 = 56;

/// The offsets of the words in a `pthread_cond_t` on which its two groups of waiters sleep: since glibc 2.41, and
/// before. Distributions have backported the change to older versions.
const COND_WORDS: [u32; 2] = [0x20, 0x28];

/// The offset of the words in a `pthread_rwlock_t` on which readers and writers sleep. Both lie in the same 8 bytes.
const RWLOCK_WORDS: u32 = 8;

/// The pointer from an instrumented object to its performance_schema instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsiPointer {
    /// Its distance from the futex word, which is rounded down to 8 bytes, in bytes.
    pub offset: u32,
    /// Whether threads sleep on that word with `FUTEX_WAIT`, as for mutexes, rather than with `FUTEX_WAIT_BITSET`.
    /// Condition variables are assumed to use the latter in every glibc; see `bpf/pthread.h`.
    pub plain_wait: bool,
    /// The kind, as in the names of such instances' classes.
    pub kind: Kind,
    /// Whether the object is a `rw_pr_lock_t`.
    pub is_prlock: bool,
}

/// Returns the pointers to instances in the objects of the SQL layer (`mysql_mutex_t`, `mysql_rwlock_t`, `mysql_cond_t`
/// and `mysql_prlock_t`). The instance pointer follows the C library's object.
/// `prlock_kind` is the kind by which the server names a `rw_pr_lock_t`.
pub fn psi_pointers(arch: Arch, pthread: &Pthread, prlock_kind: Kind) -> Vec<PsiPointer> {
    let mutex = mutex_size(arch);
    let prlock = pthread.prlock_size(arch);
    let plain = |offset, kind| PsiPointer { offset, plain_wait: true, kind, is_prlock: false };
    let timed = |offset, kind| PsiPointer { plain_wait: false, ..plain(offset, kind) };
    let of_prlock = |pointer| PsiPointer { kind: prlock_kind, is_prlock: true, ..pointer };
    let mut pointers = vec![plain(mutex, Kind::Mutex), of_prlock(plain(prlock, Kind::Prlock))];
    pointers.push(timed(RWLOCK_SIZE - RWLOCK_WORDS, Kind::Rwlock));
    for word in COND_WORDS {
        pointers.push(timed(COND_SIZE - word, Kind::Cond));
        pointers.push(of_prlock(timed(prlock - mutex - word, Kind::Prlock)));
    }
    pointers
}

/// The name of the `rw_pr_lock_t` in a metadata lock, after the kind.
pub const METADATA_LOCK: &str = "sql/MDL_lock::rwlock";

/// The beginning of the event names of a `rw_pr_lock_t` in versions that distinguish it from other rw-locks: MySQL from
/// 8.0.13 or later on, but no MariaDB.
pub const PRLOCK_TEXT: &[u8] = b"wait/synch/prlock";

/// How the instance of an instrumented object leads to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PsiClass {
    /// The offset of the class pointer in the instance, in bytes.
    pub to_class: u32,
    /// The offset of the event name in the class, in bytes.
    pub to_name: u32,
}

/// Facts about the locks of one family's SQL layer.
#[derive(Debug)]
pub struct Pthread {
    /// How an instance leads to its event name.
    pub class: PsiClass,
    /// The number of bytes in a `rw_pr_lock_t` after its mutex and the condition variable for its writers.
    pub prlock_counters: u32,
    /// Where a metadata lock has its own lock and its key.
    pub metadata_lock: MetadataLock,
    /// Global locks, by category, whose category is not the one that the beginning of their name implies.
    pub exceptions: &'static [(&'static str, &'static [&'static str])],
    /// Static arrays whose elements begin with a mutex.
    pub arrays: &'static [LockArray],
    /// The alternative names of the function that locks C library mutexes with a latch id after each.
    pub tracked: &'static [&'static str],
    /// Beginnings of the names of functions that lock a single C library mutex, with its event name. They count only
    /// where the code confirms this.
    pub owners: &'static [(&'static str, &'static str)],
    /// The alternative names of the functions that lock a `rw_pr_lock_t`.
    pub prlock: &'static [&'static str],
}

/// The object behind a metadata lock (`MDL_lock`). It begins with its key, which begins with two u16 lengths.
#[derive(Debug)]
pub struct MetadataLock {
    /// The offset of its `rw_pr_lock_t`, in bytes.
    pub lock: u32,
    /// The offset of the key's text, in bytes.
    pub text: u32,
}

/// A static array of objects that each begin with a mutex; all mutexes have the same name.
#[derive(Debug)]
pub struct LockArray {
    /// The array's name.
    pub symbol: &'static str,
    /// How many elements it has. Their size differs between versions and architectures; that of the array shows it.
    pub elements: u64,
    /// The name of the mutexes.
    pub lock: &'static str,
}

impl Pthread {
    /// Returns the size of a `rw_pr_lock_t`, in bytes.
    fn prlock_size(&self, arch: Arch) -> u32 {
        mutex_size(arch) + COND_SIZE + self.prlock_counters
    }

    /// Returns the offset in a metadata lock of the pointer to the instance of its `rw_pr_lock_t`.
    pub fn metadata_instance(&self, arch: Arch) -> u32 {
        self.metadata_lock.lock + self.prlock_size(arch)
    }

    /// Returns the instrument category of a global lock, judging by the server's naming convention. `None` for names of
    /// another form.
    pub fn category(&self, lock: &str) -> Option<&'static str> {
        let exception = self.exceptions.iter().find(|(_, locks)| locks.contains(&lock));
        let begins = |with: &[&str]| with.iter().any(|w| lock.starts_with(w)) && !lock.contains(':');
        exception.map(|(category, _)| *category).or_else(|| match () {
            () if begins(&["LOCK_", "COND_"]) => Some("sql"),
            () if begins(&["THR_LOCK_", "THR_COND_"]) => Some("mysys"),
            () => None,
        })
    }
}

/// Returns the offset of the latch id in a tracked mutex, in bytes. It follows the C library's mutex, three counters
/// and a flag.
pub fn tracked_id(arch: Arch) -> u32 {
    mutex_size(arch) + 16
}

/// Returns the address and size, in bytes, of the C library lock whose waiters sleep on this word. `None` for condition
/// variables.
pub fn pthread_lock(arch: Arch, kind: Kind, word: u64) -> Option<(u64, u64)> {
    match kind {
        Kind::Mutex => Some((word, u64::from(mutex_size(arch)))),
        Kind::Rwlock => Some(((word & !7).checked_sub(u64::from(RWLOCK_WORDS))?, u64::from(RWLOCK_SIZE))),
        Kind::Cond | Kind::Sxlock | Kind::Prlock => None,
    }
}

/// Returns whether threads sleep on the word at this offset in a C library object.
pub fn is_word(kind: Kind, offset: u64) -> bool {
    match kind {
        Kind::Mutex => offset == 0,
        Kind::Rwlock => offset == 0 || offset & !7 == u64::from(RWLOCK_WORDS),
        Kind::Cond => COND_WORDS.iter().any(|&word| offset & !7 == u64::from(word)),
        Kind::Sxlock | Kind::Prlock => false,
    }
}

/// Returns the possible start addresses of the C library object whose waiters sleep on this word.
pub fn lock_starts(kind: Kind, word: u64) -> Vec<u64> {
    let in_front = |offset: &u32| (word & !7).checked_sub(u64::from(*offset));
    match kind {
        Kind::Mutex => vec![word],
        Kind::Rwlock => in_front(&RWLOCK_WORDS).into_iter().collect(),
        Kind::Cond => COND_WORDS.iter().filter_map(in_front).collect(),
        Kind::Sxlock | Kind::Prlock => Vec::new(),
    }
}

/// The object has nothing but room for the largest number of instances (`MAX_TABLE_CACHES`).
const TABLE_CACHE_INSTANCES: &[LockArray] =
    &[LockArray { symbol: "table_cache_manager", elements: 64, lock: "LOCK_table_cache" }];

pub(super) static MYSQL: Pthread = Pthread {
    class: PsiClass { to_class: 32, to_name: 24 },
    prlock_counters: 24,
    // The key has a third length.
    metadata_lock: MetadataLock { lock: 400, text: 6 },
    exceptions: &[(
        "pfs",
        &[
            "LOCK_pfs_logging_callback",
            "LOCK_pfs_meter_notify",
            "LOCK_pfs_metrics",
            "LOCK_pfs_tls_channels",
            "LOCK_pfs_tracing_callback",
        ],
    )],
    arrays: TABLE_CACHE_INSTANCES,
    tracked: &["_Z18mutex_enter_inlineI11PolicyMutexI12OSTrackMutexI13GenericPolicyEEEvPT_N2ut8LocationE"],
    // The name that the same mutex had as an instrument of MySQL 5.6.
    owners: &[("os_event", "wait/synch/mutex/innodb/event_os_mutex")],
    prlock: PRLOCK,
};

const NEW_MARIADB: Pthread = Pthread {
    class: PsiClass { to_class: 24, to_name: 20 },
    prlock_counters: 16,
    metadata_lock: MARIADB_METADATA_LOCK,
    exceptions: MARIADB_EXCEPTIONS,
    arrays: &[],
    tracked: &[],
    owners: TABLE_CACHE,
    prlock: PRLOCK,
};

pub(super) static MARIADB: Pthread = NEW_MARIADB;

/// Instances and classes as they were in 10.2; 10.5 has the current ones.
const OLD_MARIADB: Pthread = Pthread { class: PsiClass { to_class: 16, to_name: 16 }, owners: &[], ..NEW_MARIADB };

pub(super) static MARIADB_10_2: Pthread = Pthread { owners: MARIADB_10_2_OWNERS, ..OLD_MARIADB };

const TABLE_CACHE: &[(&str, &str)] = &[
    ("tc_acquire_table", "wait/synch/mutex/sql/LOCK_table_cache"),
    ("tc_release_table", "wait/synch/mutex/sql/LOCK_table_cache"),
    ("tdc_acquire_share", "wait/synch/mutex/sql/TABLE_SHARE::tdc.LOCK_table_share"),
];

const MARIADB_10_2_OWNERS: &[(&str, &str)] =
    &[TABLE_CACHE[0], TABLE_CACHE[1], TABLE_CACHE[2], ("os_event", "wait/synch/mutex/innodb/event_os_mutex")];

/// Its event's mutex is registered under no name; this is the name in MySQL 5.6.
pub(super) static MARIADB_10_1: Pthread = Pthread { owners: OS_EVENT, ..OLD_MARIADB };

/// Its instances and classes are those of MariaDB of that time. Its metadata locks have a table of functions before the
/// key, which is the only difference that matters here.
pub(super) static MYSQL_5_6: Pthread = Pthread {
    owners: OS_EVENT,
    metadata_lock: MetadataLock { lock: 392, text: 4 },
    exceptions: &[("mysys", &["COND_alarm", "LOCK_alarm"]), ("sql", &["THR_LOCK_servers"])],
    arrays: TABLE_CACHE_INSTANCES,
    ..OLD_MARIADB
};

const OS_EVENT: &[(&str, &str)] =
    &[("os_event", "wait/synch/mutex/innodb/event_os_mutex"), ("os_mutex_enter", "wait/synch/mutex/innodb/os_mutex")];

const MARIADB_EXCEPTIONS: &[(&str, &[&str])] = &[
    ("aria", &["COND_soft_sync", "LOCK_soft_sync", "LOCK_trn_list", "THR_LOCK_maria"]),
    ("mysys", &["COND_alarm", "COND_timer", "LOCK_alarm", "LOCK_timer", "LOCK_uuid_generator"]),
    ("sql", &["THR_LOCK_servers", "THR_LOCK_udf"]),
];

/// The lengths of the key are followed by a hash.
const MARIADB_METADATA_LOCK: MetadataLock = MetadataLock { lock: 400, text: 8 };

const PRLOCK: &[&str] = &[
    "rw_pr_rdlock",
    "rw_pr_wrlock",
    "rw_pr_unlock",
    "_Z12rw_pr_rdlockP12rw_pr_lock_t",
    "_Z12rw_pr_wrlockP12rw_pr_lock_t",
    "_Z12rw_pr_unlockP12rw_pr_lock_t",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instrument_is_behind_its_lock() {
        let at = |arch, prlock_kind, kind| -> Vec<u32> {
            psi_pointers(arch, if prlock_kind == Kind::Prlock { &MYSQL } else { &MARIADB }, prlock_kind)
                .iter()
                .filter(|p| p.kind == kind)
                .map(|p| p.offset)
                .collect()
        };
        assert_eq!(at(Arch::X86_64, Kind::Prlock, Kind::Prlock), [112, 40, 32]);
        assert_eq!(at(Arch::Aarch64, Kind::Prlock, Kind::Prlock), [120, 40, 32]);
        for arch in [Arch::X86_64, Arch::Aarch64] {
            assert_eq!(at(arch, Kind::Prlock, Kind::Mutex), [mutex_size(arch)]);
            assert_eq!(at(arch, Kind::Prlock, Kind::Cond), [16, 8]);
            assert_eq!(at(arch, Kind::Prlock, Kind::Rwlock), [48]);
            let room = crate::bpf::latch::types::limit::MAX_PSI_POINTERS.0 as usize;
            assert!(psi_pointers(arch, &MYSQL, Kind::Prlock).len() <= room, "more than the programs have room for");
        }
        // MariaDB's names say rwlock for both.
        assert_eq!(at(Arch::X86_64, Kind::Rwlock, Kind::Rwlock), [104, 48, 32, 24]);
        assert_eq!(at(Arch::Aarch64, Kind::Rwlock, Kind::Rwlock), [112, 48, 32, 24]);
    }

    /// The offsets come from the code of MySQL 9.7.4, 0x200 and 0x208, and of MariaDB 11.4.5, 0x1f8 and 0x200 (Debian's
    /// 10.11 for arm64).
    #[test]
    fn a_metadata_lock_holds_its_instance() {
        assert_eq!([Arch::X86_64, Arch::Aarch64].map(|a| MYSQL.metadata_instance(a)), [0x200, 0x208]);
        assert_eq!([Arch::X86_64, Arch::Aarch64].map(|a| MARIADB.metadata_instance(a)), [0x1f8, 0x200]);
    }

    #[test]
    fn words_are_recognized_by_their_offset() {
        assert!(is_word(Kind::Mutex, 0) && !is_word(Kind::Mutex, 8));
        assert!([8, 12].iter().all(|&o| is_word(Kind::Rwlock, o)) && !is_word(Kind::Rwlock, 16));
        // Beyond the lock, at the same place in their 8 bytes.
        assert!(!is_word(Kind::Rwlock, 0x108) && !is_word(Kind::Cond, 0x120) && is_word(Kind::Rwlock, 0));
        assert!([0x20, 0x24, 0x28, 0x2c].iter().all(|&o| is_word(Kind::Cond, o)) && !is_word(Kind::Cond, 0));
    }

    #[test]
    fn a_lock_is_found_from_the_word_that_its_waiters_sleep_on() {
        assert_eq!(pthread_lock(Arch::X86_64, Kind::Mutex, 0x1000), Some((0x1000, 40)));
        assert_eq!(pthread_lock(Arch::Aarch64, Kind::Mutex, 0x1000), Some((0x1000, 48)));
        for word in [0x1008, 0x100c] {
            assert_eq!(pthread_lock(Arch::Aarch64, Kind::Rwlock, word), Some((0x1000, 56)));
        }
        assert_eq!(pthread_lock(Arch::X86_64, Kind::Cond, 0x1020), None);
        assert_eq!(pthread_lock(Arch::X86_64, Kind::Rwlock, 0), None);
    }

    #[test]
    fn global_locks_have_the_category_of_their_name() {
        assert_eq!(MYSQL.category("LOCK_open"), Some("sql"));
        assert_eq!(MYSQL.category("THR_LOCK_open"), Some("mysys"));
        assert_eq!(MYSQL.category("LOCK_pfs_metrics"), Some("pfs"));
        assert_eq!(MARIADB.category("COND_timer"), Some("mysys"));
        assert_eq!(MARIADB.category("THR_LOCK_udf"), Some("sql"));
        for other in ["", "log_sys", "keyring::LOCK_keys", "xLOCK_a"] {
            assert_eq!(MYSQL.category(other), None, "{other}");
        }
    }
}

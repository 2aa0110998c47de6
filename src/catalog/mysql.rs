//! MySQL 8.0 to 9.x and Percona Server. Function names, argument order and offsets were read from MySQL 9.7.4
//! (Debian, x86_64 and aarch64) by disassembly, and from live latches.

use super::pages::{Dictionary, DictionaryAt, PageLatch, Pages, SpaceAt, COMMON_PAGES};
use super::{
    library, spin, Callsite, Family, Flavor, Found, Identity, IdentityIn, MysqlNames, Naming, Shape, Stored,
    WaitFunction,
};
use crate::model::Mode;
use crate::symbols::Image;

/// `TTASEventMutex<GenericPolicy>`: its `latch_id_t`, behind counters.
pub(super) const MUTEX: Identity = Identity::LatchId { offset: 0x20 };
/// `TTASEventMutex<BlockMutexPolicy>`: its `latch_id_t`, behind a pointer to counters that all of them share.
pub(super) const BLOCK_MUTEX: Identity = Identity::LatchId { offset: 0x18 };
/// `rw_lock_t`: creation file and line.
const RW_LOCK: Identity = Identity::Created { file_offset: 0x30, line_offset: 0x38, line_bits: 32 };

const RESERVE_CELL: &str = "_Z23sync_array_reserve_cellP12sync_array_tPvmN2ut8LocationE";
const RESERVE_CELL_8_0: &str = "_Z23sync_array_reserve_cellP12sync_array_tPvmPKcm";
const WAIT_EVENT: &str = "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t";
const DELAY: &str = "_Z8ut_delaym";
pub(super) const MUTEX_INIT: &str =
    "_Z10mutex_initI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_10latch_id_tPKcj";
const RW_LOCK_CREATE: &[&str] =
    &["_Z19rw_lock_create_funcP9rw_lock_tN2ut8LocationE", "_Z19rw_lock_create_funcP9rw_lock_tPKcm"];

/// One round of spinning.
const SPIN: &[&str] = &[DELAY];
/// Waiting once spinning did not help.
const SLEEP: &[&str] = &[
    RESERVE_CELL,
    RESERVE_CELL_8_0,
    WAIT_EVENT,
    "_ZN14TTASEventMutexI13GenericPolicyE4waitEPKcjj",
    "_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj",
    "_ZN14TTASEventMutexI16BlockMutexPolicyE4waitEPKcjj",
    "_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockEjjPKcj",
];
const CONTENDED: Shape = Shape::Contended { spin: SPIN, sleep: SLEEP };

const fn mutex(
    symbols: &'static [&'static str],
    label: &'static str,
    shape: Shape,
    (file, line): (usize, usize),
) -> WaitFunction {
    WaitFunction {
        found: Found::Symbols(symbols),
        label,
        mode: Mode::None,
        shape,
        latch_argument: 0,
        callsite: Callsite::FileLine { file, line },
        identity: IdentityIn::Always(MUTEX),
    }
}

/// A page mutex.
const fn block_mutex(
    symbols: &'static [&'static str],
    label: &'static str,
    shape: Shape,
    location: (usize, usize),
) -> WaitFunction {
    WaitFunction { identity: IdentityIn::Always(BLOCK_MUTEX), ..mutex(symbols, label, shape, location) }
}

pub(super) static MYSQL_8: Family = Family {
    flavor: Flavor::Mysql,
    wait_functions: &[
        WaitFunction::rw_lock(
            &["_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE", "_Z19rw_lock_s_lock_spinP9rw_lock_tmPKcm"],
            "rw_lock_s_lock_spin",
            Mode::S,
            Shape::Whole,
            RW_LOCK,
        ),
        WaitFunction::rw_lock(
            &["_Z19rw_lock_x_lock_funcP9rw_lock_tmN2ut8LocationE", "_Z19rw_lock_x_lock_funcP9rw_lock_tmPKcm"],
            "rw_lock_x_lock_func",
            Mode::X,
            CONTENDED,
            RW_LOCK,
        ),
        WaitFunction::rw_lock(
            &["_Z20rw_lock_sx_lock_funcP9rw_lock_tmN2ut8LocationE", "_Z20rw_lock_sx_lock_funcP9rw_lock_tmPKcm"],
            "rw_lock_sx_lock_func",
            Mode::Sx,
            CONTENDED,
            RW_LOCK,
        ),
        // Waits for readers to leave once the writer has announced itself. What it spins is not seen: a probe
        // there would be hit in every round.
        WaitFunction {
            found: Found::CallerOf(&[RESERVE_CELL, RESERVE_CELL_8_0], &[DELAY]),
            label: "rw_lock_x_lock_wait",
            mode: Mode::X,
            shape: CONTENDED,
            latch_argument: 0,
            callsite: Callsite::FileLine { file: 2, line: 3 },
            identity: IdentityIn::Always(RW_LOCK),
        },
        mutex(
            &["_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_N2ut8LocationE"],
            "mutex_enter_inline",
            CONTENDED,
            (1, 2),
        ),
        block_mutex(
            &["_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEEEvPT_N2ut8LocationE"],
            "mutex_enter_inline_block",
            CONTENDED,
            (1, 2),
        ),
        mutex(&["_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterEjjPKcj"], "mutex_enter", CONTENDED, (3, 4)),
        block_mutex(
            &["_ZN11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEE5enterEjjPKcj"],
            "mutex_enter_block",
            CONTENDED,
            (3, 4),
        ),
        mutex(
            &["_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj"],
            "mutex_spin_and_try_lock",
            Shape::Whole,
            (3, 4),
        ),
        block_mutex(
            &["_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockEjjPKcj"],
            "mutex_spin_and_try_lock_block",
            Shape::Whole,
            (3, 4),
        ),
    ],
    wrappers: &[],
    // The creating file and line of an rw-lock, the ids of mutexes: names depend on these.
    layout: &[
        Stored { function: RW_LOCK_CREATE, argument: 1, offset: 0x30 },
        Stored { function: RW_LOCK_CREATE, argument: 2, offset: 0x38 },
        Stored { function: &[MUTEX_INIT], argument: 1, offset: 0x20 },
    ],
    spin: Some(&spin::MYSQL),
    library: &library::MYSQL,
    pages: Some(&PAGES),
    naming: Naming::Mysql(&MysqlNames {
        latch_init: "_Z15sync_check_initm",
        not_instrumented: Some("PFS_NOT_INSTRUMENTED"),
        latch_meta: "latch_meta",
        latch_meta_begin: 8,
        meta_id: 0,
        meta_name: 8,
        meta_key: 0x20,
        sync_ids: &["SYNC_THREAD", "SYNC_ARRAY_MUTEX", "SYNC_DEBUG_MUTEX"],
        // The key of page mutexes, which no current build registers.
        uninstrumented_ids: &[("BUF_BLOCK_MUTEX", "buffer_block_mutex")],
        rw_lock_create: RW_LOCK_CREATE,
        // A page latch has the name of the key that it has in builds that instrument pages. The other belongs to a
        // copy of a page in a search of a spatial index.
        uninstrumented_sites: &[("buf0buf.cc", "buf_block_lock"), ("gis0sea.cc", "rtr_match_block_lock")],
        line_bits: 32,
    }),
};

/// `buf_block_t`, seen from its latch; `dict_sys_t`, `dict_table_t` and `dict_index_t` as `dict_index_find` goes through them.
static PAGES: Pages = Pages {
    latch: PageLatch { space: -0x88, page_no: -0x84, frame: 0x78, flag: Some(0x50), index_type: None },
    dictionary: Dictionary {
        at: DictionaryAt::Pointer("dict_sys"),
        lists: &[0x78, 0x90],
        table_next: 0xc8,
        table_indexes: 0xa8,
        index_table: 0x20,
        index_next: 0x488,
        index_id: 0,
        index_name: &[0x10],
        table_name: &[0x18],
        space: SpaceAt::Index(0x28),
    },
    spaces: &[(0, "innodb_system"), (0xffff_fffd, "innodb_temporary"), (0xffff_fffe, "mysql")],
    // General tablespaces hold many.
    one_table_per_space: false,
    types: &[COMMON_PAGES, &[(21, "rollback segments"), (22, "blob"), (23, "blob"), (24, "blob")]],
};

/// Percona Server calls itself by name in the messages that it prints; MySQL and distributors' builds of it do not.
pub(super) fn is_percona(image: &Image) -> bool {
    let strings = image.section(".rodata").and_then(|r| image.bytes(r.start, (r.end - r.start) as usize));
    strings.is_some_and(|s| memchr::memmem::find(s, b"Percona Server").is_some())
}

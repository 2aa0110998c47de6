//! MySQL and Percona Server 8.0 to 9.x, whose latches are `rw_lock_t` and `TTASEventMutex`.
//!
//! Offsets were read from the code and the live memory of MySQL 9.7.4 on both architectures, where they
//! are the same. Up to 8.0.27 a source position was passed as `const char *, ulint` instead of as one
//! `ut::Location`; both forms travel in the same two registers.

use super::{Callsite, Family, Find, IdentitySource, Layout, Shape, Symbols, WaitFunction};
use crate::model::Mode;

/// Where naming finds things in MySQL's structures.
#[derive(Debug)]
pub struct MysqlLayout {
    /// The function that fills the vector of latch descriptions, or calls the function that does.
    pub latch_init: &'static str,
    /// The key variable of latches that are deliberately not instrumented.
    pub not_instrumented: &'static str,
    /// The vector of latch descriptions, indexed by latch id: its `begin` pointer is `latch_meta_begin`
    /// bytes behind the symbol, its `end` pointer 8 further.
    pub latch_meta: &'static str,
    pub latch_meta_begin: u64,
    /// In a latch description: u32 id, pointer to the id's name, u32 performance_schema key.
    pub meta_id: u64,
    pub meta_name: u64,
    pub meta_key: u64,
    /// The function that makes every `rw_lock_t`; its callers tell which instrument belongs to which
    /// creation site.
    pub rw_lock_create: Symbols,
    /// From an instrumented latch to its event name.
    pub mutex_psi: super::PsiChain,
    pub rw_lock_psi: super::PsiChain,
}

pub const RESERVE_CELL: Symbols = &[
    "_Z23sync_array_reserve_cellP12sync_array_tPvmN2ut8LocationE",
    "_Z23sync_array_reserve_cellP12sync_array_tPvmPKcm",
];
const WAIT_EVENT: Symbols = &["_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t"];
const UT_DELAY: Symbols = &["_Z8ut_delaym"];
const MUTEX_WAIT: Symbols = &["_ZN14TTASEventMutexI13GenericPolicyE4waitEPKcjj"];
const BLOCK_MUTEX_WAIT: Symbols = &["_ZN14TTASEventMutexI16BlockMutexPolicyE4waitEPKcjj"];

/// `SYNC_ARRAY` request type of a writer that holds the lock word and waits for the readers to leave.
const RW_LOCK_X_WAIT: u64 = 3;

const MUTEX_ID: IdentitySource = IdentitySource::LatchId { offset: 0x20 };
const RW_LOCK_CREATED: IdentitySource = IdentitySource::Created { file_offset: 0x30, line_offset: 0x38 };
const FILE_LINE_AT_2: Callsite = Callsite::FileLine { file_arg: 2, line_arg: 3 };

const WAIT_FUNCTIONS: &[WaitFunction] = &[
    WaitFunction {
        label: "rw_lock_s_lock_spin",
        find: Find::Symbols(&[
            "_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE",
            "_Z19rw_lock_s_lock_spinP9rw_lock_tmPKcm",
        ]),
        mode: Mode::S,
        shape: Shape::Whole,
        latch_arg: 0,
        callsite: FILE_LINE_AT_2,
        identity: RW_LOCK_CREATED,
    },
    WaitFunction {
        label: "rw_lock_x_lock_func",
        find: Find::Symbols(&[
            "_Z19rw_lock_x_lock_funcP9rw_lock_tmN2ut8LocationE",
            "_Z19rw_lock_x_lock_funcP9rw_lock_tmPKcm",
        ]),
        mode: Mode::X,
        shape: Shape::Contended,
        latch_arg: 0,
        callsite: FILE_LINE_AT_2,
        identity: RW_LOCK_CREATED,
    },
    WaitFunction {
        label: "rw_lock_sx_lock_func",
        find: Find::Symbols(&[
            "_Z20rw_lock_sx_lock_funcP9rw_lock_tmN2ut8LocationE",
            "_Z20rw_lock_sx_lock_funcP9rw_lock_tmPKcm",
        ]),
        mode: Mode::Sx,
        shape: Shape::Contended,
        latch_arg: 0,
        callsite: FILE_LINE_AT_2,
        identity: RW_LOCK_CREATED,
    },
    // Runs after every successful exclusive acquisition; its contended part waits for readers to leave.
    WaitFunction {
        label: "rw_lock_x_lock_wait",
        find: Find::Caller { callee: RESERVE_CELL, argument: 2, value: RW_LOCK_X_WAIT },
        mode: Mode::X,
        shape: Shape::Contended,
        latch_arg: 0,
        callsite: Callsite::Caller,
        identity: RW_LOCK_CREATED,
    },
    WaitFunction {
        label: "mutex_enter_inline",
        find: Find::Symbols(&[
            "_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_N2ut8LocationE",
        ]),
        mode: Mode::None,
        shape: Shape::Contended,
        latch_arg: 0,
        callsite: Callsite::FileLine { file_arg: 1, line_arg: 2 },
        identity: MUTEX_ID,
    },
    WaitFunction {
        label: "mutex_enter_inline_block",
        find: Find::Symbols(&[
            "_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEEEvPT_N2ut8LocationE",
        ]),
        mode: Mode::None,
        shape: Shape::Contended,
        latch_arg: 0,
        callsite: Callsite::FileLine { file_arg: 1, line_arg: 2 },
        identity: BLOCK_MUTEX,
    },
    WaitFunction {
        label: "mutex_enter",
        find: Find::Symbols(&["_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterEjjPKcj"]),
        mode: Mode::None,
        shape: Shape::Contended,
        latch_arg: 0,
        callsite: Callsite::FileLine { file_arg: 3, line_arg: 4 },
        identity: MUTEX_ID,
    },
    // Inlined into the functions above; called as such only from rare places.
    WaitFunction {
        label: "mutex_spin_and_try_lock",
        find: Find::Symbols(&["_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj"]),
        mode: Mode::None,
        shape: Shape::Whole,
        latch_arg: 0,
        callsite: Callsite::FileLine { file_arg: 3, line_arg: 4 },
        identity: MUTEX_ID,
    },
    WaitFunction {
        label: "mutex_spin_and_try_lock_block",
        find: Find::Symbols(&["_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockEjjPKcj"]),
        mode: Mode::None,
        shape: Shape::Whole,
        latch_arg: 0,
        callsite: Callsite::FileLine { file_arg: 3, line_arg: 4 },
        identity: BLOCK_MUTEX,
    },
];

/// Latch ids whose names begin as the names of latch levels do.
pub const SYNC_IDS: &[&str] = &["SYNC_THREAD", "SYNC_ARRAY_MUTEX", "SYNC_DEBUG_MUTEX"];

/// Latch ids that the server does not instrument but had a key for, with the name of that key.
pub const UNINSTRUMENTED_IDS: &[(&str, &str)] = &[("BUF_BLOCK_MUTEX", "buffer_block_mutex")];

/// Source files with one place each that makes rw-locks without an instrument. A page latch has the name of the key
/// that it has in builds that instrument pages; the other belongs to a copy of a page in a search of a spatial index.
pub const UNINSTRUMENTED_SITES: &[(&str, &str)] =
    &[("buf0buf.cc", "buf_block_lock"), ("gis0sea.cc", "rtr_match_block_lock")];

/// The mutexes of this policy are the page mutexes, one instrument.
const BLOCK_MUTEX: IdentitySource = IdentitySource::Fixed("wait/synch/mutex/innodb/buffer_block_mutex");

const LAYOUT: MysqlLayout = MysqlLayout {
    latch_init: "_Z15sync_check_initm",
    not_instrumented: "PFS_NOT_INSTRUMENTED",
    latch_meta: "latch_meta",
    latch_meta_begin: 8,
    meta_id: 0,
    meta_name: 8,
    meta_key: 0x20,
    rw_lock_create: &["_Z19rw_lock_create_funcP9rw_lock_tN2ut8LocationE", "_Z19rw_lock_create_funcP9rw_lock_tPKcm"],
    mutex_psi: super::PsiChain { psi: 0x28, class: 0x20, name: 0x18 },
    rw_lock_psi: super::PsiChain { psi: 0x70, class: 0x20, name: 0x18 },
};

pub const FAMILY: Family = Family {
    name: "mysql",
    wait_functions: WAIT_FUNCTIONS,
    slow_callees: &[UT_DELAY, RESERVE_CELL, WAIT_EVENT, MUTEX_WAIT, BLOCK_MUTEX_WAIT],
    layout: Layout::Mysql(&LAYOUT),
};

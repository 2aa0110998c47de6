//! MariaDB up to 10.5: InnoDB's latches are those of MySQL 5.7, and whoever has to sleep for one reserves a cell of the sync
//! array. Spinning for mutexes is inlined in hundreds of functions, so a wait begins here where spinning is given up,
//! but for the rw-locks' own wait functions.
//!
//! Function names, argument order, offsets and the numbers of kinds of wait were read from the symbol table and debug
//! information of the official 10.2.11 build for x86_64.

use super::mysql::{BLOCK_MUTEX, MUTEX, MUTEX_INIT};
use super::{
    library, Callsite, Family, Flavor, Found, Identity, IdentityIn, MysqlNames, Naming, Shape, Stored, WaitFunction,
    WaitKind,
};
use crate::model::Mode;

/// `rw_lock_t`: creation file, and line in a bit field.
const RW_LOCK: Identity = Identity::Created { file_offset: 56, line_offset: 80, line_bits: LINE_BITS };
const LINE_BITS: u8 = 13;

const RESERVE_CELL: &str = "_Z23sync_array_reserve_cellP12sync_array_tPvmPKcj";
/// Called once for each cell: when the thread has slept, or when it need not any more.
const FREE_CELL: &str = "_Z20sync_array_free_cellP12sync_array_tRP11sync_cell_t";
const WAIT_EVENT: &str = "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t";
const DELAY: &str = "_Z8ut_delaym";

/// The kinds of wait, from `sync_cell_t::request_type`.
const KINDS: &[WaitKind] = &[
    WaitKind { number: 1, mode: Mode::None, identity: MUTEX },
    WaitKind { number: 2, mode: Mode::Sx, identity: RW_LOCK },
    // X, waiting for the readers to leave.
    WaitKind { number: 3, mode: Mode::X, identity: RW_LOCK },
    WaitKind { number: 4, mode: Mode::S, identity: RW_LOCK },
    WaitKind { number: 5, mode: Mode::X, identity: RW_LOCK },
    WaitKind { number: 11, mode: Mode::None, identity: BLOCK_MUTEX },
];

/// A build in which the functions below are not found, for want of symbols, or other latches than those in the catalog. Offsets
/// of the SQL layer's instruments as in 10.5.29, which has those of later versions.
pub(super) static SLEEPS_ONLY: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: &[],
    wrappers: &[],
    layout: &[],
    spin: None,
    library: &library::MARIADB,
    naming: Naming::None,
    pages: None,
};

pub(super) static MARIADB_10_2: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: &[
        WaitFunction {
            found: Found::Symbols(&[RESERVE_CELL]),
            label: "sync_array_cell",
            mode: Mode::None,
            shape: Shape::Until { end: &[FREE_CELL] },
            latch_argument: 1,
            callsite: Callsite::FileLine { file: 3, line: 4 },
            identity: IdentityIn::ByKind { argument: 2, kinds: KINDS },
        },
        WaitFunction::rw_lock(
            &["_Z19rw_lock_s_lock_spinP9rw_lock_tmPKcj"],
            "rw_lock_s_lock_spin",
            Mode::S,
            Shape::Whole,
            RW_LOCK,
        ),
        WaitFunction::rw_lock(
            &["_Z20rw_lock_sx_lock_funcP9rw_lock_tmPKcj"],
            "rw_lock_sx_lock_func",
            Mode::Sx,
            Shape::Contended { spin: &[DELAY], sleep: &[RESERVE_CELL, WAIT_EVENT] },
            RW_LOCK,
        ),
    ],
    wrappers: &[],
    // The creating file of an rw-lock, the ids of mutexes.
    layout: &[
        Stored { function: &["_Z19rw_lock_create_funcP9rw_lock_tPKcj"], argument: 1, offset: 56 },
        Stored { function: &[MUTEX_INIT], argument: 1, offset: 0x20 },
        Stored {
            function: &["_Z10mutex_initI11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEEEvPT_10latch_id_tPKcj"],
            argument: 1,
            offset: 0x18,
        },
    ],
    spin: None,
    library: &library::MARIADB_10_2,
    pages: None,
    naming: Naming::Mysql(&MysqlNames {
        latch_init: "_Z15sync_check_initv",
        not_instrumented: None,
        latch_meta: "latch_meta",
        latch_meta_begin: 0,
        meta_id: 0,
        meta_name: 8,
        meta_key: 0x20,
        sync_ids: &["SYNC_THREAD", "SYNC_ARRAY_MUTEX", "SYNC_DEBUG_MUTEX"],
        uninstrumented_ids: &[("BUF_BLOCK_MUTEX", "buffer_block_mutex")],
        rw_lock_create: &["_Z19rw_lock_create_funcP9rw_lock_tPKcj"],
        uninstrumented_sites: &[("buf0buf.cc", "buf_block_lock"), ("gis0sea.cc", "rtr_match_block_lock")],
        line_bits: LINE_BITS,
    }),
};

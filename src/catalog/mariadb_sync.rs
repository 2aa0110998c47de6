//! MariaDB up to 10.5: InnoDB's latches are those of MySQL 5.7, and a thread that has to sleep for one reserves a cell
//! of the sync array. Spinning for mutexes is inlined in hundreds of functions, so a wait is measured from where
//! spinning is given up, except in the rw-locks' own wait functions.
//!
//! Function names, argument order, offsets and the numbers of the kinds of wait were read from the symbol table and
//! debug information of the official 10.2.11 build for x86_64.

use super::mysql::{self, BLOCK_MUTEX, MUTEX, RW_LOCK};
use super::sync_array::CELLS;
use super::{pthread, Callsite, Family, Flavor, Found, Function, IdentityIn, Naming, Shape, WaitFunction, WaitKind};
use crate::model::Mode;

/// Takes a 32-bit line, where MySQL has a 64-bit one.
const RESERVE_CELL: Function = "_Z23sync_array_reserve_cellP12sync_array_tPvmPKcj";
/// Called once for each cell: when the thread has slept, or when it no longer needs to.
const FREE_CELL: Function = "_Z20sync_array_free_cellP12sync_array_t";
const WAIT_EVENT: Function = "_Z21sync_array_wait_eventP12sync_array_t";
const DELAY: Function = "_Z8ut_delaym";

const CONTENDED: Shape = Shape::Contended { spin: &[DELAY], sleep: &[RESERVE_CELL, WAIT_EVENT] };

/// The kinds of wait, from `sync_cell_t::request_type`.
const KINDS: &[WaitKind] = &[
    WaitKind { number: 1, mode: Mode::None, identity: MUTEX },
    WaitKind { number: 2, mode: Mode::Sx, identity: RW_LOCK },
    // An X wait for the readers to leave.
    WaitKind { number: 3, mode: Mode::X, identity: RW_LOCK },
    WaitKind { number: 4, mode: Mode::S, identity: RW_LOCK },
    WaitKind { number: 5, mode: Mode::X, identity: RW_LOCK },
    WaitKind { number: 11, mode: Mode::None, identity: BLOCK_MUTEX },
];

/// A build without the functions below, because it lacks symbols or has latches that the catalog does not know. The
/// offsets of the SQL layer's instruments are those of 10.5.29, which later versions share.
pub static SLEEPS_ONLY: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: &[],
    wrappers: &[],
    cells: None,
    spin: None,
    pthread: &pthread::MARIADB,
    naming: Naming::None,
    pages: None,
};

pub(super) static MARIADB_10_2: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: &[
        WaitFunction {
            found: Found::Symbol(RESERVE_CELL),
            label: "sync_array_cell",
            mode: Mode::None,
            shape: Shape::Until { end: FREE_CELL },
            latch_argument: 1,
            callsite: Callsite::FileLine,
            identity: IdentityIn::ByKind { argument: 2, kinds: KINDS },
        },
        WaitFunction::rw_lock(
            "_Z19rw_lock_s_lock_spinP9rw_lock_t",
            "rw_lock_s_lock_spin",
            Mode::S,
            Shape::Whole,
            RW_LOCK,
        ),
        WaitFunction::rw_lock(
            "_Z20rw_lock_sx_lock_funcP9rw_lock_t",
            "rw_lock_sx_lock_func",
            Mode::Sx,
            CONTENDED,
            RW_LOCK,
        ),
        WaitFunction::rw_lock("_Z19rw_lock_x_lock_funcP9rw_lock_t", "rw_lock_x_lock_func", Mode::X, CONTENDED, RW_LOCK),
        mysql::inlined_cell(RESERVE_CELL, "mutex_enter_inlined", &[DELAY]),
    ],
    wrappers: &[],
    cells: Some(&CELLS),
    spin: None,
    pthread: &pthread::MARIADB_10_2,
    pages: None,
    naming: Naming::Mysql(&mysql::NAMES),
};

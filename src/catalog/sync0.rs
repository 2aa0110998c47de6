//! MySQL 5.6, and MariaDB 10.0 and 10.1. Mutexes have no class yet; they remember where they were created, as rw-locks
//! do. A thread that finds a mutex free does not call `mutex_spin_wait`.
//!
//! The following was read from the code of the official builds of MariaDB 10.1.23 (with XtraDB) and MySQL 5.6.24 for
//! x86_64, neither of them position-independent, and observed in their waits under load.
//!
//! - The code that takes a free mutex is inlined or in small functions (`pfs_mutex_enter_func`); all of them call
//!   `mutex_spin_wait`. That function spins, yields the CPU, reserves a cell of the sync array, tries four more times,
//!   and sleeps, until it has the mutex.
//! - A thread that cannot share an rw-lock at once calls `rw_lock_s_lock_spin`. Its first argument may be untyped.
//! - Every thread that wants an rw-lock exclusively calls `rw_lock_x_lock_func`. Where it gives up spinning, it yields
//!   the CPU and sleeps. A path leads from every round back to the beginning of the function, so waits that end while
//!   spinning are not seen, nor is the spinning before a sleep. After the writer has announced itself, it waits for the
//!   readers to leave; XtraDB has a separate function for this, `rw_lock_x_lock_low`, which all X acquisitions pass
//!   too.
//! - A mutex begins with its event (XtraDB) or a pointer to it, and stores a 64-bit line; an rw-lock stores the line in
//!   14 bits of a shared bit field. XtraDB has variants with priorities, which begin with the plain latch and are
//!   created by calling the plain latch's function.
//! - The instrument's key is loaded, and the latch registered, right before the call that creates it. Pages have no
//!   instruments.

use super::{
    pthread, Callsite, Created, Family, Flavor, Found, Function, IdentifiedBy, IdentityIn, Latch, Member, MysqlNames,
    Naming, Shape, WaitFunction,
};
use crate::model::{Kind, Mode};
use crate::symbols::Parameter;

/// Also creates mutexes with priorities.
const MUTEX_CREATE: Function = "_Z17mutex_create_func";
const RW_LOCK_CREATE: Function = "_Z19rw_lock_create_func";
const RESERVE_CELL: Function = "_Z23sync_array_reserve_cellP12sync_array_t";
const WAIT_EVENT: Function = "_Z21sync_array_wait_eventP12sync_array_t";

const MUTEX_LINE: &Member = &Member { set_by: &[MUTEX_CREATE], to: Parameter::Line, shown_by: None };
const RW_LOCK_LINE: &Member = &Member { set_by: &[RW_LOCK_CREATE], to: Parameter::Line, shown_by: None };
const MUTEX: IdentifiedBy = IdentifiedBy::Created {
    file: &Member { set_by: &[MUTEX_CREATE], to: Parameter::File, shown_by: None },
    line: MUTEX_LINE,
};
const RW_LOCK: IdentifiedBy = IdentifiedBy::Created {
    file: &Member { set_by: &[RW_LOCK_CREATE], to: Parameter::File, shown_by: None },
    line: RW_LOCK_LINE,
};

/// The part of a function from which no path returns without a sleep.
const ASLEEP: Shape = Shape::Contended { spin: &[], sleep: &[RESERVE_CELL, WAIT_EVENT] };

const WAIT_FUNCTIONS: &[WaitFunction] = &[
    WaitFunction {
        found: Found::Symbol("_Z15mutex_spin_wait"),
        label: "mutex_spin_wait",
        mode: Mode::None,
        shape: Shape::Whole,
        latch_argument: 0,
        callsite: Callsite::FileLine,
        identity: IdentityIn::Always(MUTEX),
    },
    WaitFunction::rw_lock("_Z19rw_lock_s_lock_spin", "rw_lock_s_lock_spin", Mode::S, Shape::Whole, RW_LOCK),
    WaitFunction::rw_lock("_Z19rw_lock_x_lock_funcP9rw_lock_t", "rw_lock_x_lock_func", Mode::X, ASLEEP, RW_LOCK),
    WaitFunction::rw_lock("_Z18rw_lock_x_lock_lowP9rw_lock_t", "rw_lock_x_lock_low", Mode::X, ASLEEP, RW_LOCK),
];

static NAMES: MysqlNames = MysqlNames {
    ids: None,
    not_instrumented: "PFS_NOT_INSTRUMENTED",
    created: &[
        Created {
            by: MUTEX_CREATE,
            line: MUTEX_LINE,
            kind: Kind::Mutex,
            uninstrumented: &[("buf0buf.cc", Latch { kind: Kind::Mutex, name: "buffer_block_mutex" })],
        },
        Created {
            by: RW_LOCK_CREATE,
            line: RW_LOCK_LINE,
            kind: Kind::Rwlock,
            // The name of its key in builds that instrument pages.
            uninstrumented: &[("buf0buf.cc", Latch { kind: Kind::Rwlock, name: "buf_block_lock" })],
        },
    ],
};

/// MySQL 5.6.
pub static MYSQL_5_6: Family = Family {
    flavor: Flavor::Mysql,
    wait_functions: WAIT_FUNCTIONS,
    wrappers: &[],
    cells: None,
    spin: None,
    pthread: &pthread::MYSQL_5_6,
    pages: None,
    naming: Naming::Mysql(&NAMES),
};

/// MariaDB 10.0 and 10.1, which have the wait functions of MySQL 5.6 and another SQL layer.
pub static MARIADB_10_1: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: WAIT_FUNCTIONS,
    wrappers: &[],
    cells: None,
    spin: None,
    pthread: &pthread::MARIADB_10_1,
    pages: None,
    naming: Naming::Mysql(&NAMES),
};

/// Text in the version string of MariaDB, which MySQL does not have.
pub const MARIADB_TEXT: &[u8] = b"-MariaDB";

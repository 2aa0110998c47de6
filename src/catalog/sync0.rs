//! MySQL 5.6, and MariaDB 10.0 and 10.1: mutexes have no class yet, so they remember where they were created, as rw-locks do, and
//! nobody calls `mutex_spin_wait` who found a mutex free.
//!
//! What follows was read from the code of the official builds of MariaDB 10.1.23 (with XtraDB) and MySQL 5.6.24 for x86_64, neither of
//! them position-independent, and from their waits under load.
//!
//! - The code that takes a free mutex is inlined or in small functions (`pfs_mutex_enter_func`); all of them call `mutex_spin_wait`. It spins,
//!   yields the CPU, reserves a cell of the sync array, tries four times more, and sleeps, until it has the mutex.
//! - Who wants to share an rw-lock and cannot calls `rw_lock_s_lock_spin`. Its first argument may be typeless.
//! - `rw_lock_x_lock_func` is called by all who want an rw-lock for themselves. Where it gives up spinning, it yields the CPU and
//!   sleeps; a way out of every round leads back to its beginning, so waits that end while it spins are not seen, nor is what
//!   others spin before. Once it has announced itself, it waits for the readers to leave: in XtraDB in a function
//!   of its own, `rw_lock_x_lock_low`, which all pass too.
//! - A mutex begins with its event (XtraDB) or a pointer to it, and keeps a line of 64 bits; an rw-lock keeps one of 14 bits in a bit
//!   field that it shares. XtraDB has variants with priorities, that begin with the plain latch and are made by calling the
//!   plain latch's function.
//! - The instrument's key is loaded, and the latch registered, right before the call that creates it. Pages have no instruments.

use super::{
    library, Callsite, Created, Family, Flavor, Found, Function, Identity, IdentityIn, Latch, Member, MysqlNames,
    Naming, Shape, WaitFunction,
};
use crate::model::{Kind, Mode};
use crate::symbols::{Image, Parameter};

/// Also of those with priorities.
const MUTEX_CREATE: Function = "_Z17mutex_create_func";
const RW_LOCK_CREATE: Function = "_Z19rw_lock_create_func";
const RESERVE_CELL: Function = "_Z23sync_array_reserve_cellP12sync_array_t";
const WAIT_EVENT: Function = "_Z21sync_array_wait_eventP12sync_array_t";

const MUTEX_LINE: &Member = &Member { set_by: &[MUTEX_CREATE], to: Parameter::Line, shown_by: None };
const RW_LOCK_LINE: &Member = &Member { set_by: &[RW_LOCK_CREATE], to: Parameter::Line, shown_by: None };
const MUTEX: Identity = Identity::Created {
    file: &Member { set_by: &[MUTEX_CREATE], to: Parameter::File, shown_by: None },
    line: MUTEX_LINE,
};
const RW_LOCK: Identity = Identity::Created {
    file: &Member { set_by: &[RW_LOCK_CREATE], to: Parameter::File, shown_by: None },
    line: RW_LOCK_LINE,
};

/// A part of a function from which nobody returns without a sleep.
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
            // The name of the key that it has in builds that instrument pages.
            uninstrumented: &[("buf0buf.cc", Latch { kind: Kind::Rwlock, name: "buf_block_lock" })],
        },
    ],
};

pub(super) static MYSQL_5_6: Family = Family {
    flavor: Flavor::Mysql,
    wait_functions: WAIT_FUNCTIONS,
    wrappers: &[],
    spin: None,
    library: &library::MYSQL_5_6,
    pages: None,
    naming: Naming::Mysql(&NAMES),
};

static MARIADB_10_1: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: WAIT_FUNCTIONS,
    wrappers: &[],
    spin: None,
    library: &library::MARIADB_10_1,
    pages: None,
    naming: Naming::Mysql(&NAMES),
};

/// The family, or the one whose wait functions are the same if the version in the program says that it is MariaDB's.
pub(super) fn maintained(family: &'static Family, image: &Image) -> &'static Family {
    if std::ptr::eq(family, &MYSQL_5_6) && image.has_string(b"-MariaDB") {
        &MARIADB_10_1
    } else {
        family
    }
}

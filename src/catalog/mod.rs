//! What is known of each server family, as data: how to recognize it, which functions wait for latches, and where
//! latches store what identifies them. The module `discovery` finds in a program what is described here.
//!
//! A new server version is an entry here with a test, not new code.

mod cpu;
mod events;
mod files;
mod hardware;
mod lock;
mod mariadb;
mod mariadb_sync;
mod member;
mod mysql;
mod naming;
mod packages;
mod pages;
mod pthread;
mod spin;
mod statement;
mod sync0;
mod sync_array;
mod variables;
mod wait_function;

#[cfg(test)]
pub(crate) use mariadb::NAMES as MARIADB_NAMES;

pub use cpu::{class_of_function, is_futex_function, ChosenChecksum, PointerAt, CHECKSUMS, MEMORY_FUNCTIONS};
pub use events::{EVENTS, EVENT_MUTEX_AT, MARIADB_EXPORT};
pub use files::{file_kind, FileKind, INNODB_FILES, REDO_LOG};
pub use hardware::{
    cpu as hardware_cpu, where_counters_are, Access, Cpu, EventCode, HardwareEvent, Instruction, Proof, RelativeNode,
    Uncore,
};
pub use lock::{
    LockKind, LockWait, LOCK_WAITS, ROW_LOCK_SLEEPS, ROW_LOCK_SLEEPS_IN_LIBRARY, STAGE_PREFIX, TABLE_STAGE,
};
pub use mariadb_sync::SLEEPS_ONLY;
pub use member::{IdentifiedBy, Member, Showing};
pub use mysql::{PERCONA_TEXT, RW_LOCK_MOVE_OWNERSHIP};
pub use naming::{
    Around, ArrayLatches, Beside, Count, Created, Evidence, IdNames, InsideLatch, Latch, MariadbNames, MysqlNames,
    Naming, Object, Path, Word,
};
pub use packages::debug_package;
pub use pages::{Dictionary, DictionaryAt, PageLatch, Pages, SpaceAt};
pub use pthread::{
    is_word, lock_starts, mutex_size, psi_pointers, pthread_lock, tracked_id, LockArray, MetadataLock, PsiClass,
    PsiPointer, Pthread, METADATA_LOCK, PRLOCK_TEXT,
};
pub use spin::{SpinRounds, Turns};
pub use statement::{
    CONNECTION, CONTEXT_USER, CURRENT_SESSION, LOGIN, LOGIN_TAKERS, SCHEMA, SECURITY_CONTEXT, STATEMENT,
    STATEMENT_ADDRESS, USER,
};
pub use sync0::{MARIADB_10_1, MARIADB_TEXT, MYSQL_5_6};
pub use sync_array::{SyncCells, CELL_BYTES};
pub use variables::{number_size, Table, FLAGS_BEFORE_NAME};
pub use wait_function::{Callsite, Found, Function, FutexShape, IdentityIn, Shape, WaitFunction, WaitKind};

use strum::IntoStaticStr;

/// The maintainer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Flavor {
    /// Oracle's MySQL, and distributors' builds of it.
    Mysql,
    /// Percona Server, which is MySQL with changes.
    Percona,
    /// MariaDB.
    Mariadb,
}

impl Flavor {
    /// Returns the value of the `flavor` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Servers that wait for latches in the same functions and name them the same way.
#[derive(Debug)]
pub struct Family {
    /// The maintainer. MySQL also stands for Percona Server.
    pub flavor: Flavor,
    /// The functions in which threads wait for InnoDB's latches.
    pub wait_functions: &'static [WaitFunction],
    /// Prefixes of the mangled names of lock functions through which waiters for all kinds of latches pass. The call
    /// site is the frame above them.
    pub wrappers: &'static [&'static str],
    /// How InnoDB's latches get their names.
    pub naming: Naming,
    /// The locks of its SQL layer.
    pub pthread: &'static Pthread,
    /// How to identify the page that a latch belongs to; `None` where that is unknown.
    pub pages: Option<&'static Pages>,
    /// The cells in which threads sleep for its latches; `None` where there are none, or they are not known.
    pub cells: Option<&'static SyncCells>,
    /// How long its waiters spin; `None` where that is unknown.
    pub spin: Option<&'static SpinRounds>,
}

impl Family {
    /// Returns the distance from a lock word to the pointer to its performance_schema instance, where latches are
    /// identified by it.
    pub fn psi_from_latch(&self) -> Option<i32> {
        match self.naming {
            Naming::Mariadb(names) => Some(names.psi_from_latch),
            Naming::Mysql(_) | Naming::None => None,
        }
    }
}

/// The families that are recognized by their wait functions, in the order in which they are tried. The name of each
/// family's first wait function occurs in no family before it.
pub static FAMILIES: [&Family; 4] =
    [&sync0::MYSQL_5_6, &mariadb::MARIADB_10_6, &mariadb_sync::MARIADB_10_2, &mysql::MYSQL];

/// The size of a mutex with a latch id in MySQL 9.7.4 and MariaDB 10.2, in bytes.
pub const MUTEX_BYTES: u64 = 0x30;
/// The size of an rw-lock that remembers where it was created, in MySQL 9.7.4 and MariaDB 10.2, in bytes.
pub const RW_LOCK_BYTES: u64 = 0x78;
/// The size of an rw-lock in MariaDB 10.6 and newer, in bytes: two lock words.
pub const WORDS_BYTES: u64 = 8;

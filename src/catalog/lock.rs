//! The functions in which threads wait for locks of the database, which other transactions hold.
//!
//! Their code was read from the disassembly of MySQL 9.7.4 and MariaDB 11.4.5.

use super::Function;

/// A function in which threads wait for locks.
#[derive(Debug)]
pub struct LockWait {
    /// A short, stable name for its probes.
    pub label: &'static str,
    /// The function.
    pub function: Function,
    /// What its callers wait for.
    pub waits_for: LockKind,
}

/// What threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A row lock of InnoDB, or one of its rarer locks on whole tables. The function returns at once if the lock was
    /// granted meanwhile, so a wait begins where a sleep is inevitable.
    Row,
    /// A metadata lock. The function returns 0 if it is to be called again for the same lock.
    Metadata {
        /// The number of the argument that points to the stage that the server shows meanwhile, counted from 0.
        stage: usize,
    },
}

/// The functions of all servers. Every server has at most one for row locks: MariaDB 10.6 renamed it.
pub const LOCK_WAITS: &[LockWait] = &[
    LockWait {
        label: "lock_wait_suspend_thread",
        function: "_Z24lock_wait_suspend_threadP9que_thr_t",
        waits_for: LockKind::Row,
    },
    LockWait { label: "lock_wait", function: "_Z9lock_waitP9que_thr_t", waits_for: LockKind::Row },
    LockWait {
        label: "mdl_timed_wait",
        function: "_ZN8MDL_wait10timed_waitEP17MDL_context_ownerP8timespecbPK",
        waits_for: LockKind::Metadata { stage: 4 },
    },
];

/// The functions in which a thread sleeps that waits for a row lock: those of the server, and those of the C library.
pub const ROW_LOCK_SLEEPS: &[Function] = &["_Z17os_event_wait_low", "_ZN8os_event8wait_low", "psi_cond_"];
/// See [`ROW_LOCK_SLEEPS`].
pub const ROW_LOCK_SLEEPS_IN_LIBRARY: &[&str] = &["pthread_cond_wait", "pthread_cond_timedwait"];

/// What stages of waits begin with, which says nothing of the lock.
pub const STAGE_PREFIX: &str = "Waiting for ";
/// The stage of a wait for a table's metadata lock, which every server has.
pub const TABLE_STAGE: &str = "Waiting for table metadata lock";

//! InnoDB's events, on which threads sleep for its latches in MariaDB up to 10.5.

/// A function that all versions of MariaDB from 10.2 on export, and MySQL does not have.
pub const MARIADB_EXPORT: &str = "_Z16mariadb_fix_viewP3THDP10TABLE_LISTbb";

/// The name for waits on events, where latches, row locks and idle threads cannot be distinguished.
pub const EVENTS: &str = "os_event";

/// The offset of the mutex in an `os_event`, in bytes; the condition variable follows it. This holds in all builds that
/// were examined: MariaDB 10.2.11 and 10.5.29 for x86_64, 10.5.23 for aarch64.
pub const EVENT_MUTEX_AT: i64 = 0x10;

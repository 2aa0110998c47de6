//! InnoDB's events, on which threads sleep for its latches in MariaDB up to 10.5. They are recognized without symbols,
//! by how they wait.

use std::collections::HashSet;
use std::ops::Range;

use super::pthread::mutex_size;
use crate::analysis::{direct_calls, imported_calls, Function};
use crate::symbols::Image;

/// A function that all versions of MariaDB from 10.2 on export, and MySQL does not have.
const MARIADB: &str = "_Z16mariadb_fix_viewP3THDP10TABLE_LISTbb";

/// The name for waits on events, where latches, row locks and idle threads cannot be distinguished.
pub const EVENTS: &str = "os_event";

/// The offset of the mutex in an `os_event`, in bytes; the condition variable follows it. This holds in all builds that
/// were examined: MariaDB 10.2.11 and 10.5.29 for x86_64, 10.5.23 for aarch64.
const MUTEX_AT: i64 = 0x10;

/// The largest size of such a function, in bytes. They do nothing else, so longer functions need not be analyzed.
const MAX_LENGTH: u64 = 512;

/// Returns MariaDB's functions that wait for an event. They pass on the mutex and the condition variable in what their
/// first argument points to; nothing else in these servers has the two at these offsets.
pub fn event_waits(image: &Image) -> Vec<Range<u64>> {
    if image.symbol(MARIADB).is_none() {
        return Vec::new();
    }
    let stubs = ["pthread_cond_wait", "pthread_cond_timedwait"].map(|name| imported_calls(image, name)).concat();
    let cond_at = MUTEX_AT + i64::from(mutex_size(image.arch()));
    let mut found: Vec<Range<u64>> = direct_calls(image, &stubs.into_iter().collect::<HashSet<u64>>())
        .into_iter()
        .filter_map(|(at, _)| {
            let range = image.function_at(at).filter(|r| r.end - r.start <= MAX_LENGTH)?;
            let [cond, mutex, ..] = Function::new(image, range.clone())?.passed_at(at);
            let is_event = cond?.first_argument() == Some(cond_at) && mutex?.first_argument() == Some(MUTEX_AT);
            is_event.then_some(range)
        })
        .collect();
    found.dedup();
    found
}

//! The functions that wait for InnoDB's events in MariaDB up to 10.5. They are recognized without symbols, by how they
//! wait.

use std::collections::HashSet;
use std::ops::Range;

use crate::analysis::{direct_calls, imported_calls, Function};
use crate::catalog::{mutex_size, EVENT_MUTEX_AT, MARIADB_EXPORT};
use crate::symbols::Image;

/// The largest size of a function that waits for an event, in bytes. Such functions do nothing else, so longer ones
/// need not be analyzed.
const MAX_LENGTH: u64 = 512;

/// Returns MariaDB's functions that wait for an event. They pass on the mutex and the condition variable in what their
/// first argument points to; nothing else in these servers has the two at these offsets.
pub fn event_waits(image: &Image) -> Vec<Range<u64>> {
    if image.symbol(MARIADB_EXPORT).is_none() {
        return Vec::new();
    }
    let stubs = ["pthread_cond_wait", "pthread_cond_timedwait"].map(|name| imported_calls(image, name)).concat();
    let cond_at = EVENT_MUTEX_AT + i64::from(mutex_size(image.arch()));
    let mut found: Vec<Range<u64>> = direct_calls(image, &stubs.into_iter().collect::<HashSet<u64>>())
        .into_iter()
        .filter_map(|(at, _)| {
            let range = image.function_at(at).filter(|r| r.end - r.start <= MAX_LENGTH)?;
            let [cond, mutex, ..] = Function::new(image, range.clone())?.passed_at(at);
            let is_event = cond?.first_argument() == Some(cond_at) && mutex?.first_argument() == Some(EVENT_MUTEX_AT);
            is_event.then_some(range)
        })
        .collect();
    found.dedup();
    found
}

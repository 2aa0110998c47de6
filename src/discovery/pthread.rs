//! How a server's SQL layer names its locks, and which of them lie in static arrays.

use crate::catalog::{LockArray, METADATA_LOCK, PRLOCK_TEXT};
use crate::model::Kind;
use crate::symbols::Image;

/// Returns the kind by which performance_schema names a `rw_pr_lock_t` in this server.
pub fn prlock_kind(image: &Image) -> Kind {
    if image.has_string(PRLOCK_TEXT) {
        Kind::Prlock
    } else {
        Kind::Rwlock
    }
}

/// Returns the event name of the `rw_pr_lock_t` in a metadata lock.
pub fn metadata_lock_event(image: &Image) -> String {
    format!("wait/synch/{}/{METADATA_LOCK}", prlock_kind(image).as_str())
}

/// Returns whether the mutex of one of the array's elements lies at this link-time address.
pub fn is_in_lock_array(image: &Image, array: &LockArray, addr: u64) -> bool {
    image.symbol(array.symbol).is_some_and(|s| {
        let from = addr.wrapping_sub(s.addr);
        from < s.size && from.checked_rem(s.size / array.elements) == Some(0)
    })
}

//! Where InnoDB's rw-locks keep the thread that holds them, which each build's code shows.

use crate::analysis::Function;
use crate::catalog::RW_LOCK_MOVE_OWNERSHIP;
use crate::symbols::Image;

/// Where an `rw_lock_t` keeps its writer. The offsets are from its beginning, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RwLockOwner {
    /// The thread that has locked it exclusively, or in the mode between: a `pthread_t`. It stays after the unlocking.
    pub writer: u16,
    /// The byte that is 1 while the lock belongs to that thread, rather than to whoever will end a read of a page.
    pub belongs: u16,
}

/// Returns where a build's `rw_lock_t` keeps its writer. The function by which a thread makes a lock its own accesses
/// two members: it sets a byte, and reads or sets a number of eight bytes. `None` if it accesses any other.
pub fn rw_lock_owner(image: &Image) -> Option<RwLockOwner> {
    let symbol = image.functions_named(RW_LOCK_MOVE_OWNERSHIP).next()?;
    let function = Function::new(image, image.function_at(symbol.addr)?)?;
    let accessed = function.accessed(0);
    let only = |bytes: u8| {
        let mut of_size = accessed.iter().filter(|(_, size)| *size == bytes);
        of_size.next().filter(|_| of_size.next().is_none()).and_then(|(offset, _)| u16::try_from(*offset).ok())
    };
    (accessed.len() == 2).then(|| Some(RwLockOwner { writer: only(8)?, belongs: only(1)? }))?
}

//! The sync array of MySQL 5.7 to 9.x and of MariaDB 10.2 to 10.5. A thread that sleeps for a latch reserves a cell of
//! it, which says what the thread waits for.
//!
//! The cell's members, the numbers of the kinds of wait and the arguments were read from the disassembly of MySQL 9.7.4
//! (Debian, x86_64 and aarch64) and the debug information of MariaDB 10.2.11 (official build for x86_64). MySQL 5.7 and
//! 8.0 have the same numbers, except for page mutexes.

use super::mysql::{BLOCK_MUTEX, MUTEX, RW_LOCK};
use super::{Function, IdentifiedBy, WaitKind};
use crate::model::Mode;

/// How the cells of the sync array say what threads wait for.
#[derive(Debug)]
pub struct SyncCells {
    /// The function in which all threads with a cell sleep.
    pub function: Function,
    /// The number of its argument that points to the pointer to the cell, counted from 0.
    pub argument: usize,
    /// The kinds of wait.
    pub kinds: &'static [WaitKind],
    /// What identifies latches of all other kinds.
    pub rest: IdentifiedBy,
}

/// The size of the part of a cell that is read: the latch's address, the kind of wait, the address of the file name and
/// the line, of which versions write 32 or 64 bits.
pub const CELL_BYTES: usize = 32;

pub(super) static CELLS: SyncCells = SyncCells {
    function: "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t",
    argument: 1,
    kinds: &[
        WaitKind { number: 1, mode: Mode::None, identity: MUTEX },
        WaitKind { number: 2, mode: Mode::Sx, identity: RW_LOCK },
        // An X wait for the readers to leave.
        WaitKind { number: 3, mode: Mode::X, identity: RW_LOCK },
        WaitKind { number: 4, mode: Mode::S, identity: RW_LOCK },
        WaitKind { number: 5, mode: Mode::X, identity: RW_LOCK },
    ],
    rest: BLOCK_MUTEX,
};

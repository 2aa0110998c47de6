//! MariaDB 10.6 and later, whose latches are 32-bit words of `srw_mutex_impl` and `ssux_lock_impl`.
//!
//! The functions are local, so only builds with a `.symtab` are covered here.

use super::{Callsite, Family, Find, IdentitySource, Layout, PsiChain, Shape, WaitFunction};
use crate::model::Mode;

/// Where naming finds things in MariaDB's structures.
#[derive(Debug)]
pub struct MariadbLayout {
    pub psi: PsiChain,
    /// Latches inside static data, by symbol.
    pub statics: &'static [StaticLatch],
    /// Latches inside heap structures, recognised by what surrounds them.
    pub heap: &'static [HeapLatch],
}

/// A static object and the latches in it.
#[derive(Debug)]
pub struct StaticLatch {
    pub symbol: &'static str,
    pub members: &'static [Member],
}

/// One latch, or an array of them, inside a static object.
#[derive(Debug)]
pub struct Member {
    /// Of the first lock word.
    pub offset: u64,
    /// Bytes from one array element to the next, and how many there are; 1 for a single latch.
    pub stride: u64,
    pub count: u64,
    /// The last part of the event name.
    pub name: &'static str,
}

/// A kind of heap structure with a latch in it.
#[derive(Debug)]
pub struct HeapLatch {
    pub name: &'static str,
}

/// An srw_lock, ssux_lock and index_lock keep the instrumented object right in front of the lock word.
/// Page latches and bare mutexes have none; there the bytes in front belong to something else.
const PSI: PsiChain = PsiChain { psi: -8, class: 24, name: 20 };

const fn waits(label: &'static str, symbols: &'static [&'static str], mode: Mode) -> WaitFunction {
    WaitFunction {
        label,
        find: Find::Symbols(symbols),
        mode,
        shape: Shape::Whole,
        latch_arg: 0,
        callsite: Callsite::Caller,
        identity: IdentitySource::Word(PSI),
    }
}

// All are given the address of the lock word. A writer of an ssux lock waits in wait_and_lock for other
// writers and then in wr_wait for the readers: two waits, one after the other. An update lock (SX) waits
// for other writers in the same code as an exclusive one and is counted with it. Readers of 10.11 may
// wait in wait_and_lock within rd_wait: the outer function tells the mode.
const WAIT_FUNCTIONS: &[WaitFunction] = &[
    waits("srw_mutex_wait", &["_ZN14srw_mutex_implILb0EE13wait_and_lockEv"], Mode::X),
    waits("srw_mutex_spin_wait", &["_ZN14srw_mutex_implILb1EE13wait_and_lockEv"], Mode::X),
    waits("ssux_lock_rd_wait", &["_ZN14ssux_lock_implILb0EE7rd_waitEv"], Mode::S),
    waits("ssux_lock_spin_rd_wait", &["_ZN14ssux_lock_implILb1EE7rd_waitEv"], Mode::S),
    waits("ssux_lock_wr_wait", &["_ZN14ssux_lock_implILb0EE7wr_waitEj"], Mode::X),
    waits("ssux_lock_spin_wr_wait", &["_ZN14ssux_lock_implILb1EE7wr_waitEj"], Mode::X),
];

const LAYOUT_11_4: MariadbLayout = MariadbLayout { psi: PSI, statics: &[], heap: &[] };

pub const FAMILY_11_4: Family = Family {
    name: "mariadb-srw",
    wait_functions: WAIT_FUNCTIONS,
    slow_callees: &[],
    layout: Layout::Mariadb(&LAYOUT_11_4),
};

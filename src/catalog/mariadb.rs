//! MariaDB 10.6 and newer: InnoDB's latches are bare lock words on which threads wait in six functions.
//!
//! Function names and offsets were read from the official 10.11.5 and 11.4.5 builds for x86_64, from their symbol
//! table and debug information.

use super::{
    ArrayLatches, Callsite, Evidence, Family, Found, HeapLatch, IdentityIn, MariadbNames, Member, Naming, Psi, Shape,
    WaitFunction,
};
use crate::model::{Kind, Mode};

const fn wait(symbol: &'static [&'static str], label: &'static str, mode: Mode) -> WaitFunction {
    WaitFunction {
        found: Found::Symbols(symbol),
        label,
        mode,
        shape: Shape::Whole,
        latch_argument: 0,
        callsite: Callsite::Caller,
        identity: IdentityIn::Word,
    }
}

const fn member(offsets: (u64, u64), name: &'static str, kind: Kind) -> Member {
    Member { offsets, name, kind }
}

const RWLOCK: Kind = Kind::Rwlock;
const SXLOCK: Kind = Kind::Sxlock;
const MUTEX: Kind = Kind::Mutex;

pub(super) static MARIADB_10_6: Family = Family {
    wait_functions: &[
        wait(&["_ZN14srw_mutex_implILb0EE13wait_and_lockEv"], "srw_mutex_wait_and_lock", Mode::X),
        wait(&["_ZN14srw_mutex_implILb1EE13wait_and_lockEv"], "srw_spin_mutex_wait_and_lock", Mode::X),
        wait(&["_ZN14ssux_lock_implILb0EE7rd_waitEv"], "ssux_rd_wait", Mode::S),
        wait(&["_ZN14ssux_lock_implILb1EE7rd_waitEv"], "ssux_spin_rd_wait", Mode::S),
        wait(&["_ZN14ssux_lock_implILb0EE7wr_waitEj"], "ssux_wr_wait", Mode::X),
        wait(&["_ZN14ssux_lock_implILb1EE7wr_waitEj"], "ssux_spin_wr_wait", Mode::X),
    ],
    wrappers: &[
        "_ZN14srw_mutex_implI",
        "_ZN14ssux_lock_implI",
        "_ZN13srw_lock_implI",
        "_ZN9ssux_lock",
        "_ZN8sux_lockI",
        "_ZN5mtr_t6s_lock",
        "_ZN5mtr_t6u_lock",
        "_ZN5mtr_t6x_lock",
        "_ZN5mtr_t7sx_lock",
        "_ZN10lock_sys_t7rd_lock",
        "_ZN10lock_sys_t7wr_lock",
        "_ZN9LockGuardC",
        "_ZN11TMLockGuardC",
    ],
    naming: Naming::Mariadb(&MariadbNames {
        psi: Psi { from_latch: -8, to_class: 24, to_name: 20 },
        statics: &[
            ("log_sys", &[member((0x40, 0x50), "log_latch", RWLOCK), member((0xf0, 0xf8), "log_lsn_lock", MUTEX)]),
            ("lock_sys", &[member((0x40, 0x50), "lock_latch", RWLOCK)]),
            ("dict_sys", &[member((0x40, 0x50), "dict_operation_lock", RWLOCK)]),
            (
                "purge_sys",
                &[member((0x0, 0x10), "trx_purge_latch", RWLOCK), member((0x80, 0x88), "trx_purge_end_latch", RWLOCK)],
            ),
            // 128 rollback segments of 128 bytes each, behind what else the transaction system has.
            ("trx_sys", &[member((0x4000, 0x8200), "trx_rseg_latch", RWLOCK)]),
        ],
        arrays: &[
            ArrayLatches { symbol: "lock_sys", cells_at: 80, array_at: 88, name: "lock_rec_hash_latch", kind: RWLOCK },
            ArrayLatches {
                symbol: "lock_sys",
                cells_at: 96,
                array_at: 104,
                name: "lock_prdt_hash_latch",
                kind: RWLOCK,
            },
            ArrayLatches {
                symbol: "buf_pool",
                cells_at: 16832,
                array_at: 16840,
                name: "buf_page_hash_latch",
                kind: RWLOCK,
            },
        ],
        heap: &[
            HeapLatch {
                name: "fil_space_latch",
                kind: RWLOCK,
                // 11.4, 10.11
                word_at: &[0xa0, 0xa8],
                evidence: Evidence::OwnedBy { child_at: &[0x60, 0x70], parent_at: 0 },
            },
            HeapLatch {
                name: "index_tree_rw_lock",
                kind: SXLOCK,
                word_at: &[0x108, 0x170, 0x180],
                evidence: Evidence::NamedPartOf { name_at: 0x10, owner_at: 0x18, owner_name_at: 0x10 },
            },
            HeapLatch {
                name: "buf_block_lock",
                kind: SXLOCK,
                word_at: &[0x18],
                evidence: Evidence::PageFrame { id_at: 0, frame_at: 0x30 },
            },
            HeapLatch {
                name: "trx_mutex",
                kind: MUTEX,
                word_at: &[0x58],
                evidence: Evidence::Magic { at: &[2704], value: 91_118_598 },
            },
            HeapLatch {
                name: "dict_table_lock_mutex",
                kind: MUTEX,
                word_at: &[500],
                evidence: Evidence::TableName { at: 0x10 },
            },
            HeapLatch {
                name: "autoinc_mutex",
                kind: MUTEX,
                word_at: &[496],
                evidence: Evidence::TableName { at: 0x10 },
            },
        ],
    }),
};

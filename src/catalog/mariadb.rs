//! MariaDB 10.6 and newer: InnoDB's latches are bare lock words, on which threads wait in six functions.
//!
//! Function names and offsets were read from the symbol tables and debug information of the official 10.11.5 and 11.4.5
//! builds for x86_64. How to distinguish the functions without names was read from the disassembly of these and of
//! Debian's 10.11.19, 11.8.6 and 11.8.9 for both architectures.

use super::pages::{Dictionary, DictionaryAt, PageLatch, Pages, SpaceAt, COMMON_PAGES};
use super::{
    pthread, spin, Around, ArrayLatches, Beside, Callsite, Count, Evidence, Family, Flavor, Found, Function,
    FutexShape, IdentifiedBy, IdentityIn, InsideLatch, Latch, MariadbNames, Naming, Object, Shape, Table, WaitFunction,
    Word,
};
use crate::model::{Kind, Mode};

const fn wait(symbol: Function, shape: FutexShape, label: &'static str, mode: Mode) -> WaitFunction {
    WaitFunction {
        found: Found::Futex(symbol, shape),
        label,
        mode,
        shape: Shape::Whole,
        latch_argument: 0,
        callsite: Callsite::Caller,
        identity: IdentityIn::Always(IdentifiedBy::Word),
    }
}

/// Waits for the latch word to become free.
const MUTEX: FutexShape = FutexShape { word: 0, wakes_all: false, spins: false };
/// Waits the same way, and then admits all other readers.
const READER: FutexShape = FutexShape { wakes_all: true, ..MUTEX };
/// Holds the latch word, and waits on the next word for the readers to leave.
const WRITER: FutexShape = FutexShape { word: 4, ..MUTEX };

const fn spinning(shape: FutexShape) -> FutexShape {
    FutexShape { spins: true, ..shape }
}

pub(super) static MARIADB_10_6: Family = Family {
    flavor: Flavor::Mariadb,
    wait_functions: &[
        wait("_ZN14srw_mutex_implILb0EE13wait_and_lockE", MUTEX, "srw_mutex_wait_and_lock", Mode::X),
        wait("_ZN14srw_mutex_implILb1EE13wait_and_lockE", spinning(MUTEX), "srw_spin_mutex_wait_and_lock", Mode::X),
        wait("_ZN14ssux_lock_implILb0EE7rd_waitE", READER, "ssux_rd_wait", Mode::S),
        wait("_ZN14ssux_lock_implILb1EE7rd_waitE", spinning(READER), "ssux_spin_rd_wait", Mode::S),
        wait("_ZN14ssux_lock_implILb0EE7wr_waitE", WRITER, "ssux_wr_wait", Mode::X),
        wait("_ZN14ssux_lock_implILb1EE7wr_waitE", spinning(WRITER), "ssux_spin_wr_wait", Mode::X),
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
    naming: Naming::Mariadb(&NAMES),
    cells: None,
    spin: Some(&spin::MARIADB_10_6),
    pthread: &pthread::MARIADB,
    pages: Some(&PAGES),
};

pub(crate) const NAMES: MariadbNames = MariadbNames {
    psi_from_latch: -8,
    page_latch: BLOCK_LOCK,
    instrumented: INSTRUMENTED,
    mutexes: MUTEXES,
    beside: &[Beside {
        instrumented: "trx_purge_latch",
        // Padding to the latch's own cache line lies between them. Sizes differ by architecture, but the distance does
        // not.
        distance: 120,
        latch: rwlock("trx_purge_end_latch"),
    }],
    around: &[LOG_SYS],
    arrays: ARRAYS,
    inside: INSIDE,
};

/// The instruments that InnoDB registers as rw-locks.
const INSTRUMENTED: &[&str] = &[
    "btr_search_latch",
    "dict_operation_lock",
    "fil_space_latch",
    "index_online_log",
    "index_tree_rw_lock",
    "lock_latch",
    "log_latch",
    "trx_i_s_cache_lock",
    "trx_purge_latch",
    "trx_rseg_latch",
];

/// The instruments that InnoDB registers as mutexes in static data.
const MUTEXES: &[&str] = &[
    "buf_dblwr_mutex",
    "buf_pool_mutex",
    "dict_foreign_err_mutex",
    "fil_system_mutex",
    "flush_list_mutex",
    "ibuf_mutex",
    "ibuf_pessimistic_insert_mutex",
    "lock_wait_mutex",
    "page_zip_stat_per_index_mutex",
    "purge_sys_pq_mutex",
    "recalc_pool_mutex",
    "recv_sys_mutex",
    "srv_innodb_monitor_mutex",
    "srv_misc_tmpfile_mutex",
    "srv_monitor_file_mutex",
    "srv_threads_mutex",
    "trx_sys_mutex",
];

/// `log_sys`. Builds from 10.11.19 and 11.8.9 on no longer instrument its latch; only some versions have the mutex.
const LOG_SYS: Around = Around {
    variables: &[
        (Table::System, "log_buffer_size"),
        (Table::System, "log_file_buffering"),
        (Table::System, "log_write_ahead_size"),
        (Table::Status, "log_waits"),
        (Table::Status, "log_write_requests"),
        (Table::Status, "log_writes"),
    ],
    rwlock: rwlock("log_latch"),
    mutex: mutex("log_lsn_lock"),
};

const fn rwlock(name: &'static str) -> Latch {
    Latch { kind: Kind::Rwlock, name }
}

const fn mutex(name: &'static str) -> Latch {
    Latch { kind: Kind::Mutex, name }
}

// Names: a latch has the name of its instrument where the server registers one. `trx_mutex`, `autoinc_mutex`,
// `read_view_mutex` and `buf_block_lock` are the names that the same latches have or had as instruments of MySQL and of
// earlier MariaDB versions. The other names combine the member's name with that of the object that contains it.

const ARRAYS: &[ArrayLatches] = &[
    ArrayLatches {
        object: Object::Symbol { name: "btr_search_sys", size: 8 },
        array_at: 0,
        count: Count::Variable("btr_ahi_parts"),
        stride: 64,
        word: 8,
        latch: rwlock("btr_search_latch"),
    },
    // The index of the change buffer, which was removed in 11.0. Its table does not list its indexes.
    ArrayLatches {
        object: Object::Symbol { name: "ibuf", size: 0x70 },
        array_at: 48,
        count: Count::One,
        stride: 8,
        word: 384,
        latch: rwlock("index_tree_rw_lock"),
    },
    hash(LOCK_SYS_LATCH, 16, "lock_rec_hash_latch"),
    hash(LOCK_SYS_LATCH, 32, "lock_prdt_hash_latch"),
    hash(LOCK_SYS_LATCH, 48, "lock_prdt_page_hash_latch"),
    // 11.4, 10.11.
    hash(Object::Symbol { name: "buf_pool", size: 0x45c0 }, 16832, "buf_page_hash_latch"),
    hash(Object::Symbol { name: "buf_pool", size: 0x5400 }, 16776, "buf_page_hash_latch"),
];

/// `lock_sys`, starting at its latch.
const LOCK_SYS_LATCH: Object = Object::Around { instrumented: "lock_latch", at: 0 };

/// Describes a hash table in an object: the number of cells is at `at`, followed by the pointer to the array.
const fn hash(object: Object, at: u64, name: &'static str) -> ArrayLatches {
    ArrayLatches { object, array_at: at + 8, count: Count::HashCells(at), stride: 64, word: 0, latch: rwlock(name) }
}

const INSIDE: &[InsideLatch] = &[
    // A page latch has a mode between shared and exclusive, as an index tree's latch does.
    InsideLatch {
        word: Word::At(BLOCK_LATCH),
        evidence: &[Evidence::PageHeader { path: &[BLOCK_FRAME], id: 0 }],
        latch: BLOCK_LOCK,
    },
    // An index has a name, a table, and the table's name, and the table's first index points back to the table.
    InsideLatch {
        word: Word::Made,
        evidence: &[
            Evidence::Name(&[INDEX_NAME]),
            Evidence::Name(&[INDEX_TABLE, TABLE_NAME]),
            Evidence::Same(&[INDEX_TABLE], &[INDEX_TABLE, TABLE_INDEXES, INDEX_TABLE]),
        ],
        latch: rwlock("index_tree_rw_lock"),
    },
    // The first form is that of 11.4 and later 10.11, the second that of earlier 10.11.
    space(&[Evidence::Same(&[], &[96, 0]), Evidence::Name(&[96, 8])]),
    space(&[Evidence::Same(&[], &[104, 0]), Evidence::Name(&[104, 8])]),
    rollback_segment(&[Evidence::Same(&[0], &[0, 96, 0]), Evidence::Name(&[0, 96, 8])]),
    rollback_segment(&[Evidence::Same(&[0], &[0, 104, 0]), Evidence::Name(&[0, 104, 8])]),
    transaction(88, "trx_mutex"),
    transaction(2180, "read_view_mutex"),
    // An entry of the hash table of read-write transactions and its transaction point to each other.
    InsideLatch {
        word: Word::At(24),
        evidence: &[
            Evidence::Magic { path: &[16], at: TRX_MAGIC_AT, value: TRX_MAGIC },
            Evidence::Same(&[], &[16, 2688]),
        ],
        latch: mutex("rw_trx_hash_element_mutex"),
    },
    table(496, mutex("autoinc_mutex")),
    // This is a mutex up to 10.11.
    table(500, rwlock("dict_table_lock_latch")),
];

/// A page descriptor begins with the page id: the page number, then the tablespace.
const BLOCK_LATCH: u64 = 24;
const BLOCK_FRAME: u64 = 48;
const BLOCK_LOCK: Latch = Latch { kind: Kind::Sxlock, name: "buf_block_lock" };

static PAGES: Pages = Pages {
    latch: PageLatch {
        space: 4 - BLOCK_LATCH as i32,
        page_no: -(BLOCK_LATCH as i32),
        frame: (BLOCK_FRAME - BLOCK_LATCH) as i32,
        flag: None,
        // The root of an index whose table was given columns without a rebuild.
        index_type: Some(18),
    },
    dictionary: Dictionary {
        at: DictionaryAt::Object(Object::Around { instrumented: "dict_operation_lock", at: 0 }),
        index_table: INDEX_TABLE,
        index_id: 0,
        index_name: &[INDEX_NAME],
        table_name: &[INDEX_TABLE, TABLE_NAME],
        space: SpaceAt::Table(56),
    },
    spaces: &[(0, "innodb_system"), (0xffff_fffe, "innodb_temporary")],
    one_table_per_space: true,
    types: &[COMMON_PAGES, &[(4, "change buffer")]],
};

const INDEX_NAME: u64 = 16;
const INDEX_TABLE: u64 = 24;
const TABLE_NAME: u64 = 16;
const TABLE_INDEXES: u64 = 152;

/// Describes a table: it has a name, and its first index points back to it.
const fn table(word: u64, latch: Latch) -> InsideLatch {
    InsideLatch {
        word: Word::At(word),
        evidence: &[Evidence::Name(&[TABLE_NAME]), Evidence::Same(&[], &[TABLE_INDEXES, INDEX_TABLE])],
        latch,
    }
}

/// Describes a tablespace: its first file points back to it and has a name.
const fn space(evidence: &'static [Evidence]) -> InsideLatch {
    InsideLatch { word: Word::Made, evidence, latch: rwlock("fil_space_latch") }
}

/// Describes a rollback segment, which begins with its tablespace.
const fn rollback_segment(evidence: &'static [Evidence]) -> InsideLatch {
    InsideLatch { word: Word::Made, evidence, latch: rwlock("trx_rseg_latch") }
}

/// `TRX_MAGIC_N`, and its offset in a transaction.
const TRX_MAGIC: u64 = 91_118_598;
const TRX_MAGIC_AT: u64 = 2704;

const fn transaction(word: u64, name: &'static str) -> InsideLatch {
    InsideLatch {
        word: Word::At(word),
        evidence: &[Evidence::Magic { path: &[], at: TRX_MAGIC_AT, value: TRX_MAGIC }],
        latch: mutex(name),
    }
}

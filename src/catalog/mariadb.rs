//! MariaDB 10.6 and later, whose latches are 32-bit words of `srw_mutex_impl` and `ssux_lock_impl`.
//!
//! The functions are local, so only builds with a `.symtab` are covered here.

use super::{Callsite, Family, Find, IdentitySource, Layout, PsiChain, Shape, WaitFunction};
use crate::model::{Kind, Mode};

/// Where naming finds things in MariaDB's structures. Offsets are from the debug information of official builds.
#[derive(Debug)]
pub struct MariadbLayout {
    pub psi: PsiChain,
    /// Latches inside static data, by symbol.
    pub statics: &'static [StaticLatch],
    /// Latches in arrays on the heap that static data points to.
    pub arrays: &'static [Array],
    /// Latches inside heap structures, recognised by what surrounds them.
    pub heap: &'static [HeapLatch],
}

/// A static object and the latches in it.
#[derive(Debug)]
pub struct StaticLatch {
    pub symbol: &'static str,
    /// A build in which the object has another size has another layout, and nothing in it is named.
    pub size: u64,
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
    pub latch: Latch,
}

/// A latch's kind and the last part of its event name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latch {
    /// Where the server registers an instrument of this name, its flags decide between rwlock and sxlock.
    pub kind: Kind,
    pub name: &'static str,
}

/// An array on the heap with a latch in each element.
#[derive(Debug)]
pub struct Array {
    /// The static object, its size, and where in it the pointer to the first element is.
    pub symbol: &'static str,
    pub size: u64,
    pub pointer: u64,
    pub count: Count,
    pub stride: u64,
    /// Of the lock word in an element.
    pub word: u64,
    pub latch: Latch,
}

/// How many elements an array has.
#[derive(Debug)]
pub enum Count {
    /// A u64 in this static variable.
    Variable(&'static str),
    /// The array is a hash table with a latch at the start of every cache line. A u64 at this offset of the object is its
    /// number of cells, of 8 bytes each, without the latches and padding among them.
    HashCells { at: u64 },
}

/// A kind of heap structure with a latch in it.
#[derive(Debug)]
pub struct HeapLatch {
    /// Of the lock word in the structure.
    pub word: u64,
    /// All must hold. Together they leave no room for chance.
    pub checks: &'static [Check],
    pub latch: Latch,
}

/// Pointers to follow, from the structure on: the offset of each in what the one before it points to.
pub type Path = &'static [u64];

/// Something that is true of a structure of a kind.
#[derive(Debug)]
pub enum Check {
    /// The u64 at offset `at` of what the path leads to is `value`.
    Magic { path: Path, at: u64, value: u64 },
    /// Both paths lead to the same place, which is not null.
    Same(Path, Path),
    /// The path leads to a name: a short string of readable characters.
    Name(Path),
    /// The path leads to a page in memory whose header has the same page number and tablespace as the page id at offset
    /// `id`.
    PageHeader { path: Path, id: u64 },
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

const fn rwlock(name: &'static str) -> Latch {
    Latch { kind: Kind::Rwlock, name }
}

const fn mutex(name: &'static str) -> Latch {
    Latch { kind: Kind::Mutex, name }
}

const fn one(offset: u64, latch: Latch) -> Member {
    Member { offset, stride: 0, count: 1, latch }
}

/// `TRX_MAGIC_N`
const TRX_MAGIC: u64 = 91_118_598;

/// A buffer page's latch has a mode between shared and exclusive, as an index tree's has.
const BLOCK_LATCH: Latch = Latch { kind: Kind::Sxlock, name: "buf_block_lock" };

// Names: where the server registers an instrument, its name. `buf_block_lock`, `trx_mutex`, `autoinc_mutex` and
// `read_view_mutex` are the names that the same latches have or had as instruments of MySQL and earlier MariaDB versions. The
// others are the names of type and member: `log_sys.lsn_lock` of type `log_lsn_lock`, …

/// In a `trx_sys_t`: persistent and temporary rollback segments, each 128 of 128 bytes with the word at 16.
const TRX_SYS: StaticLatch = StaticLatch {
    symbol: "trx_sys",
    size: 0x8480,
    members: &[
        Member { offset: 0x100 + 16, stride: 128, count: 128, latch: rwlock("trx_rseg_latch") },
        Member { offset: 0x4100 + 16, stride: 128, count: 128, latch: rwlock("trx_rseg_latch") },
    ],
};
const LOCK_SYS: StaticLatch =
    StaticLatch { symbol: "lock_sys", size: 0x100, members: &[one(72, rwlock("lock_latch"))] };
const DICT_SYS: StaticLatch =
    StaticLatch { symbol: "dict_sys", size: 0x140, members: &[one(72, rwlock("dict_operation_lock"))] };
const TRX_I_S_CACHE: StaticLatch =
    StaticLatch { symbol: "_ZL20trx_i_s_cache_static", size: 0xb80, members: &[one(8, rwlock("trx_i_s_cache_lock"))] };
const PURGE_MEMBERS: &[Member] = &[one(8, rwlock("trx_purge_latch")), one(128, rwlock("purge_end_latch"))];

const AHI_PARTS: Array = Array {
    symbol: "btr_search_sys",
    size: 8,
    pointer: 0,
    count: Count::Variable("btr_ahi_parts"),
    stride: 64,
    word: 8,
    latch: rwlock("btr_search_latch"),
};

/// A hash table of `lock_sys`, by the offset of its number of cells.
const fn lock_hash(at: u64) -> Array {
    Array {
        symbol: "lock_sys",
        size: 0x100,
        pointer: at + 8,
        count: Count::HashCells { at },
        stride: 64,
        word: 0,
        latch: rwlock("lock_hash_latch"),
    }
}

/// The hash table of pages, by the size of `buf_pool` and the offset of the number of cells.
const fn page_hash(size: u64, at: u64) -> Array {
    Array {
        symbol: "buf_pool",
        size,
        pointer: at + 8,
        count: Count::HashCells { at },
        stride: 64,
        word: 0,
        latch: rwlock("page_hash_latch"),
    }
}

/// A buffer page descriptor: page id, latch at 24, pointer to the page at 48.
const BLOCK: HeapLatch =
    HeapLatch { word: 24, checks: &[Check::PageHeader { path: &[48], id: 0 }], latch: BLOCK_LATCH };

/// An index: its name, its table and the table's name, and the table's first index knows the table too. `word` is that
/// of the latch.
const fn index(word: u64) -> HeapLatch {
    HeapLatch {
        word,
        checks: &[
            Check::Name(&[INDEX_NAME]),
            Check::Name(&[INDEX_TABLE, TABLE_NAME]),
            Check::Same(&[INDEX_TABLE], &[INDEX_TABLE, TABLE_INDEXES, INDEX_TABLE]),
        ],
        latch: rwlock("index_tree_rw_lock"),
    }
}
const INDEX_NAME: u64 = 16;
const INDEX_TABLE: u64 = 24;
const TABLE_NAME: u64 = 16;
const TABLE_INDEXES: u64 = 152;

/// A table: its name, and its first index knows it.
const fn table(word: u64, latch: Latch) -> HeapLatch {
    HeapLatch { word, checks: &[Check::Name(&[TABLE_NAME]), Check::Same(&[], &[TABLE_INDEXES, INDEX_TABLE])], latch }
}

/// A transaction, by its magic number, 2704 bytes into it.
const fn transaction(word: u64, latch: Latch) -> HeapLatch {
    HeapLatch { word, checks: &[Check::Magic { path: &[], at: 2704, value: TRX_MAGIC }], latch }
}

/// An entry of the hash table of read-write transactions: it and its transaction know each other.
const TRX_HASH_ELEMENT: HeapLatch = HeapLatch {
    word: 24,
    checks: &[Check::Magic { path: &[16], at: 2704, value: TRX_MAGIC }, Check::Same(&[], &[16, 2688])],
    latch: mutex("rw_trx_hash_element_mutex"),
};

pub const LAYOUT_11_4: MariadbLayout = MariadbLayout {
    psi: PSI,
    statics: &[
        StaticLatch {
            symbol: "log_sys",
            size: 0x100,
            members: &[one(72, rwlock("log_latch")), one(240, mutex("log_lsn_lock"))],
        },
        LOCK_SYS,
        DICT_SYS,
        StaticLatch { symbol: "purge_sys", size: 0x1c0, members: PURGE_MEMBERS },
        TRX_SYS,
        TRX_I_S_CACHE,
    ],
    arrays: &[AHI_PARTS, page_hash(0x45c0, 16832), lock_hash(80), lock_hash(96), lock_hash(112)],
    heap: &[
        BLOCK,
        index(264),
        // A tablespace: its first file knows it and has a name.
        HeapLatch {
            word: 160,
            checks: &[Check::Same(&[], &[96, 0]), Check::Name(&[96, 8])],
            latch: rwlock("fil_space_latch"),
        },
        transaction(88, mutex("trx_mutex")),
        transaction(2180, mutex("read_view_mutex")),
        TRX_HASH_ELEMENT,
        table(496, mutex("autoinc_mutex")),
        table(500, rwlock("dict_table_lock_latch")),
    ],
};

pub const LAYOUT_10_11: MariadbLayout = MariadbLayout {
    psi: PSI,
    statics: &[
        StaticLatch { symbol: "log_sys", size: 0x180, members: &[one(72, rwlock("log_latch"))] },
        LOCK_SYS,
        DICT_SYS,
        StaticLatch { symbol: "purge_sys", size: 0x200, members: PURGE_MEMBERS },
        TRX_SYS,
        TRX_I_S_CACHE,
    ],
    arrays: &[AHI_PARTS, page_hash(0x5400, 16776), lock_hash(80), lock_hash(96), lock_hash(112)],
    heap: &[
        BLOCK,
        index(384),
        // As in 11.4.
        HeapLatch {
            word: 168,
            checks: &[Check::Same(&[], &[104, 0]), Check::Name(&[104, 8])],
            latch: rwlock("fil_space_latch"),
        },
        transaction(88, mutex("trx_mutex")),
        transaction(2180, mutex("read_view_mutex")),
        TRX_HASH_ELEMENT,
        table(496, mutex("autoinc_mutex")),
        table(500, mutex("dict_table_lock_latch")),
    ],
};

pub const FAMILY_11_4: Family = Family {
    name: "mariadb-11.4",
    wait_functions: WAIT_FUNCTIONS,
    slow_callees: &[],
    layout: Layout::Mariadb(&LAYOUT_11_4),
};

pub const FAMILY_10_11: Family = Family {
    name: "mariadb-10.11",
    wait_functions: WAIT_FUNCTIONS,
    slow_callees: &[],
    layout: Layout::Mariadb(&LAYOUT_10_11),
};

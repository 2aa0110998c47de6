//! MySQL 5.7 to 9.x and Percona Server. Functions are found by name, and what identifies latches is found through the
//! code that sets it. Page layouts were read from MySQL 9.7.4 (Debian, x86_64 and aarch64) by disassembly, and from
//! live latches.

use super::pages::{Dictionary, DictionaryAt, PageLatch, Pages, SpaceAt, COMMON_PAGES};
use super::sync_array::CELLS;
use super::{
    pthread, spin, Callsite, Created, Family, Flavor, Found, Function, IdNames, IdentifiedBy, IdentityIn, Latch,
    Member, MysqlNames, Naming, Shape, Showing, WaitFunction,
};
use crate::model::{Kind, Mode};
use crate::symbols::Parameter;

/// The class of a mutex (`TTASEventMutex<GenericPolicy>`).
pub(super) const MUTEX: IdentifiedBy = IdentifiedBy::LatchId(MUTEX_ID);
const MUTEX_ID: &Member = &Member {
    set_by: &[
        "_Z10mutex_initI11PolicyMutexI14TTASEventMutexI13GenericPolicyEE",
        "_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE4initE",
    ],
    to: Parameter::LatchId,
    shown_by: None,
};
/// The class of a page mutex (`TTASEventMutex<BlockMutexPolicy>`).
pub(super) const BLOCK_MUTEX: IdentifiedBy = IdentifiedBy::LatchId(&Member {
    set_by: &[
        "_Z10mutex_initI11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEE",
        "_ZN11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEE4initE",
    ],
    to: Parameter::LatchId,
    // The code that prints what threads wait for says which mutex it is, of either kind.
    shown_by: Some(Showing {
        reader: "_Z20sync_mutex_to_string10latch_id_t",
        parameter: Parameter::LatchId,
        method: "_ZNK16BlockMutexPolicyI14TTASEventMutexIS_EE9to_string",
        other: MUTEX_ID,
    }),
});
/// The source location that created an rw-lock (`rw_lock_t`).
pub(super) const RW_LOCK: IdentifiedBy =
    IdentifiedBy::Created { file: &Member { to: Parameter::File, ..*RW_LOCK_LINE }, line: RW_LOCK_LINE };
pub(super) const RW_LOCK_LINE: &Member = &Member { set_by: &[RW_LOCK_CREATE], to: Parameter::Line, shown_by: None };
pub(super) const RW_LOCK_CREATE: Function = "_Z19rw_lock_create_funcP9rw_lock_t";

/// Makes an rw-lock its caller's.
pub const RW_LOCK_MOVE_OWNERSHIP: Function = "_Z29rw_lock_x_lock_move_ownershipP9rw_lock_t";

const RESERVE_CELL: Function = "_Z23sync_array_reserve_cellP12sync_array_t";
const WAIT_EVENT: Function = "_Z21sync_array_wait_eventP12sync_array_t";
const DELAY: Function = "_Z8ut_delaym";

const MUTEX_WAIT: Function = "_ZN14TTASEventMutexI13GenericPolicyE4waitE";
const BLOCK_MUTEX_WAIT: Function = "_ZN14TTASEventMutexI16BlockMutexPolicyE4waitE";

/// One round of spinning.
const SPIN: &[Function] = &[DELAY];
/// Waiting after spinning has failed.
const SLEEP: &[Function] = &[
    RESERVE_CELL,
    WAIT_EVENT,
    MUTEX_WAIT,
    "_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockE",
    BLOCK_MUTEX_WAIT,
    "_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockE",
];
const CONTENDED: Shape = Shape::Contended { spin: SPIN, sleep: SLEEP };

const fn mutex(symbol: Function, label: &'static str, shape: Shape) -> WaitFunction {
    WaitFunction {
        found: Found::Symbol(symbol),
        label,
        mode: Mode::None,
        shape,
        latch_argument: 0,
        callsite: Callsite::FileLine,
        identity: IdentityIn::Always(MUTEX),
    }
}

/// Describes a page mutex function.
const fn block_mutex(symbol: Function, label: &'static str, shape: Shape) -> WaitFunction {
    WaitFunction { identity: IdentityIn::Always(BLOCK_MUTEX), ..mutex(symbol, label, shape) }
}

/// Describes mutexes whose code is inlined up to the function that reserves the cell in which waiters sleep. Its
/// arguments are the array, the latch, the kind of wait, and the waiting code.
pub(super) const fn inlined_cell(reserve: Function, label: &'static str, spin: &'static [Function]) -> WaitFunction {
    WaitFunction {
        found: Found::Symbol(reserve),
        label,
        mode: Mode::None,
        shape: Shape::Inlined { spin },
        latch_argument: 1,
        callsite: Callsite::FileLine,
        identity: IdentityIn::LookedAt { argument: 2, ids: &[MUTEX, BLOCK_MUTEX] },
    }
}

pub(super) static MYSQL: Family = Family {
    flavor: Flavor::Mysql,
    wait_functions: &[
        WaitFunction::rw_lock(
            "_Z19rw_lock_s_lock_spinP9rw_lock_t",
            "rw_lock_s_lock_spin",
            Mode::S,
            Shape::Whole,
            RW_LOCK,
        ),
        WaitFunction::rw_lock("_Z19rw_lock_x_lock_funcP9rw_lock_t", "rw_lock_x_lock_func", Mode::X, CONTENDED, RW_LOCK),
        WaitFunction::rw_lock(
            "_Z20rw_lock_sx_lock_funcP9rw_lock_t",
            "rw_lock_sx_lock_func",
            Mode::Sx,
            CONTENDED,
            RW_LOCK,
        ),
        // Waits for readers to leave after the writer has announced itself. Its spinning is not measured: a probe there
        // would be hit in every round.
        WaitFunction {
            found: Found::CallerOf { name: "_ZL24rw_lock_x_lock_wait_funcP9rw_lock_t", calls: [RESERVE_CELL, DELAY] },
            label: "rw_lock_x_lock_wait",
            mode: Mode::X,
            shape: CONTENDED,
            latch_argument: 0,
            callsite: Callsite::FileLine,
            identity: IdentityIn::Always(RW_LOCK),
        },
        mutex(
            "_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEE",
            "mutex_enter_inline",
            CONTENDED,
        ),
        block_mutex(
            "_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEE",
            "mutex_enter_inline_block",
            CONTENDED,
        ),
        mutex("_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterE", "mutex_enter", CONTENDED),
        block_mutex("_ZN11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEE5enterE", "mutex_enter_block", CONTENDED),
        mutex("_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockE", "mutex_spin_and_try_lock", Shape::Whole),
        block_mutex(
            "_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockE",
            "mutex_spin_and_try_lock_block",
            Shape::Whole,
        ),
        mutex(MUTEX_WAIT, "mutex_enter_inlined", Shape::Inlined { spin: SPIN }),
        block_mutex(BLOCK_MUTEX_WAIT, "mutex_enter_inlined_block", Shape::Inlined { spin: SPIN }),
        inlined_cell(RESERVE_CELL, "mutex_enter_inlined_cell", SPIN),
        mutex(MUTEX_WAIT, "mutex_wait", Shape::Rest),
        block_mutex(BLOCK_MUTEX_WAIT, "mutex_wait_block", Shape::Rest),
    ],
    wrappers: &[],
    cells: Some(&CELLS),
    spin: Some(&spin::MYSQL),
    pthread: &pthread::MYSQL,
    pages: Some(&PAGES),
    naming: Naming::Mysql(&NAMES),
};

pub(super) static NAMES: MysqlNames = MysqlNames {
    ids: Some(&IDS),
    not_instrumented: "PFS_NOT_INSTRUMENTED",
    created: &[Created {
        by: RW_LOCK_CREATE,
        line: RW_LOCK_LINE,
        kind: Kind::Rwlock,
        // A page latch is named after the key that it has in builds that instrument pages. The other latch belongs to a
        // copy of a page during a search of a spatial index.
        uninstrumented: &[
            ("buf0buf.cc", Latch { kind: Kind::Sxlock, name: "buf_block_lock" }),
            ("gis0sea.cc", Latch { kind: Kind::Sxlock, name: "rtr_match_block_lock" }),
        ],
    }],
};

static IDS: IdNames = IdNames {
    latch_init: "_Z15sync_check_init",
    latch_meta: "latch_meta",
    sync_ids: &["SYNC_THREAD", "SYNC_ARRAY_MUTEX", "SYNC_DEBUG_MUTEX"],
    // The key of page mutexes, which no current build registers.
    uninstrumented_ids: &[("BUF_BLOCK_MUTEX", "buffer_block_mutex")],
};

/// `buf_block_t`, relative to its latch; `dict_sys_t`, `dict_table_t` and `dict_index_t` as `dict_index_find` traverses
/// them.
static PAGES: Pages = Pages {
    latch: PageLatch { space: -0x88, page_no: -0x84, frame: 0x78, flag: Some(0x50), index_type: None },
    dictionary: Dictionary {
        at: DictionaryAt::Pointer("dict_sys"),
        index_table: 0x20,
        index_id: 0,
        index_name: &[0x10],
        table_name: &[0x18],
        space: SpaceAt::Index(0x28),
    },
    spaces: &[(0, "innodb_system"), (0xffff_fffd, "innodb_temporary"), (0xffff_fffe, "mysql")],
    // General tablespaces hold many tables.
    one_table_per_space: false,
    types: &[COMMON_PAGES, &[(21, "rollback segments"), (22, "blob"), (23, "blob"), (24, "blob")]],
};

/// Text in Percona Server's messages, which MySQL and distributors' builds of it do not have.
pub const PERCONA_TEXT: &[u8] = b"Percona Server";

//! MySQL 8.0 to 9.x and Percona Server. Function names, argument order and offsets were read from MySQL 9.7.4
//! (Debian, x86_64 and aarch64) by disassembly, and from live latches.

use super::{Callsite, Family, Found, IdentityIn, MysqlNames, Naming, Shape, WaitFunction};
use crate::model::Mode;
use crate::symbols::Image;

/// `TTASEventMutex`: its `latch_id_t`.
const MUTEX: IdentityIn = IdentityIn::LatchId { offset: 0x20 };
/// The mutexes of buffer pool blocks are no instrument's and carry no latch id.
const BLOCK_MUTEX: IdentityIn = IdentityIn::Fixed("buf_block_mutex");
/// `rw_lock_t`: creation file and line.
const RW_LOCK: IdentityIn = IdentityIn::Created { file_offset: 0x30, line_offset: 0x38 };

const RESERVE_CELL: &str = "_Z23sync_array_reserve_cellP12sync_array_tPvmN2ut8LocationE";
const RESERVE_CELL_8_0: &str = "_Z23sync_array_reserve_cellP12sync_array_tPvmPKcm";
const WAIT_EVENT: &str = "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t";
const DELAY: &str = "_Z8ut_delaym";

/// One round of spinning.
const SPIN: &[&str] = &[DELAY];
/// Waiting once spinning did not help.
const SLEEP: &[&str] = &[
    RESERVE_CELL,
    RESERVE_CELL_8_0,
    WAIT_EVENT,
    "_ZN14TTASEventMutexI13GenericPolicyE4waitEPKcjj",
    "_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj",
    "_ZN14TTASEventMutexI16BlockMutexPolicyE4waitEPKcjj",
    "_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockEjjPKcj",
];
const CONTENDED: Shape = Shape::Contended { spin: SPIN, sleep: SLEEP };

const fn rw_lock(symbols: &'static [&'static str], label: &'static str, mode: Mode, shape: Shape) -> WaitFunction {
    WaitFunction {
        found: Found::Symbols(symbols),
        label,
        mode,
        shape,
        latch_argument: 0,
        callsite: Callsite::FileLine { file: 2, line: 3 },
        identity: RW_LOCK,
    }
}

const fn mutex(
    symbols: &'static [&'static str],
    label: &'static str,
    shape: Shape,
    (file, line): (usize, usize),
    identity: IdentityIn,
) -> WaitFunction {
    WaitFunction {
        found: Found::Symbols(symbols),
        label,
        mode: Mode::None,
        shape,
        latch_argument: 0,
        callsite: Callsite::FileLine { file, line },
        identity,
    }
}

pub(super) static MYSQL_8: Family = Family {
    wait_functions: &[
        rw_lock(
            &["_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE", "_Z19rw_lock_s_lock_spinP9rw_lock_tmPKcm"],
            "rw_lock_s_lock_spin",
            Mode::S,
            Shape::Whole,
        ),
        rw_lock(
            &["_Z19rw_lock_x_lock_funcP9rw_lock_tmN2ut8LocationE", "_Z19rw_lock_x_lock_funcP9rw_lock_tmPKcm"],
            "rw_lock_x_lock_func",
            Mode::X,
            CONTENDED,
        ),
        rw_lock(
            &["_Z20rw_lock_sx_lock_funcP9rw_lock_tmN2ut8LocationE", "_Z20rw_lock_sx_lock_funcP9rw_lock_tmPKcm"],
            "rw_lock_sx_lock_func",
            Mode::Sx,
            CONTENDED,
        ),
        // Waits for readers to leave once the writer has announced itself. What it spins is not seen: a probe
        // there would be hit in every round.
        WaitFunction {
            found: Found::CallerOf(&[RESERVE_CELL, RESERVE_CELL_8_0], &[DELAY]),
            label: "rw_lock_x_lock_wait",
            mode: Mode::X,
            shape: Shape::Contended { spin: &[], sleep: SLEEP },
            latch_argument: 0,
            callsite: Callsite::FileLine { file: 2, line: 3 },
            identity: RW_LOCK,
        },
        mutex(
            &["_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_N2ut8LocationE"],
            "mutex_enter_inline",
            CONTENDED,
            (1, 2),
            MUTEX,
        ),
        mutex(
            &["_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEEEvPT_N2ut8LocationE"],
            "mutex_enter_inline_block",
            CONTENDED,
            (1, 2),
            BLOCK_MUTEX,
        ),
        mutex(
            &["_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterEjjPKcj"],
            "mutex_enter",
            CONTENDED,
            (3, 4),
            MUTEX,
        ),
        mutex(
            &["_ZN11PolicyMutexI14TTASEventMutexI16BlockMutexPolicyEE5enterEjjPKcj"],
            "mutex_enter_block",
            CONTENDED,
            (3, 4),
            BLOCK_MUTEX,
        ),
        mutex(
            &["_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj"],
            "mutex_spin_and_try_lock",
            Shape::Whole,
            (3, 4),
            MUTEX,
        ),
        mutex(
            &["_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockEjjPKcj"],
            "mutex_spin_and_try_lock_block",
            Shape::Whole,
            (3, 4),
            BLOCK_MUTEX,
        ),
    ],
    wrappers: &[],
    naming: Naming::Mysql(&MysqlNames {
        latch_meta: "latch_meta",
        instruments: &[
            ("FIL_SHARD", "fil_system_mutex"),
            ("LOCK_SYS_WAIT", "lock_wait_mutex"),
            ("LOG_ARCH", "log_sys_arch_mutex"),
            ("LOG_SN", "log_sn_lock"),
            ("PAGE_ARCH", "page_sys_arch_mutex"),
            ("PAGE_ARCH_CLIENT", "page_sys_arch_client_mutex"),
            ("PAGE_ARCH_OPER", "page_sys_arch_oper_mutex"),
            ("PERSIST_AUTOINC", "autoinc_persisted_mutex"),
            ("SRV_SYS_TASKS", "srv_threads_mutex"),
        ],
        rw_lock_create: &["_Z19rw_lock_create_funcP9rw_lock_tN2ut8LocationE"],
        uninstrumented: &[("buf0buf.cc", "buf_block_lock")],
    }),
};

/// Percona Server calls itself by name in the messages that it prints; MySQL and distributors' builds of it do not.
pub(super) fn is_percona(image: &Image) -> bool {
    let strings = image.section(".rodata").and_then(|r| image.bytes(r.start, (r.end - r.start) as usize));
    strings.is_some_and(|s| memchr::memmem::find(s, b"Percona Server").is_some())
}

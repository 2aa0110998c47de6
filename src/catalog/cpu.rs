//! Classifies functions of servers, their libraries and the kernel by name, where their purpose is a known cost.
//!
//! Names were read from the symbol tables of MySQL 9.7.4, MariaDB 11.4.5, 10.11.5 and 10.2.11, of glibc and zlib, and
//! of a kernel.

use crate::model::CpuClass;

/// Function names without arguments; a name that ends with `*` matches every name with that prefix.
struct Functions {
    class: CpuClass,
    names: &'static [&'static str],
}

/// Functions of servers and libraries.
const FUNCTIONS: &[Functions] = &[
    Functions { class: CpuClass::Spin, names: &["ut_delay"] },
    Functions {
        class: CpuClass::Latch,
        names: &[
            // InnoDB of MySQL, and of MariaDB up to 10.5.
            "mutex_enter_inline*",
            "PolicyMutex<*",
            "TTASEventMutex<*",
            "TTASMutex<*",
            "OSTrackMutex<*",
            "rw_lock_*",
            "pfs_rw_lock_*",
            "sync_array_*",
            "os_event*",
            // InnoDB of MariaDB from 10.6 on.
            "srw_mutex_impl<*",
            "srw_lock_impl<*",
            "ssux_lock_impl<*",
            "sux_lock<*",
            // The SQL layer of both.
            "impl_mysql_mutex_lock",
            "impl_mysql_mutex_unlock",
            "psi_mutex_*",
            "psi_rwlock_*",
            "rw_pr_*",
            "my_rw_*",
            // The C library, exported and internal.
            "pthread_mutex_*",
            "___pthread_mutex_*",
            "__pthread_mutex_*",
            "pthread_rwlock_*",
            "___pthread_rwlock_*",
            "__pthread_rwlock_*",
            "pthread_cond_*",
            "___pthread_cond_*",
            "__pthread_cond_*",
            "__lll_lock_*",
        ],
    },
    Functions {
        class: CpuClass::Checksum,
        names: &[
            "ut_crc32*",
            "hardware::crc32*",
            "software::crc32*",
            "buf_calc_page_crc32",
            "log_block_calc_checksum*",
            "my_crc32*",
            "my_checksum",
            "mysys_namespace::crc32c::crc32c_*",
            "crc32c_*",
            "crc32_*",
            // zlib.
            "crc32",
            "adler32*",
        ],
    },
    Functions {
        class: CpuClass::Charset,
        names: &[
            "my_convert*",
            "copy_and_convert",
            "well_formed_copy_nchars",
            "my_well_formed_*",
            "String_copier::*",
            "String_copier_for_item::*",
            "my_copy_fix_mb*",
            "my_append_fix_badly_formed_tail*",
            "my_mb_wc_*",
            "my_wc_mb_*",
        ],
    },
    Functions { class: CpuClass::Getcpu, names: &["sched_getcpu", "__sched_getcpu", "__vdso_getcpu"] },
];

/// The C library's functions that move memory, which have variants for different CPUs. Programs import them by these
/// names, and the library decides which variant to call.
pub const MEMORY_FUNCTIONS: &[&str] =
    &["memcpy", "memmove", "mempcpy", "memset", "memcmp", "memchr", "__memcpy_chk", "__memmove_chk", "__memset_chk"];

/// A checksum with several implementations, among which the server chooses by CPU at startup.
#[derive(Debug)]
pub struct ChosenChecksum {
    /// What the server computes it for, as users see it.
    pub purpose: &'static str,
    /// Whether it is CRC-32C (Castagnoli) rather than the CRC-32 of zlib.
    pub is_crc32c: bool,
    /// Where the server stores the pointer to the implementation that it has chosen.
    pub pointer: PointerAt,
    /// The number of the argument that gives the length in bytes, counted from 0.
    pub length: usize,
}

/// Where the pointer to the chosen function is stored.
#[derive(Clone, Copy, Debug)]
pub enum PointerAt {
    /// In the variable with this name.
    Variable(&'static str),
    /// In the variable that this function jumps through.
    JumpOf(&'static str),
}

/// The checksums of all servers; a build has those whose symbol it has.
pub const CHECKSUMS: &[ChosenChecksum] = &[
    // MySQL from 5.7 on, and MariaDB's InnoDB of 10.2.
    ChosenChecksum {
        purpose: "crc32c of pages and redo log",
        is_crc32c: true,
        pointer: PointerAt::Variable("ut_crc32"),
        length: 1,
    },
    // MariaDB from 10.5 on.
    ChosenChecksum {
        purpose: "crc32c of pages and redo log",
        is_crc32c: true,
        pointer: PointerAt::JumpOf("my_crc32c"),
        length: 2,
    },
    ChosenChecksum {
        purpose: "crc32 of binary log and tables",
        is_crc32c: false,
        pointer: PointerAt::JumpOf("my_checksum"),
        length: 2,
    },
];

/// Kernel functions that wait and wake in futexes, for kernels that do not show which system call a thread is in.
const FUTEX: &[&str] = &["futex_*", "__futex_*", "do_futex", "get_futex_key", "__x64_sys_futex", "__arm64_sys_futex"];

/// Returns the class of a function of a server or a library, or `None` if it has no particular one. `name` is demangled
/// and without arguments.
pub fn class_of_function(name: &str) -> Option<CpuClass> {
    let known = FUNCTIONS.iter().find(|functions| functions.names.iter().any(|pattern| matches(pattern, name)));
    known.map(|functions| functions.class)
}

/// Returns whether this is the kernel's futex code.
pub fn is_futex_function(name: &str) -> bool {
    FUTEX.iter().any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::plain_name;

    fn class(mangled: &str) -> Option<&'static str> {
        class_of_function(&plain_name(mangled)).map(CpuClass::as_str)
    }

    #[test]
    fn functions_of_servers_have_classes() {
        assert_eq!(class("_Z8ut_delaym"), Some("spin"));
        assert_eq!(
            class("_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_N2ut8LocationE"),
            Some("latch")
        );
        assert_eq!(class("_ZN14ssux_lock_implILb0EE7wr_waitEj"), Some("latch"));
        assert_eq!(class("_ZN8hardware18crc32_using_pclmulEPKhm"), Some("checksum"));
        assert_eq!(class("_Z26ut_crc32_legacy_big_endianPKhm"), Some("checksum"));
        assert_eq!(class("_ZN15mysys_namespace6crc32cL11crc32c_slowEjPKvm"), Some("checksum"));
        assert_eq!(class("crc32"), Some("checksum"));
        assert_eq!(class("_Z10my_convertPcmPK12CHARSET_INFOPKcmS2_Pj"), Some("charset"));
        assert_eq!(class("_ZN13String_copier16well_formed_copyEPK15charset_info_stPcmS2_PKcmm"), Some("charset"));
        assert_eq!(class("sched_getcpu"), Some("getcpu"));
    }

    #[test]
    fn names_that_only_look_alike_have_none() {
        for name in ["_ZN15Item_func_crc327val_intEv", "_Z14fts_slow_checkv", "malloc", "ut_delayed", "os_file_read"] {
            assert_eq!(class(name), None, "{name}");
        }
    }

    #[test]
    fn futex_code_is_known() {
        assert!(is_futex_function("futex_wait_setup") && is_futex_function("do_futex"));
        assert!(!is_futex_function("schedule") && !is_futex_function("do_futex2"));
    }
}

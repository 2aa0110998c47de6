//! Settings that decide how a server waits, and how much it can do at once.

use std::collections::BTreeMap;

use super::Memory;
use crate::discovery::number;
use crate::symbols::Image;

/// The names of the settings in MySQL, MariaDB or both. A recording contains those that the server has.
pub const SETTINGS: &[&str] = &[
    "binlog_order_commits",
    "innodb_adaptive_hash_index",
    "innodb_adaptive_hash_index_parts",
    "innodb_autoinc_lock_mode",
    "innodb_buffer_pool_instances",
    "innodb_buffer_pool_size",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "innodb_io_capacity",
    "innodb_log_spin_cpu_abs_lwm",
    "innodb_log_writer_threads",
    "innodb_numa_interleave",
    "innodb_page_size",
    "innodb_purge_threads",
    "innodb_rollback_segments",
    "innodb_spin_wait_delay",
    "innodb_spin_wait_pause_multiplier",
    "innodb_sync_array_size",
    "innodb_sync_spin_loops",
    "innodb_thread_concurrency",
    "innodb_undo_tablespaces",
    "log_bin",
    "max_connections",
    "performance_schema",
    "sync_binlog",
    "table_open_cache",
    "table_open_cache_instances",
    "thread_handling",
];

/// Reads InnoDB's numeric and boolean settings from the memory of the process that runs `image`, which is loaded `bias`
/// above its link-time addresses. InnoDB registers them without the `innodb_` prefix.
pub fn settings(image: &Image, memory: &Memory, bias: u64) -> BTreeMap<String, String> {
    let pointers = image.static_pointers();
    let read = |name: &&str| {
        let number = number(image, &pointers, name.strip_prefix("innodb_")?)?;
        let addr = number.addr.wrapping_add(bias);
        let value = match number.size {
            1 => switch(memory.array::<1>(addr)?[0])?.to_owned(),
            4 => memory.u32(addr)?.to_string(),
            _ => memory.u64(addr)?.to_string(),
        };
        Some(((*name).to_owned(), value))
    };
    SETTINGS.iter().filter_map(read).collect()
}

/// Formats a switch as `SHOW VARIABLES` does.
fn switch(byte: u8) -> Option<&'static str> {
    match byte {
        0 => Some("OFF"),
        1 => Some("ON"),
        _ => None,
    }
}

//! Settings that decide how a server waits, and how much it can do at once.

use std::collections::BTreeMap;

use super::{Memory, Target};
use crate::catalog::Table;
use crate::discovery::{Number, Variables};

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

/// Where a server has InnoDB's numeric and boolean settings in its memory.
#[derive(Debug)]
pub struct SettingsAt {
    memory: Memory,
    places: Vec<(&'static str, Number)>,
}

impl SettingsAt {
    /// Finds them in this server. InnoDB registers them without the `innodb_` prefix.
    pub fn of(target: &Target) -> SettingsAt {
        let variables = Variables::new(&target.image, &target.image.static_pointers(), Table::System);
        let place = |name: &&'static str| {
            let found = variables.number(name.strip_prefix("innodb_")?)?;
            Some((*name, Number { addr: found.addr.wrapping_add(target.bias), ..found }))
        };
        SettingsAt { memory: Memory::new(target.pid), places: SETTINGS.iter().filter_map(place).collect() }
    }

    /// Reads those that can be read: none if the process has ended.
    pub fn read(&self) -> BTreeMap<String, String> {
        let value = |number: &Number| match number.size {
            1 => switch(self.memory.array::<1>(number.addr)?[0]).map(str::to_owned),
            4 => Some(self.memory.u32(number.addr)?.to_string()),
            _ => Some(self.memory.u64(number.addr)?.to_string()),
        };
        self.places.iter().filter_map(|(name, number)| Some(((*name).to_owned(), value(number)?))).collect()
    }
}

/// Formats a switch as `SHOW VARIABLES` does.
fn switch(byte: u8) -> Option<&'static str> {
    match byte {
        0 => Some("OFF"),
        1 => Some("ON"),
        _ => None,
    }
}

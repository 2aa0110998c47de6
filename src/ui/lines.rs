//! Single lines of the live table and the full-screen view.

use super::top::{PerStatement, TopReacquire};
use crate::present::format::{count, nanoseconds};
use crate::present::names::short_names;

/// Formats figures per statement: `38.5k statements/s, each 42.0µs CPU · 12.3µs waits · 2.10µs atomics and barriers`
pub fn per_statement(statement: &PerStatement) -> String {
    let part = |ns: Option<f64>, what| ns.map(|ns| format!("{} {what}", nanoseconds(ns)));
    let parts = [
        part(statement.cpu_ns, "CPU"),
        part(Some(statement.wait_ns), "waits"),
        part(statement.ordering_ns, "atomics and barriers"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{} statements/s, each {}", count(statement.rate), parts.join(" · "))
}

/// Formats the mutexes that threads woken by a condition variable reacquire, as many as fit into the line:
/// `wake-ups, no contention: sql/MYSQL_BIN_LOG::LOCK_done 1.80s/s in 1.81k waits/s`. Returns `None` if there are none.
pub fn reacquires(top: &[TopReacquire], width: u16) -> Option<String> {
    let mut text = "wake-ups, no contention:".to_owned();
    for (i, row) in top.iter().enumerate() {
        let name = short_names([row.latch.as_str()], 40).remove(row.latch.as_str()).unwrap_or_default();
        let (wait, waits) = (nanoseconds(row.wait_ns_per_second), count(row.waits_per_second));
        let part = format!("{} {name} {wait}/s in {waits} waits/s", if i == 0 { "" } else { " ·" });
        if i > 0 && text.chars().count() + part.chars().count() > usize::from(width) {
            break;
        }
        text += &part;
    }
    (!top.is_empty()).then_some(text)
}

//! Single lines of the live table and the full-screen view.

use std::time::Duration;

use super::top::{Interval, PerStatement, TopFiles, TopLock, TopReacquire};
use crate::measure::files::short_name;
use crate::measure::locks::{LockBlocker, LockedObject};
use crate::measure::Snapshot;
use crate::present::format::{count, nanoseconds, percent, span};
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

/// Formats the waits for locks of the database, longest first: `locks: row lock 2.40s/s in 8 waits/s, 3 waiting, the
/// first for 12.0s · table metadata lock 1 waiting, the first for 400ms`, and [what they are mostly
/// for](locked_objects) and who is in their way, or says why they are not measured. There are no lines if nobody waits,
/// or has waited.
pub fn locks(interval: &Interval) -> Vec<String> {
    if interval.locks_rest() {
        return vec!["locks: not measured for some minutes: measuring so many would exceed the budget".to_owned()];
    }
    let waits = waits_for_locks(interval).map(|line| format!("locks: {line}"));
    let objects = locked_objects(interval).map(|line| format!("locked: {line}"));
    let blockers = blockers(interval, blocker_with_statement).map(|line| format!("blocked by: {line}"));
    waits.into_iter().chain(objects).chain(blockers).collect()
}

/// Formats the waits for locks as [`locks`] does, without a heading.
pub fn waits_for_locks(interval: &Interval) -> Option<String> {
    joined(interval.locks().iter().map(lock))
}

/// Formats for each lock what most waits are for: `shop.orders (PRIMARY) 75% · shop.items 100%`. Returns `None` if none
/// were seen.
pub fn locked_objects(interval: &Interval) -> Option<String> {
    joined(interval.locks().iter().filter_map(mostly))
}

/// Formats for each lock who blocks most waits, without the texts of statements: `connection 12, idle in a transaction
/// 75%`. Returns `None` if nobody was seen.
pub fn blocking_connections(interval: &Interval) -> Option<String> {
    blockers(interval, LockBlocker::connection_name)
}

fn blockers(interval: &Interval, name: fn(&LockBlocker) -> String) -> Option<String> {
    let one = |row: &TopLock| {
        let (blocker, share) = row.blocker.as_ref().filter(|(blocker, _)| blocker.name() != LockBlocker::UNKNOWN)?;
        Some(format!("{} {:.0}%", name(blocker), 100.0 * share))
    };
    joined(interval.locks().iter().filter_map(one))
}

/// Formats who blocks others, with as much of the statement as leaves room for the rest of a line.
fn blocker_with_statement(blocker: &LockBlocker) -> String {
    const WIDTH: usize = 64;
    let name = blocker.name();
    match name.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// Formats the files for which threads wait, longest first: `innodb_log_file sync 620ms/s in 1.20k calls/s, p99 2.10ms
/// · innodb_data_file read ~200ms/s, 80% shop/orders.ibd`. Returns `None` if that is next to nothing.
pub fn files(interval: &Interval) -> Option<String> {
    /// The least time that is told, in nanoseconds per second, and the most kinds.
    const LEAST: f64 = 1e7;
    const SHOWN: usize = 3;
    joined(interval.files().iter().filter(|row| row.wait_ns_per_second >= LEAST).take(SHOWN).map(file))
}

fn file(row: &TopFiles) -> String {
    let mostly = row.mostly.as_ref().map(|(file, share)| format!(", {:.0}% {file}", 100.0 * share));
    let estimated = if row.flushes.is_none() { "~" } else { "" };
    let flushes =
        row.flushes.map(|all| format!(" in {} calls/s, p99 {}", count(all.per_second), nanoseconds(all.p99_ns)));
    let wait = format!("{estimated}{}/s{}", nanoseconds(row.wait_ns_per_second), flushes.unwrap_or_default());
    format!("{} {} {wait}{}", short_name(&row.event), row.operation.as_str(), mostly.unwrap_or_default())
}

fn joined(parts: impl Iterator<Item = String>) -> Option<String> {
    let line = parts.collect::<Vec<String>>().join(" · ");
    (!line.is_empty()).then_some(line)
}

fn lock(row: &TopLock) -> String {
    let waited = (row.waits_per_second > 0.0).then(|| {
        let (wait, waits) = (nanoseconds(row.wait_ns_per_second), count(row.waits_per_second));
        format!("{wait}/s in {waits} waits/s")
    });
    let waiting = (row.waiting > 0).then(|| {
        let longest = nanoseconds(row.longest_ns as f64);
        format!("{} waiting, the first for {longest}", row.waiting)
    });
    format!("{} {}", row.lock, waited.into_iter().chain(waiting).collect::<Vec<String>>().join(", "))
}

fn mostly(row: &TopLock) -> Option<String> {
    let (object, share) = row.mostly.as_ref().filter(|(object, _)| object.object != LockedObject::UNKNOWN)?;
    Some(format!("{} {:.0}%", object.name(), 100.0 * share))
}

/// Formats the number of waits per second: `1.81k waits/s`, or that they are not counted.
pub fn rate(now: &Snapshot, waits: f64) -> String {
    match now.latch.counted() {
        true => format!("{} waits/s", count(waits)),
        false => "no probes".to_owned(),
    }
}

/// Formats what probes cost since attach: as a share of the server's CPU time, or of a CPU if the server uses less than
/// one, because a share of next to nothing looks alarming and is harmless.
pub fn overhead(now: &Snapshot) -> String {
    let elapsed = now.elapsed.as_nanos() as f64;
    let uses_little = now.server_cpu_ns.is_some_and(|ns| (ns as f64) < elapsed);
    let of_a_cpu = now.probe_cost_ns().filter(|_| uses_little).map(|ns| format!("{} of a CPU", percent(ns / elapsed)));
    of_a_cpu.or_else(|| now.overhead_ratio().map(percent)).unwrap_or_else(|| "not known".to_owned())
}

/// Formats the fact that the server does nothing: `server is idle: no statements and 0.25% of a CPU in the last 4s`.
/// Returns `None` if it does something, or if that is not known.
pub fn idle(interval: &Interval) -> Option<String> {
    let idleness = interval.idleness()?;
    let statements = if idleness.has_no_statements { "no statements and " } else { "" };
    let time = span(Duration::from_secs_f64(interval.seconds().round()));
    Some(format!("server is idle: {statements}{} of a CPU in the last {time}", percent(idleness.cpus)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::files::FileOperation;
    use crate::ui::top::Flushes;

    #[test]
    fn locks_say_who_has_waited_and_who_waits() {
        let row = TopLock {
            lock: "row lock".to_owned(),
            waits_per_second: 8.0,
            wait_ns_per_second: 2.4e9,
            waiting: 3,
            longest_ns: 12_000_000_000,
            mostly: None,
            blocker: None,
        };
        assert_eq!(lock(&row), "row lock 2.40s/s in 8 waits/s, 3 waiting, the first for 12.0s");
        assert_eq!(lock(&TopLock { waiting: 0, ..row.clone() }), "row lock 2.40s/s in 8 waits/s");
        let waiting = TopLock { waits_per_second: 0.0, ..row };
        assert_eq!(lock(&waiting), "row lock 3 waiting, the first for 12.0s");
        let seen = |object: &str| LockedObject {
            lock: "row lock".to_owned(),
            object: object.to_owned(),
            index: "PRIMARY".to_owned(),
            samples: 5,
        };
        let mostly = |object: &str| mostly(&TopLock { mostly: Some((seen(object), 0.8)), ..waiting.clone() });
        assert_eq!(mostly("shop.orders").as_deref(), Some("shop.orders (PRIMARY) 80%"));
        assert_eq!(mostly(LockedObject::UNKNOWN), None);
    }

    #[test]
    fn files_are_named_where_there_are_several() {
        let row = TopFiles {
            event: "wait/io/file/innodb/innodb_data_file".to_owned(),
            operation: FileOperation::Read,
            wait_ns_per_second: 2e8,
            mostly: Some(("shop/orders.ibd".to_owned(), 0.8)),
            flushes: None,
        };
        assert_eq!(file(&row), "innodb_data_file read ~200ms/s, 80% shop/orders.ibd");
        assert_eq!(file(&TopFiles { mostly: None, ..row.clone() }), "innodb_data_file read ~200ms/s");
        let flushes = Some(Flushes { per_second: 1200.0, p99_ns: 2.1e6 });
        let timed = TopFiles { operation: FileOperation::Sync, flushes, ..row };
        let expected = "innodb_data_file sync 200ms/s in 1.20k calls/s, p99 2.10ms, 80% shop/orders.ibd";
        assert_eq!(file(&timed), expected);
    }

    #[test]
    fn reacquires_that_do_not_fit_are_left_out_but_the_first() {
        let row = |latch: &str| TopReacquire {
            latch: format!("wait/synch/mutex/sql/{latch}"),
            waits_per_second: 20.0,
            wait_ns_per_second: 5e6,
        };
        let first = "wake-ups, no contention: sql/LOCK_a 5.00ms/s in 20 waits/s";
        let both = format!("{first} · sql/LOCK_b 5.00ms/s in 20 waits/s");
        let width = both.chars().count() as u16;
        let line = |width| reacquires(&["LOCK_a", "LOCK_b"].map(row), width).unwrap();
        assert_eq!(line(width), both);
        assert_eq!(line(width - 1), first);
        assert_eq!(line(10), first, "a line that is cut says more than none");
        assert_eq!(reacquires(&[], 80), None);
    }
}

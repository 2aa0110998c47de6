//! Contended latches have names even with performance_schema off.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{by_latch, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The longest time until every wanted latch has had a wait.
const LIMIT: Duration = Duration::from_secs(60);

/// Puts a server under load with performance_schema off until all wanted latches have waits. Returns the wait time of
/// every latch, longest first.
fn waits_without_perf_schema(
    release: Release,
    test: &str,
    args: &[&str],
    wanted: &[&str],
) -> Result<Vec<(String, f64)>> {
    let options = Options { args: args.iter().map(|a| (*a).to_owned()).collect(), ..Options::default() };
    let server = Server::start(release, &options)?;
    let mut load = Load::start(&server, test, 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    sleep(Duration::from_secs(4));
    let sums = wait_for("waits for every wanted latch", LIMIT, || {
        let sums = by_latch(&agent.scrape()?, "armtrace_latch_wait_seconds_sum");
        Ok(wanted.iter().all(|w| sums.get(*w).is_some_and(|s| *s > 0.0)).then_some(sums))
    })?;
    load.stop()?;
    agent.stop()?;
    server.stop()?;
    let mut names: Vec<(String, f64)> = sums.into_iter().collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, seconds) in &names {
        println!("{seconds:>10.3}s {name}");
    }
    Ok(names)
}

/// Returns every `wait/synch` instrument that the server registers when performance_schema is on.
fn instruments(release: Release) -> Result<BTreeSet<String>> {
    let server = Server::start(release, &Options { perf_schema: true, ..Options::default() })?;
    let rows = server.query("SELECT NAME FROM performance_schema.setup_instruments WHERE NAME LIKE 'wait/synch/%'")?;
    server.stop()?;
    Ok(rows.into_iter().flatten().collect())
}

/// Latches that the server does not instrument, which armtrace names in the same style.
const UNINSTRUMENTED: &[&str] = &[
    "wait/synch/sxlock/innodb/buf_block_lock",
    "wait/synch/sxlock/innodb/rtr_match_block_lock",
    "wait/synch/rwlock/innodb/buf_page_hash_latch",
    "wait/synch/rwlock/innodb/dict_table_lock_latch",
    "wait/synch/rwlock/innodb/lock_rec_hash_latch",
    "wait/synch/rwlock/innodb/lock_prdt_hash_latch",
    "wait/synch/rwlock/innodb/lock_prdt_page_hash_latch",
    "wait/synch/rwlock/innodb/trx_purge_end_latch",
    "wait/synch/mutex/innodb/autoinc_mutex",
    "wait/synch/mutex/innodb/event_os_mutex",
    "wait/synch/mutex/innodb/os_aio_read_mutex",
    "wait/synch/mutex/innodb/os_aio_write_mutex",
    "wait/synch/mutex/innodb/buffer_block_mutex",
    "wait/synch/mutex/innodb/log_lsn_lock",
    "wait/synch/mutex/innodb/read_view_mutex",
    "wait/synch/mutex/innodb/rw_trx_hash_element_mutex",
    "wait/synch/mutex/innodb/trx_mutex",
];

/// Locks outside InnoDB that have no instrument and so no name: those of the C library's allocator, and the C++ mutexes
/// of MariaDB's background thread pool.
const OUTSIDE_INNODB: &[&str] = &["unnamed:tpool::", "unnamed:malloc"];

fn is_outside_innodb(latch: &str) -> bool {
    OUTSIDE_INNODB.iter().any(|function| latch.starts_with(function))
}

fn all_named(release: Release, test: &str, args: &[&str], at_least: &[&str]) -> Result<()> {
    let known = instruments(release)?;
    let names = waits_without_perf_schema(release, test, args, at_least)?;
    let total: f64 = names.iter().map(|(_, s)| s).sum();
    ensure!(total > 0.0, "there was no contention");
    for (name, _) in names.iter().filter(|(n, _)| !n.starts_with("unnamed:")) {
        ensure!(
            known.contains(name) || UNINSTRUMENTED.contains(&name.as_str()),
            "{name} is neither an instrument of the server nor a known name of armtrace's"
        );
    }
    let is_unnamed = |name: &str| name.starts_with("unnamed:") && !is_outside_innodb(name);
    let unnamed: f64 = names.iter().filter(|(n, _)| is_unnamed(n)).map(|(_, s)| s).sum();
    ensure!(unnamed <= 0.01 * total, "{:.1} % of the wait time is unnamed: {names:?}", 100.0 * unnamed / total);
    Ok(())
}

#[test]
fn mysql_waits_have_names() -> Result<()> {
    all_named(
        Release::MYSQL_9_7,
        "oltp_update_index",
        &["--innodb-flush-log-at-trx-commit=1"],
        &[
            "wait/synch/mutex/innodb/log_writer_mutex",
            "wait/synch/sxlock/innodb/hash_table_locks",
            "wait/synch/sxlock/innodb/index_tree_rw_lock",
        ],
    )
}

#[test]
fn mariadb_waits_have_names() -> Result<()> {
    all_named(
        Release::MARIADB_11_4,
        "oltp_update_index",
        &[],
        &[
            "wait/synch/sxlock/innodb/index_tree_rw_lock",
            "wait/synch/rwlock/innodb/trx_rseg_latch",
            "wait/synch/rwlock/innodb/lock_latch",
            "wait/synch/sxlock/innodb/buf_block_lock",
        ],
    )
}

//! Waits of the SQL layer, for the C library's locks and condition variables.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::truth::{sleep_and_measure_delay, uncontended, Reading};
use lab::agent::{by_latch, Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

pub(crate) const TABLE_CACHE: &str = "wait/synch/mutex/sql/LOCK_table_cache";
const METADATA_LOCK: &str = "wait/synch/rwlock/sql/MDL_lock::rwlock";
pub(crate) const LATCH: &str = "armtrace_latch_wait_seconds";
pub(crate) const COND: &str = "armtrace_cond_wait_seconds";

/// The duration of each run with one client, in which there is no contention.
const QUIET: Duration = Duration::from_secs(1);

/// How long a provoked wait may take to appear.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Returns options with one small table cache for all connections, so that every statement locks it and reopens its
/// table.
pub(crate) fn small_table_cache(perf_schema: bool, more: &[&str]) -> Options {
    let args = ["--table-open-cache=10", "--table-open-cache-instances=1"];
    let args = args.iter().chain(more).map(|a| (*a).to_owned()).collect();
    Options { perf_schema, args, ..Options::default() }
}

/// Returns the count and the seconds of a histogram, by latch.
pub(crate) fn measured(agent: &Agent, metric: &str) -> Result<BTreeMap<String, (f64, f64)>> {
    let samples = agent.scrape()?;
    let sums = by_latch(&samples, &format!("{metric}_sum"));
    let counts = by_latch(&samples, &format!("{metric}_count"));
    Ok(sums
        .into_iter()
        .map(|(latch, sum)| (latch.clone(), (counts.get(&latch).copied().unwrap_or(0.0), sum)))
        .collect())
}

/// The least share of the waits in performance_schema's sum for a contended mutex that armtrace must find. The sum also
/// includes acquisitions of a free mutex, which are deducted as far as they can be computed, and spinning.
const FOUND: f64 = 0.6;
/// The lengths, in seconds, of the windows of which one must agree. In one in which the hypervisor stops a CPU, the two
/// clocks may not.
const WINDOWS: [u64; 4] = [4, 8, 8, 8];

fn table_cache_agrees(release: Release) -> Result<()> {
    agrees(release, &small_table_cache(true, &[]), "oltp_read_only", TABLE_CACHE)
}

fn agrees(release: Release, options: &Options, test: &str, latch: &str) -> Result<()> {
    let server = Server::start(release, options)?;
    let mut single = Load::start(&server, test, 1)?;
    single.wait_running()?;
    let free = uncontended(&server, single, QUIET)?.get(latch).copied().context("no such instrument")?;
    let mut load = Load::start(&server, test, 64)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    // Waits before the latch's name is known are exported once it is. An earlier first reading would not include them.
    wait_for("the latch's name", LIMIT, || Ok(measured(&agent, LATCH)?.contains_key(latch).then_some(())))?;
    let mut before = Reading::take(&server, &agent)?;
    let mut agree = false;
    for seconds in WINDOWS {
        let mut most_delay = 0.0;
        let (after, row) = wait_for("a hundred waits", LIMIT, || {
            most_delay = sleep_and_measure_delay(Duration::from_secs(seconds))?.max(most_delay);
            let now = Reading::take(&server, &agent)?;
            let row = now.since(&before, latch, free, most_delay);
            Ok((row.waits >= 100.0).then_some((now, row)))
        })?;
        println!("{row:?}");
        // More preempted than contended time: nothing can be said about this window's least.
        let least = (row.truth_s - row.preempted_s) * FOUND;
        agree = least > 0.0 && (least..=row.raw_s * 1.05).contains(&row.ours_s);
        if agree {
            break;
        }
        before = after;
    }
    load.stop()?;
    agent.stop()?;
    server.stop()?;
    ensure!(agree, "{latch}: the wait time agrees in no window");
    Ok(())
}

#[test]
fn mysql_table_cache_waits_agree_with_perf_schema() -> Result<()> {
    table_cache_agrees(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_table_cache_waits_agree_with_perf_schema() -> Result<()> {
    table_cache_agrees(Release::MARIADB_11_4)
}

#[test]
#[ignore = "as on 11.4: make test-all"]
fn mariadb_10_2_table_cache_waits_agree_with_perf_schema() -> Result<()> {
    table_cache_agrees(Release::MARIADB_10_2)
}

/// In this load, every statement takes the same few metadata locks.
#[test]
fn mariadb_metadata_lock_waits_agree_with_perf_schema() -> Result<()> {
    let options = Options { perf_schema: true, ..Options::default() };
    agrees(Release::MARIADB_11_4, &options, "oltp_point_select", METADATA_LOCK)
}

/// With performance_schema off, the locks still have names. One server and agent serve all these checks.
#[test]
#[ignore = "takes long: make test-all"]
fn mariadb_locks_need_no_perf_schema() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let agent = Agent::attach_without_budget(&server)?;
    timer_is_named(&agent)?;
    let under = |test: &str, check: fn(&Agent) -> Result<()>| -> Result<()> {
        let mut load = Load::start(&server, test, 64)?;
        load.wait_running()?;
        check(&agent)?;
        load.stop().map(drop)
    };
    under("oltp_point_select", metadata_locks_are_named)?;
    under("oltp_update_index", allocator_waits_are_seen)?;
    agent.stop()?;
    server.stop()
}

fn timer_is_named(agent: &Agent) -> Result<()> {
    wait_for("idle waits of the timer thread", LIMIT, || {
        Ok(measured(agent, COND)?.get("wait/synch/cond/mysys/COND_timer").filter(|(waits, _)| *waits >= 2.0).copied())
    })
    .map(drop)
}

/// Metadata locks are recognised by their key.
fn metadata_locks_are_named(agent: &Agent) -> Result<()> {
    let all = wait_for("waits for metadata locks", LIMIT, || {
        let seen = measured(agent, LATCH)?;
        // Enough that the limit of one in a hundred is more than a single wait.
        Ok(seen.get(METADATA_LOCK).is_some_and(|(waits, _)| *waits >= 1000.0).then_some(seen))
    })?;
    let by_function: Vec<_> = all.iter().filter(|(name, _)| name.starts_with("unnamed:rw_pr_")).collect();
    println!("{:?}, {by_function:?}", all[METADATA_LOCK]);
    // The lock of an MDL context, which deadlock detection waits for, has no such key.
    let others: f64 = by_function.iter().map(|(_, (waits, _))| waits).sum();
    ensure!(others <= 0.01 * all[METADATA_LOCK].0, "{others} waits in the same functions have no name");
    Ok(())
}

/// Threads share malloc's arenas. Waits for the arenas' locks are distinguished from waits for the server's locks.
fn allocator_waits_are_seen(agent: &Agent) -> Result<()> {
    let (waits, seconds) = wait_for("waits for malloc", LIMIT, || {
        Ok(measured(agent, LATCH)?.get("unnamed:malloc").filter(|(waits, _)| *waits >= 200.0).copied())
    })?;
    let samples = agent.scrape()?;
    let is_unknown = |s: &&Sample| s.name == "armtrace_lost_events_total" && s.labels["reason"] == "lock_unknown";
    let unknown = samples.iter().find(is_unknown).context("no count of unknown locks")?.value;
    println!("{waits} waits of {seconds:.3}s in all; {unknown} sleeps in unknown locks");
    ensure!(unknown <= 0.1 * waits, "{unknown} sleeps in unknown locks, {waits} waits in malloc");
    Ok(())
}

/// Background threads wait for condition variables when idle, which is not contention. Both sides time the same waits.
#[test]
#[ignore = "takes long: make test-all"]
fn mariadb_idle_waits_agree_with_perf_schema() -> Result<()> {
    const IDLE: [&str; 2] =
        ["wait/synch/cond/mysys/COND_timer", "wait/synch/cond/aria/SERVICE_THREAD_CONTROL::COND_control"];
    let args =
        vec!["--aria-checkpoint-interval=1".to_owned(), "--thread-handling=one-thread-per-connection".to_owned()];
    let server = Server::start(Release::MARIADB_11_4, &Options { perf_schema: true, args, ..Options::default() })?;
    let agent = Agent::attach_without_budget(&server)?;
    // The first wait of each thread began before the agent attached.
    let first = wait_for("idle waits", LIMIT, || {
        let seen = measured(&agent, COND)?;
        Ok(IDLE.iter().all(|name| seen.contains_key(*name)).then_some(seen))
    })?;
    let theirs_first = server.wait_summary()?;
    sleep(Duration::from_secs(7));
    let (last, theirs_last) = (measured(&agent, COND)?, server.wait_summary()?);
    let contention = measured(&agent, LATCH)?;
    agent.stop()?;
    server.stop()?;
    for name in IDLE {
        let since = |now: &BTreeMap<String, (f64, f64)>, then: &BTreeMap<String, (f64, f64)>| {
            (now[name].0 - then[name].0, now[name].1 - then[name].1)
        };
        let ((waits, ours), (their_waits, theirs)) = (since(&last, &first), since(&theirs_last, &theirs_first));
        println!("{name}: {waits} waits, {ours:.3}s; performance_schema: {their_waits}, {theirs:.3}s");
        // The readings are not simultaneous, and one wait of up to 1.1 s may end in between.
        let near = |a: f64, b: f64, one: f64| (a - b).abs() <= 0.15 * b + one;
        ensure!(near(waits, their_waits, 1.0) && near(ours, theirs, 1.1), "{name}");
        ensure!(waits >= 5.0, "{name}: only {waits} waits");
        ensure!(!contention.contains_key(name), "{name} is reported as contention");
    }
    Ok(())
}

/// With performance_schema off, global locks and the table cache still have their names.
#[test]
fn mysql_table_cache_needs_no_perf_schema() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &small_table_cache(false, &[]))?;
    let mut load = Load::start(&server, "oltp_read_only", 64)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let all = wait_for("waits for the table cache", LIMIT, || {
        let seen = measured(&agent, LATCH)?;
        Ok(seen.get(TABLE_CACHE).is_some_and(|(waits, _)| *waits >= 100.0).then_some(seen))
    })?;
    load.stop()?;
    agent.stop()?;
    server.stop()?;
    println!("{all:#?}");
    let mutexes = all.keys().filter(|name| name.contains("LOCK_table_cache")).count();
    ensure!(mutexes == 1, "{mutexes} names for one latch: {all:?}");
    Ok(())
}

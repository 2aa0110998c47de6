//! Between which parts of the machine latches are handed over.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// Handoffs by from and to.
fn matrix(samples: &[Sample]) -> BTreeMap<(String, String), f64> {
    let mut cells = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.name == "armtrace_latch_handoffs_total") {
        let cell = (sample.labels["from_node"].clone(), sample.labels["to_node"].clone());
        *cells.entry(cell).or_insert(0.0) += sample.value;
    }
    cells
}

fn sum(samples: &[Sample], name: &str) -> f64 {
    samples.iter().filter(|s| s.name == name).map(|s| s.value).sum()
}

/// The growth of each cell while the load runs for some seconds.
fn grown(agent: &Agent) -> Result<BTreeMap<(String, String), f64>> {
    let before = matrix(&agent.scrape()?);
    sleep(Duration::from_secs(4));
    let grown = |(cell, now): ((String, String), f64)| {
        let then = before.get(&cell).copied().unwrap_or(0.0);
        (cell, now - then)
    };
    Ok(matrix(&agent.scrape()?).into_iter().map(grown).collect())
}

fn is_remote((from, to): &(String, String)) -> bool {
    from != "unknown" && from != to
}

/// Pins all threads of a server.
pub fn pin(pid: i32, cpus: &str) -> Result<()> {
    let status =
        Command::new("taskset").args(["-a", "-c", "-p", cpus, &pid.to_string()]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "taskset: {status}");
    Ok(())
}

/// Every contended wait is in one cell; with all threads on one core no cell but that core's grows.
fn handoffs_are_where_threads_run(release: Release, threads: u32) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let args = ["--handoffs", "core", "--max-overhead", "100%"].map(OsStr::new);
    let agent = Agent::attach_with(&server, &args)?;
    let free = grown(&agent)?;
    pin(server.pid(), "0")?;
    // What was on its way between cores then has arrived.
    sleep(Duration::from_secs(1));
    let pinned = grown(&agent)?;
    load.stop()?;
    // Waits that were open are over, and those that only probably were are settled by the threads' ends.
    let balance = || -> Result<(f64, f64, f64)> {
        let samples = agent.scrape()?;
        let estimated = sum(&samples, "armtrace_latch_wait_estimated_seconds_total");
        Ok((matrix(&samples).values().sum(), sum(&samples, "armtrace_latch_wait_seconds_count"), estimated))
    };
    let balanced = wait_for("all waits to be handoffs", Duration::from_secs(20), || {
        let (handoffs, waits, estimated) = balance()?;
        // Where probes took turns, because the server did next to nothing for a moment, both are estimated, from what was
        // read one after the other while the server ran.
        let error = if estimated > 0.0 { 0.1 * waits } else { 0.0 };
        Ok(((handoffs - waits).abs() <= error).then_some(waits))
    });
    let lost = agent.scrape()?.into_iter().filter(|s| s.name.contains("lost") && s.value > 0.0).collect::<Vec<_>>();
    println!(
        "{}: free {free:?}\npinned {pinned:?}\n(handoffs, waits, estimated seconds) {:?}; lost {lost:?}",
        release.name(),
        balance()?
    );
    let waits = balanced?;
    let remote =
        |cells: &BTreeMap<_, f64>| cells.iter().filter(|(cell, _)| is_remote(cell)).map(|(_, n)| n).sum::<f64>();
    let woken = |cells: &BTreeMap<(String, String), f64>| {
        cells.iter().filter(|((from, _), _)| from != "unknown").map(|(_, n)| n).sum::<f64>()
    };
    let migrations = sum(&agent.scrape()?, "armtrace_latch_waiter_migrations_total");
    agent.stop()?;
    server.stop()?;
    ensure!(waits > 1000.0 && woken(&free) > 100.0 && woken(&pinned) > 10.0, "hardly any waits");
    ensure!(remote(&free) > 0.0, "nothing was handed over between cores");
    ensure!(remote(&pinned) == 0.0, "handed over between cores, although all threads are on one");
    ensure!(migrations > 0.0 && migrations < waits, "{migrations} migrations in {waits} waits");
    Ok(())
}

#[test]
fn mysql_hands_over_where_its_threads_run() -> Result<()> {
    handoffs_are_where_threads_run(Release::MYSQL_9_7, 16)
}

#[test]
fn mariadb_hands_over_where_its_threads_run() -> Result<()> {
    handoffs_are_where_threads_run(Release::MARIADB_11_4, 32)
}

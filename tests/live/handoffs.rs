//! Handoffs of latches between parts of the machine.

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

/// Returns the number of handoffs by origin and destination.
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

/// Returns the increase of each cell over a few seconds of load.
fn grown(agent: &Agent) -> Result<BTreeMap<(String, String), f64>> {
    let before = matrix(&agent.scrape()?);
    sleep(Duration::from_secs(3));
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

/// Every contended wait is in exactly one cell. With all threads pinned to one core, only that core's cell grows.
fn handoffs_are_where_threads_run(release: Release, threads: u32) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let args = ["--handoffs", "core", "--max-overhead", "100%"].map(OsStr::new);
    let agent = Agent::attach_with(&server, &args)?;
    let unpinned = grown(&agent)?;
    pin(server.pid(), "0")?;
    // Let handoffs that were in flight between cores complete.
    sleep(Duration::from_secs(1));
    let pinned = grown(&agent)?;
    load.stop()?;
    // By now, open waits have ended. Waits whose outcome is uncertain are decided when their threads exit.
    let balance = || -> Result<(f64, f64, f64)> {
        let samples = agent.scrape()?;
        let estimated = sum(&samples, "armtrace_latch_wait_estimated_seconds_total");
        Ok((matrix(&samples).values().sum(), sum(&samples, "armtrace_latch_wait_seconds_count"), estimated))
    };
    let balanced = wait_for("as many handoffs as waits", Duration::from_secs(20), || {
        let (handoffs, waits, estimated) = balance()?;
        // If probes were on a duty cycle, because the server was almost idle for a moment, both figures are estimates,
        // from readings that were not simultaneous.
        let error = if estimated > 0.0 { 0.1 * waits } else { 0.0 };
        Ok(((handoffs - waits).abs() <= error).then_some(waits))
    });
    let lost = agent.scrape()?.into_iter().filter(|s| s.name.contains("lost") && s.value > 0.0).collect::<Vec<_>>();
    println!(
        "{}: unpinned {unpinned:?}\npinned {pinned:?}\n(handoffs, waits, estimated seconds) {:?}; lost {lost:?}",
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
    ensure!(waits > 1000.0 && woken(&unpinned) > 100.0 && woken(&pinned) > 10.0, "there were hardly any waits");
    ensure!(remote(&unpinned) > 0.0, "there were no handoffs between cores");
    ensure!(remote(&pinned) == 0.0, "there were handoffs between cores although all threads ran on one");
    ensure!(migrations > 0.0 && migrations < waits, "{migrations} migrations in {waits} waits");
    Ok(())
}

#[test]
fn mysql_handoffs_are_where_threads_run() -> Result<()> {
    handoffs_are_where_threads_run(Release::MYSQL_9_7, 16)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_handoffs_are_where_threads_run() -> Result<()> {
    handoffs_are_where_threads_run(Release::MARIADB_11_4, 32)
}

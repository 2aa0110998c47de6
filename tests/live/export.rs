//! The metrics that a live agent exports, seen by Prometheus.

use std::ffi::OsStr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use mysql::prelude::Queryable;

use lab::agent::Agent;
use lab::dashboard::{self, Query};
use lab::http;
use lab::load::Load;
use lab::prometheus::{promtool_complaints, Prometheus};
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// Metrics whose panels may be empty here. There may be no waits for condition variables, the probes stay within the
/// budget, checksum bytes need a second burst, the C library gets a thread's CPU without a system call, hardware events
/// are off, and the server was given.
const MAY_BE_EMPTY: &[&str] = &[
    "armtrace_cond_wait_seconds",
    "armtrace_latch_wait_estimated_seconds_total",
    "armtrace_checksum_bytes_total",
    "armtrace_getcpu_calls_total",
    "armtrace_lock_",
    "armtrace_perf_event",
    "armtrace_target_attaches_total",
];

/// Checks the number of statements against the server's own counter.
fn statements_are_counted(server: &Server, agent: &Agent) -> Result<()> {
    let (counted, sent) = statements(server, agent)?;
    // Both counts are up to two seconds old: that of the last answer, in the last snapshot.
    sleep(Duration::from_secs(15));
    let (counted_later, sent_later) = statements(server, agent)?;
    let (counted, sent) = (counted_later - counted, sent_later - sent);
    let ratio = counted / sent;
    println!("statements: {counted} of {sent}, {ratio:.3}");
    // The test reads the server's counter a moment after the agent did, and on a busy machine that moment is long.
    ensure!(sent > 0.0 && (ratio - 1.0).abs() < 0.15, "{counted} statements, but the server counted {sent}");
    Ok(())
}

/// Waits until the agent's count of statements changes, which it does once a second. Returns it and the server's own
/// count.
fn statements(server: &Server, agent: &Agent) -> Result<(f64, f64)> {
    let mut earlier = None;
    let counted = wait_for("another count of statements", Duration::from_secs(10), || {
        let samples = agent.scrape()?;
        let now = samples.iter().find(|sample| sample.name == "armtrace_statements_total");
        let now = now.context("statements are not counted")?.value;
        let is_newer = earlier.replace(now).is_some_and(|earlier| earlier != now);
        Ok(is_newer.then_some(now))
    })?;
    Ok((counted, server.status("Questions")? as f64))
}

/// Returns whether the agent has a count of statements.
fn has_statements(agent: &Agent) -> Result<Option<()>> {
    Ok(agent.metrics()?.contains("\narmtrace_statements_total ").then_some(()))
}

/// The agent's connection is killed; and it starts while the server has none left.
#[test]
#[ignore = "takes a minute: make test-all"]
fn statements_are_counted_whenever_the_server_answers() -> Result<()> {
    const MOST: usize = 24;
    let args = vec![format!("--max-connections={MOST}")];
    let server = Server::start(Release::MARIADB_11_4, &Options { args, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_update_index", 4)?;
    load.wait_running()?;
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    let attach = || Agent::attach_with(&server, &["--mysql", &url].map(OsStr::new));
    let connect = || mysql::Conn::new(mysql::Opts::from_url(&url)?).map_err(anyhow::Error::from);

    let agent = attach()?;
    statements_are_counted(&server, &agent)?;
    let mut own = connect()?;
    let idle = "SELECT id FROM information_schema.processlist WHERE command = 'Sleep' AND user = 'root' AND db IS NULL";
    let idle: Vec<u64> = own.query(idle)?;
    ensure!(!idle.is_empty(), "the agent has no connection");
    for id in idle {
        own.query_drop(format!("KILL {id}"))?;
    }
    wait_for("the loss to be noticed", Duration::from_secs(10), || {
        Ok(agent.errors()?.contains("until the server answers").then_some(()))
    })?;
    // An answer from before may still be served.
    wait_for("no count", Duration::from_secs(10), || Ok(has_statements(&agent)?.is_none().then_some(())))?;
    wait_for("another count", Duration::from_secs(20), || has_statements(&agent))?;
    statements_are_counted(&server, &agent)?;
    agent.stop()?;

    let mut all = vec![own];
    while let Ok(another) = connect() {
        ensure!(all.len() <= MOST, "the server has no limit");
        all.push(another);
    }
    let options = tempfile::NamedTempFile::new()?;
    std::fs::write(options.path(), format!("[client]\nuser=root\nsocket={}\n", server.socket().display()))?;
    let agent = Agent::attach_with(&server, &[OsStr::new("--defaults-file"), options.path().as_os_str()])?;
    ensure!(has_statements(&agent)?.is_none(), "statements of a full server are counted");
    drop(all);
    wait_for("a count", Duration::from_secs(20), || has_statements(&agent))?;
    statements_are_counted(&server, &agent)?;
    agent.stop()?;
    load.stop()?;
    server.shut_down()
}

#[test]
fn a_live_agent_fills_the_dashboard() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    // On a machine with one NUMA node, there are only handoffs between cores.
    let agent = Agent::attach_with(&server, &["--handoffs", "core", "--mysql", &url].map(OsStr::new))?;
    // Checksum calls are counted in bursts.
    wait_for("a burst", Duration::from_secs(40), || {
        Ok(agent.metrics()?.contains("\narmtrace_checksum_calls_total{").then_some(()))
    })?;

    statements_are_counted(&server, &agent)?;
    let metrics = agent.metrics()?;
    let complaints = promtool_complaints(&metrics);
    ensure!(complaints.is_empty(), "{complaints}");
    for wanted in
        ["armtrace_target_up 1", "armtrace_target_info{", "armtrace_build_info{", "process_resident_memory_bytes"]
    {
        ensure!(metrics.contains(wanted), "no {wanted} in:\n{metrics}");
    }
    ensure!(http::get(&agent.address, "/healthz")?.head.contains("200"));
    ensure!(http::get(&agent.address, "/")?.body.contains("class=\"latch\""), "the landing page shows no latch");

    let prometheus = Prometheus::scraping(std::slice::from_ref(&agent.address));
    prometheus.wait_for_rates(1);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/host.json");
    let is_enough = |query: &Query, series: usize| {
        series > 0 || query.metrics().iter().any(|m| MAY_BE_EMPTY.iter().any(|e| m.starts_with(e)))
    };
    let outcomes = dashboard::run(&prometheus, &file, is_enough);
    ensure!(!outcomes.is_empty(), "the dashboard has no queries");
    for (query, outcome) in &outcomes {
        match outcome {
            Ok(series) => ensure!(is_enough(query, *series), "no data for {}", query.promql),
            Err(error) => ensure!(false, "{}: {error}", query.promql),
        }
    }
    agent.stop()?;
    load.stop()?;
    server.stop()
}

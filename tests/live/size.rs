//! The agent's footprint: its memory, its CPU time when idle, and the cost of a scrape with few and many connections.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::server::cpu_time_ns;
use procfs::process::Process;

use crate::budget::is_calibrated;
use lab::agent::Agent;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

const MIB: u64 = 1 << 20;
/// The most resident memory after attach.
const MOST_MEMORY: u64 = 42 * MIB;
/// The most idle CPU use as a fraction of one CPU, with a scrape in each interval. The goal is half of it, but the
/// kernel counts in hundredths of a second.
const MOST_IDLE_CPU: f64 = 0.006;
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The number of idle intervals. The cheapest counts, because other load on the machine makes everything slower.
const IDLE_INTERVALS: usize = 4;
/// The most CPU time of one scrape.
const LONGEST_SCRAPE: Duration = Duration::from_millis(5);
/// The most by which the cost of a line of a scrape may grow with a thousand connections. The goal is a fifth more, but
/// a thousand threads leave less space in the CPU caches.
const MOST_GROWTH: f64 = 2.0;
const SCRAPES: u32 = 200;

/// Returns the CPU time of a process so far, which the kernel counts in hundredths of a second.
fn cpu_time(pid: i32) -> Result<Duration> {
    Ok(Duration::from_nanos(cpu_time_ns(pid).context("no CPU time")?))
}

fn resident(pid: i32) -> Result<u64> {
    Ok(Process::new(pid)?.status()?.vmrss.context("no resident memory")? * 1024)
}

/// Returns the mean CPU time of a scrape, without what the agent uses by itself in the same time.
fn scrape(agent: &Agent) -> Result<Duration> {
    let (before, age) = (cpu_time(agent.pid())?, agent.age());
    for _ in 0..SCRAPES {
        agent.metrics()?;
    }
    let (used, window) = (cpu_time(agent.pid())? - before, agent.age() - age);
    let before = cpu_time(agent.pid())?;
    sleep(window);
    let idle = cpu_time(agent.pid())? - before;
    Ok(used.saturating_sub(idle) / SCRAPES)
}

/// Returns the least of three measurements, because other load on the machine makes everything slower.
fn least_scrape(agent: &Agent) -> Result<Duration> {
    let costs = (0..3).map(|_| scrape(agent)).collect::<Result<Vec<_>>>()?;
    costs.into_iter().min().context("no scrape")
}

/// Waits until the thread that analyses the server's code has exited and the cost of probes has been measured.
fn wait_until_settled(agent: &Agent) -> Result<()> {
    wait_for("the analysis of the server's code", Duration::from_secs(60), || {
        let mut tasks = Process::new(agent.pid())?.tasks()?;
        let is_analysing =
            tasks.any(|task| task.is_ok_and(|task| task.status().is_ok_and(|status| status.name == "code")));
        Ok((!is_analysing && is_calibrated(agent)?.is_some()).then_some(()))
    })
}

#[test]
fn many_connections_do_not_slow_scrapes_down() -> Result<()> {
    let args = ["--max-connections=1100", "--innodb-buffer-pool-size=8M"].map(str::to_owned).to_vec();
    let server = Server::start(Release::MYSQL_9_7, &Options { args, ..Options::default() })?;
    let agent = Agent::attach(&server)?;
    wait_until_settled(&agent)?;
    let mut costs = Vec::new();
    for threads in [16, 1024] {
        let mut load = Load::start(&server, "oltp_update_index", threads)?;
        load.wait_running()?;
        wait_for("all connections", Duration::from_secs(60), || {
            Ok((server.status("Threads_connected")? >= u64::from(threads)).then_some(()))
        })?;
        sleep(Duration::from_secs(2));
        costs.push((least_scrape(&agent)?, agent.metrics()?.lines().count(), resident(agent.pid())?));
        load.stop()?;
    }
    println!("CPU time of a scrape, lines, resident memory: {costs:?}");
    agent.stop()?;
    server.stop()?;
    let [(few, few_lines, _), (many, many_lines, memory)] = costs[..] else { unreachable!("two loads") };
    ensure!(few > Duration::ZERO && few <= LONGEST_SCRAPE && many <= LONGEST_SCRAPE, "{few:?} and {many:?}");
    // Compare the cost per line: a heavier load has waits for more latches, and so more lines.
    let per_line = |cost: Duration, lines: usize| cost.as_secs_f64() / lines as f64;
    let growth = per_line(many, many_lines) / per_line(few, few_lines);
    ensure!(growth <= MOST_GROWTH, "a line of a scrape costs {growth:.2} times as much with many connections");
    ensure!(memory <= MOST_MEMORY, "{} MiB are resident", memory / MIB);
    Ok(())
}

#[test]
fn an_idle_server_costs_the_agent_next_to_nothing() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let agent = Agent::attach(&server)?;
    wait_until_settled(&agent)?;
    agent.metrics()?;
    let mut share = f64::INFINITY;
    for _ in 0..IDLE_INTERVALS {
        let before = cpu_time(agent.pid())?;
        sleep(SCRAPE_INTERVAL);
        agent.metrics()?;
        let used = (cpu_time(agent.pid())? - before).as_secs_f64() / SCRAPE_INTERVAL.as_secs_f64();
        println!("{:.3} % of a CPU, {} MiB", 100.0 * used, resident(agent.pid())? / MIB);
        share = share.min(used);
        if share <= MOST_IDLE_CPU {
            break;
        }
    }
    agent.stop()?;
    server.stop()?;
    ensure!(share <= MOST_IDLE_CPU, "{:.3} % of a CPU", 100.0 * share);
    Ok(())
}

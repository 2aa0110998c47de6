//! The agent stays small: its memory, what it does while nothing happens, and what a scrape takes, however many
//! connections the server has.

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
/// Resident memory after attach.
const MOST_MEMORY: u64 = 44 * MIB;
/// Of one CPU, with a scrape in each interval. The goal is half of it; the kernel counts in hundredths of a second.
const MOST_IDLE_CPU: f64 = 0.006;
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// What else a machine does makes everything dearer, so that the cheapest of so many intervals tells.
const IDLE_INTERVALS: usize = 4;
/// CPU time of one scrape.
const LONGEST_SCRAPE: Duration = Duration::from_millis(5);
/// How much dearer a line of a scrape may be with a thousand connections: the goal is a fifth, and a thousand threads leave
/// less in the CPUs' caches.
const MOST_GROWTH: f64 = 2.0;
const SCRAPES: u32 = 400;

/// CPU time of a process so far, in hundredths of a second.
fn cpu_time(pid: i32) -> Result<Duration> {
    Ok(Duration::from_nanos(cpu_time_ns(pid).context("no CPU time")?))
}

fn resident(pid: i32) -> Result<u64> {
    Ok(Process::new(pid)?.status()?.vmrss.context("no resident memory")? * 1024)
}

/// What one scrape costs the agent, the mean of many; without what it does by itself meanwhile.
fn scrape(agent: &Agent) -> Result<Duration> {
    let (before, age) = (cpu_time(agent.pid())?, agent.age());
    for _ in 0..SCRAPES {
        agent.metrics()?;
    }
    let (taken, window) = (cpu_time(agent.pid())? - before, agent.age() - age);
    let before = cpu_time(agent.pid())?;
    sleep(window);
    let alone = cpu_time(agent.pid())? - before;
    Ok(taken.saturating_sub(alone) / SCRAPES)
}

/// The least of three: what else a machine does makes everything dearer.
fn least_scrape(agent: &Agent) -> Result<Duration> {
    let costs = (0..3).map(|_| scrape(agent)).collect::<Result<Vec<_>>>()?;
    costs.into_iter().min().context("no scrape")
}

/// The agent has looked into the server's code, so that the thread that did is gone, and knows what probes cost.
fn wait_until_settled(agent: &Agent) -> Result<()> {
    wait_for("the agent to have looked around", Duration::from_secs(60), || {
        let mut tasks = Process::new(agent.pid())?.tasks()?;
        let is_looking =
            tasks.any(|task| task.is_ok_and(|task| task.status().is_ok_and(|status| status.name == "code")));
        Ok((!is_looking && is_calibrated(agent)?.is_some()).then_some(()))
    })
}

#[test]
fn many_connections_make_scrapes_no_dearer() -> Result<()> {
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
        sleep(Duration::from_secs(5));
        costs.push((least_scrape(&agent)?, agent.metrics()?.lines().count(), resident(agent.pid())?));
        load.stop()?;
    }
    println!("a scrape takes CPU time, lines, resident: {costs:?}");
    agent.stop()?;
    server.stop()?;
    let [(few, few_lines, _), (many, many_lines, memory)] = costs[..] else { unreachable!("two loads") };
    ensure!(few > Duration::ZERO && few <= LONGEST_SCRAPE && many <= LONGEST_SCRAPE, "{few:?} and {many:?}");
    // More latches are waited for under the heavier load: those lines are what it has to say.
    let per_line = |cost: Duration, lines: usize| cost.as_secs_f64() / lines as f64;
    let growth = per_line(many, many_lines) / per_line(few, few_lines);
    ensure!(growth <= MOST_GROWTH, "a line of a scrape costs {growth:.2} times as much");
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
        let taken = (cpu_time(agent.pid())? - before).as_secs_f64() / SCRAPE_INTERVAL.as_secs_f64();
        println!("{:.3} % of a CPU, {} MiB", 100.0 * taken, resident(agent.pid())? / MIB);
        share = share.min(taken);
        if share <= MOST_IDLE_CPU {
            break;
        }
    }
    agent.stop()?;
    server.stop()?;
    ensure!(share <= MOST_IDLE_CPU, "{:.3} % of a CPU", 100.0 * share);
    Ok(())
}

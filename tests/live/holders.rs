//! Who holds the latches that threads wait for.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{Agent, Sample};
use lab::cgroup::Cgroup;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

const WINDOW: Duration = Duration::from_secs(6);

const BLOCKED_BY: &str = "armtrace_latch_blocked_by_seconds_total";

/// Returns the seconds waited so far, by what the holder did.
fn seconds(samples: &[Sample]) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.name == BLOCKED_BY) {
        *sums.entry(sample.labels["holder_state"].clone()).or_default() += sample.value;
    }
    sums
}

/// What the holders of latches did in a window.
#[derive(Debug)]
struct Window {
    /// The time waited while the holder had work to do, in seconds, and the share of it in which it had no CPU.
    runnable: f64,
    preempted: f64,
}

impl Window {
    /// Measures until holders were seen that had work to do: of a server with little CPU time, looks are rare.
    fn of(agent: &Agent) -> Result<Window> {
        const MOST_TIMES: usize = 16;
        // One look stands for some tenths of a second, and few of MariaDB's latches keep an owner.
        const ENOUGH_SECONDS: f64 = 2.0;
        let before = seconds(&agent.scrape()?);
        let mut after = BTreeMap::new();
        let of = |state: &str, after: &BTreeMap<String, f64>| {
            after.get(state).unwrap_or(&0.0) - before.get(state).unwrap_or(&0.0)
        };
        for _ in 0..MOST_TIMES {
            sleep(WINDOW);
            after = seconds(&agent.scrape()?);
            if of("running", &after) + of("preempted", &after) >= ENOUGH_SECONDS {
                break;
            }
        }
        println!("{after:.2?}");
        let (running, preempted) = (of("running", &after), of("preempted", &after));
        Ok(Window { runnable: running + preempted, preempted: preempted / (running + preempted) })
    }
}

/// A server with many threads that may use a part of a CPU only, as many containers may, stops with its latches held.
/// With hardly more threads than CPUs and without a limit, holders mostly run.
fn a_limit_of_cpu_time_is_seen(release: Release) -> Result<()> {
    let Some(group) = Cgroup::that_limits_cpu() else {
        println!("not tested: no group can limit CPU time on this machine");
        return Ok(());
    };
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 3)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    sleep(Duration::from_secs(3));
    let free = Window::of(&agent)?;
    group.add(server.pid())?;
    group.limit_cpu(Duration::from_millis(30))?;
    let mut more = Load::start(&server, "oltp_update_index", 13)?;
    more.wait_running()?;
    let limited = Window::of(&agent)?;
    println!("{}: {free:?}, with a limit {limited:?}", release.name());
    agent.stop()?;
    more.stop()?;
    load.stop()?;
    server.stop()?;
    ensure!(free.runnable > 0.0 && limited.runnable > 0.0, "no holder was seen");
    ensure!(limited.preempted >= 0.9, "with a limit, {:.2} without a CPU", limited.preempted);
    ensure!(free.preempted <= 0.85, "without a limit, {:.2} without a CPU", free.preempted);
    Ok(())
}

#[test]
fn a_limit_of_cpu_time_is_seen_on_mysql() -> Result<()> {
    a_limit_of_cpu_time_is_seen(Release::MYSQL_8_0_31)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn a_limit_of_cpu_time_is_seen_on_mariadb() -> Result<()> {
    a_limit_of_cpu_time_is_seen(Release::MARIADB_11_4)
}

//! The overhead budget: probes are off part of the time to keep it, and what they then do not see is estimated.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::server::cpu_time_ns;

use lab::agent::{doctor_with, Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// Six of the cycles in which probes take turns, and whole ones: a part of a cycle has a turn or none.
const WINDOW: Duration = Duration::from_secs(24);

/// What happened to a server and an agent on it in a window.
#[derive(Debug)]
struct Window {
    /// CPU seconds that probes took.
    probes: f64,
    /// The server's.
    cpu: f64,
    /// Seconds of waits for the latches that performance_schema sees, by its account and by the agent's, and what the agent
    /// estimated of all.
    truth: f64,
    seconds: f64,
    /// The part of `seconds` that was slept.
    asleep: f64,
    estimated: f64,
}

fn sum(samples: &[Sample], name: &str, wanted: impl Fn(&Sample) -> bool) -> f64 {
    samples.iter().filter(|s| s.name == name && wanted(s)).map(|s| s.value).sum()
}

impl Window {
    fn measure(server: &Server, agent: &Agent) -> Result<Window> {
        let cpu = || cpu_time_ns(server.pid()).map(|ns| ns as f64 / 1e9).context("no CPU time");
        let (before, cpu_before, truth_before) = (agent.scrape()?, cpu()?, truth(server)?);
        sleep(WINDOW);
        let (after, cpu_after, truth_after) = (agent.scrape()?, cpu()?, truth(server)?);
        let grown =
            |name: &str, wanted: &dyn Fn(&Sample) -> bool| sum(&after, name, wanted) - sum(&before, name, wanted);
        let innodb = |s: &Sample| truth_after.contains_key(&s.labels["latch"]);
        Ok(Window {
            probes: grown("armtrace_probe_cost_seconds_total", &|_| true),
            cpu: cpu_after - cpu_before,
            truth: truth_after.values().sum::<f64>() - truth_before.values().sum::<f64>(),
            seconds: grown("armtrace_latch_wait_seconds_sum", &innodb),
            asleep: grown("armtrace_latch_sleep_seconds_total", &innodb),
            estimated: grown("armtrace_latch_wait_estimated_seconds_total", &|_| true),
        })
    }
}

/// Seconds of waits so far for those of InnoDB's latches that performance_schema sees.
fn truth(server: &Server) -> Result<BTreeMap<String, f64>> {
    let innodb = |event: &str| event.contains("/innodb/") && !event.contains("/cond/");
    let all = server.wait_summary()?.into_iter().filter(|(event, (count, _))| innodb(event) && *count > 0.0);
    Ok(all.map(|(event, (_, seconds))| (event, seconds)).collect())
}

/// Whether what the probes cost is known by now.
pub fn is_calibrated(agent: &Agent) -> Result<Option<()>> {
    Ok(agent.scrape()?.iter().any(|s| s.name == "armtrace_probe_hit_cost_seconds").then_some(()))
}

fn takes_turns(samples: &[Sample]) -> bool {
    let of = |s: &Sample| s.name == "armtrace_probe_state" && s.labels["state"] == "duty_cycle" && s.value == 1.0;
    samples.iter().any(of)
}

/// A budget of half of what the probes would take is kept, and what is measured stays near what performance_schema says: since
/// hits count more than what they take, about a quarter of the waits is seen, so figures that were not scaled up would be far
/// off. There have to be many waits, for a few long ones cannot be estimated.
fn budget_is_kept(release: Release, threads: u32, args: &[&str]) -> Result<()> {
    let server = Server::start(
        release,
        &Options { perf_schema: true, args: args.iter().map(|&a| a.to_owned()).collect(), ..Options::default() },
    )?;
    let mut load = Load::start(&server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    wait_for("the probes' cost", Duration::from_secs(20), || is_calibrated(&agent))?;
    let free = Window::measure(&server, &agent)?;
    agent.stop()?;

    let budget = free.probes / 2.0 / free.cpu;
    let share = format!("{budget:.6}");
    let agent = Agent::attach_with(&server, &["--max-overhead", &share].map(OsStr::new))?;
    wait_for("the probes' cost", Duration::from_secs(20), || is_calibrated(&agent))?;
    let started = Instant::now();
    wait_for("probes that take turns", Duration::from_secs(10), || Ok(takes_turns(&agent.scrape()?).then_some(())))?;
    let reaction = started.elapsed();
    sleep(Duration::from_secs(3));
    let kept = Window::measure(&server, &agent)?;
    let lost = agent.scrape()?.into_iter().filter(|s| s.name.contains("lost") && s.value > 0.0).collect::<Vec<_>>();
    agent.stop()?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0, "{report:?}");
    server.stop()?;

    println!(
        "{}: free {free:?}\nwithin {:.3} % {kept:?}, after {reaction:?}; lost {lost:?}",
        release.name(),
        100.0 * budget
    );
    let taken = kept.probes / kept.cpu;
    ensure!(taken <= 0.75 * budget, "{:.3} % are taken of {:.3} %", 100.0 * taken, 100.0 * budget);
    ensure!(kept.estimated > 0.0 && kept.probes > 0.0, "nothing was seen, or nothing estimated");
    let ratio = |window: &Window| window.seconds / window.truth;
    println!("of performance_schema's seconds: {:.2} without a budget, {:.2} with it", ratio(&free), ratio(&kept));
    ensure!((0.3..=3.0).contains(&(ratio(&kept) / ratio(&free))), "the estimates are off: {kept:?}, {free:?}");
    let slept = |window: &Window| window.asleep / window.seconds;
    println!("slept: {:.2} without a budget, {:.2} with it", slept(&free), slept(&kept));
    ensure!((0.5..=1.5).contains(&(slept(&kept) / slept(&free))), "sleeps are off: {kept:?}, {free:?}");
    Ok(())
}

#[test]
fn mysql_stays_within_the_budget() -> Result<()> {
    budget_is_kept(Release::MYSQL_9_7, 32, &["--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=nosync"])
}

#[test]
fn mariadb_stays_within_the_budget() -> Result<()> {
    budget_is_kept(Release::MARIADB_11_4, 64, &[])
}

/// Doctor lists what would be attached within the budget that it is told: the mutexes of MariaDB 10.2 need a large one.
#[test]
fn doctor_knows_what_a_budget_allows() -> Result<()> {
    let server = Server::start(Release::MARIADB_10_2, &Options::default())?;
    let lists_mutexes = |args: &[&str]| -> Result<bool> {
        let said = doctor_with(server.pid(), args)?;
        let probes = said["server"]["probes"].as_array().context("doctor lists no probes")?;
        Ok(probes.iter().any(|probe| probe["name"] == "mutex_enter_inlined:begin"))
    };
    ensure!(!lists_mutexes(&[])? && !lists_mutexes(&["--max-overhead", "19%"])?, "their probes are listed");
    ensure!(lists_mutexes(&["--max-overhead", "20%"])?, "their probes are not listed");
    server.stop()
}

//! The overhead budget: probes run on a duty cycle to stay within it, and the waits they miss are estimated.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::attach::clock_sees_threads;
use armtrace::server::cpu_time_ns;

use lab::agent::{doctor_with, Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The window with a budget. Two full periods of the duty cycle: part of a period may contain no on-time, or only
/// on-time.
const LIMITED: Duration = Duration::from_secs(32);
/// The window without one, in which every wait is seen. It is compared with the other, and in 6 s its sum was up to 6 %
/// from performance_schema's, which is nearly what the estimates' interval allows.
const UNLIMITED: Duration = Duration::from_secs(15);

/// Estimates must be as close to performance_schema's figures as this multiple of their 95 % interval says: four
/// standard errors.
const WITHIN: f64 = 2.0;

/// What a server and its agent counted in a window.
#[derive(Debug)]
struct Window {
    /// CPU seconds that the probes took.
    probes: f64,
    /// CPU seconds of the server.
    cpu: f64,
    /// Seconds of waits for InnoDB's latches, according to performance_schema.
    truth: f64,
    /// Seconds of waits for the same latches, according to the agent.
    seconds: f64,
    /// The part of `seconds` that was spent asleep.
    asleep: f64,
    /// Seconds of waits that the agent estimated, for all latches.
    estimated: f64,
    /// Half the width of the 95 % interval of `seconds`, according to the agent.
    error: f64,
}

fn sum(samples: &[Sample], name: &str, wanted: impl Fn(&Sample) -> bool) -> f64 {
    samples.iter().filter(|s| s.name == name && wanted(s)).map(|s| s.value).sum()
}

impl Window {
    fn measure(server: &Server, agent: &Agent, time: Duration) -> Result<Window> {
        let cpu = || cpu_time_ns(server.pid()).map(|ns| ns as f64 / 1e9).context("no CPU time");
        let (before, cpu_before, truth_before) = (agent.scrape()?, cpu()?, truth(server)?);
        sleep(time);
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
            error: 1.96 * grown("armtrace_latch_wait_variance_seconds_squared_total", &innodb).sqrt(),
        })
    }
}

/// Returns the seconds of waits so far for each of InnoDB's latches that performance_schema has seen acquired.
fn truth(server: &Server) -> Result<BTreeMap<String, f64>> {
    let innodb = |event: &str| event.contains("/innodb/") && !event.contains("/cond/");
    let all = server.wait_summary()?.into_iter().filter(|(event, (count, _))| innodb(event) && *count > 0.0);
    Ok(all.map(|(event, (_, seconds))| (event, seconds)).collect())
}

/// Returns `Some` once the cost of the probes has been measured.
pub fn is_calibrated(agent: &Agent) -> Result<Option<()>> {
    Ok(agent.scrape()?.iter().any(|s| s.name == "armtrace_probe_hit_cost_seconds").then_some(()))
}

fn has_duty_cycle(samples: &[Sample]) -> bool {
    let is_cycling =
        |s: &Sample| s.name == "armtrace_probe_state" && s.labels["state"] == "duty_cycle" && s.value == 1.0;
    samples.iter().any(is_cycling)
}

/// With a budget of half of what the probes would take, the agent stays within it, and its figures stay close to
/// performance_schema's. The budget charges more for a hit than it takes, so probes see about a quarter of the waits,
/// and figures that were not scaled up would be far off. The load must cause many waits, because a few long ones cannot
/// be estimated.
fn stays_within_budget(release: Release, threads: u32, args: &[&str]) -> Result<()> {
    let server = Server::start(
        release,
        &Options { perf_schema: true, args: args.iter().map(|&a| a.to_owned()).collect(), ..Options::default() },
    )?;
    let mut load = Load::start(&server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    wait_for("the probes' cost", Duration::from_secs(20), || is_calibrated(&agent))?;
    let unlimited = Window::measure(&server, &agent, UNLIMITED)?;
    agent.stop()?;

    let budget = unlimited.probes / 2.0 / unlimited.cpu;
    let share = format!("{budget:.6}");
    let agent = Agent::attach_with(&server, &["--max-overhead", &share].map(OsStr::new))?;
    wait_for("the probes' cost", Duration::from_secs(20), || is_calibrated(&agent))?;
    let started = Instant::now();
    wait_for("a duty cycle", Duration::from_secs(10), || Ok(has_duty_cycle(&agent.scrape()?).then_some(())))?;
    let reaction = started.elapsed();
    sleep(Duration::from_secs(3));
    let limited = Window::measure(&server, &agent, LIMITED)?;
    let lost = agent.scrape()?.into_iter().filter(|s| s.name.contains("lost") && s.value > 0.0).collect::<Vec<_>>();
    agent.stop()?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0, "{report:?}");
    server.stop()?;

    println!(
        "{}: without a budget {unlimited:?}\nwith {:.3} % {limited:?}, after {reaction:?}; lost {lost:?}",
        release.name(),
        100.0 * budget
    );
    let used = limited.probes / limited.cpu;
    ensure!(used <= 0.75 * budget, "the probes took {:.3} % with a budget of {:.3} %", 100.0 * used, 100.0 * budget);
    ensure!(limited.estimated > 0.0 && limited.probes > 0.0, "nothing was seen, or nothing was estimated");
    let ratio = |window: &Window| window.seconds / window.truth;
    let ratios = (ratio(&unlimited), ratio(&limited));
    println!("of performance_schema's seconds: {:.2} without a budget, {:.2} with it", ratios.0, ratios.1);
    let expected = ratios.0 * limited.truth;
    ensure!(limited.error > 0.0 && limited.error < expected, "estimates without a useful error: {limited:?}");
    let off = (limited.seconds - expected).abs();
    ensure!(off <= WITHIN * limited.error, "{off:.2} s off: {limited:?}, {unlimited:?}");
    let asleep = |window: &Window| window.asleep / window.seconds;
    let shares = (asleep(&unlimited), asleep(&limited));
    println!("asleep: {:.2} without a budget, {:.2} with it", shares.0, shares.1);
    // A stall within one of the few turns moves this share (1.07, 1.15 and 1.70 of it were seen). The bounds are for
    // sleeps that are not scaled up, whose share is about a quarter, and for those that are scaled up twice, about four
    // times.
    ensure!((0.5..=2.0).contains(&(shares.1 / shares.0)), "sleep times are off: {limited:?}, {unlimited:?}");
    Ok(())
}

#[test]
#[ignore = "takes a minute: make test-all"]
fn mysql_stays_within_the_budget() -> Result<()> {
    stays_within_budget(Release::MYSQL_9_7, 32, &["--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=nosync"])
}

#[test]
#[ignore = "takes a minute: make test-all"]
fn mariadb_stays_within_the_budget() -> Result<()> {
    stays_within_budget(Release::MARIADB_11_4, 64, &[])
}

/// `doctor` lists what would be attached within the given budget: the mutexes of MariaDB 10.2 need a large one.
#[test]
fn doctor_lists_what_the_budget_allows() -> Result<()> {
    let server = Server::start(Release::MARIADB_10_2, &Options::default())?;
    let lists_mutexes = |args: &[&str]| -> Result<bool> {
        let report = doctor_with(server.pid(), args)?;
        let probes = report["server"]["probes"].as_array().context("doctor lists no probes")?;
        Ok(probes.iter().any(|probe| probe["name"] == "mutex_enter_inlined:begin"))
    };
    ensure!(!lists_mutexes(&[])? && !lists_mutexes(&["--max-overhead", "19%"])?, "the mutexes' probes are listed");
    ensure!(lists_mutexes(&["--max-overhead", "20%"])?, "the mutexes' probes are not listed");
    server.stop()
}

/// A latch in a window: performance_schema's seconds, the agent's, and half the width of their 95 % interval.
struct Figure {
    latch: String,
    truth: f64,
    seconds: f64,
    error: f64,
}

impl Figure {
    /// Returns whether the interval's half is at most half of the figure.
    fn is_good(&self) -> bool {
        self.error <= 0.5 * self.seconds
    }
}

/// Returns the medians of the relative errors of good figures, and of those that the agent says they may have; infinity
/// if there are none.
fn median_errors(figures: &[Figure]) -> (f64, f64) {
    let median = |of: fn(&Figure) -> f64| {
        let mut errors: Vec<f64> = figures.iter().filter(|figure| figure.is_good()).map(of).collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied().unwrap_or(f64::INFINITY)
    };
    let error = median(|figure| (figure.seconds / figure.truth - 1.0).abs());
    let said = median(|figure| figure.error / figure.seconds);
    println!("median error {error:.3}, of figures with ± {said:.3}");
    (error, said)
}

/// Returns the figures of the latches with at least a twentieth of performance_schema's sum in a window.
fn heaviest(server: &Server, agent: &Agent, time: Duration) -> Result<Vec<Figure>> {
    let synch = |event: &str| event.starts_with("wait/synch/") && !event.contains("/cond/");
    let (before, truth_before) = (agent.scrape()?, server.wait_summary()?);
    sleep(time);
    let (after, truth_after) = (agent.scrape()?, server.wait_summary()?);
    let of = |latch: &str, name| {
        let wanted = |s: &Sample| s.labels["latch"] == *latch;
        sum(&after, name, wanted) - sum(&before, name, wanted)
    };
    let figure = |(latch, (_, seconds)): (String, (f64, f64))| Figure {
        truth: seconds - truth_before.get(&latch).map_or(0.0, |(_, seconds)| *seconds),
        seconds: of(&latch, "armtrace_latch_wait_seconds_sum"),
        error: 1.96 * of(&latch, "armtrace_latch_wait_variance_seconds_squared_total").sqrt(),
        latch,
    };
    let all: Vec<Figure> = truth_after.into_iter().filter(|(event, _)| synch(event)).map(figure).collect();
    let sum: f64 = all.iter().map(|figure| figure.truth).sum();
    Ok(all.into_iter().filter(|figure| figure.truth >= 0.05 * sum).collect())
}

/// With the default settings, on a server with heavy contention, most of the waits are estimated. The figures of the
/// heaviest latches are within the intervals that the agent gives. Those that it calls good are as close to
/// performance_schema's as it says: how good they are depends on the machine. On one whose disk is busy, the median
/// error was 0.19 where the intervals were ± 0.45, and 0.11 at another time.
#[test]
fn the_defaults_figures_are_as_good_as_they_say() -> Result<()> {
    /// The number of windows, and of those that are measured at most: with few of them, the median error is itself off
    /// by a third.
    const WINDOWS: usize = 4;
    const MOST_WINDOWS: usize = 12;
    /// Half of all errors are within a third of a 95 % interval's half.
    const MOST_OF_SAID: f64 = 0.5;
    let server = Server::start(Release::MARIADB_10_11, &Options { perf_schema: true, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_write_only", 24)?;
    load.wait_running()?;
    let agent = Agent::attach_with(&server, &[])?;
    wait_for("a duty cycle", Duration::from_secs(30), || Ok(has_duty_cycle(&agent.scrape()?).then_some(())))?;
    // Two on-periods teach what threads do that wait.
    sleep(Duration::from_secs(20));
    let mut figures = Vec::new();
    for window in 1..=MOST_WINDOWS {
        figures.extend(heaviest(&server, &agent, Duration::from_secs(20))?);
        let (error, said) = median_errors(&figures);
        if window >= WINDOWS && error <= MOST_OF_SAID * said {
            break;
        }
    }
    let quick_samples = sum(&agent.scrape()?, "armtrace_probe_hits_total", |s| s.labels["probe"] == "quick_sample");
    agent.stop()?;
    let report = load.stop()?;
    // Its transactions deadlock now and then, with or without the agent.
    ensure!(report.reconnects == 0, "{report:?}");
    server.stop()?;
    for Figure { latch, truth, seconds, error } in &figures {
        println!("{latch}: {seconds:.2} s ± {error:.2} s, of performance_schema's {truth:.2} s");
    }
    // At 19 Hz, the least frequency of CPU samples, one CPU takes 1,900 in the shortest run.
    ensure!(!clock_sees_threads() || quick_samples > 1000.0, "there were {quick_samples} quick samples");
    let estimated = figures.iter().filter(|figure| figure.error > 0.0).count();
    ensure!(estimated * 2 > figures.len() && figures.len() >= 3 * WINDOWS, "hardly anything was estimated");
    let good = figures.iter().filter(|figure| figure.is_good()).count();
    ensure!(good * 3 >= figures.len(), "only {good} of {} figures are good", figures.len());
    let (median, said) = median_errors(&figures);
    let within = figures.iter().filter(|figure| (figure.seconds - figure.truth).abs() <= figure.error).count();
    println!("median error of {good} {median:.3}; {within} of {} within their intervals", figures.len());
    ensure!(median <= MOST_OF_SAID * said, "the median error is {median:.3} where ± {said:.3} is said");
    ensure!(within * 10 >= figures.len() * 7, "{within} of {} are within their intervals", figures.len());
    Ok(())
}

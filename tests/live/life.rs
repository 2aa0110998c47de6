//! Attaching and detaching: the server must not notice, and nothing may stay behind.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use lab::agent::{by_latch, changed_sites, loaded_programs, quickest_name, Agent, Sample};
use lab::load::Load;
use lab::machine::patience;
use lab::releases::Release;
use lab::server::{wait_for, within_four_attempts, Options, Server};

/// How long the agent may take to exit, as the median of many exits and at worst. It waits until every CPU has
/// scheduled, which can take long on a small busy machine: the median is usually 0.2 to 0.3 s, but 1.15 s was seen.
const PROMPT: Duration = Duration::from_secs(2);
const PROMPT_AT_WORST: Duration = Duration::from_secs(5);

/// How long the kernel may take to clean up after the agent.
const CLEAN_UP: Duration = Duration::from_secs(5);

fn nothing_left(server: &Server) -> Result<()> {
    wait_for("the last probe to be removed", CLEAN_UP, || {
        Ok((changed_sites(server.pid())?.is_empty() && loaded_programs()?.is_empty()).then_some(()))
    })
}

/// Attaches and detaches repeatedly under load, after different times.
fn cycles(release: Release, rounds: u64) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let mut times = Vec::new();
    for round in 0..rounds {
        let agent = Agent::attach(&server)?;
        if round == 0 {
            let probed = changed_sites(server.pid())?;
            ensure!(!probed.is_empty(), "attached, but no site has a breakpoint: this test could not fail");
            ensure!(!loaded_programs()?.is_empty(), "attached, but no program is loaded: this test could not fail");
        }
        sleep(Duration::from_millis(100 * (round % 5)));
        let (status, took) = agent.stop()?;
        ensure!(status.success(), "round {round}: {status}");
        ensure!(took < patience(PROMPT_AT_WORST), "round {round}: exiting took {took:?}");
        times.push(took);
    }
    times.sort();
    let median = times[times.len() / 2];
    ensure!(median < patience(PROMPT), "exiting takes {median:?} in the median");
    nothing_left(&server)?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

#[test]
#[ignore = "takes a minute: make test-all"]
fn twenty_attachments_lose_no_query() -> Result<()> {
    cycles(Release::MYSQL_9_7, 12)?;
    cycles(Release::MARIADB_11_4, 8)
}

#[test]
fn exits_promptly_and_cleanly() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut agent = Agent::attach(&server)?;
        sleep(Duration::from_millis(300));
        agent.signal(signal);
        let (status, took) = agent.wait()?;
        ensure!(status.success() && took < patience(PROMPT_AT_WORST), "signal {signal}: {status} after {took:?}");
        nothing_left(&server)?;
    }
    let mut agent = Agent::attach(&server)?;
    sleep(Duration::from_millis(300));
    agent.signal(libc::SIGKILL);
    ensure!(!agent.wait()?.0.success());
    nothing_left(&server)?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");

    let mut agent = Agent::attach(&server)?;
    server.shut_down()?;
    let (status, took) = agent.wait()?;
    ensure!(status.success() && took < patience(PROMPT_AT_WORST), "the server ended: {status} after {took:?}");
    ensure!(agent.errors()?.contains("has ended"), "{}", agent.errors()?);
    wait_for("the BPF programs to be freed", CLEAN_UP, || Ok(loaded_programs()?.is_empty().then_some(())))
}

/// If a thread were killed while it removes breakpoints, those left would stay in the server and cost it a trap at
/// every hit. The test kills the agent at several moments of a detach.
#[test]
fn leaves_nothing_behind_when_killed_while_detaching() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    for moment in (2..24).step_by(4).map(Duration::from_millis) {
        let mut agent = Agent::attach(&server)?;
        sleep(Duration::from_millis(200));
        agent.signal(libc::SIGUSR1);
        sleep(moment);
        agent.signal(libc::SIGKILL);
        agent.wait()?;
        nothing_left(&server).with_context(|| format!("killed {moment:?} after detaching began"))?;
    }
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0, "{report:?}");
    server.shut_down()
}

/// A DBA who suspects armtrace of slowing a server down can detach its probes with a signal.
#[test]
fn signals_pause_and_resume_the_probes() -> Result<()> {
    for release in [Release::MYSQL_9_7, Release::MARIADB_11_4] {
        let server = Server::start(release, &Options::default())?;
        let mut load = Load::start(&server, "oltp_update_index", 16)?;
        load.wait_running()?;
        let agent = Agent::attach(&server)?;
        let hits = || -> Result<f64> {
            let samples = agent.scrape()?.into_iter().filter(|s| s.name == "armtrace_probe_hits_total");
            Ok(samples.filter(is_pausable).map(|s| s.value).sum())
        };
        for round in 0..2 {
            let then = hits()?;
            wait_for("hits", Duration::from_secs(5), || Ok((hits()? > then).then_some(())))?;
            agent.signal(libc::SIGUSR1);
            wait_for("the probes to be removed", CLEAN_UP, || {
                Ok(changed_sites(server.pid())?.is_empty().then_some(()))
            })?;
            wait_for("the states to change", CLEAN_UP, || Ok(attached_probes(&agent)?.is_empty().then_some(())))?;
            let then = hits()?;
            sleep(Duration::from_millis(1000));
            ensure!(hits()? == then, "{}, round {round}: hits were counted during a pause", release.name());
            agent.signal(libc::SIGUSR2);
        }
        agent.signal(libc::SIGUSR1);
        let (status, _) = agent.stop()?;
        ensure!(status.success(), "{status}");
        nothing_left(&server)?;
        let report = load.stop()?;
        ensure!(report.errors == 0 && report.reconnects == 0, "{report:?}");
        server.stop()?;
    }
    Ok(())
}

/// Returns whether a pause detaches the probe: every one except that on exiting threads.
fn is_pausable(sample: &Sample) -> bool {
    sample.labels["probe"] != "thread_exit"
}

/// Returns the probes that are attached although a pause detaches them.
fn attached_probes(agent: &Agent) -> Result<Vec<String>> {
    let samples = agent.scrape()?.into_iter().filter(|s| s.name == "armtrace_probe_state" && s.value == 1.0);
    let attached = samples.filter(is_pausable).filter(|s| ["attached", "duty_cycle"].contains(&&*s.labels["state"]));
    Ok(attached.map(|s| s.labels["probe"].clone()).collect())
}

#[test]
fn survives_the_servers_sudden_death() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut agent = Agent::attach(&server)?;
    // SAFETY: a signal to the private server that this test started.
    unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    let (status, took) = agent.wait()?;
    ensure!(status.success() && took < patience(PROMPT_AT_WORST), "{status} after {took:?}");
    Ok(())
}

#[test]
fn names_latches_within_a_second_of_its_start() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let limit = patience(Duration::from_secs(2));
    let first = quickest_name(&server, limit)?;
    // The limit is generous, because the load keeps both cores of a small machine busy.
    ensure!(first < limit, "the first named latch came after {first:?}");
    load.stop()?;
    server.stop()
}

/// The most time that a program which was analysed before may take, as a part of what its analysis took.
const KEPT: f64 = 0.2;

/// What an agent found in the program, and the microseconds that it took.
struct Looked {
    was_kept: bool,
    micros: f64,
    first_name: Duration,
}

impl Looked {
    fn new(agent: &Agent) -> Result<Looked> {
        let first_name = agent.first_name()?;
        let log = agent.errors()?;
        let after = |words: &str| log.split_once(words)?.1.split(' ').next()?.parse().ok();
        let (analysed, kept) =
            (after("analysed for its sites in "), after("analysed before for its sites, which was read in "));
        Ok(Looked {
            was_kept: analysed.is_none(),
            micros: analysed.or(kept).with_context(|| format!("no analysis in {log}"))?,
            first_name,
        })
    }
}

fn probes(agent: &Agent) -> Result<BTreeSet<String>> {
    let samples = agent.scrape()?;
    let probes = samples.iter().filter(|sample| sample.name == "armtrace_probe_hits_total");
    Ok(probes.filter_map(|sample| sample.labels.get("probe").cloned()).collect())
}

/// Returns the names of the latches with the most waits.
fn most_waited(agent: &Agent) -> Result<BTreeSet<String>> {
    let mut latches: Vec<_> = by_latch(&agent.scrape()?, "armtrace_latch_wait_seconds_count").into_iter().collect();
    latches.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(latches.into_iter().take(3).map(|(latch, _)| latch).filter(|latch| latch.starts_with("wait/")).collect())
}

/// Waits until the agent's log has these words.
fn logs(agent: &Agent, words: &str) -> Result<()> {
    wait_for(words, Duration::from_secs(20), || Ok(agent.errors()?.contains(words).then_some(())))
}

#[test]
fn a_program_that_was_analysed_is_not_analysed_again() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let folder = tempfile::tempdir()?;
    let args = ["--cache-dir".as_ref(), folder.path().as_os_str(), "--log-level".as_ref(), "armtrace=debug".as_ref()];
    let agent = Agent::attach_with(&server, &args)?;
    let (first, latches) = (Looked::new(&agent)?, most_waited(&agent)?);
    for analysis in ["locks", "barriers"] {
        logs(&agent, &format!("analysed for its {analysis}"))?;
    }
    // The last probes are attached when the last analysis is done.
    sleep(Duration::from_secs(2));
    let all = probes(&agent)?;
    agent.stop()?;
    ensure!(!first.was_kept && !all.is_empty() && !latches.is_empty());
    // A busy machine may hold up what takes milliseconds.
    within_four_attempts(|| {
        let agent = Agent::attach_with(&server, &args)?;
        let again = Looked::new(&agent)?;
        println!("{:?}, then {:?} to the first name", first.first_name, again.first_name);
        println!("{} µs, then {} µs for the analysis", first.micros, again.micros);
        // Not the time to the first name: on a busy machine it varies by more than the analysis takes.
        ensure!(again.was_kept && again.micros < KEPT * first.micros, "{} µs after {} µs", again.micros, first.micros);
        for analysis in ["latches", "barriers"] {
            logs(&agent, &format!("analysed before for its {analysis}"))?;
        }
        wait_for("the same probes", Duration::from_secs(20), || Ok((probes(&agent)? == all).then_some(())))
            .with_context(|| format!("{all:?}, then {:?}", probes(&agent)))?;
        wait_for("the same latches", Duration::from_secs(5), || {
            let samples = by_latch(&agent.scrape()?, "armtrace_latch_wait_seconds_count");
            Ok(latches.iter().all(|latch| samples.contains_key(latch)).then_some(()))
        })?;
        agent.stop()?;
        Ok(())
    })?;
    load.stop()?;
    server.stop()
}

/// The reader of the agent's output may stop reading, like a pager or a terminal stopped with Ctrl-S.
#[test]
fn exits_promptly_when_nobody_reads_its_output() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let (mut agent, _unread) = Agent::attach_to_full_pipe(&server)?;
    // Longer than the interval at which the agent prints, so that it tries to write to the pipe.
    sleep(Duration::from_secs(12));
    ensure!(agent.metrics()?.contains("armtrace_target_up 1"), "metrics stopped with the output");
    agent.signal(libc::SIGTERM);
    let (status, took) = agent.wait()?;
    ensure!(status.success() && took < patience(PROMPT_AT_WORST), "{status} after {took:?}");
    nothing_left(&server)?;
    server.stop()
}

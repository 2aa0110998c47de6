//! The past that a running agent keeps: `armtrace dump` writes it, also of a server that has been killed, and the agent
//! does by itself.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use armtrace::recording::{self, Ending, Recording};

use lab::agent::{by_latch, free_port, loaded_programs, program, without_terminal, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, within_four_attempts, Options, Server};

/// How armtrace names a latch that has not got its name yet. Its waits move to another row when it gets it.
const UNNAMED: &str = "unnamed:";

/// The longest time until an agent has noticed that a server has ended.
const SOON: Duration = Duration::from_secs(10);

/// An agent that answers in a folder of its own.
struct Kept {
    folder: tempfile::TempDir,
    agent: Agent,
}

impl Kept {
    fn start(begin: impl FnOnce(Command) -> Result<Agent>) -> Result<Kept> {
        let folder = tempfile::tempdir()?;
        let mut command = without_terminal();
        command.env("RUNTIME_DIRECTORY", folder.path());
        Ok(Kept { agent: begin(command)?, folder })
    }

    fn ask(&self, args: &[&str], output: &Path) -> Result<Output> {
        let mut command = Command::new(program());
        command.args(["dump", "--force", "-o"]).arg(output).args(args).stdin(Stdio::null());
        Ok(command.env("RUNTIME_DIRECTORY", self.folder.path()).output()?)
    }

    /// Returns what it writes.
    fn dump(&self, args: &[&str]) -> Result<Recording> {
        let file = self.folder.path().join("dump.rec");
        let said = self.ask(args, &file)?;
        ensure!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
        Ok(recording::read(&file)?)
    }

    fn record(&self, server: &Server, output: &Path, args: &[&str]) -> Result<Child> {
        let mut command = Command::new(program());
        command.args(["record", "--pid", &server.pid().to_string(), "-o"]).arg(output).args(args);
        Ok(command.env("RUNTIME_DIRECTORY", self.folder.path()).stdin(Stdio::null()).spawn()?)
    }

    /// Returns its message if it writes nothing.
    fn refusal(&self, args: &[&str]) -> Result<(Option<i32>, String)> {
        let said = self.ask(args, &self.folder.path().join("none.rec"))?;
        Ok((said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned()))
    }

    /// Returns the seconds waited so far for each latch.
    fn waited(&self) -> Result<BTreeMap<String, f64>> {
        let mut all = by_latch(&self.agent.scrape()?, "armtrace_latch_wait_seconds_sum");
        all.retain(|latch, _| !latch.contains(UNNAMED));
        Ok(all)
    }
}

/// Returns the seconds that a recording has of each latch.
fn recorded(recording: &Recording, latch: &str) -> f64 {
    let rows = recording.latches();
    rows.iter().filter(|row| row.latch == latch).map(|row| row.waits.sum_ns).sum::<u64>() as f64 / 1e9
}

fn sum(all: &BTreeMap<String, f64>) -> f64 {
    all.values().sum()
}

/// All since attach is between what scrapes before and after it have.
fn all_is_kept(kept: &Kept) -> Result<Recording> {
    let before = kept.waited()?;
    let all = kept.dump(&["--last", "1h"])?;
    // Scrapes that follow each other closely have the same figures, which may be older than what is written.
    sleep(Duration::from_millis(1500));
    let after = kept.waited()?;
    let mut compared = 0.0;
    for (latch, low) in before.iter().filter(|(_, low)| **low > 0.5) {
        let dumped = recorded(&all, latch);
        let high = after.get(latch).with_context(|| format!("{latch} is gone"))?;
        println!("{latch}: {low:.2} <= {dumped:.2} <= {high:.2} s");
        ensure!((low * 0.999..=high * 1.001).contains(&dumped), "{latch}: {dumped} s, scrapes have {low} and {high} s");
        compared += dumped;
    }
    ensure!(compared > 1.0, "only {compared} s of waits: this test could not fail");
    Ok(all)
}

/// The last seconds are those, and no others. A small server's past has sets of figures for up to five seconds.
fn the_last_seconds_are_kept(kept: &Kept) -> Result<()> {
    const ASKED: f64 = 10.0;
    const LONGEST: f64 = 5.0;
    const SLACK: f64 = 1.5;
    let mut early = Vec::new();
    for _ in 0..(ASKED + LONGEST + SLACK) as usize {
        early.push((Instant::now(), kept.waited()?));
        sleep(Duration::from_secs(1));
    }
    let last = kept.dump(&["--last", "10s"])?;
    let (ended, late) = (Instant::now(), kept.waited()?);
    let seconds = last.duration().as_secs_f64();
    ensure!((ASKED..ASKED + LONGEST + SLACK).contains(&seconds), "{seconds} s");
    let off = |at: &Instant| ((ended - *at).as_secs_f64() - seconds).abs();
    let (_, early) = early.iter().min_by(|(a, _), (b, _)| off(a).total_cmp(&off(b))).context("no scrape")?;
    let dumped: f64 = early.keys().map(|latch| recorded(&last, latch)).sum();
    let scraped = sum(&late) - sum(early);
    println!("the last {seconds:.1} s: {dumped:.2} s, scrapes have {scraped:.2} s");
    ensure!((0.8..1.25).contains(&(dumped / scraped)), "{dumped} s, scrapes have {scraped} s");
    ensure!(last.server_cpu_ns().is_some_and(|ns| ns > 1_000_000_000), "{:?}", last.server_cpu_ns());
    Ok(())
}

/// A recording takes what the agent measures, and no second set of probes.
fn a_recording_takes_what_is_measured(kept: &Kept, server: &Server, file: &Path) -> Result<()> {
    let programs = loaded_programs()?.len();
    let before = kept.waited()?;
    let mut recorder = kept.record(server, file, &["--duration", "5s", "--label", "threads=16", "--force"])?;
    sleep(Duration::from_secs(2));
    let loaded = loaded_programs()?.len();
    ensure!(recorder.wait()?.success());
    ensure!(loaded == programs, "more programs were loaded");
    let scraped = sum(&kept.waited()?) - sum(&before);
    let recording = recording::read(file)?;
    ensure!(recording.end.as_ref().is_some_and(|end| end.ending == Ending::Complete), "{:?}", recording.end);
    ensure!((5.0..5.5).contains(&recording.duration().as_secs_f64()), "{:?}", recording.duration());
    ensure!(recording.start.labels["threads"] == "16");
    ensure!(recording.start.server.settings["innodb_io_capacity"] == "300");
    let waited: f64 = before.keys().map(|latch| recorded(&recording, latch)).sum();
    println!("recorded {waited:.2} s, scrapes have {scraped:.2} s in a little more time");
    ensure!((0.6..1.02).contains(&(waited / scraped)), "{waited} s, scrapes have {scraped} s");
    Ok(())
}

/// An interrupted recording ends as any other.
fn a_recording_is_interrupted(kept: &Kept, server: &Server, file: &Path) -> Result<()> {
    let mut recorder = kept.record(server, file, &["--duration", "60s", "--force"])?;
    sleep(Duration::from_millis(2500));
    // SAFETY: a signal to a process of this test's own, which has not been waited for.
    unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) };
    ensure!(recorder.wait()?.success());
    let recording = recording::read(file)?;
    ensure!(recording.end.as_ref().is_some_and(|end| end.ending == Ending::Interrupted), "{:?}", recording.end);
    ensure!((2.0..3.5).contains(&recording.duration().as_secs_f64()), "{:?}", recording.duration());
    Ok(())
}

fn the_past_is_what_was_measured(release: Release, kept_for: Duration) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let kept = Kept::start(|command| Agent::attach_by(command, &server))?;
    sleep(kept_for);

    let all = all_is_kept(&kept)?;
    ensure!(all.end.is_some_and(|end| end.ending == Ending::Complete && !end.probes.is_empty()));
    ensure!(all.start.server.pid == server.pid() && !all.start.server.settings.is_empty(), "{:?}", all.start.server);
    within_four_attempts(|| the_last_seconds_are_kept(&kept))?;

    // A setting changes after attaching.
    ensure!(all.start.server.settings["innodb_io_capacity"] != "300");
    server.query("SET GLOBAL innodb_io_capacity = 300")?;
    let file = kept.folder.path().join("record.rec");
    within_four_attempts(|| a_recording_takes_what_is_measured(&kept, &server, &file))?;
    within_four_attempts(|| a_recording_is_interrupted(&kept, &server, &file))?;

    kept.agent.stop()?.0.success().then_some(()).context("the agent failed")?;
    let left = fs::read_dir(kept.folder.path())?
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "sock"));
    ensure!(left.count() == 0, "a socket is left");
    load.stop()?;
    server.shut_down()
}

#[test]
fn the_past_is_written_when_threads_wait() -> Result<()> {
    let server = Server::start(Release::MYSQL_8_0_31, &Options::default())?;
    let kept = Kept::start(|command| Agent::attach_by(command, &server))?;
    let file = kept.folder.path().join("spike.rec");
    let mut command = Command::new(program());
    command.args(["dump", "--when-waiting", "0.5", "--last", "8s", "-o"]).arg(&file);
    let mut dump = command.env("RUNTIME_DIRECTORY", kept.folder.path()).stdin(Stdio::null()).spawn()?;
    sleep(Duration::from_secs(8));
    ensure!(dump.try_wait()?.is_none() && !file.exists(), "nobody waits, but it is written");
    let load = Load::start(&server, "oltp_update_index", 32)?;
    let status = wait_for("the past to be written", 4 * SOON, || Ok(dump.try_wait()?))?;
    ensure!(status.success(), "{status}");
    let recording = recording::read(&file)?;
    let waited: f64 = recording.latches().iter().map(|row| row.waits.sum_ns as f64 / 1e9).sum();
    ensure!(waited > 2.0, "{waited} s of waits in {:?}", recording.duration());
    load.stop()?;
    kept.agent.stop()?.0.success().then_some(()).context("the agent failed")?;
    server.shut_down()
}

/// Returns the dump for this cause that an agent has written by itself to a folder; `None` if there is none.
fn dump_for(cause: &str, folder: &Path) -> Result<Option<Recording>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains(&format!("-{cause}-")) {
            let mode = entry.metadata()?.permissions().mode();
            ensure!(mode & 0o777 == 0o600, "others may read it: {mode:o}");
            return Ok(Some(recording::read(&entry.path())?));
        }
    }
    Ok(None)
}

/// Nobody watches: a signal, threads that wait, and the server's end each leave a file.
#[test]
fn an_agent_writes_dumps_by_itself() -> Result<()> {
    let server = Server::start(Release::MYSQL_8_0_31, &Options::default())?;
    let (pid, folder) = (server.pid(), tempfile::tempdir()?);
    let refused = Command::new(program())
        .args(["--pid", &pid.to_string(), "--listen", &format!("127.0.0.1:{}", free_port()?)])
        .args(["--dump-to", "/nonexistent"])
        .stdin(Stdio::null())
        .output()?;
    let message = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && message.contains("no file can be written there"), "{message}");

    let args = ["--dump-when-waiting", "0.5", "--dump-to"].map(OsStr::new);
    let mut agent = Agent::attach_with(&server, &[&args[..], &[folder.path().as_os_str()]].concat())?;
    let wait = |cause: &str| wait_for(cause, 4 * SOON, || dump_for(cause, folder.path()));
    sleep(Duration::from_secs(1));
    agent.signal(libc::SIGQUIT);
    let asked = wait("signal")?;
    ensure!(asked.start.server.pid == pid && asked.end.is_some_and(|end| end.ending == Ending::Complete));
    ensure!(fs::read_dir(folder.path())?.count() == 1, "nobody waits, but it is written");

    let load = Load::start(&server, "oltp_update_index", 32)?;
    let waited =
        |recording: &Recording| -> f64 { recording.latches().iter().map(|row| row.waits.sum_ns as f64 / 1e9).sum() };
    let spike = wait("waiting")?;
    ensure!(spike.start.server.pid == pid && waited(&spike) > 2.0, "{} s of waits", waited(&spike));

    // SAFETY: a signal to a process of this test's own, which has not been waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    ensure!(agent.wait()?.0.success(), "{}", agent.errors()?);
    let end = dump_for("ended", folder.path())?.context("its end left nothing")?;
    ensure!(end.end.as_ref().is_some_and(|end| end.ending == Ending::ServerEnded), "{:?}", end.end);
    ensure!(end.duration() > spike.duration() && waited(&end) > 2.0, "{:?}, {} s", end.duration(), waited(&end));
    let said = agent.errors()?;
    ensure!(said.matches(&format!("of process {pid} are in {}", folder.path().display())).count() == 3, "{said}");
    ensure!(fs::read_dir(folder.path())?.count() == 3, "there are other files");
    drop(load);
    Ok(())
}

/// A statement that takes long leaves a file; a session that is idle for as long does not.
fn a_long_statement_leaves_a_dump(release: Release, options: &Options) -> Result<()> {
    let server = Server::start(release, options)?;
    let folder = tempfile::tempdir()?;
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    let mut session = server.session("SET @idle = 1")?;
    let args = ["--mysql", &url, "--dump-when-statement", "2s", "--dump-to"].map(OsStr::new);
    let agent = Agent::attach_with(&server, &[&args[..], &[folder.path().as_os_str()]].concat())?;
    // The server is asked a second after attaching, and every five seconds.
    sleep(Duration::from_millis(2500));
    ensure!(dump_for("statement", folder.path())?.is_none(), "no statement runs, but it is written");
    session.send("DO BENCHMARK(2000000000, MD5('long'))")?;
    let dump = wait_for("a dump", 2 * SOON, || dump_for("statement", folder.path()));
    session.kill()?;
    let dump = dump.with_context(|| agent.errors().unwrap_or_default())?;
    ensure!(dump.start.server.pid == server.pid());
    ensure!(dump.server_cpu_ns().is_some_and(|ns| ns > 1_000_000_000), "{:?}", dump.server_cpu_ns());
    ensure!(agent.stop()?.0.success());
    server.stop()
}

#[test]
fn a_long_statement_of_mysql_leaves_a_dump() -> Result<()> {
    a_long_statement_leaves_a_dump(Release::MYSQL_8_0_31, &Options { perf_schema: true, ..Options::default() })
}

/// Its process list says it.
#[test]
#[ignore = "as on MySQL: make test-all"]
fn a_long_statement_of_mariadb_leaves_a_dump() -> Result<()> {
    a_long_statement_leaves_a_dump(Release::MARIADB_11_4, &Options::default())
}

#[test]
fn mysql_has_a_past() -> Result<()> {
    the_past_is_what_was_measured(Release::MYSQL_8_0_31, Duration::from_secs(15))
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_has_a_past() -> Result<()> {
    // Longer than one of the files that the past is kept in.
    the_past_is_what_was_measured(Release::MARIADB_11_4, Duration::from_secs(65))
}

/// Returns the CPU time that the thread has taken which keeps the past.
fn keeping(agent: &Agent) -> Result<Duration> {
    for task in fs::read_dir(format!("/proc/{}/task", agent.pid()))? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == "hindsight" {
            let spent = fs::read_to_string(task.join("schedstat"))?;
            let ns = spent.split_whitespace().next().context("no time")?.parse()?;
            return Ok(Duration::from_nanos(ns));
        }
    }
    bail!("nothing keeps the past")
}

/// Two agents measure the same server at the same time, and only one keeps the past.
#[test]
#[ignore = "takes half a minute: make test-all"]
fn the_past_costs_little() -> Result<()> {
    const TIME: Duration = Duration::from_secs(15);
    /// A tenth of the budget of a server that uses two CPUs, and half as much again.
    const MOST_CPUS: f64 = 0.003;
    const MOST_BYTES: f64 = 4.0 * (1 << 20) as f64;
    let server = Server::start(Release::MYSQL_8_0_31, &Options::default())?;
    let load = Load::start(&server, "oltp_update_index", 16)?;
    let agents = [Agent::attach_with(&server, &[])?, Agent::attach_with(&server, &["--keep", "0"].map(OsStr::new))?];
    ensure!(keeping(&agents[1]).is_err(), "a past is kept that is not wanted");
    // All is prepared.
    sleep(Duration::from_secs(10));
    let before = keeping(&agents[0])?;
    sleep(TIME);
    let cpus = (keeping(&agents[0])? - before).as_secs_f64() / TIME.as_secs_f64();
    let bytes = |agent: &Agent| -> Result<f64> {
        let samples = agent.scrape()?;
        let resident = samples.iter().find(|sample| sample.name == "process_resident_memory_bytes");
        Ok(resident.context("no resident memory")?.value)
    };
    let more = bytes(&agents[0])? - bytes(&agents[1])?;
    println!("the past takes {cpus:.5} CPUs and {:.1} MB", more / 1e6);
    ensure!(cpus <= MOST_CPUS && more <= MOST_BYTES);
    for agent in agents {
        ensure!(agent.stop()?.0.success());
    }
    load.stop()?;
    server.shut_down()
}

#[test]
fn a_killed_server_has_a_past() -> Result<()> {
    let doomed = Server::start(Release::MYSQL_8_0_31, &Options::default())?;
    let other = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&doomed, "oltp_update_index", 16)?;
    load.wait_running()?;
    let kept = Kept::start(|command| Agent::discover_by(command, &[]))?;
    let (doomed_pid, other_pid) = (doomed.pid().to_string(), other.pid().to_string());
    wait_for("a past of both", SOON, || Ok(kept.dump(&["--pid", &other_pid]).is_ok().then_some(())))?;
    wait_for("a past of both", SOON, || Ok(kept.dump(&["--pid", &doomed_pid]).is_ok().then_some(())))?;
    let (status, message) = kept.refusal(&[])?;
    ensure!(status == Some(2) && message.contains(&format!("process {doomed_pid}")), "{status:?}: {message}");
    let (status, message) = kept.refusal(&["--target", "none"])?;
    ensure!(status == Some(3) && message.contains("MariaDB 11.4"), "{status:?}: {message}");

    sleep(Duration::from_secs(5));
    // SAFETY: a signal to a process of this test's own, which has not been waited for.
    unsafe { libc::kill(doomed.pid(), libc::SIGKILL) };
    wait_for("the past to be that of a server that has ended", SOON, || {
        let recording = kept.dump(&["--pid", &doomed_pid]);
        let ending = recording.ok().and_then(|recording| recording.end).map(|end| end.ending);
        Ok((ending == Some(Ending::ServerEnded)).then_some(()))
    })?;
    let past = kept.dump(&["--pid", &doomed_pid])?;
    let waited: u64 = past.latches().iter().map(|row| row.waits.sum_ns).sum();
    ensure!(waited > 1_000_000_000, "{waited} ns waited before its end");
    // The other one is the only one that still runs, so it need not be named.
    ensure!(kept.dump(&[])?.start.server.pid == other.pid());

    kept.agent.stop()?.0.success().then_some(()).context("the agent failed")?;
    drop(load);
    other.shut_down()
}

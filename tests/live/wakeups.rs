//! Reacquires: threads that have to reacquire a mutex after a condition variable woke them, which is not contention.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use tempfile::TempDir;

use crate::library::{measured, COND, LATCH};
use lab::agent::{by_latch, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

const REACQUIRED: &str = "armtrace_latch_reacquires_total";
const REACQUIRE_TIME: &str = "armtrace_latch_reacquire_seconds_total";

/// The number of threads that the test program wakes at once.
const HERD: f64 = 4.0;
/// How long the test program then holds the mutex, in seconds.
const HELD: f64 = 0.100;

/// A program that the agent takes for a server, and that waits on command.
struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _dir: TempDir,
}

impl Program {
    fn start() -> Result<Program> {
        let dir = tempfile::tempdir()?;
        let program = dir.path().join("mariadbd");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/woken.c");
        let gcc =
            Command::new("gcc").args(["-O2", "-pthread", "-rdynamic", "-o"]).arg(&program).arg(source).status()?;
        ensure!(gcc.success(), "gcc: {gcc}");
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().context("no input")?;
        let stdout = BufReader::new(child.stdout.take().context("no output")?);
        let mut program = Program { child, stdin, stdout, _dir: dir };
        // When the program answers, all its threads are waiting.
        program.run("h", 1)?;
        Ok(program)
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Runs a command a number of times.
    fn run(&mut self, command: &str, times: usize) -> Result<()> {
        for _ in 0..times {
            self.stdin.write_all(command.as_bytes())?;
            let mut answer = String::new();
            self.stdout.read_line(&mut answer)?;
            ensure!(answer == "done\n", "{command}: {answer:?}");
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the count and the seconds of a latch's contended waits, of its reacquires, and of its waits as a condition
/// variable.
fn seen(agent: &Agent, latch: &str) -> Result<[(f64, f64); 3]> {
    let samples = agent.scrape()?;
    let of = |metric: &str| by_latch(&samples, metric).get(latch).copied().unwrap_or(0.0);
    let histogram = |metric: &str| (of(&format!("{metric}_count")), of(&format!("{metric}_sum")));
    Ok([histogram(LATCH), (of(REACQUIRED), of(REACQUIRE_TIME)), histogram(COND)])
}

#[test]
fn reacquires_are_distinguished_from_contended_waits() -> Result<()> {
    let mut program = Program::start()?;
    let agent = Agent::attach_to(program.pid(), &["--max-overhead", "100%"].map(OsStr::new))?;
    program.run("h", 5)?;
    program.run("d", 3)?;
    program.run("s", 4)?;
    program.run("w", 2)?;
    let lock = |name: &str| format!("wait/synch/mutex/sql/LOCK_{name}");
    let [direct, woken, _] = seen(&agent, &lock("herd"))?;
    let [single_direct, single, _] = seen(&agent, &lock("single"))?;
    let [writer, writer_woken, _] = seen(&agent, &lock("rw"))?;
    let [_, _, condition] = seen(&agent, "wait/synch/cond/sql/COND_herd")?;
    println!("herd: {woken:?}, direct locks: {direct:?}, single: {single:?}, writer: {writer:?}, {condition:?}");
    // Occasionally a woken thread finds the mutex taken again and sleeps again; on a busy machine it may wake late.
    let counted = |(count, seconds): (f64, f64), waits: f64| {
        count >= waits && count <= 1.5 * waits && seconds >= 0.5 * waits * HELD
    };
    ensure!(counted(woken, 5.0 * HERD), "the herd: {woken:?}");
    ensure!(counted(direct, 3.0), "direct locks: {direct:?}");
    ensure!(counted(single, 4.0) && single_direct.0 == 0.0, "one thread: {single:?}, {single_direct:?}");
    // A writer waits for the rw-lock, whichever function it sleeps in.
    ensure!(writer.0 >= 2.0 && writer_woken.0 == 0.0, "a writer: {writer:?}, {writer_woken:?}");
    // Waits that were open when the agent attached have no known start.
    ensure!((4.0 * HERD..=5.0 * HERD).contains(&condition.0), "the condition: {condition:?}");
    agent.stop()?;
    Ok(())
}

/// How far the two sides' figures for a window may differ.
const TOLERANCE: f64 = 0.10;
const WINDOWS: usize = 4;

const LOCK_DONE: &str = "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_done";
const COND_DONE: &str = "wait/synch/cond/sql/MYSQL_BIN_LOG::COND_done";

/// Seconds waited so far, according to one side.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    lock: f64,
    condition: f64,
}

/// Returns performance_schema's figures.
fn theirs(server: &Server) -> Result<Waited> {
    let all = server.wait_summary()?;
    let of = |event: &str| all.get(event).map(|(_, seconds)| *seconds).context("no such instrument");
    Ok(Waited { lock: of(LOCK_DONE)?, condition: of(COND_DONE)? })
}

/// Returns armtrace's figures, and the count and seconds of the reacquires that `condition` includes.
fn ours(agent: &Agent) -> Result<(Waited, (f64, f64))> {
    let lock = measured(agent, LATCH)?.get(LOCK_DONE).map_or(0.0, |(_, seconds)| *seconds);
    let [_, woken, _] = seen(agent, LOCK_DONE)?;
    let [_, _, condition] = seen(agent, COND_DONE)?;
    Ok((Waited { lock, condition: condition.1 + woken.1 }, woken))
}

/// In a group commit, the leader wakes all followers at once. performance_schema counts the time until each has
/// reacquired the mutex as part of the wait for the condition variable.
#[test]
fn mysql_group_commit_wakeups_are_not_contention() -> Result<()> {
    let args = ["--log-bin=binlog", "--sync-binlog=1"].map(str::to_owned).to_vec();
    let server = Server::start(Release::MYSQL_9_7, &Options { perf_schema: true, args, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_update_index", 24)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let near = |ours: f64, least: f64, most: f64| ours >= least * (1.0 - TOLERANCE) && ours <= most * (1.0 + TOLERANCE);
    let mut agrees = false;
    for _ in 0..WINDOWS {
        // performance_schema is read before and after armtrace, so waits between the readings do not count as an error.
        let (first, (before, woken_before), second) = (theirs(&server)?, ours(&agent)?, theirs(&server)?);
        sleep(Duration::from_secs(5));
        let (third, (after, woken_after), last) = (theirs(&server)?, ours(&agent)?, theirs(&server)?);
        let (lock, condition) = (after.lock - before.lock, after.condition - before.condition);
        let woken = (woken_after.0 - woken_before.0, woken_after.1 - woken_before.1);
        let (least, most) = (
            Waited { lock: third.lock - second.lock, condition: third.condition - second.condition },
            Waited { lock: last.lock - first.lock, condition: last.condition - first.condition },
        );
        println!(
            "LOCK_done: {lock:.3}s, performance_schema {least:.3?} to {most:.3?}; woken: {woken:.3?}; COND_done with it: {condition:.3}s"
        );
        ensure!(
            woken.0 >= 100.0 && woken.1 > lock,
            "there were too few reacquires: {woken:?}, {lock:.3}s of contended waits"
        );
        agrees = near(lock, least.lock, most.lock) && near(condition, least.condition, most.condition);
        if agrees {
            break;
        }
    }
    let samples = agent.scrape()?;
    load.stop()?;
    agent.stop()?;
    server.stop()?;
    ensure!(agrees, "the two sides do not agree in any of {WINDOWS} windows");
    let handoffs: BTreeMap<String, f64> = by_latch(&samples, "armtrace_latch_handoffs_total");
    let waits = by_latch(&samples, "armtrace_latch_wait_seconds_count");
    let (handed, waited) = (handoffs.get(LOCK_DONE).copied().unwrap_or(0.0), waits[LOCK_DONE]);
    ensure!(handed <= waited, "{handed} handoffs of {waited} waits");
    Ok(())
}

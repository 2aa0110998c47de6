//! A private database server with its own data directory, port and socket.
//!
//! `tests/lab/serve` knows how to obtain, start and stop each server; this module only drives it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::machine::patience;
use crate::releases::{script, Release};

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Turns performance_schema on with every `wait/synch` instrument, as ground truth; it is off otherwise.
    pub perf_schema: bool,
    /// Uses the version's own settings, with the binlog on and every commit flushed, instead of the lab's.
    pub defaults: bool,
    /// Extra arguments for the server, which override the lab's own.
    pub args: Vec<String>,
    /// A copy of the server's program to run instead.
    pub program: Option<PathBuf>,
    /// Environment variables for the server. Values must not contain spaces.
    pub env: Vec<(String, String)>,
    /// A root folder in which to run the server, in its own mount and PID namespaces.
    pub container: Option<PathBuf>,
}

/// A running server that answers queries. Dropping it stops it and removes all its files.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The script exits when this closes, so the server does not outlive the test process.
    stdin: Option<ChildStdin>,
    pid: i32,
    port: u16,
    socket: PathBuf,
    dir: PathBuf,
}

impl Server {
    /// Starts a server, and downloads it before that if necessary. Returns once it answers queries.
    pub fn start(release: Release, options: &Options) -> Result<Server> {
        let mut command = Command::new(script("serve"));
        command.arg(release.name()).args(["--no-load", "--until-eof"]);
        if options.perf_schema {
            command.arg("--perf-schema");
        }
        if options.defaults {
            command.arg("--defaults");
        }
        for arg in &options.args {
            command.args(["--arg", arg]);
        }
        for (name, value) in &options.env {
            command.args(["--env", &format!("{name}={value}")]);
        }
        if let Some(program) = &options.program {
            command.arg("--program").arg(program);
        }
        if let Some(container) = &options.container {
            command.arg("--container").arg(container);
        }
        // Standard error is inherited: the script reports there what it downloads and why it failed.
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting tests/lab/serve")?;
        let stdin = child.stdin.take();
        let mut line = String::new();
        let stdout = child.stdout.take().context("no output from tests/lab/serve")?;
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() {
            let status = child.wait()?;
            bail!("{} did not start ({status}): see standard error", release.name());
        }
        let field = |name: &str| {
            line.split_whitespace()
                .filter_map(|word| word.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_string())
                .with_context(|| format!("no {name} in {line:?}"))
        };
        Ok(Server {
            pid: field("pid")?.parse()?,
            port: field("port")?.parse()?,
            socket: field("socket")?.into(),
            dir: field("dir")?.into(),
            child,
            stdin,
        })
    }

    /// Returns the server's process ID on the host.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether the server has not exited.
    pub fn running(&self) -> bool {
        running(self.pid)
    }

    /// Returns the TCP port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of its Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the folder with the data directory and the logs, which is removed with the server.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a query in the server's own client. Returns rows of fields, in which the client has written tabs and
    /// newlines as `\t` and `\n`.
    pub fn query(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        let output = Command::new(self.dir.join("sql"))
            .args(["--batch", "--skip-column-names", "--execute", sql])
            .stdin(Stdio::null())
            .output()
            .context("starting the client")?;
        ensure!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr).trim());
        let text = String::from_utf8(output.stdout).with_context(|| format!("{sql}: not UTF-8"))?;
        Ok(text.lines().map(|row| row.split('\t').map(str::to_string).collect()).collect())
    }

    /// Returns one of the server's counters (`SHOW GLOBAL STATUS`).
    pub fn status(&self, name: &str) -> Result<u64> {
        let rows = self.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
        let value =
            rows.first().and_then(|row| row.get(1)).with_context(|| format!("the server has no status {name}"))?;
        value.parse().with_context(|| format!("{name} is {value:?}"))
    }

    /// Returns performance_schema's count and seconds so far for every `wait/synch` instrument.
    pub fn wait_summary(&self) -> Result<BTreeMap<String, (f64, f64)>> {
        let rows = self.query(
            "SELECT EVENT_NAME, COUNT_STAR, SUM_TIMER_WAIT / 1e12 \
             FROM performance_schema.events_waits_summary_global_by_event_name WHERE EVENT_NAME LIKE 'wait/synch/%'",
        )?;
        rows.into_iter()
            .map(|row| {
                let [event, count, seconds] = &row[..] else { bail!("{row:?}") };
                Ok((event.clone(), (count.parse()?, seconds.parse()?)))
            })
            .collect()
    }

    /// Stops purge by holding open a transaction that may still read every old row version.
    pub fn keep_history(&self) -> Result<History> {
        const SLEEP: &str = "SELECT SLEEP(3600)";
        let transaction = format!("START TRANSACTION WITH CONSISTENT SNAPSHOT; {SLEEP}");
        let mut client = Command::new(self.dir.join("sql"));
        client.args(["--execute", &transaction]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let history = History(client.spawn().context("starting the client")?);
        let begun = format!("SELECT 1 FROM information_schema.processlist WHERE info = '{SLEEP}'");
        wait_for("a transaction", Duration::from_secs(10), || Ok((!self.query(&begun)?.is_empty()).then_some(())))?;
        Ok(history)
    }

    /// Opens a session, and runs these statements in it, which must not return rows.
    pub fn session(&self, sql: &str) -> Result<Session> {
        let mut client = Command::new(self.dir.join("sql"));
        client.args(["--batch", "--skip-column-names", "--unbuffered"]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the client")?;
        let stdin = client.stdin.take().context("no standard input")?;
        let mut answers = BufReader::new(client.stdout.take().context("no standard output")?);
        let mut session = Session { stdin: Some(stdin), client, connection: 0 };
        session.send(&format!("{sql}; SELECT CONNECTION_ID()"))?;
        let mut id = String::new();
        answers.read_line(&mut id)?;
        session.connection = id.trim().parse().with_context(|| format!("{sql}: {id:?}"))?;
        Ok(session)
    }

    /// Kills the server, which saves the seconds of a clean shutdown. Fails if the server has exited before.
    pub fn stop(mut self) -> Result<()> {
        let status = self.kill()?;
        ensure!(status.success(), "the server exited on its own: see standard error");
        Ok(())
    }

    /// Shuts the server down cleanly. Fails if it cannot, or has exited before.
    pub fn shut_down(mut self) -> Result<()> {
        let status = self.end()?;
        ensure!(status.success(), "the server did not shut down cleanly: see standard error");
        Ok(())
    }

    fn kill(&mut self) -> Result<std::process::ExitStatus> {
        if let Some(stdin) = &mut self.stdin {
            // It cannot be told if the script has exited, which its status says.
            _ = stdin.write_all(b"kill\n");
        }
        self.end()
    }

    fn end(&mut self) -> Result<std::process::ExitStatus> {
        drop(self.stdin.take());
        wait_for("the server to exit", Duration::from_secs(60), || Ok(self.child.try_wait()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kill().is_err() {
            // The server has a parent-death signal, so it dies with the script.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// An open transaction, which ends when this is dropped or the server stops.
#[derive(Debug)]
pub struct History(Child);

impl Drop for History {
    fn drop(&mut self) {
        // Both may fail, because the client exits when the server stops.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session that is idle between statements. It ends when this is dropped.
#[derive(Debug)]
pub struct Session {
    stdin: Option<ChildStdin>,
    client: Child,
    connection: u32,
}

impl Session {
    /// The ID of its connection.
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// Kills the client, which says nothing to the server.
    pub fn kill(mut self) -> Result<()> {
        self.client.kill().context("the client has exited")
    }

    /// Begins to execute a statement.
    pub fn send(&mut self, sql: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the session has ended")?;
        writeln!(stdin, "{sql};").context("the client has exited")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It waits for its last statement, and fails if the server has stopped meanwhile.
        let _ = self.client.wait();
    }
}

/// Returns whether a process exists and has not exited.
pub fn running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses and may contain any character.
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    // A zombie whose other threads are still exiting holds its files and its memory.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.count());
    !rest.starts_with('Z') || threads > 1
}

/// Repeats a comparison that fails. Disturbances can make correct figures fail, but cannot make wrong figures pass.
pub fn within_four_attempts(mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..3 {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("tried again: {error:#}"),
        }
        // What disturbed it may be over then.
        sleep(Duration::from_secs(1));
    }
    attempt()
}

/// Calls `poll` until it returns a value, and fails after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let limit = patience(limit);
    let start = Instant::now();
    loop {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} for {what}");
        }
        sleep(Duration::from_millis(20));
    }
}

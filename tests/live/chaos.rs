//! Kills at random moments: the server must not notice, nothing may stay behind, and a restart must work at once.
//!
//! `make chaos` does it three hundred times, the tests that everybody runs a few times: `ARMTRACE_CHAOS` is the number.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::attach::breakpoints;

use lab::agent::{free_port, loaded_programs, program};
use lab::http;
use lab::load::Load;
use lab::machine::patience;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// How long a restarted agent may take until it serves metrics.
const BACK: Duration = Duration::from_secs(5);

/// The longest time that an agent lives. Attaching takes about half a second; then turns of the probes come and go.
const LIFE_MS: u64 = 1500;

/// What is killed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    /// The agent.
    Agent,
    /// The agent and the processes that attach and detach for it, as at the end of a cgroup, and by the OOM killer.
    All,
    /// First those processes, a moment later the agent.
    HelpersFirst,
}

/// An agent in a process group of its own.
struct Victim {
    child: Child,
    /// What it has written to standard error.
    said: tempfile::NamedTempFile,
    began: Instant,
}

impl Victim {
    fn start(server: &Server, address: &str) -> Result<Victim> {
        let said = tempfile::NamedTempFile::new()?;
        let child = Command::new(program())
            .args(["--pid", &server.pid().to_string(), "--listen", address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said.reopen()?)
            .process_group(0)
            .spawn()
            .context("starting the agent")?;
        Ok(Victim { child, said, began: Instant::now() })
    }

    /// Waits until it serves metrics. Returns how long that took from its start.
    fn wait_until_it_serves(&mut self, address: &str) -> Result<Duration> {
        wait_for("metrics", Duration::from_secs(30), || {
            let said = || std::fs::read_to_string(self.said.path()).unwrap_or_default();
            ensure!(self.child.try_wait()?.is_none(), "the agent did not start: {}", said());
            Ok(http::get(address, "/healthz").ok())
        })?;
        Ok(self.began.elapsed())
    }

    /// Kills it. Returns what it has said.
    fn kill(mut self, killed: Killed) -> Result<String> {
        let pid = self.child.id() as i32;
        if killed == Killed::HelpersFirst {
            for helper in children(pid) {
                kill(helper);
            }
            sleep(Duration::from_millis(1));
        }
        kill(if killed == Killed::All { -pid } else { pid });
        self.child.wait()?;
        Ok(std::fs::read_to_string(self.said.path())?)
    }
}

fn kill(pid: i32) {
    // SAFETY: a signal to our own child, or to its children, which end at the latest with it.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Returns the children of a process.
fn children(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    listed.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn rounds() -> Result<usize> {
    std::env::var("ARMTRACE_CHAOS").map_or(Ok(12), |rounds| Ok(rounds.parse()?))
}

fn kills(release: Release) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let (mut slowest, mut left) = (Duration::ZERO, 0);
    for round in 0..rounds()? {
        let killed = [Killed::Agent, Killed::All, Killed::HelpersFirst][round % 3];
        let mut agent = Victim::start(&server, &address)?;
        // Some rounds kill it while it attaches, and the next one starts at once.
        if random.bool() {
            let took = agent.wait_until_it_serves(&address).with_context(|| format!("round {round}"))?;
            ensure!(took < patience(BACK), "round {round}: {took:?} until metrics were back");
            slowest = slowest.max(took);
        }
        sleep(Duration::from_millis(random.u64(..LIFE_MS)));
        let said = agent.kill(killed)?;
        left += said.matches("now taken out").count();
        ensure!(!said.contains("taken by"), "round {round}: {said}");
    }
    let mut last = Victim::start(&server, &address)?;
    slowest = slowest.max(last.wait_until_it_serves(&address)?);
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(last.child.id() as i32, libc::SIGINT) };
    ensure!(last.child.wait()?.success(), "the last agent failed");
    wait_for("the last breakpoint to go", Duration::from_secs(5), || {
        Ok((breakpoints(server.pid())? == 0 && loaded_programs()?.is_empty()).then_some(()))
    })?;
    let report = load.stop()?;
    println!(
        "{}: {} kills, metrics back within {slowest:?}, {left} restarts found breakpoints, {} transactions, {} errors",
        release.name(),
        rounds()?,
        report.transactions,
        report.errors
    );
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

#[test]
fn kills_of_the_agent_leave_nothing_on_mysql() -> Result<()> {
    kills(Release::MYSQL_9_7)
}

#[test]
fn kills_of_the_agent_leave_nothing_on_mariadb() -> Result<()> {
    kills(Release::MARIADB_11_4)
}

/// A server that is stopped answers nothing, and its threads neither wait nor run.
#[test]
fn a_stopped_server_holds_nothing_up() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let signal = |pid: i32, signal| {
        // SAFETY: a signal to our own child, or to the lab's server.
        unsafe { libc::kill(pid, signal) };
    };
    for _ in 0..2 {
        let mut agent = Victim::start(&server, &address)?;
        agent.wait_until_it_serves(&address)?;
        signal(server.pid(), libc::SIGSTOP);
        sleep(Duration::from_secs(2));
        let began = Instant::now();
        let answer = http::get(&address, "/metrics");
        let took = began.elapsed();
        signal(agent.child.id() as i32, libc::SIGINT);
        let ended = wait_for("the agent to exit", Duration::from_secs(20), || Ok(agent.child.try_wait()?));
        // Go on in any case: a stopped server cannot be shut down.
        signal(server.pid(), libc::SIGCONT);
        ensure!(answer?.body.contains("armtrace_target_up 1"), "no metrics of a stopped server");
        ensure!(took < patience(Duration::from_secs(2)), "a scrape of a stopped server took {took:?}");
        ensure!(ended?.success());
    }
    ensure!(breakpoints(server.pid())? == 0, "breakpoints are left");
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

//! A limit on threads, such as systemd's `TasksMax=`: whatever it refuses, armtrace does not panic, and its probes go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use lab::agent::{changed_sites, loaded_programs, program, Agent};
use lab::http;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// A cgroup whose number of threads is limited. Dropping it removes it.
struct Limited(PathBuf);

impl Limited {
    fn new() -> Result<Limited> {
        let (first, second) = (Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup"));
        let parent = if first.exists() {
            first
        } else {
            fs::write(second.join("cgroup.subtree_control"), "+pids").context("the controller of threads")?;
            second
        };
        let folder = parent.join(format!("armtrace-test-{}", std::process::id()));
        fs::create_dir(&folder).context("a cgroup")?;
        Ok(Limited(folder))
    }

    fn allow(&self, threads: &str) -> Result<()> {
        Ok(fs::write(self.0.join("pids.max"), threads)?)
    }

    /// Returns a command that runs the agent in this group.
    fn agent(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""]).arg(&self.0).arg(program());
        command
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        _ = fs::remove_dir(&self.0);
    }
}

fn nothing_left(server: &Server) -> Result<()> {
    wait_for("the last probe to be removed", Duration::from_secs(5), || {
        Ok((changed_sites(server.pid())?.is_empty() && loaded_programs()?.is_empty()).then_some(()))
    })
}

#[test]
fn an_agent_that_gets_no_more_threads_serves_and_detaches() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let limited = Limited::new()?;
    let mut agent = Agent::attach_by(limited.agent(), &server)?;
    limited.allow("1")?;
    // Threads that wait for work longer than they are usually kept.
    sleep(Duration::from_secs(12));
    for page in ["/metrics", "/"] {
        ensure!(http::get(&agent.address, page)?.body.contains("armtrace"), "{page}");
    }
    agent.signal(libc::SIGUSR1);
    wait_for("the probes to pause", Duration::from_secs(10), || {
        Ok(changed_sites(server.pid())?.is_empty().then_some(()))
    })?;
    agent.signal(libc::SIGUSR2);
    sleep(Duration::from_millis(500));
    agent.signal(libc::SIGTERM);
    let (status, _) = agent.wait()?;
    let said = agent.errors()?;
    ensure!(status.success() && !said.contains("panicked"), "{status}: {said}");
    nothing_left(&server)?;
    ensure!(load.stop()?.errors == 0);
    server.shut_down()
}

#[test]
#[ignore = "takes half a minute: make test-all"]
fn an_agent_that_gets_few_threads_never_panics() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let limited = Limited::new()?;
    let mut attached = 0;
    for threads in 1..=14 {
        limited.allow(&threads.to_string())?;
        let said = match Agent::attach_by(limited.agent(), &server) {
            Ok(mut agent) => {
                attached += 1;
                agent.signal(libc::SIGTERM);
                let (status, _) = agent.wait()?;
                ensure!(status.success(), "{threads}: {status}");
                agent.errors()?
            }
            Err(why) => {
                let why = format!("{why:#}");
                ensure!(why.contains("exit status: 1"), "{threads}: {why}");
                why
            }
        };
        ensure!(!said.contains("panicked"), "{threads}: {said}");
        nothing_left(&server).with_context(|| format!("{threads} threads"))?;
    }
    ensure!(attached > 2, "attached {attached} times: this test could not fail");
    server.shut_down()
}

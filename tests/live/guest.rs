//! The agent on arm64, in an emulated machine, alone and beside one on this machine. `tests/vm` has the machine; needs
//! `dist/armtrace-aarch64`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use tempfile::TempDir;

use crate::agent::{free_port, Agent};
use crate::common::dashboard;
use crate::common::prometheus::{Pace, Prometheus};
use crate::load::Load;
use crate::server::{wait_for, Family, Options, Server};

/// The kernel that is tested with every change; `tests/vm/matrix` has the others.
const KERNEL: &str = "6.12";

/// What an emulated machine answers in good time.
const SLOW: Pace = Pace { scrape_interval: "5s", rate_interval: "25s" };

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A running arm64 machine with the agent's program in /share. Dropping it ends it.
struct Guest {
    name: String,
    _share: TempDir,
}

impl Guest {
    /// Boots it; `port` of this machine reaches its port 9435.
    fn up(port: u16) -> Result<Guest> {
        let share = tempfile::tempdir()?;
        let program = root().join("dist/armtrace-aarch64");
        fs::copy(&program, share.path().join("armtrace"))
            .with_context(|| format!("no {}: build it with `make dist-aarch64`", program.display()))?;
        let guest = Guest { name: format!("beside-{}", std::process::id()), _share: share };
        let (share, forward) = (guest._share.path().display().to_string(), format!("{port}:9435"));
        let options = ["arm64", KERNEL, "--share", &share, "--forward", &forward, "--life", "1200"];
        let status = guest.script("up").args(options).status()?;
        ensure!(status.success(), "the machine does not come up: {status}");
        Ok(guest)
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new(root().join("tests/vm/guest"));
        command.args([verb, &self.name]).stdin(Stdio::null());
        command
    }

    /// Runs a shell command in it; its output.
    fn run(&self, command: &str) -> Result<String> {
        let output = self.script("run").arg(command).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{command}: {}: {text}", output.status);
        Ok(text)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        _ = self.script("down").status();
    }
}

/// Boot, doctor, attach, named latches, detach, nothing left behind.
#[test]
fn guest_arm64_serves_named_latches() -> Result<()> {
    let status = Command::new(root().join("tests/vm/check")).args(["arm64", KERNEL]).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The architectures of the series that a query returns, those without a value left out.
fn architectures(prometheus: &Prometheus, promql: &str) -> Result<BTreeSet<String>> {
    let series = prometheus.query(promql).map_err(anyhow::Error::msg)?;
    let has_value = series.iter().filter(|s| s["value"][1] != "NaN");
    Ok(has_value.filter_map(|s| s["metric"]["arch"].as_str().map(str::to_owned)).collect())
}

#[test]
fn guest_and_host_are_compared_in_one_prometheus() -> Result<()> {
    let port = free_port()?;
    let guest = Guest::up(port)?;
    guest.run(
        "/tests/vm/server start mysql && /tests/vm/server load && \
         (setsid /share/armtrace --pid $(pidof mysqld) --listen 0.0.0.0:9435 > /root/log 2>&1 < /dev/null &)",
    )?;
    let server = Server::start(Family::Mysql97, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;

    let prometheus = Prometheus::scraping_at(SLOW, &[format!("127.0.0.1:{port}"), agent.address.clone()]);
    prometheus.wait_for_rates(2);
    let file: PathBuf = root().join("dashboards/armtrace.json");
    let variables = dashboard::load(&file);
    let mut asked = 0;
    for query in dashboard::queries(&file).iter().filter(|q| q.promql.contains("by (arch")) {
        let promql = query.substituted(&variables, SLOW);
        // A latch's series begins with its first wait, and has a rate from its second scrape on.
        wait_for(&format!("both architectures in {}: {promql}", query.owner), Duration::from_secs(90), || {
            let found = architectures(&prometheus, &promql)?;
            Ok(found.iter().eq(["aarch64", "x86_64"]).then_some(()))
        })?;
        println!("both architectures in {}", query.owner);
        asked += 1;
    }
    ensure!(asked > 3, "the dashboard compares nothing");
    agent.stop()?;
    load.stop()?;
    server.stop()
}

//! What happens to servers in production: they are upgraded in place, and their disks fill up. The agent must go on,
//! and leave as always.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::attach::breakpoints;

use lab::agent::{by_latch, program, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// How long figures may take to grow under load, and an agent to end.
const SOON: Duration = Duration::from_secs(10);

fn wait_sums(agent: &Agent) -> Result<BTreeMap<String, f64>> {
    Ok(by_latch(&agent.scrape()?, "armtrace_latch_wait_seconds_sum"))
}

/// Waits until more waits are counted, for a latch that has a name.
fn goes_on(agent: &Agent) -> Result<()> {
    let before = wait_sums(agent)?;
    wait_for("waits for a named latch", SOON, || {
        let grows =
            |(latch, sum): (&String, &f64)| latch.starts_with("wait/") && *sum > *before.get(latch).unwrap_or(&0.0);
        Ok(wait_sums(agent)?.iter().any(grows).then_some(()))
    })
}

fn nothing_is_left(server: &Server) -> Result<()> {
    wait_for("the last breakpoint to go", SOON, || Ok((breakpoints(server.pid())? == 0).then_some(())))
}

/// A package's upgrade puts another file in the place of the program, while the server still runs the old one. Agents
/// that are there and those that come must both read the program that runs.
#[test]
fn a_server_is_upgraded_in_place() -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let copy = folder.path().join("mariadbd");
    fs::copy(Release::MARIADB_11_4.program()?, &copy)?;
    let options = Options { program: Some(copy.clone()), ..Options::default() };
    let server = Server::start(Release::MARIADB_11_4, &options)?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let old = Agent::attach(&server)?;
    goes_on(&old)?;
    // The new program is another one, with none of the server's functions.
    let new = folder.path().join("new");
    fs::copy(program(), &new)?;
    fs::rename(&new, &copy)?;
    goes_on(&old).context("the agent that was attached")?;
    let late = Agent::attach(&server).context("attaching to a program whose file was replaced")?;
    goes_on(&late).context("the agent that came later")?;
    ensure!(breakpoints(server.pid())? > 0, "attached, but there is no breakpoint: this test could not fail");
    for agent in [old, late] {
        let (status, _) = agent.stop()?;
        ensure!(status.success(), "{status}");
    }
    nothing_is_left(&server)?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

/// A file system of its own that is small.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(mib: u32) -> Result<SmallDisk> {
        let folder = tempfile::tempdir()?;
        let size = format!("size={mib}m,mode=755");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).status()?;
        ensure!(mounted.success(), "mounting a tmpfs: {mounted}");
        Ok(SmallDisk(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it until nothing fits. Returns the file that fills it.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.path().join("filler");
        let mut filler = File::create(&path)?;
        // The last pages are filled by small pieces.
        for piece in [1 << 20, 4096] {
            let bytes = vec![0; piece];
            let refused = loop {
                if let Err(error) = filler.write_all(&bytes) {
                    break error;
                }
            };
            ensure!(refused.kind() == ErrorKind::StorageFull, "{refused}");
        }
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// The disk with the server's binary log, on which a recording is made too, has no space left for some seconds. InnoDB
/// itself would end the server if its files could not be written.
#[test]
fn a_disk_is_full() -> Result<()> {
    let disk = SmallDisk::new(512)?;
    let args = vec![format!("--log-bin={}", disk.path().join("binlog").display())];
    let options = Options { args, ..Options::default() };
    let server = Server::start(Release::MARIADB_11_4, &options)?;
    let mut load = Load::start(&server, "oltp_write_only", 16)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    goes_on(&agent)?;
    let file = disk.path().join("full.rec");
    let recording = Command::new(program())
        .args(["record", "--pid", &server.pid().to_string(), "--duration", "60s", "-o"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // The recording has some seconds.
    wait_for("a recording", SOON, || Ok((fs::metadata(&file).is_ok_and(|file| file.len() > 8192)).then_some(())))?;
    let filler = disk.fill()?;
    let recorded = recording.wait_with_output()?;
    let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
    ensure!(recorded.status.code() == Some(1) && said.contains("No space left"), "{:?}: {said}", recorded.status);
    sleep(Duration::from_secs(5));
    ensure!(agent.metrics()?.contains("armtrace_target_up 1"), "no metrics while the disk is full");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    nothing_is_left(&server)?;
    let late = Agent::attach(&server).context("attaching while the disk is full")?;
    fs::remove_file(filler)?;
    // MariaDB tries again within a minute.
    wait_for("the server to go on", Duration::from_secs(90), || Ok(goes_on(&late).ok()))?;
    late.stop()?;
    let report = Command::new(program()).args([OsStr::new("report"), file.as_os_str()]).output()?;
    ensure!(report.status.success(), "what was recorded until then: {}", String::from_utf8_lossy(&report.stderr));
    // Statements may wait for another minute, unless the server goes first.
    server.stop()?;
    drop(load);
    Ok(())
}

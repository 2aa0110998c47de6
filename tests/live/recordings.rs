//! Recordings of real servers under load: their contents, how they end, and how they compare.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::model::CpuClass;
use armtrace::recording::{self, Ending, Recording, Report};
use armtrace::server::{SettingsAt, Target};

use lab::agent::{loaded_programs, program};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// A running `armtrace record`. Dropping it kills it.
pub struct Recorder {
    child: Child,
    errors: PathBuf,
}

impl Recorder {
    pub fn start(server: &Server, output: &Path, args: &[&str]) -> Result<Recorder> {
        let errors = output.with_extension("err");
        let child = Command::new(program())
            .args(["record", "--pid", &server.pid().to_string(), "-o"])
            .arg(output)
            .args(args)
            .stdin(Stdio::null())
            .stderr(File::create(&errors)?)
            .spawn()
            .context("starting a recording")?;
        Ok(Recorder { child, errors })
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        wait_for("the recording to end", Duration::from_secs(60), || Ok(self.child.try_wait()?))
    }

    /// Ends the recording.
    pub fn stop(self) -> Result<()> {
        self.signal(libc::SIGINT);
        self.complete()
    }

    /// Waits until the recording has ended, without an error.
    pub fn complete(mut self) -> Result<()> {
        let status = self.wait()?;
        ensure!(status.success(), "{status}: {}", std::fs::read_to_string(&self.errors)?);
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a file that is being written contains this many seconds.
fn wait_for_seconds(file: &Path, seconds: usize) -> Result<()> {
    wait_for("seconds in the file", Duration::from_secs(30), || {
        let recording = recording::read(file).ok();
        Ok(recording.filter(|recording| recording.seconds.len() >= seconds).map(|_| ()))
    })
}

fn nothing_left() -> Result<()> {
    wait_for("the BPF programs to be freed", Duration::from_secs(10), || {
        Ok(loaded_programs()?.is_empty().then_some(()))
    })
}

/// Returns the settings that the server reports.
fn settings(server: &Server) -> Result<BTreeMap<String, String>> {
    let rows = server.query("SHOW GLOBAL VARIABLES")?;
    rows.into_iter()
        .map(|row| Ok((row.first().context("no name")?.clone(), row.get(1).cloned().unwrap_or_default())))
        .collect()
}

/// Checks the settings read from the server's memory against those that it reports.
fn settings_are_right(server: &Server, at_least: &[&str]) -> Result<()> {
    let target = Target::open(server.pid())?;
    let read = SettingsAt::of(&target).read();
    let reported = settings(server)?;
    for (name, value) in &read {
        ensure!(
            reported.get(name) == Some(value),
            "{name} is {value} in memory, but the server reports {:?}",
            reported.get(name)
        );
    }
    for name in at_least {
        ensure!(read.contains_key(*name), "{name} is not among {read:?}");
    }
    Ok(())
}

/// Runs armtrace on this machine and returns its output.
pub fn prints(args: &[&str]) -> Result<String> {
    let output = Command::new(program()).args(args).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The sampled time is the server's CPU time, and some of it is in known classes of code.
fn cpu_is_recorded(report: &Report) -> Result<()> {
    let cpu = report.cpu.as_ref().context("no CPU time")?;
    let used = report.totals.server_cpu.context("the server's CPU time is not known")?;
    // The last samples may be from after the last second. `cpu::` compares more exactly, without a recording.
    ensure!(cpu.cpu > 0.8 * used && cpu.cpu < 1.1 * used, "{} s were sampled, {used} s were used", cpu.cpu);
    ensure!(cpu.share(CpuClass::Latch) + cpu.share(CpuClass::Checksum) > 0.0, "{:?}", cpu.classes);
    let checksum = report.parts.checksum.checksums.first().context("no checksum")?;
    ensure!(checksum.checksum.purpose.starts_with("crc32c"), "{checksum:?}");
    let spin = &report.parts.spin.spin_settings;
    ensure!(spin.as_ref().is_some_and(|spin| spin.turn_ns > 0.0), "{spin:?}");
    let spins: u64 =
        report.latch.latches.iter().filter_map(|latch| latch.spins).map(|spins| spins.won + spins.wasted).sum();
    ensure!(spins > 0, "no wait began with spinning: {:?}", report.latch.latches);
    Ok(())
}

/// Every contended wait has a handoff, from a known or an unknown origin, and barriers took CPU time.
fn handoffs_are_recorded(report: &Report) -> Result<()> {
    let handoffs = report.handoffs.as_ref().context("no handoffs")?;
    let (handed, waits) = (handoffs.all.waits() as f64, report.totals.waits.context("no waits were counted")? as f64);
    // The readings are not simultaneous and waits continue, so the difference can be large on a busy machine.
    ensure!((handed / waits - 1.0).abs() < 0.25, "{handed} handoffs, {waits} waits");
    ensure!(handoffs.places.len() > 1 && handoffs.all.local.waits + handoffs.all.remote.waits > 0, "{handoffs:?}");
    let share = report.cpu.as_ref().and_then(|cpu| cpu.ordering_share()).context("no barrier was seen")?;
    ensure!(share > 0.0 && share < 0.5, "barriers and atomics take {share} of the CPU time");
    Ok(())
}

/// Records a load of so many threads on the server, and returns the file's name and what it holds.
fn recorded(server: &Server, dir: &Path, threads: u32) -> Result<(String, Recording)> {
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    let mut load = Load::start(server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let file = dir.join(format!("{threads}.rec"));
    let label = format!("threads={threads}");
    let before = server.status("Com_update")?;
    // A high sampling frequency, so that a few seconds include samples of code that takes little time.
    let frequency = ["--sample-hz", "499"];
    let args = ["--duration", "5s", "--mysql", &url, "--label", &label, "--handoffs", "core"];
    let args = [&args[..], &frequency].concat();
    Recorder::start(server, &file, &args)?.complete()?;
    let updates = server.status("Com_update")? - before;
    load.stop()?;
    nothing_left()?;
    let recording = recording::read(&file)?;
    let queries = recording.queries().context("no statements were counted")?;
    // Updates are the load's only statements, and the load also ran during attach and detach.
    ensure!(queries > 0 && queries <= updates + 100, "{queries} statements were recorded, {updates} updates made");
    Ok((file.display().to_string(), recording))
}

#[test]
fn recordings_of_two_loads_are_compared() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    settings_are_right(&server, &["innodb_spin_wait_delay", "innodb_sync_spin_loops", "innodb_buffer_pool_size"])?;
    let dir = tempfile::tempdir()?;
    let (few, _) = recorded(&server, dir.path(), 4)?;
    let (many, recording) = recorded(&server, dir.path(), 32)?;

    let seconds = recording.duration().as_secs_f64();
    ensure!((4.5..10.0).contains(&seconds) && recording.seconds.len() >= 3, "{seconds} s: {:?}", recording.seconds);
    ensure!(recording.end.as_ref().is_some_and(|end| end.ending == Ending::Complete));
    let (reported, recorded) = (settings(&server)?, &recording.start.server.settings);
    ensure!(recorded.iter().all(|(name, value)| reported.get(name) == Some(value)), "{recorded:?}");
    ensure!(recorded.contains_key("performance_schema"), "{recorded:?}");
    let report = Report::new(&recording);
    let named = report.latch.latches.iter().filter(|latch| latch.latch.starts_with("wait/synch/")).count();
    ensure!(named >= 3 && report.totals.wait > 0.0, "{named} latches: {:?}", report.latch.latches);
    let sum = |of: fn(&armtrace::recording::Bucket) -> u64| -> u64 {
        report.latch.latches.iter().flat_map(|latch| &latch.histogram).map(of).sum()
    };
    // Waits continue while figures are read, so a bucket may be a wait ahead of the count or behind it.
    let (buckets, waits) =
        (sum(|bucket| bucket.waits) as f64, report.totals.waits.context("no waits were counted")? as f64);
    ensure!((buckets / waits - 1.0).abs() < 0.01, "{buckets} in buckets, {waits} waits");
    ensure!(report.totals.server_cpu.is_some_and(|cpu| cpu > 0.0), "{:?}", report.totals);
    cpu_is_recorded(&report)?;
    handoffs_are_recorded(&report)?;
    let size = std::fs::metadata(&many)?.len();
    ensure!(size * 12 < 1 << 20, "{size} bytes in {seconds} s");

    ensure!(prints(&["report", &many])?.contains("MySQL 9.7"));
    ensure!(prints(&["report", &many, "--format", "html"])?.contains("<svg"));
    let text = prints(&["compare", &few, &many])?;
    for part in [
        "wait, 1,000 statements",
        "statements/s",
        "CPU time per 1,000 statements, by class",
        "spinning before a sleep",
        "CPU time of barriers and atomics",
        "remote handoffs, by wait per 1,000 statements",
    ] {
        ensure!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let text = prints(&["compare", "--by", "threads", &many, &few])?;
    ensure!(text.contains("At 32 threads, throughput is"), "{text}");
    server.stop()
}

#[test]
fn a_recording_is_readable_however_it_ends() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    settings_are_right(&server, &["innodb_spin_wait_delay", "innodb_sync_spin_loops", "innodb_buffer_pool_size"])?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let dir = tempfile::tempdir()?;
    for (signal, ending) in [(libc::SIGINT, Some(Ending::Interrupted)), (libc::SIGKILL, None)] {
        let file = dir.path().join(format!("{signal}.rec"));
        let mut recorder = Recorder::start(&server, &file, &["--duration", "10m"])?;
        // The signals that pause and resume `armtrace run` must not end a recording.
        wait_for_seconds(&file, 1)?;
        recorder.signal(libc::SIGUSR1);
        recorder.signal(libc::SIGUSR2);
        wait_for_seconds(&file, 3)?;
        recorder.signal(signal);
        let status = recorder.wait()?;
        ensure!(status.success() == ending.is_some(), "signal {signal}: {status}");
        let recording = recording::read(&file)?;
        ensure!(recording.end.as_ref().map(|end| end.ending) == ending, "signal {signal}: {:?}", recording.end);
        let waits: u64 = recording.latches().iter().map(|latch| latch.waits.count).sum();
        ensure!(recording.seconds.len() >= 3 && waits > 0, "signal {signal}: {waits} waits");
        nothing_left()?;
    }
    let full = Command::new(program())
        .args(["record", "--pid", &server.pid().to_string(), "-o", "/dev/full", "--force"])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&full.stderr);
    ensure!(full.status.code() == Some(1) && said.contains("cannot write /dev/full"), "{:?}: {said}", full.status);
    nothing_left()?;
    load.stop()?;
    let file = dir.path().join("ended.rec");
    let recorder = Recorder::start(&server, &file, &["--duration", "10m"])?;
    wait_for_seconds(&file, 1)?;
    server.stop()?;
    recorder.complete()?;
    let end = recording::read(&file)?.end;
    ensure!(end.as_ref().is_some_and(|end| end.ending == Ending::ServerEnded), "{end:?}");
    nothing_left()
}

//! The lab itself, which every other live test relies on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use lab::agent::program;
use lab::load::Load;
use lab::releases::script;
use lab::releases::Release;
use lab::server::{running, wait_for, Options, Server};

/// Lists anything on this machine that still belongs to the server in this folder.
fn leftovers(dir: &Path) -> Result<Vec<String>> {
    let name = dir.to_str().context("not UTF-8")?;
    let mut found = Vec::new();
    if dir.exists() {
        found.push(format!("folder {name}"));
    }
    if fs::read_to_string("/proc/self/mountinfo")?.contains(name) {
        found.push(format!("mount of {name}"));
    }
    for entry in fs::read_dir("/proc")? {
        let proc = entry?.path();
        // A process may exit in the meantime.
        let cwd = fs::read_link(proc.join("cwd")).unwrap_or_default();
        let cmdline = fs::read(proc.join("cmdline")).unwrap_or_default();
        if cwd.starts_with(dir) || String::from_utf8_lossy(&cmdline).contains(name) {
            found.push(format!("process {}", proc.display()));
        }
    }
    Ok(found)
}

fn serves_under_load(release: Release) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let (pid, dir) = (server.pid(), server.dir().to_path_buf());
    let comm = fs::read_to_string(format!("/proc/{pid}/comm"))?;
    ensure!(comm.starts_with("mysqld") || comm == "mariadbd\n", "process {pid} is {comm:?}");
    let rows = server.query("SELECT VERSION(), @@performance_schema, @@port")?;
    ensure!(rows.len() == 1 && rows[0].len() == 3, "{rows:?}");
    ensure!(rows[0][0].starts_with(release.version()), "{rows:?}");
    ensure!(rows[0][1..] == ["0".to_string(), server.port().to_string()], "{rows:?}");
    TcpStream::connect(("127.0.0.1", server.port()))?;

    let before = server.status("Com_update")?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let tps = wait_for("a report each second", Duration::from_secs(10), || {
        Ok(Some(load.tps_by_second()?).filter(|seconds| seconds.len() >= 4))
    })?;
    let p95 = load.p95_by_second()?;
    // A second in which no transaction ended has no latency.
    let has_latency = p95.len() >= tps.len() && tps.iter().zip(&p95).all(|(tps, ms)| *tps == 0.0 || *ms > 0.0);
    ensure!(has_latency, "a second has no latency: {tps:?}, {p95:?}");
    let report = load.stop()?;
    ensure!(report.tps > 0.0 && report.transactions > 0 && report.p95 > Duration::ZERO, "{report:?}");
    ensure!(report.errors == 0 && report.reconnects == 0, "{report:?}");
    // The server's count equals the load's, so no statement was lost or cut off.
    let updates = server.status("Com_update")? - before;
    ensure!(updates == report.queries, "{updates} updates on the server, {report:?}");

    server.shut_down()?;
    ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is still there");
    let left = leftovers(&dir)?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

#[test]
#[ignore = "takes long: make test-all"]
fn servers_serve_under_load() -> Result<()> {
    [Release::MYSQL_9_7, Release::MARIADB_11_4].into_iter().try_for_each(serves_under_load)
}

#[test]
fn options_reach_the_server() -> Result<()> {
    for release in [Release::MYSQL_9_7, Release::MARIADB_11_4] {
        let options =
            Options { perf_schema: true, args: vec!["--innodb-buffer-pool-size=64M".into()], ..Options::default() };
        let server = Server::start(release, &options)?;
        let rows = server.query("SELECT @@performance_schema, @@innodb_buffer_pool_size")?;
        ensure!(rows == [["1", "67108864"]], "{rows:?}");
        let waits = server.query(
            "SELECT COUNT(*) > 0 FROM performance_schema.events_waits_summary_global_by_event_name
             WHERE event_name LIKE 'wait/synch/%/innodb/%' AND count_star > 0 AND sum_timer_wait > 0",
        )?;
        ensure!(waits == [["1"]], "no wait is counted: {waits:?}");
        server.stop()?;
    }
    Ok(())
}

#[test]
fn failures_are_not_hidden() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let error = server.query("SELECT no_such_column").unwrap_err();
    ensure!(error.to_string().contains("no_such_column"), "{error}");
    ensure!(server.status("no_such_status").is_err());

    let mut wrong = Load::start(&server, "oltp_no_such_test", 1)?;
    ensure!(wrong.wait_running().is_err(), "a load that cannot start is reported as running");
    ensure!(wrong.stop().is_err(), "a load that could not start is reported as successful");

    let mut load = Load::start(&server, "oltp_update_index", 4)?;
    load.wait_running()?;
    // SAFETY: the server is a child of a child that waits for it.
    let killed = unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    ensure!(killed == 0, "could not kill the server");
    wait_for("the server to die", Duration::from_secs(10), || Ok((!server.running()).then_some(())))?;
    let error = load.stop().unwrap_err();
    ensure!(error.to_string().contains("FATAL"), "{error}");
    ensure!(server.stop().is_err(), "a killed server is reported as stopped by its test");
    Ok(())
}

/// A killed script takes its server with it, and the next start removes its folder.
#[test]
fn a_killed_script_leaves_no_server() -> Result<()> {
    // A separate folder, so that no other test's start cleans up in between.
    let runs = tempfile::tempdir()?;
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(script("serve"));
        command.arg("mysql-9.7").args(arguments).env("ARMTRACE_RUN", runs.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    let mut child = serve(&["--threads", "2"]).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    let field =
        |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)).context("a field is missing");
    let (pid, dir) = (field("pid=")?.parse()?, Path::new(field("dir=")?));
    ensure!(running(pid), "{line:?}");
    child.kill()?;
    child.wait()?;
    wait_for("the server and its load to die with their script", Duration::from_secs(20), || {
        let processes = leftovers(dir)?.iter().any(|what| what.starts_with("process"));
        Ok((!running(pid) && !processes).then_some(()))
    })?;
    ensure!(dir.exists(), "a killed script cannot have cleaned up");
    // With no standard input, the script exits as soon as the server is up.
    let output = serve(&["--no-load", "--until-eof"]).output()?;
    ensure!(output.status.success(), "{output:?}");
    let left = fs::read_dir(runs.path())?.count();
    ensure!(left == 0, "{left} folders were left behind");
    Ok(())
}

/// Runs the first command in the README, for as long as it takes to print the first table.
#[test]
fn the_demo_shows_waits_and_metrics() -> Result<()> {
    let mut demo = Command::new(script("demo"));
    let output = demo
        .arg("--binary")
        .arg(program())
        .env("DEMO_SECONDS", "14")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}: {text}", output.status);
    for wanted in
        ["top call site", "innodb/", "armtrace_latch_wait_seconds_sum{latch=\"wait/synch/", "armtrace top --pid"]
    {
        ensure!(text.contains(wanted), "no {wanted} in {text}");
    }
    Ok(())
}

//! The agent on arm64, in an emulated guest, alone and compared with one on this machine. `tests/vm` provides the
//! guest. Needs `dist/armtrace-aarch64`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::catalog::REDO_LOG;
use armtrace::measure::files::FileWaits;
use armtrace::measure::fsync::Fsyncs;
use armtrace::model::Kind;
use armtrace::recording::{self, Recording};
use tempfile::TempDir;

use crate::recordings::{prints, Recorder};
use lab::agent::{free_port, Agent};
use lab::dashboard::{self, Query};
use lab::http;
use lab::load::Load;
use lab::prometheus::{Pace, Prometheus};
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The guest's kernel; `tests/vm/matrix` tests others.
const KERNEL: &str = "6.12";

/// How long to wait for things that take the guest about a minute. A host can be much slower than usual.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time limit of one command in the guest, in seconds: more than twice what the longest takes here.
const LIMIT: &str = "600";

/// A scrape interval that the guest can keep up with: a scrape takes 12 s there while this machine is under load.
const SLOW: Pace = Pace { scrape_interval: "30s", rate_interval: "150s" };

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A running arm64 guest with the agent's program in /share. Dropping it shuts it down.
struct Guest {
    name: String,
    share: TempDir,
}

impl Guest {
    /// Boots a guest. `port` of this machine is forwarded to the guest's port 9435.
    fn up(port: u16) -> Result<Guest> {
        let share = tempfile::tempdir()?;
        let program = root().join("dist/armtrace-aarch64");
        fs::copy(&program, share.path().join("armtrace"))
            .with_context(|| format!("no {}: build it with `make dist-aarch64`", program.display()))?;
        let guest = Guest { name: format!("compare-{}", std::process::id()), share };
        let (share, forward) = (guest.share.path().display().to_string(), format!("{port}:9435"));
        let options = ["arm64", KERNEL, "--share", &share, "--forward", &forward, "--life", "3600"];
        let status = guest.script("up").args(options).status()?;
        ensure!(status.success(), "the guest did not boot: {status}");
        Ok(guest)
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new(root().join("tests/vm/guest"));
        command.args([verb, &self.name]).stdin(Stdio::null());
        command
    }

    /// Runs a shell command in the guest and returns its output.
    fn run(&self, command: &str) -> Result<String> {
        let output = self.script("run").args(["--limit", LIMIT, command]).stderr(Stdio::inherit()).output()?;
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

/// Returns the architectures among the series with a value that a query returns.
fn architectures(prometheus: &Prometheus, promql: &str) -> Result<BTreeSet<String>> {
    let series = prometheus.query(promql).map_err(anyhow::Error::msg)?;
    let has_value = series.iter().filter(|s| s["value"][1] != "NaN");
    Ok(has_value.filter_map(|s| s["metric"]["arch"].as_str().map(str::to_owned)).collect())
}

/// Returns the names of the latches with waits.
fn contended_latches(recording: &Recording) -> BTreeSet<String> {
    let latches = recording.latches().into_iter().filter(|latch| latch.kind != Kind::Cond && latch.waits.count > 0);
    latches.map(|latch| latch.latch).filter(|latch| latch.starts_with("wait/synch/")).collect()
}

/// InnoDB's mutexes that are C library mutexes. A wait for one shows that the library's stack frames are known.
const PTHREAD_MUTEXES: [&str; 2] =
    ["wait/synch/mutex/innodb/event_os_mutex", "wait/synch/mutex/innodb/sync_array_mutex"];

/// Records the host's server and then the guest's, each with its architecture's program, and compares them. Under load
/// on the host, the emulated server would take longer to answer than a recording waits. A look at threads takes ten
/// times as long on the emulated machine, so that the default budget has room for a few call stacks a minute there.
fn recordings_are_compared(guest: &Guest, server: Server, load: Load) -> Result<()> {
    let [x86, arm] = ["x86.rec", "arm.rec"].map(|name| guest.share.path().join(name));
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    Recorder::start(&server, &x86, &["--duration", "15s", "--mysql", &url])?.complete()?;
    load.stop()?;
    server.stop()?;
    guest.run(
        "kill $(pidof armtrace); while pidof armtrace > /dev/null; do sleep 0.2; done; \
         /share/armtrace record --pid $(pidof mysqld) --duration 40s --max-overhead 10% --label os=guest -o /share/arm.rec \
         --mysql 'mysql://root@localhost?socket=/run/server/socket' && /share/armtrace report /share/arm.rec > /share/arm.txt",
    )?;

    let [a, b] = [&x86, &arm].map(|file| recording::read(file).with_context(|| file.display().to_string()));
    let (a, b) = (a?, b?);
    let arch = |recording: &Recording| recording.start.server.arch.clone();
    ensure!((arch(&a).as_str(), arch(&b).as_str()) == (std::env::consts::ARCH, "aarch64"), "{:?}", b.start);
    ensure!(a.start.server.version == b.start.server.version, "{:?} {:?}", a.start.server, b.start.server);
    let (names_a, names_b) = (contended_latches(&a), contended_latches(&b));
    let in_the_library = PTHREAD_MUTEXES.iter().any(|latch| names_b.contains(*latch));
    ensure!(in_the_library, "no wait in the guest's C library: {names_b:?}; lost: {:?}", b.lost());
    let common: BTreeSet<_> = names_a.intersection(&names_b).collect();
    ensure!(common.len() >= 3, "in common: {common:?}\nhost: {names_a:?}\nguest: {names_b:?}");

    let stacks = b.call_stacks();
    let for_clients = stacks.iter().filter(|row| row.calls.split(';').any(|call| call == "do_command"));
    let (all, for_clients) = (stacks.len(), for_clients.count());
    println!("{all} call stacks in the guest, {for_clients} of them for clients");
    ensure!(for_clients >= 2, "{stacks:?}");
    let on_cpu = b.cpu_statements();
    let samples: u64 = on_cpu.iter().map(|row| row.samples).sum();
    println!("{samples} samples of what threads execute that run in the guest: {on_cpu:?}");
    ensure!(on_cpu.iter().filter(|row| row.statement.contains("sbtest")).count() >= 3, "no statements: {on_cpu:?}");

    let files = b.file_waits();
    println!("files that the guest's threads wait for: {files:?}");
    let is_of_innodb = |row: &FileWaits| row.event.starts_with("wait/io/file/innodb/") && row.wait_ns > 0;
    ensure!(files.iter().any(is_of_innodb), "no wait for a file of InnoDB: {files:?}");
    let flushes = b.fsyncs();
    println!("flushes in the guest: {flushes:?}");
    let is_of_log = |row: &Fsyncs| row.event == REDO_LOG && row.calls.count > 10 && row.calls.max_ns > 0;
    ensure!(flushes.iter().any(is_of_log), "the log was not flushed: {flushes:?}");

    let on_guest = fs::read_to_string(guest.share.path().join("arm.txt"))?;
    let [x86, arm] = [x86, arm].map(|file| file.display().to_string());
    let on_host = prints(&["report", &arm])?;
    ensure!(
        on_host == on_guest && on_host.contains("aarch64"),
        "the reports of one file differ; guest:\n{on_guest}\nhost:\n{on_host}"
    );
    let clocks = ["--ghz-a", "3", "--ghz-b", "1.5"];
    println!("{}", prints(&[&["compare", &x86, &arm][..], &clocks].concat())?);
    let json = prints(&[&["compare", &x86, &arm, "--format", "json"][..], &clocks].concat())?;
    comparison_is_right(&serde_json::from_str(&json)?, common.len()).with_context(|| json.clone())
}

fn comparison_is_right(json: &serde_json::Value, common: usize) -> Result<()> {
    let number = |value: &serde_json::Value| value.as_f64().with_context(|| format!("{value} is not a number"));
    ensure!(json["per"] == "query" && json["b"]["arch"] == "aarch64" && json["b"]["labels"]["os"] == "guest");
    // B has half the clock rate. At that rate A would have half its throughput, so the ratio of B to A doubles.
    let (throughput, clock) = (&json["throughput"], &json["at_one_clock"]);
    ensure!(clock["ghz"] == serde_json::json!([3.0, 1.5]));
    let is = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    ensure!(is(number(&clock["a_scaled"])?, number(&throughput["a"])? / 2.0));
    ensure!(is(number(&clock["ratio"]["value"])?, 2.0 * number(&throughput["ratio"]["value"])?));
    let lists = ["changes", "unclear"].map(|list| json[list].as_array().cloned().unwrap_or_default());
    let waits = |row: &serde_json::Value| row["by"][0]["waits"].clone();
    let both = |row: &&serde_json::Value| waits(row)["a"].as_f64() > Some(0.0) && waits(row)["b"].as_f64() > Some(0.0);
    let both = lists.iter().flatten().filter(both).count();
    ensure!(both >= common, "{both} of {common} latches in common are compared");
    // Each architecture has its own implementations and instructions.
    ensure!(["crc32c of pages and redo log", "instruction of the spin loop"]
        .iter()
        .all(|what| json["code"][what][0].is_string() && json["code"][what][1].is_string()));
    Ok(())
}

/// The guest boots, `doctor` runs, the agent attaches, names latches, detaches and leaves nothing behind. The server
/// and its load go on.
fn serves_named_latches(guest: &Guest) -> Result<()> {
    // An emulated machine takes longer to exit.
    println!(
        "{}",
        guest.run("ARMTRACE_SMOKE_KEEP=1 ARMTRACE_SMOKE_STEP_CLOCK=1 ARMTRACE_SMOKE_EXIT_MS=15000 /tests/vm/smoke /share/armtrace mysql")?
    );
    Ok(())
}

/// One guest for both parts, because booting it and starting its server take most of a minute.
#[test]
fn arm64_serves_named_latches_and_is_compared_with_this_machine() -> Result<()> {
    let port = free_port()?;
    let guest = Guest::up(port)?;
    serves_named_latches(&guest)?;
    is_compared_with_this_machine(&guest, port)?;
    let complaints = guest.run("dmesg | grep -E 'Oops|BUG:|WARNING:' || true")?;
    ensure!(complaints.trim().is_empty(), "the guest's kernel complains: {complaints}");
    Ok(())
}

/// Returns whether a query is of what both machines have: waits, and the servers themselves. Statements are not
/// counted, there are no places between which latches are handed over, and the guest's CPU time may have no sample in a
/// class.
fn is_of_waits(query: &Query) -> bool {
    const MAY_BE_MISSING: [&str; 5] = ["statements", "handoff", "spins", "cpu_seconds", "hertz"];
    query.promql.contains("by (arch") && !MAY_BE_MISSING.iter().any(|part| query.promql.contains(part))
}

/// Compares guest and host in one Prometheus and by recordings.
fn is_compared_with_this_machine(guest: &Guest, port: u16) -> Result<()> {
    let begun = Instant::now();
    guest.run("(setsid /share/armtrace --pid $(pidof mysqld) --listen 0.0.0.0:9435 > /root/log 2>&1 < /dev/null &)")?;
    let guests = format!("127.0.0.1:{port}");
    // Wait before putting this machine under load, which would slow the guest down further. The barriers in the program
    // are counted last, in the background.
    wait_for("the guest's metrics", PATIENCE, || {
        let answer = http::get(&guests, "/metrics").ok().filter(|answer| answer.head.contains("200"));
        Ok(answer.filter(|answer| answer.body.contains("\narmtrace_barriers_static{")).map(|_| ()))
    })?;
    println!("the guest's agent serves all metrics after {:.0?}", begun.elapsed());
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;

    let prometheus = Prometheus::scraping_at(SLOW, &[guests, agent.address.clone()]);
    prometheus.wait_for_rates(2);
    let file: PathBuf = root().join("dashboards/arm-and-x86.json");
    let variables = dashboard::load(&file);
    let mut compared = 0;
    for query in dashboard::queries(&file).iter().filter(|query| is_of_waits(query)) {
        let promql = query.substituted(&variables, SLOW);
        // A latch has a series from its first wait, and a rate from the second scrape after that.
        wait_for(&format!("both architectures in {}: {promql}", query.owner), PATIENCE, || {
            let found = architectures(&prometheus, &promql)?;
            Ok(found.iter().eq(["aarch64", "x86_64"]).then_some(()))
        })?;
        println!("both architectures in {}", query.owner);
        compared += 1;
    }
    ensure!(compared > 3, "the dashboard compares nothing");
    agent.stop()?;
    recordings_are_compared(guest, server, load)
}

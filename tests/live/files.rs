//! For which files threads wait, against performance_schema's own times in the same run, and its names of files.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::catalog::{file_kind, INNODB_FILES};
use armtrace::recording::{self, Report};

use lab::agent::Agent;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

use crate::recordings::Recorder;

const WINDOW: Duration = Duration::from_secs(30);

const WAIT: &str = "armtrace_file_wait_seconds_total";
const VARIANCE: &str = "armtrace_file_wait_variance_seconds_squared_total";

/// Seconds by event name and operation, where `sync` also stands for what else performance_schema calls `misc`.
type Times = BTreeMap<(String, String), f64>;

fn measured(agent: &Agent, metric: &str) -> Result<Times> {
    let mut times = Times::new();
    for sample in agent.scrape()?.into_iter().filter(|sample| sample.name == metric) {
        let operation = sample.labels["operation"].replace("resize", "sync");
        *times.entry((sample.labels["file"].clone(), operation)).or_default() += sample.value;
    }
    Ok(times)
}

fn truth(server: &Server) -> Result<Times> {
    let rows = server.query(
        "SELECT EVENT_NAME, SUM_TIMER_READ / 1e12, SUM_TIMER_WRITE / 1e12, SUM_TIMER_MISC / 1e12
         FROM performance_schema.file_summary_by_event_name WHERE COUNT_STAR > 0",
    )?;
    let mut times = Times::new();
    for row in rows {
        for (operation, seconds) in ["read", "write", "sync"].into_iter().zip(&row[1..]) {
            times.insert((row[0].clone(), operation.to_owned()), seconds.parse()?);
        }
    }
    Ok(times)
}

fn since(now: Times, before: &Times) -> Times {
    let since = |(key, seconds): ((String, String), f64)| {
        let earlier = before.get(&key).copied().unwrap_or_default();
        (key, seconds - earlier)
    };
    now.into_iter().map(since).collect()
}

/// Returns the names of all files that a server has opened, with performance_schema's event names.
fn instances(server: &Server) -> Result<Vec<(String, String)>> {
    let rows = server.query("SELECT FILE_NAME, EVENT_NAME FROM performance_schema.file_instances")?;
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    Ok(rows.iter().map(|row| (name(&row[0]), row[1].clone())).collect())
}

/// Each file that has a kind has the one that performance_schema says; all of InnoDB's have one, and are called so by
/// the kernel too.
fn names_agree(server: &Server) -> Result<()> {
    let opened = std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?;
    let opened = opened.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let opened: Vec<String> =
        opened.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    let kinds: BTreeSet<&str> = opened.iter().filter_map(|name| Some(file_kind(name)?.event)).collect();
    for event in INNODB_FILES {
        ensure!(kinds.contains(event), "none of the opened files is {event}: {opened:?}");
    }
    let instances = instances(server)?;
    for (name, event) in &instances {
        match file_kind(name) {
            Some(kind) => ensure!(kind.event == event, "{name} is {event}, not {}", kind.event),
            None => ensure!(!event.contains("/innodb/"), "{name} has no kind: {event}"),
        }
    }
    ensure!(instances.len() > 10, "{instances:?}");
    Ok(())
}

/// What system calls take on a CPU counts for performance_schema only, and this part of the time at most is that: 0.18
/// were measured.
const ON_CPU: f64 = 0.35;

/// The least time for which flushes can be compared, in seconds: on a disk that flushes at once, there are hardly any.
const ENOUGH: f64 = 4.0;

/// Compares times that performance_schema counts with those of the agent and their variance. Returns how many there
/// were of those that are certain enough.
fn agree(theirs: &Times, ours: &Times, variance: &Times) -> Result<usize> {
    let mut compared = 0;
    for (key, theirs) in theirs.iter().filter(|(_, seconds)| **seconds > 0.05) {
        let of = |times: &Times| times.get(key).copied().unwrap_or_default();
        // Three standard errors: there are several figures.
        let (ours, error) = (of(ours), 3.0 * of(variance).sqrt());
        println!("{key:?}: {ours:.2} ±{error:.2} s, performance_schema {theirs:.2} s");
        // A few samples say little, also about their error.
        let is_certain = *theirs >= ENOUGH && error < 0.5 * theirs;
        let least = if is_certain { (1.0 - ON_CPU) * theirs - error } else { 0.0 };
        let expected = least..=theirs + error;
        ensure!(expected.contains(&ours), "{key:?}: {ours:.2} ±{error:.2} s, performance_schema {theirs:.2} s");
        compared += usize::from(is_certain);
    }
    Ok(compared)
}

/// Flushes by event name: how many, and how many seconds they took.
type Flushes = BTreeMap<String, (f64, f64)>;

fn timed_flushes(agent: &Agent) -> Result<Flushes> {
    let mut all = Flushes::new();
    for sample in agent.scrape()? {
        let (calls, seconds) = match sample.name.as_str() {
            "armtrace_fsync_seconds_count" => (sample.value, 0.0),
            "armtrace_fsync_seconds_sum" => (0.0, sample.value),
            _ => continue,
        };
        let sum = all.entry(sample.labels["file"].clone()).or_default();
        *sum = (sum.0 + calls, sum.1 + seconds);
    }
    Ok(all)
}

/// Returns what performance_schema counts that neither reads nor writes. While no files are opened, it is flushes.
fn true_flushes(server: &Server) -> Result<Flushes> {
    let rows = server.query(
        "SELECT EVENT_NAME, COUNT_MISC, SUM_TIMER_MISC / 1e12
         FROM performance_schema.file_summary_by_event_name WHERE COUNT_MISC > 0",
    )?;
    rows.iter().map(|row| Ok((row[0].clone(), (row[1].parse()?, row[2].parse()?)))).collect()
}

/// What may be missing or too much: with the default budget one in eight may be timed, which is an error of some 2 % of
/// the time, and there are several figures.
const TOLERANCE: std::ops::Range<f64> = 0.9..1.1;

/// The fewest flushes and seconds that can be compared.
const ENOUGH_FLUSHES: (f64, f64) = (1000.0, 0.2);

/// Flushes are counted and timed. Returns the number of kinds that were compared.
fn flushes_agree(before: &[Flushes; 2], after: &[Flushes; 2]) -> Result<usize> {
    let since = |i: usize, event: &str| {
        let [earlier, later] = [before, after].map(|at| at[i].get(event).copied().unwrap_or_default());
        (later.0 - earlier.0, later.1 - earlier.1)
    };
    let mut compared = 0;
    for event in after[1].keys().filter(|event| event.ends_with("/innodb_log_file") || event.ends_with("/binlog")) {
        let (ours, theirs) = (since(0, event), since(1, event));
        println!("{event}: {ours:.2?} calls and seconds, performance_schema {theirs:.2?}");
        if theirs.0 < ENOUGH_FLUSHES.0 || theirs.1 < ENOUGH_FLUSHES.1 {
            continue;
        }
        for (ours, theirs) in [(ours.0, theirs.0), (ours.1, theirs.1)] {
            ensure!(TOLERANCE.contains(&(ours / theirs)), "{event}: {ours}, performance_schema {theirs}");
        }
        compared += 1;
    }
    Ok(compared)
}

/// With the default budget, on a server with its own settings.
fn waits_for_files_agree(release: Release) -> Result<()> {
    let server = Server::start(release, &Options { perf_schema: true, defaults: true, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_write_only", 8)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    sleep(Duration::from_secs(3));
    let before = (truth(&server)?, measured(&agent, WAIT)?, measured(&agent, VARIANCE)?);
    let flushes_before = [timed_flushes(&agent)?, true_flushes(&server)?];
    sleep(WINDOW);
    let flushes = [timed_flushes(&agent)?, true_flushes(&server)?];
    let theirs = since(truth(&server)?, &before.0);
    let ours = since(measured(&agent, WAIT)?, &before.1);
    let variance = since(measured(&agent, VARIANCE)?, &before.2);
    load.stop()?;
    let compared = agree(&theirs, &ours, &variance)?;
    let longest = theirs.values().copied().fold(0.0, f64::max);
    ensure!(compared > 0 || longest < 2.0 * ENOUGH, "nothing is certain enough: {theirs:?}");
    ensure!(flushes_agree(&flushes_before, &flushes)? > 0 || longest < ENOUGH, "no flushes: {theirs:?}");
    // MariaDB's performance_schema does not time the log of newer versions.
    let of_log = ours.iter().filter(|(key, _)| key.0.ends_with("/innodb_log_file"));
    let log: f64 = of_log.map(|(_, seconds)| seconds).sum();
    ensure!(log > 0.5 || longest < ENOUGH, "{log:.2} s for InnoDB's log, which every commit flushes");
    names_agree(&server)?;
    agent.stop()?;
    server.stop()
}

#[test]
fn waits_for_files_of_mysql_agree_with_performance_schema() -> Result<()> {
    waits_for_files_agree(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn waits_for_files_of_mariadb_agree_with_performance_schema() -> Result<()> {
    waits_for_files_agree(Release::MARIADB_11_4)
}

#[test]
#[ignore = "as on newer versions: make test-all"]
fn waits_for_files_of_mysql_5_7_agree_with_performance_schema() -> Result<()> {
    waits_for_files_agree(Release::MYSQL_5_7)
}

/// Returns the seconds that performance_schema counts for reads of the tables' files, by table.
fn read_by_table(server: &Server) -> Result<BTreeMap<String, f64>> {
    let rows = server.query(
        "SELECT FILE_NAME, SUM_TIMER_READ / 1e12 FROM performance_schema.file_summary_by_instance
         WHERE FILE_NAME LIKE '%/sbtest/sbtest%.ibd'",
    )?;
    let table =
        |path: &str| path.rsplit('/').take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("/");
    rows.iter().map(|row| Ok((table(&row[0]), row[1].parse()?))).collect()
}

/// Tables that do not fit into memory are read from the disk all the time.
#[test]
fn reads_are_told_by_table() -> Result<()> {
    let args = ["--innodb-buffer-pool-size=5M", "--innodb-flush-method=O_DIRECT"].map(str::to_owned).to_vec();
    let server = Server::start(Release::MYSQL_9_7, &Options { perf_schema: true, args, ..Options::default() })?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("x.rec");
    let mut load = Load::start(&server, "oltp_point_select", 8)?;
    load.wait_running()?;
    let before = read_by_table(&server)?;
    Recorder::start(&server, &file, &["--duration", "15s"])?.complete()?;
    let theirs = read_by_table(&server)?;
    load.stop()?;
    server.stop()?;
    let report = serde_json::to_value(Report::new(&recording::read(&file)?))?;
    let rows = report["file_waits"].as_array().context("no waits for files")?;
    let reads = rows.iter().find(|row| row["operation"] == "read").context("no reads")?;
    let theirs: BTreeMap<&String, f64> =
        theirs.iter().map(|(table, seconds)| (table, seconds - before.get(table).unwrap_or(&0.0))).collect();
    println!("{reads}\nperformance_schema: {theirs:.2?}");
    let files = reads["files"].as_array().context("no files")?;
    let number = |value: &serde_json::Value| value.as_f64().context("no number");
    let (ours, error) = (number(&reads["wait"])?, number(&reads["error"])?);
    let all: f64 = theirs.values().sum();
    // Most of what a read takes, a thread sleeps or waits for a CPU.
    ensure!(ours > 0.3 * all && ours < all + 1.5 * error, "{ours:.2} ±{error:.2} s of {all:.2} s");
    for (table, theirs) in theirs {
        let share = files.iter().find(|file| file["file"] == table.as_str()).map(|file| number(&file["share"]));
        let share = share.with_context(|| format!("{table} was not seen: {reads}"))??;
        ensure!((share - theirs / all).abs() < 0.15, "{table}: {share:.2}, not {:.2}", theirs / all);
    }
    Ok(())
}

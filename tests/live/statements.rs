//! Which statements wait, in recordings of servers under load.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Result};
use armtrace::measure::latch::shares::of_all;
use armtrace::measure::latch::StatementWaits;
use armtrace::recording::{self, Recording};

use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

use crate::recordings::Recorder;

/// How often performance_schema's history is read in a recording, and the time between.
const READINGS: usize = 6;
const BETWEEN: Duration = Duration::from_secs(2);

/// The most by which a statement's share of the wait time may differ from performance_schema's. The wait times of
/// latches, which are divided by samples, are estimates themselves.
const TOLERANCE: f64 = 0.15;

/// The least number of samples.
const LEAST_SAMPLES: f64 = 500.0;

/// The greatest share of samples in which no statement could be read.
const MOST_UNREAD: f64 = 0.05;

/// Shares of the wait time of all statements, by how statements begin.
type Shares = BTreeMap<String, f64>;

/// Returns how a statement begins, where tables that differ in their number only are one.
fn beginning(statement: &str) -> String {
    let plain: String = statement.chars().filter(|c| !matches!(c, '`' | '(' | ',')).collect();
    let words: Vec<&str> = plain.split_ascii_whitespace().take(4).collect();
    words.join(" ").to_ascii_lowercase().replace(|c: char| c.is_ascii_digit(), "#")
}

/// Adds up the time of each statement, and divides it by that of all.
fn shares<'a>(times: impl Iterator<Item = (&'a str, f64)>) -> Shares {
    let mut sums = Shares::new();
    for (statement, time) in times {
        *sums.entry(beginning(statement)).or_default() += time;
    }
    let all: f64 = sums.values().sum();
    sums.values_mut().for_each(|time| *time /= all);
    sums
}

/// Lets performance_schema keep the last waits and statements of all threads. Waits for tables would come between.
fn keep_history(server: &Server) -> Result<()> {
    server.query(
        "UPDATE performance_schema.setup_instruments SET ENABLED = 'NO'
         WHERE NAME LIKE 'wait/io/%' OR NAME LIKE 'wait/lock/%';
         UPDATE performance_schema.setup_consumers SET ENABLED = 'YES'
         WHERE NAME LIKE 'events_waits_%' OR NAME LIKE 'events_statements_%'",
    )?;
    Ok(())
}

/// A statement's waits for a latch.
struct Waited {
    latch: String,
    statement: String,
    seconds: f64,
}

/// Returns the last waits, by performance_schema's history. What takes less than a microsecond is no wait, and waits
/// for events are not contention.
fn history(server: &Server) -> Result<Vec<Waited>> {
    const HISTORIES: &str = "UPDATE performance_schema.setup_consumers SET ENABLED = ";
    const WHICH: &str = "WHERE NAME IN ('events_waits_history_long', 'events_statements_history_long')";
    let rows = server.query(&format!(
        "{HISTORIES} 'NO' {WHICH};
         SELECT w.EVENT_NAME, s.DIGEST_TEXT, SUM(w.ps) / 1e12
         FROM (SELECT THREAD_ID, NESTING_EVENT_ID, EVENT_NAME, SUM(TIMER_WAIT) AS ps
               FROM performance_schema.events_waits_history_long
               WHERE NESTING_EVENT_TYPE = 'STATEMENT' AND TIMER_WAIT > 1e6 AND EVENT_NAME LIKE 'wait/synch/%'
                 AND EVENT_NAME NOT LIKE 'wait/synch/cond/%'
               GROUP BY THREAD_ID, NESTING_EVENT_ID, EVENT_NAME) AS w
         JOIN performance_schema.events_statements_history_long AS s
           ON s.THREAD_ID = w.THREAD_ID AND s.EVENT_ID = w.NESTING_EVENT_ID
         WHERE s.DIGEST_TEXT IS NOT NULL GROUP BY w.EVENT_NAME, s.DIGEST_TEXT;
         TRUNCATE performance_schema.events_waits_history_long;
         TRUNCATE performance_schema.events_statements_history_long;
         {HISTORIES} 'YES' {WHICH}",
    ))?;
    let waited = |row: Vec<String>| match &row[..] {
        [latch, statement, seconds] => {
            Ok(Waited { latch: latch.clone(), statement: statement.clone(), seconds: seconds.parse()? })
        }
        _ => bail!("{row:?}"),
    };
    rows.into_iter().map(waited).collect()
}

/// Returns the shares of statements in the waits of a recording for these latches: performance_schema does not see all.
fn recorded(recording: &Recording, of: &BTreeSet<&str>) -> Shares {
    let mut latches = recording.latches();
    latches.retain(|latch| of.contains(&*latch.latch));
    let statements = recording.statements();
    let known = of_all(&latches, &statements).into_iter().filter(|part| !part.digest.is_empty());
    shares(known.map(|part| (part.statement, part.wait_ns)))
}

/// Statements have the shares of the wait time that performance_schema finds in the same seconds.
fn agree_with_performance_schema(release: Release) -> Result<()> {
    let long = |what: &str, rows: u32| format!("--performance-schema-events-{what}-history-long-size={rows}");
    let args = vec![long("waits", 1_000_000), long("statements", 200_000)];
    let server = Server::start(release, &Options { perf_schema: true, args, ..Options::default() })?;
    keep_history(&server)?;
    // A client that prepares its statements has digests that do not say which.
    let mut load = Load::start_with(&server, "oltp_write_only", 24, &["--prepared", "disable"])?;
    load.wait_running()?;
    let file = server.dir().join("a.rec");
    let recorder = Recorder::start(&server, &file, &[])?;
    history(&server)?;
    let mut waited = Vec::new();
    for _ in 0..READINGS {
        sleep(BETWEEN);
        waited.extend(history(&server)?);
    }
    recorder.stop()?;
    load.stop()?;
    let recording = recording::read(&file)?;
    let found = recorded(&recording, &waited.iter().map(|row| &*row.latch).collect());
    let expected = shares(waited.iter().map(|row| (&*row.statement, row.seconds)));
    let seen = recording.statements();
    let samples = |is: &dyn Fn(&StatementWaits) -> bool| {
        seen.iter().filter(|row| is(row)).map(|row| row.samples as f64).sum::<f64>()
    };
    let (all, unread) = (samples(&|_| true), samples(&|row| row.statement == StatementWaits::UNREAD));
    println!("{}: {all} samples, {unread} not read; {found:.2?}, performance_schema {expected:.2?}", release.name());
    ensure!(all >= LEAST_SAMPLES && expected.len() >= 5 && found.len() >= 5, "hardly anything was seen");
    ensure!(unread <= MOST_UNREAD * all, "{unread} of {all} statements were not read");
    ensure!(seen.iter().all(|row| !row.statement.contains('\'')), "a value is shown");
    for statement in expected.keys().chain(found.keys()) {
        let [found, expected] = [&found, &expected].map(|shares| shares.get(statement).copied().unwrap_or_default());
        ensure!((found - expected).abs() <= TOLERANCE, "{statement}: {found:.2}, performance_schema {expected:.2}");
    }
    Ok(())
}

/// Records a server under load, whose threads wait for hundreds of latches a second.
fn record(release: Release, args: &[&str]) -> Result<Recording> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_write_only", 24)?;
    load.wait_running()?;
    let file = server.dir().join("a.rec");
    Recorder::start(&server, &file, &[&["--duration", "8s"], args].concat())?.complete()?;
    load.stop()?;
    Ok(recording::read(&file)?)
}

#[test]
fn statements_of_mysql_agree_with_performance_schema() -> Result<()> {
    agree_with_performance_schema(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn statements_of_mariadb_agree_with_performance_schema() -> Result<()> {
    agree_with_performance_schema(Release::MARIADB_11_4)
}

#[test]
fn statements_are_shown_as_far_as_they_are_wanted() -> Result<()> {
    let verbs = record(Release::MARIADB_11_4, &["--statements", "digest"])?.statements();
    let digests = verbs.iter().filter(|row| !row.digest.is_empty());
    ensure!(digests.clone().count() > 4 && digests.clone().all(|row| !row.statement.contains(' ')), "{verbs:?}");
    ensure!(record(Release::MARIADB_11_4, &["--statements", "off"])?.statements().is_empty(), "they are off");
    Ok(())
}

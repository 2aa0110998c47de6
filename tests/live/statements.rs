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

/// The most by which a statement's share of the wait time may differ from performance_schema's, in addition to the
/// error that armtrace states: the wait times of latches, which are divided by samples, are estimates themselves.
const TOLERANCE: f64 = 0.08;

/// Threads that wait at the same moment often execute the same, so samples are not as independent as that error takes
/// them to be.
const DEPENDENT: f64 = 1.5;

/// A statement that has a smaller share of the waits for a latch does not wait for it, by performance_schema. At most
/// this share of samples, and one more, may be of such: if samples got another one's statement, 8 and 16 % were.
const NONE: f64 = 0.005;
const MOST_WRONG: f64 = 0.05;

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

/// Lets performance_schema keep the waits and statements of all threads. Its history has a million waits, which is less
/// than a second's if it counts every time that a latch was free. So it keeps the latches that threads wait for.
fn keep_history(server: &Server) -> Result<()> {
    const CONTENDED_PS: u64 = 2_000_000;
    server.query("TRUNCATE performance_schema.events_waits_summary_global_by_event_name")?;
    sleep(BETWEEN);
    server.query(&format!(
        "UPDATE performance_schema.setup_instruments SET ENABLED = 'NO'
         WHERE NAME LIKE 'wait/%' AND NAME NOT IN
           (SELECT EVENT_NAME FROM performance_schema.events_waits_summary_global_by_event_name
            WHERE EVENT_NAME LIKE 'wait/synch/%' AND EVENT_NAME NOT LIKE 'wait/synch/cond/%'
              AND AVG_TIMER_WAIT > {CONTENDED_PS} AND COUNT_STAR > 100);
         UPDATE performance_schema.setup_instruments SET ENABLED = 'NO' WHERE NAME = 'idle';
         UPDATE performance_schema.setup_consumers SET ENABLED = 'YES'
         WHERE NAME LIKE 'events_waits_%' OR NAME LIKE 'events_statements_%'"
    ))?;
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

/// What a recording has of statements' waits.
struct Recorded {
    shares: Shares,
    /// Half the width of the 95 % interval of each share.
    errors: Shares,
    samples: u64,
}

/// Returns what a recording has of the waits for these latches: performance_schema does not see all.
fn recorded(recording: &Recording, of: &BTreeSet<&str>) -> Recorded {
    let mut latches = recording.latches();
    latches.retain(|latch| of.contains(&*latch.latch));
    let statements = recording.statements();
    let mut known = of_all(&latches, &statements);
    known.retain(|part| !part.digest.is_empty());
    let all: f64 = known.iter().map(|part| part.share).sum();
    let mut squares = Shares::new();
    for part in &known {
        *squares.entry(beginning(part.statement)).or_default() += (part.error / all).powi(2);
    }
    Recorded {
        shares: shares(known.iter().map(|part| (part.statement, part.wait_ns))),
        errors: squares.into_iter().map(|(statement, square)| (statement, square.sqrt())).collect(),
        samples: known.iter().map(|part| part.samples).sum(),
    }
}

/// Returns the share of samples that are of statements which do not wait for that latch, as far as performance_schema
/// has `waited` for it at all.
fn wrong(recording: &Recording, waited: &[Waited]) -> f64 {
    let mut times: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for row in waited {
        times.entry(&row.latch).or_default().push((&row.statement, row.seconds));
    }
    let by_latch: BTreeMap<&str, Shares> =
        times.into_iter().map(|(latch, times)| (latch, shares(times.into_iter()))).collect();
    let (mut all, mut wrong) = (0, 0);
    for row in recording.statements().iter().filter(|row| !row.digest.is_empty()) {
        let Some(shares) = by_latch.get(&*row.latch) else { continue };
        all += row.samples;
        if shares.get(&beginning(&row.statement)).is_none_or(|share| *share < NONE) {
            wrong += row.samples;
        }
    }
    wrong as f64 / all as f64
}

/// Statements have the shares of the wait time that performance_schema finds in the same seconds, as far as so few
/// samples can say.
fn agree_with_performance_schema(release: Release, args: &[&str], least_samples: u64) -> Result<()> {
    let long = |what: &str, rows: u32| format!("--performance-schema-events-{what}-history-long-size={rows}");
    let settings = vec![long("waits", 1_000_000), long("statements", 200_000)];
    let server = Server::start(release, &Options { perf_schema: true, args: settings, ..Options::default() })?;
    // A client that prepares its statements has digests that do not say which.
    let mut load = Load::start_with(&server, "oltp_write_only", 24, &["--prepared", "disable"])?;
    load.wait_running()?;
    keep_history(&server)?;
    let file = server.dir().join("a.rec");
    let recorder = Recorder::start(&server, &file, args)?;
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
    let wrong = wrong(&recording, &waited);
    println!(
        "{}: {all} samples, {unread} not read, {} of the same latches, {wrong:.2} of them wrong; {:.2?} ± {:.2?}, \
         performance_schema {expected:.2?}",
        release.name(),
        found.samples,
        found.shares,
        found.errors
    );
    ensure!(found.samples >= least_samples && expected.len() >= 5, "hardly anything was seen");
    ensure!(unread <= MOST_UNREAD * all, "{unread} of {all} statements were not read");
    let most_wrong = MOST_WRONG + 1.0 / found.samples as f64;
    ensure!(wrong <= most_wrong, "{wrong:.2} of the samples are of statements that do not wait for that latch");
    ensure!(seen.iter().all(|row| !row.statement.contains('\'')), "a value is shown");
    for statement in expected.keys().chain(found.shares.keys()) {
        let of = |shares: &Shares| shares.get(statement).copied();
        // What was not seen may be what few samples miss.
        let unseen = 2.0 / found.samples as f64;
        let error = TOLERANCE + DEPENDENT * of(&found.errors).unwrap_or(unseen);
        let [found, expected] = [&found.shares, &expected].map(|shares| of(shares).unwrap_or_default());
        ensure!(
            (found - expected).abs() <= error,
            "{statement}: {found:.2}, performance_schema {expected:.2} ± {error:.2}"
        );
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
#[ignore = "as on MariaDB, with fewer samples: make test-all"]
fn statements_of_mysql_agree_with_performance_schema() -> Result<()> {
    agree_with_performance_schema(Release::MYSQL_9_7, &[], 10)
}

#[test]
fn statements_of_mariadb_agree_with_performance_schema() -> Result<()> {
    agree_with_performance_schema(Release::MARIADB_11_4, &[], 40)
}

#[test]
#[ignore = "as with the default budget: make test-all"]
fn statements_agree_with_performance_schema_with_a_larger_budget() -> Result<()> {
    agree_with_performance_schema(Release::MYSQL_9_7, &["--max-overhead", "10%"], 40)
}

#[test]
fn statements_are_shown_as_far_as_they_are_wanted() -> Result<()> {
    let verbs = record(Release::MARIADB_11_4, &["--statements", "digest"])?.statements();
    let digests = verbs.iter().filter(|row| !row.digest.is_empty());
    ensure!(digests.clone().count() > 4 && digests.clone().all(|row| !row.statement.contains(' ')), "{verbs:?}");
    ensure!(record(Release::MARIADB_11_4, &["--statements", "off"])?.statements().is_empty(), "they are off");
    Ok(())
}

//! Which statements wait and which use CPU time, in recordings of servers under load.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, Write};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use armtrace::measure::cpu::CpuTime;
use armtrace::measure::latch::shares::{divide, of_all, Statement};
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

/// Waits for a latch often come together, of threads that execute the same, so samples are not as independent as that
/// error takes them to be.
const DEPENDENT: f64 = 1.5;

/// A statement that has a smaller share of the waits for a latch does not wait for it, by performance_schema. At most
/// this share of samples, and one more, may be of such: if samples got another one's statement, 8 and 16 % were.
const NONE: f64 = 0.005;
const MOST_WRONG: f64 = 0.05;

/// The most by which a statement's share of the CPU time may differ, and the least number of samples.
const CPU_TOLERANCE: f64 = 0.1;
const LEAST_CPU_SAMPLES: f64 = 200.0;

/// How many statements are compared that use the most CPU time.
const FIRST: usize = 5;

/// The greatest share of samples in which no statement could be read, and of those for which a server that is asked
/// does not know it any more.
const MOST_UNREAD: f64 = 0.05;
const MOST_FORGOTTEN: f64 = 0.4;

/// The least share of samples whose user and schema are known.
const MOST_KNOWN: f64 = 0.95;

/// By how many words statements are distinguished.
const WORDS: usize = 12;

/// Shares of the wait time or of the CPU time of all statements, by how statements begin.
type Shares = BTreeMap<String, f64>;

/// Returns how a statement begins, where tables that differ in their number only are one. Servers write brackets and
/// commas in different ways.
fn beginning(statement: &str) -> String {
    let plain = statement.replace(['`', '(', ')', ','], " ");
    let words: Vec<&str> = plain.split_ascii_whitespace().take(WORDS).collect();
    let plain = words.join(" ").to_ascii_lowercase().replace(|c: char| c.is_ascii_digit(), "#");
    // MariaDB's digests call it so.
    plain.replace("distinctrow", "distinct")
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
    let mut known = of_all(&latches, &statements, Statement::of);
    known.retain(|part| !part.of.digest.is_empty());
    let all: f64 = known.iter().map(|part| part.share).sum();
    let mut squares = Shares::new();
    for part in &known {
        *squares.entry(beginning(part.of.text)).or_default() += (part.error / all).powi(2);
    }
    Recorded {
        shares: shares(known.iter().map(|part| (part.of.text, part.share))),
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

/// How statements are found.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// In the server's memory, where waits end too.
    Memory,
    /// By asking the server.
    Server,
}

/// Returns the options that let armtrace ask a server.
fn asking(server: &Server) -> [String; 3] {
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    ["--ask-statements".to_owned(), "--mysql".to_owned(), url]
}

/// Statements have the shares of the wait time that performance_schema finds in the same seconds. In memory, thread
/// samples alone would be fewer than `least_samples`.
fn agree_with_performance_schema(release: Release, args: &[&str], from: From, least_samples: u64) -> Result<()> {
    let long = |what: &str, rows: u32| format!("--performance-schema-events-{what}-history-long-size={rows}");
    let settings = vec![long("waits", 1_000_000), long("statements", 200_000)];
    let server = Server::start(release, &Options { perf_schema: true, args: settings, ..Options::default() })?;
    // A client that prepares its statements has digests that do not say which.
    let mut load = Load::start_with(&server, "oltp_write_only", 24, &["--prepared", "disable"])?;
    load.wait_running()?;
    keep_history(&server)?;
    let file = server.dir().join("a.rec");
    let asking = asking(&server);
    let asking = asking.iter().map(String::as_str).filter(|_| from == From::Server);
    let recorder = Recorder::start(&server, &file, &args.iter().copied().chain(asking).collect::<Vec<_>>())?;
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
    let most_unread = if from == From::Server { MOST_FORGOTTEN } else { MOST_UNREAD };
    ensure!(unread <= most_unread * all, "{unread} of {all} statements were not read");
    let most_wrong = MOST_WRONG + 1.0 / found.samples as f64;
    ensure!(wrong <= most_wrong, "{wrong:.2} of the samples are of statements that do not wait for that latch");
    ensure!(seen.iter().all(|row| !row.statement.contains('\'')), "a value is shown");
    let of_load = samples(&|row| row.account.to_string() == "root in sbtest");
    let executed = samples(&|row| !row.digest.is_empty());
    ensure!(of_load >= MOST_KNOWN * executed, "of {executed} samples, {of_load} are for the load's user in its schema");
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

/// Returns whether a statement, as [`beginning`] shortens it, is one of the load.
fn is_of_load(beginning: &str) -> bool {
    beginning.contains("sbtest") || ["begin", "commit"].contains(&beginning)
}

/// Returns the shares of the load's statements in what performance_schema has summed up in this column since the last
/// time that it was emptied.
fn summed(server: &Server, column: &str) -> Result<Shares> {
    let rows = server.query(&format!(
        "SELECT DIGEST_TEXT, {column} / 1e12 FROM performance_schema.events_statements_summary_by_digest
         WHERE DIGEST_TEXT IS NOT NULL AND {column} > 0"
    ))?;
    let mut times = Vec::new();
    for row in &rows {
        let [statement, seconds] = &row[..] else { bail!("{row:?}") };
        times.push((&**statement, seconds.parse()?));
    }
    Ok(shares(times.into_iter().filter(|(statement, _)| is_of_load(&beginning(statement)))))
}

/// Checks that the statements of the load that performance_schema finds to take most have about the same shares of the
/// CPU time in a recording.
fn agree_on_cpu_time(release: Release, recording: &Recording, expected: &Shares) -> Result<()> {
    let seen = recording.cpu_statements();
    let all = seen.iter().map(|row| row.samples).sum::<u64>() as f64;
    let unread = seen.iter().filter(|row| row.statement == StatementWaits::UNREAD).map(|row| row.samples).sum::<u64>();
    let nothing = seen.iter().find(|row| row.statement == StatementWaits::NOTHING).map_or(0, |row| row.samples);
    let of_load = seen.iter().filter(|row| !row.digest.is_empty() && is_of_load(&beginning(&row.statement)));
    let found = shares(of_load.map(|row| (&*row.statement, row.samples as f64)));
    let name = release.name();
    println!(
        "{name}, CPU: {all} samples, {unread} not read, {nothing} no statement; {found:.2?}, expected {expected:.2?}"
    );
    // Both are from samples, of which few read statements.
    let at_barriers = seen.iter().map(|row| row.ordering_samples).sum::<u64>() as f64 / all;
    let ordering = recording.ordering().iter().map(|row| row.ns).sum::<u64>() as f64;
    let barriers = ordering / CpuTime::sum(recording.cpu().iter()) as f64;
    println!("{name}: {at_barriers:.3} of these samples in barriers and atomics, {barriers:.3} of all CPU time");
    let error = 3.0 * (barriers / all).sqrt();
    ensure!(barriers > 0.0 && (at_barriers - barriers).abs() <= error, "they differ by more than {error:.3}");
    ensure!(all >= LEAST_CPU_SAMPLES && !expected.is_empty(), "hardly anything was seen");
    ensure!(unread as f64 <= MOST_UNREAD * all, "{unread} of {all} statements were not read");
    ensure!(seen.iter().all(|row| !row.statement.contains('\'')), "a value is shown");
    let mut most: Vec<(&String, &f64)> = expected.iter().collect();
    most.sort_by(|a, b| b.1.total_cmp(a.1));
    for (statement, expected) in most.into_iter().take(FIRST) {
        let found = found.get(statement).copied().unwrap_or_default();
        ensure!(
            (found - expected).abs() <= CPU_TOLERANCE,
            "{statement}: {found:.2} of the CPU time, not {expected:.2}"
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
#[ignore = "as on MariaDB: make test-all"]
fn statements_of_mysql_agree_with_performance_schema() -> Result<()> {
    agree_with_performance_schema(Release::MYSQL_9_7, &[], From::Memory, 100)
}

#[test]
fn statements_of_mariadb_agree_with_performance_schema() -> Result<()> {
    agree_with_performance_schema(Release::MARIADB_11_4, &[], From::Memory, 250)
}

#[test]
#[ignore = "as with the default budget: make test-all"]
fn statements_agree_with_performance_schema_with_a_larger_budget() -> Result<()> {
    agree_with_performance_schema(Release::MYSQL_9_7, &["--max-overhead", "10%"], From::Memory, 100)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_says_which_statements_wait() -> Result<()> {
    agree_with_performance_schema(Release::MARIADB_11_4, &[], From::Server, 10)
}

/// The shares of all samples in a recording that are of statements, and how many those samples are.
fn sampled(recording: &Recording) -> (Shares, u64) {
    let seen = recording.statements();
    let of_clients = seen.iter().filter(|row| !row.digest.is_empty());
    let samples = of_clients.clone().map(|row| row.samples).sum();
    (shares(of_clients.map(|row| (&*row.statement, row.samples as f64))), samples)
}

/// A server says what its memory shows, a moment later and for fewer waits. At most `most_unread` of the samples are of
/// statements that it does not know any more.
fn says_what_its_memory_shows(release: Release, perf_schema: bool, most_unread: f64) -> Result<()> {
    let server = Server::start(release, &Options { perf_schema, ..Options::default() })?;
    let mut load = Load::start_with(&server, "oltp_write_only", 24, &["--prepared", "disable"])?;
    load.wait_running()?;
    let recorded = |name: &str, args: &[&str]| -> Result<Recording> {
        let file = server.dir().join(name);
        Recorder::start(&server, &file, args)?.complete()?;
        Ok(recording::read(&file)?)
    };
    let read = recorded("read.rec", &["--duration", "8s"])?;
    let asking = asking(&server);
    let asking = asking.iter().map(String::as_str);
    let asked = recorded("asked.rec", &["--duration", "20s"].into_iter().chain(asking).collect::<Vec<_>>())?;
    load.stop()?;
    let ((expected, all), (found, samples)) = (sampled(&read), sampled(&asked));
    let seen = asked.statements();
    let sum = |is: &dyn Fn(&StatementWaits) -> bool| -> u64 {
        seen.iter().filter(|row| is(row)).map(|row| row.samples).sum()
    };
    let unread = sum(&|row| row.statement == StatementWaits::UNREAD);
    println!(
        "{}: {samples} samples, {unread} not read; {found:.2?}; in memory {all} samples, {expected:.2?}",
        release.name()
    );
    let nothing = sum(&|row| row.statement == StatementWaits::NOTHING);
    ensure!(samples >= 8, "hardly anything was seen");
    ensure!(nothing as f64 <= MOST_FORGOTTEN * (samples + unread + nothing) as f64, "{nothing} are of no statement");
    ensure!(unread as f64 <= most_unread * (samples + unread) as f64, "{unread} are not read");
    ensure!(sum(&|row| row.account.to_string() == "root in sbtest") == samples, "for whom is not known: {seen:?}");
    ensure!(seen.iter().all(|row| !row.statement.contains('\'')), "a value is shown");
    for (statement, expected) in expected.iter().filter(|(_, share)| **share >= 0.1) {
        let found = found.get(statement).copied().unwrap_or_default();
        let error = TOLERANCE + DEPENDENT * 2.0 * (expected / samples as f64).sqrt();
        ensure!((found - expected).abs() <= error, "{statement}: {found:.2}, in memory {expected:.2} ± {error:.2}");
    }
    Ok(())
}

#[test]
fn mysql_says_which_statements_wait() -> Result<()> {
    says_what_its_memory_shows(Release::MYSQL_9_7, true, MOST_FORGOTTEN)
}

/// Its process list does.
#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_without_performance_schema_says_which_statements_wait() -> Result<()> {
    says_what_its_memory_shows(Release::MARIADB_11_4, false, 0.8)
}

/// Statements have the shares of the CPU time that performance_schema has summed up in this column.
fn cpu_time_agrees(release: Release, (load, threads): (&str, u32), column: &str, time: Duration) -> Result<()> {
    let server = Server::start(release, &Options { perf_schema: true, ..Options::default() })?;
    server
        .query("UPDATE performance_schema.setup_consumers SET ENABLED = 'YES' WHERE NAME LIKE 'events_statements_%'")?;
    let mut load = Load::start_with(&server, load, threads, &["--prepared", "disable"])?;
    load.wait_running()?;
    let file = server.dir().join("a.rec");
    let recorder = Recorder::start(&server, &file, &[])?;
    server.query("TRUNCATE performance_schema.events_statements_summary_by_digest")?;
    sleep(time);
    let expected = summed(&server, column)?;
    recorder.stop()?;
    load.stop()?;
    agree_on_cpu_time(release, &recording::read(&file)?, &expected)
}

#[test]
fn cpu_time_of_statements_of_mysql_agrees_with_performance_schema() -> Result<()> {
    cpu_time_agrees(Release::MYSQL_9_7, ("oltp_write_only", 24), "SUM_CPU_TIME", 6 * BETWEEN)
}

/// An emulated machine needs half a minute to read the symbols of this program, and has no CPU time until then. To run
/// it on arm64:
/// `tests/vm/live arm64 6.12 --server mysql-8.0 --ignored statements::cpu_time_of_statements_of_mysql_8_0_33`.
#[test]
#[ignore = "downloads 550 MB: make test-all"]
fn cpu_time_of_statements_of_mysql_8_0_33_agrees_with_performance_schema() -> Result<()> {
    cpu_time_agrees(Release::MYSQL_8_0, ("oltp_write_only", 24), "SUM_CPU_TIME", 30 * BETWEEN)
}

/// MariaDB does not measure the CPU time of statements. Where threads wait for nothing, it is about the time that they
/// take.
#[test]
#[ignore = "as on MySQL: make test-all"]
fn cpu_time_of_statements_of_mariadb_is_plausible() -> Result<()> {
    cpu_time_agrees(Release::MARIADB_11_4, ("oltp_read_only", 2), "SUM_TIMER_WAIT", 6 * BETWEEN)
}

/// Servers that ask the C library for the session of a thread.
#[test]
#[ignore = "takes a minute: make test-all"]
fn cpu_time_of_statements_of_older_servers_is_plausible() -> Result<()> {
    let older = [Release::MYSQL_5_7, Release::MARIADB_10_1, Release::MARIADB_10_2];
    older
        .into_iter()
        .try_for_each(|release| cpu_time_agrees(release, ("oltp_read_only", 2), "SUM_TIMER_WAIT", 6 * BETWEEN))
}

/// A client that executes a statement again and again, until this is dropped.
struct Busy(Child);

impl Busy {
    fn start(server: &Server, args: &[&str]) -> Result<Busy> {
        const WORK: &str = "DO BENCHMARK(20000, SHA2(RAND(), 256));\n";
        let mut statements = tempfile::tempfile()?;
        statements.write_all(WORK.repeat(5000).as_bytes())?;
        statements.rewind()?;
        let client = Command::new(server.dir().join("sql")).args(args).stdin(statements).spawn();
        Ok(Busy(client.context("starting a client")?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Both may fail, because the client exits when the server stops.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two users compute, one of them in two sessions and a schema, on as many CPUs as there are.
fn users_share_the_cpu_time(release: Release) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    server.query(
        "CREATE USER anna@localhost; GRANT ALL ON *.* TO anna@localhost; CREATE USER bert@localhost;
         CREATE DATABASE `caf\u{e9} 1`",
    )?;
    let cpus = std::thread::available_parallelism()?.get();
    let anna = ["--user=anna", "--database=caf\u{e9} 1"];
    let clients = (0..3 * cpus).map(|n| Busy::start(&server, if n % 3 > 0 { &anna } else { &["--user=bert"] }));
    let clients = clients.collect::<Result<Vec<Busy>>>()?;
    let file = server.dir().join("a.rec");
    Recorder::start(&server, &file, &["--duration", "10s"])?.complete()?;
    drop(clients);
    let seen = recording::read(&file)?.cpu_statements();
    let parts = divide(seen.iter().map(|row| (row.client(), row.samples)));
    let shown: Vec<(String, f64, u64)> =
        parts.iter().map(|part| (part.of.to_string(), part.share, part.samples)).collect();
    println!("{}: {shown:.2?}", release.name());
    let share = |of: &str| shown.iter().find(|(name, ..)| name == of).map_or(0.0, |(_, share, _)| *share);
    let [anna, bert] = ["anna in caf\u{e9} 1", "bert"].map(share);
    ensure!((anna - 2.0 / 3.0).abs() < CPU_TOLERANCE && (bert - 1.0 / 3.0).abs() < CPU_TOLERANCE, "{seen:?}");
    Ok(())
}

#[test]
fn users_of_mysql_share_the_cpu_time() -> Result<()> {
    users_share_the_cpu_time(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn users_of_mariadb_share_the_cpu_time() -> Result<()> {
    users_share_the_cpu_time(Release::MARIADB_11_4)
}

#[test]
#[ignore = "as on newer servers: make test-all"]
fn users_of_mysql_5_7_share_the_cpu_time() -> Result<()> {
    users_share_the_cpu_time(Release::MYSQL_5_7)
}

#[test]
fn statements_are_shown_as_far_as_they_are_wanted() -> Result<()> {
    let recording = record(Release::MARIADB_11_4, &["--statements", "digest"])?;
    let on_cpu = recording.cpu_statements();
    let digests = on_cpu.iter().filter(|row| !row.digest.is_empty());
    ensure!(digests.clone().count() > 4 && digests.clone().all(|row| !row.statement.contains(' ')), "{on_cpu:?}");
    let verbs = recording.statements();
    let digests = verbs.iter().filter(|row| !row.digest.is_empty());
    ensure!(digests.clone().count() > 4 && digests.clone().all(|row| !row.statement.contains(' ')), "{verbs:?}");
    let off = record(Release::MARIADB_11_4, &["--statements", "off"])?;
    ensure!(off.statements().is_empty() && off.cpu_statements().is_empty(), "they are off");
    Ok(())
}

//! Which statements wait, in recordings of servers under load.

use std::collections::BTreeMap;

use anyhow::{ensure, Result};
use armtrace::measure::latch::{shares, LatchWaits, StatementWaits};
use armtrace::model::Kind;
use armtrace::recording::{self, Recording};

use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

use crate::recordings::Recorder;

/// The statements of `oltp_write_only` that change rows, as they begin.
const CHANGES: [&str; 4] = ["UPDATE sbtest# SET k = k + ?", "UPDATE sbtest# SET c = ?", "DELETE FROM", "INSERT INTO"];

/// The least share of each of them in the wait time, and of all of them.
const LEAST_OF_EACH: f64 = 0.02;
const LEAST_OF_ALL: f64 = 0.5;

/// The greatest share of samples in which no statement could be read.
const MOST_UNREAD: f64 = 0.05;

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

/// Returns each statement's share of the wait time; tables that differ in their number only are one.
fn shares_of(recording: &Recording) -> BTreeMap<String, f64> {
    let statements = recording.statements();
    let contended: Vec<LatchWaits> = recording.latches().into_iter().filter(|latch| latch.kind != Kind::Cond).collect();
    let mut shares = BTreeMap::new();
    for part in shares::of_all(&contended, &statements) {
        *shares.entry(part.statement.replace(|c: char| c.is_ascii_digit(), "#")).or_default() += part.share;
    }
    shares
}

/// The statements that change rows are what waits, and they are shown without values.
fn shows_statements(release: Release) -> Result<()> {
    let recording = record(release, &[])?;
    let shares = shares_of(&recording);
    println!("{}: {shares:#.3?}", release.name());
    let of =
        |begin: &str| shares.iter().filter(|(text, _)| text.starts_with(begin)).map(|(_, share)| share).sum::<f64>();
    let each = CHANGES.map(of);
    ensure!(each.iter().all(|share| *share >= LEAST_OF_EACH), "{each:?}");
    ensure!(each.iter().sum::<f64>() >= LEAST_OF_ALL, "{each:?}");
    let statements = recording.statements();
    let samples = |is: &dyn Fn(&StatementWaits) -> bool| {
        statements.iter().filter(|row| is(row)).map(|row| row.samples as f64).sum::<f64>()
    };
    let unread = samples(&|row| row.statement == StatementWaits::UNREAD) / samples(&|_| true);
    ensure!(unread <= MOST_UNREAD, "{unread} of the statements were not read");
    ensure!(statements.iter().all(|row| !row.statement.contains('\'')), "a value is shown");
    Ok(())
}

#[test]
fn statements_of_mysql_are_read() -> Result<()> {
    shows_statements(Release::MYSQL_9_7)
}

#[test]
fn statements_of_mariadb_are_read() -> Result<()> {
    shows_statements(Release::MARIADB_11_4)
}

#[test]
fn statements_are_shown_as_far_as_they_are_wanted() -> Result<()> {
    let verbs = record(Release::MARIADB_11_4, &["--statements", "digest"])?.statements();
    let digests = verbs.iter().filter(|row| !row.digest.is_empty());
    ensure!(digests.clone().count() > 4 && digests.clone().all(|row| !row.statement.contains(' ')), "{verbs:?}");
    ensure!(record(Release::MARIADB_11_4, &["--statements", "off"])?.statements().is_empty(), "they are off");
    Ok(())
}

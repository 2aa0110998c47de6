//! What a report says to do: makes a cause on a real server, checks that the report names it by its figures, follows
//! one of its remedies while the server runs, and checks that the figure falls.

use anyhow::{ensure, Context, Result};
use armtrace::advice;
use armtrace::measure::files::FileOperation;
use armtrace::recording::{self, Report};

use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

use crate::recordings::{prints, Recorder};

/// A cause of waits, and a remedy.
struct Case {
    release: Release,
    /// The settings that make the cause.
    args: &'static [&'static str],
    test: &'static str,
    threads: u32,
    /// The anchor of the entry that must be quoted.
    entry: &'static str,
    /// What follows one of its remedies.
    follow: &'static str,
    /// To which part of itself the number of waiting threads must fall.
    falls_to: f64,
}

/// Returns how many threads wait for an entry's latches, or for its files.
fn threads(report: &Report, entry: &str) -> f64 {
    let in_files = |operation, event: &str| {
        let rows = report.parts.files.file_waits.iter().filter(|row| row.operation == operation);
        rows.filter(|row| row.event.ends_with(event)).map(|row| row.wait).sum::<f64>() / report.duration
    };
    match entry {
        "flushes-of-the-redo-log" => return in_files(FileOperation::Sync, "/innodb_log_file"),
        "reads-from-the-disk" => return in_files(FileOperation::Read, "/innodb_data_file"),
        _ => {}
    }
    let is_it = |name: &str| advice::entry_of(name).is_some_and(|found| found.id == entry);
    let name = |latch: &str| latch.splitn(4, '/').nth(3).unwrap_or_default().to_owned();
    let latches = report.latch.latches.iter().filter(|latch| is_it(&name(&latch.latch)));
    latches.map(|latch| latch.wait).fold(0.0, std::ops::Add::add) / report.duration
}

/// Records some seconds of the server under the case's load. Returns the report, as values and as text.
fn recorded(server: &Server, case: &Case) -> Result<(Report, String)> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("case.rec");
    let url = format!("mysql://root@localhost?socket={}", server.socket().display());
    let mut load = Load::start(server, case.test, case.threads)?;
    load.wait_running()?;
    let args = ["--duration", "10s", "--mysql", &url];
    Recorder::start(server, &file, &args)?.complete()?;
    load.stop()?;
    let report = Report::new(&recording::read(&file)?);
    Ok((report, prints(&["report", &file.display().to_string()])?))
}

/// Returns the report before the remedy.
fn check(case: &Case) -> Result<Report> {
    let args = case.args.iter().map(|arg| (*arg).to_owned()).collect();
    let server = Server::start(case.release, &Options { args, ..Options::default() })?;
    let (before, text) = recorded(&server, case)?;
    let advised = before.what_to_do.iter().find(|advised| advised.entry == case.entry);
    let advised = advised.with_context(|| format!("not advised: {text}"))?;
    let setting = case.follow.trim_start_matches("SET GLOBAL ").split([' ', '=']).next().context("no setting")?;
    ensure!(advised.remedies.iter().any(|remedy| remedy.change.contains(setting)), "{advised:?}");
    ensure!(text.contains(&advised.heading()) && text.contains(&advised.link()), "{text}");
    server.query(case.follow)?;
    let (after, text) = recorded(&server, case)?;
    let figures = [&before, &after].map(|report| threads(report, case.entry));
    let rates = [&before, &after].map(|report| report.totals.queries.unwrap_or(0) as f64 / report.duration);
    println!(
        "{} {}: {}\n  {}: {:.4} to {:.4}, statements/s {:.0} to {:.0}",
        case.release.name(),
        case.entry,
        advised.heading(),
        case.follow,
        figures[0],
        figures[1],
        rates[0],
        rates[1]
    );
    ensure!(figures[1] <= case.falls_to * figures[0], "{figures:?}: {text}");
    Ok(before)
}

#[test]
#[ignore = "takes half a minute: make test-all"]
fn a_small_table_cache_is_told_and_a_larger_one_helps() -> Result<()> {
    let before = check(&Case {
        release: Release::MYSQL_8_0_31,
        args: &["--table-open-cache=10"],
        test: "oltp_read_only",
        threads: 64,
        entry: "table-cache",
        follow: "SET GLOBAL table_open_cache = 4000",
        falls_to: 0.5,
    })?;
    let names: Vec<_> = before.latch.latches.iter().map(|latch| &latch.latch).collect();
    ensure!(!names.iter().any(|name| name.contains("table_cache_manager")), "instances without a name: {names:?}");
    Ok(())
}

#[test]
#[ignore = "takes long: make live-advice"]
fn a_contended_hash_index_is_told_and_turning_it_off_helps() -> Result<()> {
    check(&Case {
        release: Release::MYSQL_8_0_31,
        args: &["--innodb-adaptive-hash-index=ON"],
        test: "oltp_read_write",
        threads: 32,
        entry: "adaptive-hash-index",
        follow: "SET GLOBAL innodb_adaptive_hash_index = OFF",
        falls_to: 0.1,
    })
    .map(drop)
}

#[test]
#[ignore = "takes long: make live-advice"]
fn few_rollback_segments_are_told_and_more_help() -> Result<()> {
    check(&Case {
        release: Release::MYSQL_8_0_31,
        args: &["--innodb-rollback-segments=1"],
        test: "oltp_update_non_index",
        threads: 64,
        entry: "rollback-segments",
        follow: "SET GLOBAL innodb_rollback_segments = 128",
        falls_to: 0.5,
    })
    .map(drop)
}

#[test]
#[ignore = "takes half a minute, and not on a disk that flushes at once: make test-all"]
fn flushes_at_every_commit_are_told_and_fewer_help() -> Result<()> {
    check(&Case {
        release: Release::MYSQL_8_0_31,
        args: &["--innodb-flush-log-at-trx-commit=1"],
        test: "oltp_update_non_index",
        threads: 16,
        entry: "flushes-of-the-redo-log",
        follow: "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
        falls_to: 0.5,
    })
    .map(drop)
}

#[test]
#[ignore = "takes half a minute: make test-all"]
fn a_small_buffer_pool_is_told_and_a_larger_one_helps() -> Result<()> {
    check(&Case {
        release: Release::MYSQL_8_0_31,
        args: &["--innodb-buffer-pool-size=5M", "--innodb-flush-method=O_DIRECT"],
        test: "oltp_point_select",
        threads: 16,
        entry: "reads-from-the-disk",
        follow: "SET GLOBAL innodb_buffer_pool_size = 268435456",
        falls_to: 0.5,
    })
    .map(drop)
}

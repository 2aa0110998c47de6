//! The call stacks of waiting threads: they reach down to what threads do for a client, and through the call sites that
//! probes see.

use std::collections::{BTreeMap, HashSet};

use anyhow::{ensure, Result};
use armtrace::measure::latch::{LatchWaits, StackWaits};
use armtrace::model::Kind;
use armtrace::recording::{self, Recording};

use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

use crate::recordings::Recorder;

/// Recordings with enough samples: with the default budget, and a short one with a larger budget.
const BY_DEFAULT: &[&str] = &["--duration", "50s"];
const SHORT: &[&str] = &["--duration", "15s", "--max-overhead", "5%"];

/// The function through which all that is done for a client is called.
const FOR_CLIENTS: &str = "do_command";

/// The most by which shares may differ. Threads that queue for the same latch are sampled together, so that a hundred
/// samples can be from a few queues.
const TOLERANCE: f64 = 0.15;

/// The most stacks that change before they have been read: waits last for a millisecond or two.
const MOST_UNREAD: f64 = 0.4;

/// The least number of samples: of all latches, and of one whose call sites are compared.
const LEAST_SAMPLES: u64 = 80;
const LEAST_OF_LATCH: u64 = 60;

fn record(release: Release, args: &[&str]) -> Result<Recording> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_write_only", 24)?;
    load.wait_running()?;
    let file = server.dir().join("a.rec");
    Recorder::start(&server, &file, args)?.complete()?;
    load.stop()?;
    Ok(recording::read(&file)?)
}

fn is_read(stack: &StackWaits) -> bool {
    stack.calls != StackWaits::UNREAD
}

fn calls(stack: &StackWaits, function: &str) -> bool {
    stack.calls.split(';').any(|call| call == function)
}

/// Returns the share of samples that this is true of, and the number of all.
fn share<T>(rows: impl Iterator<Item = T>, samples: impl Fn(&T) -> u64, is: impl Fn(&T) -> bool) -> (f64, u64) {
    let (mut all, mut these) = (0, 0);
    for row in rows {
        all += samples(&row);
        these += if is(&row) { samples(&row) } else { 0 };
    }
    (these as f64 / all.max(1) as f64, all)
}

/// Threads that execute statements, as another reader of their memory says, wait in what is called for clients.
fn reach_the_client(recording: &Recording) -> Result<()> {
    let (stacks, statements) = (recording.call_stacks(), recording.statements());
    let (unread, all) = share(stacks.iter(), |row| row.samples, |row| !is_read(row));
    let read = stacks.iter().filter(|row| is_read(row));
    let (for_clients, _) = share(read, |row| row.samples, |row| calls(row, FOR_CLIENTS));
    // Idle threads wait too, for conditions and events, of which there are no call stacks.
    let contended: HashSet<_> = stacks.iter().map(|row| (&row.latch, row.mode)).collect();
    let statements = statements.iter().filter(|row| contended.contains(&(&row.latch, row.mode)));
    let (executing, seen) = share(statements, |row| row.samples, |row| !row.digest.is_empty());
    println!(
        "{all} samples of {} call stacks, {unread:.2} not read; {for_clients:.2} for clients, \
         {executing:.2} of {seen} samples execute statements",
        stacks.len()
    );
    ensure!(all >= LEAST_SAMPLES && seen >= LEAST_SAMPLES, "hardly anything was seen");
    ensure!(unread <= MOST_UNREAD, "{unread:.2} of the stacks were not read");
    // A client's thread also waits between statements.
    ensure!(
        for_clients >= executing - TOLERANCE && for_clients > 0.3,
        "{for_clients:.2} of the stacks are for clients, {executing:.2} of the threads execute statements"
    );
    Ok(())
}

/// Returns the shares of call sites in the wait time for a latch in one mode, as the probes see them.
fn callsites(recording: &Recording, latch: &LatchWaits) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for site in recording.callsites().iter().filter(|site| site.latch == latch.latch && site.mode == Some(latch.mode)) {
        *sums.entry(site.callsite.clone()).or_default() += site.wait_ns as f64;
    }
    let all: f64 = sums.values().sum();
    sums.values_mut().for_each(|sum| *sum /= all);
    sums
}

#[test]
fn call_stacks_of_mysql_reach_the_client() -> Result<()> {
    reach_the_client(&record(Release::MYSQL_8_0_31, SHORT)?)
}

#[test]
#[ignore = "takes two minutes: make test-all"]
fn call_stacks_are_right_with_the_default_budget() -> Result<()> {
    reach_the_client(&record(Release::MYSQL_8_0_31, BY_DEFAULT)?)?;
    pass_through_their_call_sites(&record(Release::MARIADB_11_4, BY_DEFAULT)?)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn call_stacks_of_mariadb_pass_through_their_call_sites() -> Result<()> {
    pass_through_their_call_sites(&record(Release::MARIADB_11_4, SHORT)?)
}

/// MariaDB's call sites are functions, so each of them must be in as many stacks as its share of the wait time says.
fn pass_through_their_call_sites(recording: &Recording) -> Result<()> {
    reach_the_client(recording)?;
    let stacks = recording.call_stacks();
    let mut compared = 0;
    for latch in recording.latches().iter().filter(|latch| latch.kind != Kind::Cond && latch.waits.sum_ns > 0) {
        let is_of_latch = |row: &&StackWaits| row.latch == latch.latch && row.mode == Some(latch.mode);
        let of_latch = || stacks.iter().filter(is_of_latch).filter(|row| is_read(row));
        for (function, expected) in callsites(recording, latch) {
            let (found, all) = share(of_latch(), |row| row.samples, |row| calls(row, &function));
            if all < LEAST_OF_LATCH || expected < 0.2 {
                continue;
            }
            println!("{}: {function} in {found:.2} of {all} stacks, {expected:.2} of the wait time", latch.latch);
            ensure!((found - expected).abs() <= TOLERANCE, "{}: {function}", latch.latch);
            compared += 1;
        }
    }
    ensure!(compared >= 1, "no call site was compared");
    Ok(())
}

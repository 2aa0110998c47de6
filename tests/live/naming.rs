//! The names that armtrace gives, against those of performance_schema, latch by latch.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use armtrace::names::{Identity, Namer};
use armtrace::target::{Memory, Target};

use crate::agent::{by_latch, Agent};
use crate::load::Load;
use crate::server::{Family, Options, Server};

fn open(server: &Server) -> Result<(Arc<Target>, Namer)> {
    let target = Target::open(server.pid()).map_err(|e| anyhow::anyhow!("{e}"))?;
    let target = Arc::new(target);
    let namer = Namer::new(&target).map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok((target, namer))
}

fn instruments(server: &Server) -> Result<BTreeSet<String>> {
    let rows = server.query("SELECT name FROM performance_schema.setup_instruments WHERE name LIKE 'wait/synch/%'")?;
    Ok(rows.into_iter().flatten().collect())
}

fn options(perf_schema: bool) -> Options {
    Options { perf_schema, ..Options::default() }
}

/// With performance_schema on, a latch id's description holds the key of its instrument: the ids that have one are exactly
/// those that must have the name of an instrument.
#[test]
fn mysql_latch_ids_have_the_names_of_their_instruments() -> Result<()> {
    let server = Server::start(Family::Mysql97, &options(true))?;
    let instruments = instruments(&server)?;
    let (_, namer) = open(&server)?;
    let ids = namer.latch_ids().context("no latch ids")?;
    ensure!(ids.len() > 100, "only {} latch ids", ids.len());
    let mut wrong = Vec::new();
    for (id, name) in &ids {
        // Ids of rw-locks are in the table too; their instruments are no mutexes.
        let bare = name.event.rsplit('/').next().unwrap_or_default();
        let registered = instruments.iter().any(|i| i.ends_with(&format!("/innodb/{bare}")));
        if registered != (id.key != 0) {
            wrong.push(format!("{} (key {}): {}", id.name, id.key, name.event));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    server.stop()
}

/// What performance_schema calls an rw-lock of MySQL, and where the lock was made.
struct RwLock {
    file: u64,
    line: u32,
    event: Option<String>,
}

/// All rw-locks of a MySQL server, from its own list of them.
fn rw_locks(target: &Target) -> Result<Vec<RwLock>> {
    const NEXT: u64 = 0x68;
    let memory = Memory::new(target.pid);
    let list = target.image.symbol("rw_lock_list").context("no rw_lock_list")?.addr + target.bias;
    let mut found = Vec::new();
    let mut at = memory.u64(list).context("reading the list")?;
    while at != 0 && found.len() < 1_000_000 {
        let event = memory.u64(at + 0x70).filter(|&psi| psi != 0).and_then(|psi| {
            let class = memory.u64(psi + 0x20)?;
            memory.string(class + 0x18)
        });
        let line = memory.u64(at + 0x38).context("reading a lock")? as u32;
        found.push(RwLock { file: memory.u64(at + 0x30).context("reading a lock")?, line, event });
        at = memory.u64(at + NEXT).context("reading a lock")?;
    }
    Ok(found)
}

#[test]
fn mysql_rw_locks_have_the_names_of_their_instruments() -> Result<()> {
    let server = Server::start(Family::Mysql97, &options(true))?;
    let (target, mut namer) = open(&server)?;
    let locks = rw_locks(&target)?;
    let mut seen = BTreeSet::new();
    for lock in &locks {
        let name = namer.name(&Identity::Created { file: lock.file, line: lock.line }, 0).event;
        match &lock.event {
            Some(event) => ensure!(name == *event, "{name} is {event}"),
            None => ensure!(name.ends_with("/buf_block_lock"), "{name} has no instrument"),
        }
        seen.insert(name);
    }
    println!("{} rw-locks: {seen:#?}", locks.len());
    ensure!(locks.len() > 1000 && seen.len() >= 10, "{} rw-locks: {seen:?}", locks.len());
    server.stop()
}

/// The server tells the address of each of its rw-locks. Nothing but what surrounds the latch may be used to
/// name it here, as with performance_schema off.
fn mariadb_structures_tell(family: Family) -> Result<()> {
    let server = Server::start(family, &options(true))?;
    let mut load = Load::start(&server, "oltp_read_write", 4)?;
    load.wait_running()?;
    let (target, mut namer) = open(&server)?;
    let rows = server.query(
        "SELECT NAME, OBJECT_INSTANCE_BEGIN FROM performance_schema.rwlock_instances WHERE NAME LIKE '%/innodb/%'",
    )?;
    let mut seen = BTreeSet::new();
    let mut unnamed = BTreeSet::new();
    for row in &rows {
        let [event, address] = &row[..] else { anyhow::bail!("{row:?}") };
        // The lock word lies behind the pointer to the instrumented object.
        let word = address.parse::<u64>()? + 8;
        let is_static = target.image.is_static_data(word.wrapping_sub(target.bias));
        // Identities of heap latches are who waits; each of these gets one of its own. In static data too most must be
        // known by what surrounds them.
        let mut name = namer.name(&Identity::Caller(word), word).event;
        if is_static && name.starts_with("unnamed:") {
            name = namer.name(&Identity::Static(word), word).event;
        }
        if name.starts_with("unnamed:") {
            unnamed.insert(format!("{event} at {word:#x}"));
        } else {
            ensure!(name == *event, "{name} is {event}");
            seen.insert(name);
        }
    }
    load.stop()?;
    println!("{} latches: {seen:#?}, not named: {unnamed:#?}", rows.len());
    ensure!(unnamed.is_empty(), "not named: {unnamed:?}");
    ensure!(seen.len() >= 7, "{seen:?}");
    server.stop()
}

#[test]
fn mariadb_11_4_structures_tell_the_names() -> Result<()> {
    mariadb_structures_tell(Family::Mariadb114)
}

#[test]
fn mariadb_10_11_structures_tell_the_names() -> Result<()> {
    mariadb_structures_tell(Family::Mariadb1011)
}

/// Debian's build has no names for its latches and its functions.
#[test]
fn a_stripped_mariadbs_structures_tell_the_names() -> Result<()> {
    mariadb_structures_tell(Family::Mariadb1011Debian)
}

/// How much of the time that a stripped server waits is given a name, with performance_schema off.
fn named_share(test: &str) -> Result<()> {
    const LEAST: f64 = 0.9;
    let server = Server::start(Family::Mariadb1011Debian, &options(false))?;
    let mut load = Load::start(&server, test, 16)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    std::thread::sleep(std::time::Duration::from_secs(10));
    let sums = by_latch(&agent.scrape()?, "armtrace_latch_wait_seconds_sum");
    load.stop()?;
    let (all, named) = sums.iter().fold((0.0, 0.0), |(all, named), (latch, seconds)| {
        (all + seconds, if latch.starts_with("unnamed:") { named } else { named + seconds })
    });
    println!("{test}: {named:.3} s of {all:.3} s: {sums:#?}");
    ensure!(all > 0.0 && named / all >= LEAST, "{named:.3} s of {all:.3} s are named: {sums:?}");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn a_stripped_mariadbs_updates_wait_for_named_latches() -> Result<()> {
    named_share("oltp_update_index")
}

#[test]
fn a_stripped_mariadbs_writes_wait_for_named_latches() -> Result<()> {
    named_share("oltp_write_only")
}

/// With performance_schema off every latch id and every rw-lock still has a name.
#[test]
fn mysql_names_need_no_performance_schema() -> Result<()> {
    let server = Server::start(Family::Mysql97, &options(false))?;
    let (target, mut namer) = open(&server)?;
    let ids = namer.latch_ids().context("no latch ids")?;
    ensure!(ids.iter().all(|(id, _)| id.key == 0), "performance_schema is on");
    for (id, _) in &ids {
        let name = namer.name(&Identity::LatchId(id.id), 0).event;
        ensure!(name.starts_with("wait/synch/mutex/innodb/"), "{}: {name}", id.name);
    }
    for lock in rw_locks(&target)? {
        let name = namer.name(&Identity::Created { file: lock.file, line: lock.line }, 0).event;
        ensure!(name.starts_with("wait/synch/sxlock/innodb/"), "{name}");
    }
    server.stop()
}

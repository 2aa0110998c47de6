//! armtrace's latch names, compared with performance_schema's latch by latch.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::model::Kind;
use armtrace::names::{locks, Identity, Instruments, LatchId, Namer};
use armtrace::server::{Memory, Target};

use lab::agent::{by_latch, Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

fn open(server: &Server) -> Result<(Arc<Target>, Namer)> {
    let target = Arc::new(Target::open(server.pid())?);
    let namer = Namer::new(&target);
    Ok((target, namer))
}

fn instruments(server: &Server) -> Result<BTreeSet<String>> {
    let rows = server.query("SELECT name FROM performance_schema.setup_instruments WHERE name LIKE 'wait/synch/%'")?;
    Ok(rows.into_iter().flatten().collect())
}

fn options(perf_schema: bool) -> Options {
    Options { perf_schema, ..Options::default() }
}

/// The offset of the instrument's key in a latch id's description, from MariaDB 10.2.11's debug info and MySQL 8.0.33's
/// code.
const DESCRIBED_KEY: u64 = 0x20;

/// With performance_schema on, a latch id's description holds the key of its instrument. Exactly the ids with a key
/// must have the name of an instrument.
fn latch_ids_agree(server: &Server, least: usize) -> Result<()> {
    let instruments = instruments(server)?;
    let (target, namer) = open(server)?;
    let memory = Memory::new(target.pid);
    let ids = namer.latch_ids().context("no latch ids")?;
    ensure!(ids.len() >= least, "only {} latch ids", ids.len());
    let mut wrong = Vec::new();
    for (id, name) in &ids {
        let Some(name) = name else {
            let key = memory.u32(id.description + DESCRIBED_KEY).context("reading a description")?;
            wrong.push(format!("{} (key {key})", id.name));
            continue;
        };
        // The table also has the ids of rw-locks, whose instruments are not mutexes.
        let bare = name.event.rsplit('/').next().unwrap_or_default();
        let registered = instruments.iter().any(|i| i.ends_with(&format!("/innodb/{bare}")));
        let key = memory.u32(id.description + DESCRIBED_KEY).context("reading a description")?;
        // In MariaDB, the key of an uninstrumented latch is all ones.
        if registered != (key != 0 && key != u32::MAX) {
            wrong.push(format!("{} (key {key}): {}", id.name, name.event));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// Runs [`latch_ids_agree`] on a server of any release, if it has a table of latch ids.
pub(crate) fn any_latch_ids_agree(server: &Server) -> Result<()> {
    match open(server)?.0.image.symbol("latch_meta") {
        Some(_) => latch_ids_agree(server, 80).context("latch ids"),
        None => Ok(()),
    }
}

/// Where a server keeps the facts about an rw-lock, as offsets.
struct RwLockLayout {
    /// The first lock, in the list.
    first: u64,
    /// The next lock in the list, in a lock.
    next: u64,
    /// The file that created the lock, in the lock.
    file: u64,
    /// The line that created the lock, in the lock, as a bit field.
    line: u64,
    line_bits: u32,
    /// performance_schema's object, in the lock.
    psi: u64,
    /// The instrument's class, in performance_schema's object.
    class: u64,
    /// The event name, in the class.
    name: u64,
}

const MYSQL_RW_LOCK: RwLockLayout =
    RwLockLayout { first: 0, next: 0x68, file: 0x30, line: 0x38, line_bits: 32, psi: 0x70, class: 0x20, name: 0x18 };

/// From the debug info of 10.2.11.
const MARIADB_10_2_RW_LOCK: RwLockLayout =
    RwLockLayout { first: 8, next: 104, file: 56, line: 80, line_bits: 13, psi: 112, class: 16, name: 16 };

/// Where an rw-lock was created, and its event name if it has one.
struct RwLock {
    file: u64,
    line: u32,
    event: Option<String>,
}

/// Returns all rw-locks in the server's own list.
fn rw_locks(target: &Target, layout: &RwLockLayout) -> Result<Vec<RwLock>> {
    let memory = Memory::new(target.pid);
    let list = target.image.symbol("rw_lock_list").context("no rw_lock_list")?.addr + target.bias;
    let mut found = Vec::new();
    let mut at = memory.u64(list + layout.first).context("reading the list")?;
    while at != 0 && found.len() < 1_000_000 {
        let event = memory.u64(at + layout.psi).filter(|&psi| psi != 0).and_then(|psi| {
            let class = memory.u64(psi + layout.class)?;
            memory.string(class + layout.name)
        });
        let line = memory.u64(at + layout.line).context("reading a lock")? as u32 & u32::MAX >> (32 - layout.line_bits);
        found.push(RwLock { file: memory.u64(at + layout.file).context("reading a lock")?, line, event });
        at = memory.u64(at + layout.next).context("reading a lock")?;
    }
    Ok(found)
}

fn rw_locks_agree(server: &Server, layout: &RwLockLayout) -> Result<()> {
    let (target, mut namer) = open(server)?;
    let locks = rw_locks(&target, layout)?;
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
    Ok(())
}

/// performance_schema has the address of each rw-lock. The namer must find its name from the structure that contains
/// it, as it does with performance_schema off.
fn structures_give_names(server: &Server) -> Result<()> {
    let mut load = Load::start(server, "oltp_read_write", 4)?;
    load.wait_running()?;
    let (target, mut namer) = open(server)?;
    let rows = server.query(
        "SELECT NAME, OBJECT_INSTANCE_BEGIN FROM performance_schema.rwlock_instances WHERE NAME LIKE '%/innodb/%'",
    )?;
    let mut seen = BTreeSet::new();
    let mut unnamed = BTreeSet::new();
    for row in &rows {
        let [event, address] = &row[..] else { anyhow::bail!("{row:?}") };
        // The lock word follows the pointer to performance_schema's object.
        let word = address.parse::<u64>()? + 8;
        let is_static = target.image.is_static_data(word.wrapping_sub(target.bias));
        // A latch on the heap is identified by its waiter's code; each one here gets its own identity. Most latches in
        // static data must be named by their structure too.
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
    Ok(())
}

/// performance_schema has the address of each of InnoDB's mutexes. Those in static data must be named by their address
/// alone, as with performance_schema off.
fn static_mutexes_agree(server: &Server) -> Result<()> {
    let (target, mut namer) = open(server)?;
    let rows = server.query(
        "SELECT NAME, OBJECT_INSTANCE_BEGIN FROM performance_schema.mutex_instances WHERE NAME LIKE '%/innodb/%'",
    )?;
    let mut seen = BTreeSet::new();
    for row in &rows {
        let [event, address] = &row[..] else { anyhow::bail!("{row:?}") };
        let address = address.parse::<u64>()?;
        if !target.image.is_static_data(address.wrapping_sub(target.bias)) {
            continue;
        }
        let identity = Identity::Static(address);
        let name = wait_for("the name of a lock", Duration::from_secs(30), || {
            Ok(namer.pthread_lock(&identity, Some(Kind::Mutex)))
        })?;
        let name = name.event;
        // A name may be missing if the code creates the mutex in an unusual way, but it must not be wrong.
        if name.starts_with("unnamed:") {
            println!("{event} is {name}");
            continue;
        }
        ensure!(name == *event, "{name} is {event}");
        seen.insert(name);
    }
    println!("{seen:#?}");
    ensure!(seen.len() >= 10, "only {seen:?}");
    Ok(())
}

/// With performance_schema on, every lock that the code creates in static data is followed by a pointer to its
/// performance_schema instance, which leads to its event name.
fn static_locks_agree(server: &Server, least: usize) -> Result<()> {
    let (target, _) = open(server)?;
    let (image, memory, class) = (&target.image, Memory::new(target.pid), target.family.pthread.class);
    let locks = locks(image, &Instruments::new(image, &image.static_pointers()));
    let mut right = 0;
    for (at, name) in &locks.statics {
        // The sizes of the C library's locks on x86-64.
        let size = match name.kind {
            Kind::Mutex => 40,
            Kind::Rwlock => 56,
            _ => 48,
        };
        let instance = memory.u64(at + target.bias + size).filter(|&instance| instance != 0);
        let event = instance.and_then(|instance| {
            let class_at = memory.u64(instance + u64::from(class.to_class))?;
            memory.string(class_at + u64::from(class.to_name)).filter(|event| event.starts_with("wait/synch/"))
        });
        // Some locks are created only on first use.
        let Some(event) = event else { continue };
        ensure!(event == name.event, "{} is {event}, at {at:#x}", name.event);
        right += 1;
    }
    println!("{right} of {}", locks.statics.len());
    ensure!(right >= least, "only {right} of {} could be compared", locks.statics.len());
    Ok(())
}

/// A global lock whose symbol has the name of an instrument must have that instrument's event name.
fn globals_agree(server: &Server) -> Result<()> {
    let events = instruments(server)?;
    let (target, mut namer) = open(server)?;
    let mut named = 0;
    for symbol in target.image.symbols().filter(|s| target.image.is_static_data(s.addr)) {
        for (kind, word) in [(Kind::Mutex, 0), (Kind::Rwlock, 8), (Kind::Cond, 0x28)] {
            let same = |e: &&String| {
                e.starts_with(&format!("wait/synch/{}/", kind.as_str())) && e.rsplit('/').next() == Some(symbol.name)
            };
            let Some(event) = events.iter().find(same) else { continue };
            let identity = Identity::Static(symbol.addr + target.bias + word);
            let name = wait_for("the name of a lock", Duration::from_secs(30), || {
                Ok(namer.pthread_lock(&identity, Some(kind)))
            })?;
            let name = name.event;
            ensure!(name == *event || name.starts_with("unnamed:"), "{name} is {event}");
            named += usize::from(name == *event);
        }
    }
    println!("{named} global locks");
    ensure!(named >= 50, "only {named} global locks have names");
    Ok(())
}

/// Debian's build has no symbols for its latches, and its performance_schema has no addresses, only the number of
/// latches of each name. The test finds the addresses from performance_schema's objects in memory.
fn structures_give_names_without_symbols(server: &Server) -> Result<()> {
    let mut load = Load::start(server, "oltp_read_write", 4)?;
    load.wait_running()?;
    let (target, mut namer) = open(server)?;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for (word, event) in instrumented_latches(&target)? {
        let is_static = target.image.is_static_data(word.wrapping_sub(target.bias));
        let mut name = namer.name(&Identity::Caller(word), word).event;
        if is_static && name.starts_with("unnamed:") {
            name = namer.name(&Identity::Static(word), word).event;
        }
        if !name.starts_with("unnamed:") {
            ensure!(name == event, "{name} is {event}, at {word:#x}");
            *seen.entry(name).or_default() += 1;
        }
    }
    let rows = server.query(
        "SELECT NAME, COUNT(*) FROM performance_schema.rwlock_instances WHERE NAME LIKE '%/innodb/%' GROUP BY NAME",
    )?;
    load.stop()?;
    println!("{seen:#?}");
    for row in &rows {
        let [event, count] = &row[..] else { anyhow::bail!("{row:?}") };
        // In this build, only performance_schema names the latches of the adaptive hash index and of the change
        // buffer's index.
        let expected = match event.rsplit('/').next() {
            Some("btr_search_latch") => 0,
            Some("index_tree_rw_lock") => count.parse::<u64>()? - 1,
            _ => count.parse()?,
        };
        ensure!(seen.get(event).copied().unwrap_or_default() == expected, "{seen:?}, but {count} {event}");
    }
    ensure!(rows.len() >= 7, "{rows:?}");
    Ok(())
}

/// Finds InnoDB's instrumented rw-locks in a server's memory and returns their lock words and event names. Each begins
/// with a pointer to its performance_schema object. The result includes copies of such pointers on threads' stacks.
fn instrumented_latches(target: &Target) -> Result<Vec<(u64, String)>> {
    const TO_CLASS: u64 = 24;
    const TO_NAME: u64 = 20;
    const WORD: u64 = 8;
    let memory = Memory::new(target.pid);
    let mut classes: BTreeMap<u64, Option<String>> = BTreeMap::new();
    let mut found = Vec::new();
    for (start, bytes) in writable_memory(target.pid)? {
        for (at, pointer) in (start..).step_by(8).zip(bytes.chunks_exact(8)) {
            let object = u64::from_le_bytes(pointer.try_into()?);
            // Most words are not addresses of such objects, which are aligned. Reading every one would take minutes.
            if object % 64 != 0 || !(1 << 30..1 << 47).contains(&object) {
                continue;
            }
            let Some(class) = memory.u64(object + TO_CLASS).filter(|class| class % 4 == 0 && *class != 0) else {
                continue;
            };
            let event = classes.entry(class).or_insert_with(|| memory.string(class + TO_NAME)).clone();
            let is_rwlock =
                |e: &String| e.starts_with("wait/synch/rwlock/innodb/") || e.starts_with("wait/synch/sxlock/innodb/");
            found.extend(event.filter(is_rwlock).map(|event| (at + WORD, event)));
        }
    }
    Ok(found)
}

/// Returns a process's private writable memory except for very large mappings, which contain no latches: the buffer
/// pool.
fn writable_memory(pid: i32) -> Result<Vec<(u64, Vec<u8>)>> {
    const LARGEST: u64 = 128 << 20;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut found = Vec::new();
    for line in maps.lines().filter(|l| l.contains(" rw-p ") && !l.contains("[stack")) {
        let range = line.split_whitespace().next().and_then(|r| r.split_once('-')).context("a line of maps")?;
        let (start, end) = (u64::from_str_radix(range.0, 16)?, u64::from_str_radix(range.1, 16)?);
        let mut bytes = vec![0; (end - start).min(LARGEST + 1) as usize];
        // The mapping may be gone by now.
        if end - start <= LARGEST && memory.read_exact_at(&mut bytes, start).is_ok() {
            found.push((start, bytes));
        }
    }
    Ok(found)
}

/// Starts one server for all comparisons with its instruments.
fn instruments_agree(release: Release, agree: impl FnOnce(&Server) -> Result<()>) -> Result<()> {
    let server = Server::start(release, &options(true))?;
    agree(&server)?;
    server.stop()
}

#[test]
fn mysql_names_are_those_of_its_instruments() -> Result<()> {
    instruments_agree(Release::MYSQL_9_7, |server| {
        latch_ids_agree(server, 100).context("latch ids")?;
        rw_locks_agree(server, &MYSQL_RW_LOCK).context("rw-locks")?;
        static_locks_agree(server, 60).context("static locks")?;
        globals_agree(server).context("global locks")
    })
}

#[test]
fn mariadb_11_4_names_are_those_of_its_instruments() -> Result<()> {
    instruments_agree(Release::MARIADB_11_4, |server| {
        structures_give_names(server).context("structures")?;
        static_mutexes_agree(server).context("static mutexes")?;
        static_locks_agree(server, 60).context("static locks")?;
        globals_agree(server).context("global locks")
    })
}

#[test]
fn mariadb_10_11_names_are_those_of_its_instruments() -> Result<()> {
    instruments_agree(Release::MARIADB_10_11, |server| {
        structures_give_names(server).context("structures")?;
        static_mutexes_agree(server).context("static mutexes")?;
        static_locks_agree(server, 60).context("static locks")
    })
}

#[test]
fn a_stripped_mariadbs_names_are_those_of_its_instruments() -> Result<()> {
    instruments_agree(Release::MARIADB_10_11_DEBIAN, |server| {
        structures_give_names_without_symbols(server).context("structures")?;
        static_locks_agree(server, 60).context("static locks")
    })
}

#[test]
fn mariadb_10_2_names_are_those_of_its_instruments() -> Result<()> {
    instruments_agree(Release::MARIADB_10_2, |server| {
        latch_ids_agree(server, 80).context("latch ids")?;
        rw_locks_agree(server, &MARIADB_10_2_RW_LOCK).context("rw-locks")?;
        static_locks_agree(server, 40).context("static locks")
    })
}

/// The least share of the wait time outside the allocator that must have a name.
const LEAST_NAMED: f64 = 0.95;

/// The two words of one condition variable on which threads sleep lie side by side. Checks that no two names stand for
/// the same eight bytes of a variable.
fn each_has_one_name<'a>(names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        let Some((variable, offset)) = name.split_once("+0x") else { continue };
        let offset = u64::from_str_radix(offset, 16).with_context(|| name.clone())?;
        ensure!(seen.insert((variable, offset & !7)), "{name} has another name too");
    }
    Ok(())
}

/// Checks the names of waits with performance_schema off and every commit flushed to log and binlog.
fn waits_are_named(release: Release) -> Result<()> {
    let args = ["--log-bin=bin", "--server-id=1", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"];
    let server = Server::start(release, &Options { args: args.map(str::to_owned).to_vec(), ..options(false) })?;
    let version = server.query("SELECT VERSION()")?;
    ensure!(version[0][0].starts_with(release.version()), "{version:?}");
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    std::thread::sleep(Duration::from_secs(3));
    // Committing threads wait for the leader of their group; waits for the binary log itself are rarer.
    let samples = wait_for("a wait for the binary log", Duration::from_secs(60), || {
        let samples = agent.scrape()?;
        let is_seen = |sample: &Sample| sample.labels.get("latch").is_some_and(|latch| latch.ends_with("LOCK_log"));
        Ok(samples.iter().any(is_seen).then_some(samples))
    })?;
    load.stop()?;
    let conditions = by_latch(&samples, "armtrace_cond_wait_seconds_count");
    each_has_one_name(conditions.keys()).with_context(|| format!("{conditions:?}"))?;
    let mut sums = by_latch(&samples, "armtrace_latch_wait_seconds_sum");
    sums.retain(|latch, _| latch != "unnamed:malloc");
    let all: f64 = sums.values().sum();
    let unnamed: f64 = sums.iter().filter(|(latch, _)| latch.starts_with("unnamed:")).map(|(_, s)| s).sum();
    let named = 1.0 - unnamed / all;
    println!("{}: {:.2} % of {all:.3} s: {sums:#?}", release.name(), 100.0 * named);
    ensure!(all > 0.0 && named >= LEAST_NAMED, "{unnamed:.3} s of {all:.3} s have no name: {sums:?}");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn waits_are_named_on_every_server() -> Result<()> {
    Release::chosen().try_for_each(|release| waits_are_named(release).with_context(|| release.name()))
}

/// With performance_schema off, every latch id and every rw-lock still has a name.
#[test]
fn mysql_names_need_no_performance_schema() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &options(false))?;
    let (target, mut namer) = open(&server)?;
    let ids = namer.latch_ids().context("no latch ids")?;
    let memory = Memory::new(target.pid);
    let is_off = |id: &LatchId| memory.u32(id.description + DESCRIBED_KEY) == Some(0);
    ensure!(ids.iter().all(|(id, _)| is_off(id)), "performance_schema is on");
    for (id, _) in &ids {
        let name = namer.name(&Identity::LatchId(id.id), 0).event;
        ensure!(name.starts_with("wait/synch/mutex/innodb/"), "{}: {name}", id.name);
    }
    for lock in rw_locks(&target, &MYSQL_RW_LOCK)? {
        let name = namer.name(&Identity::Created { file: lock.file, line: lock.line }, 0).event;
        ensure!(name.starts_with("wait/synch/sxlock/innodb/"), "{name}");
    }
    server.stop()
}

//! Connections and tables that come and go, as over weeks: every counter must only rise, and nothing may fill up.
//!
//! `make chaos` makes a hundred thousand connections and twenty thousand tables, the tests that everybody runs a small
//! part of these: `ARMTRACE_CHURN` is the number of tables, each of which stands for five connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts};

use lab::agent::Agent;
use lab::counters::Counters;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The number of tables unless told otherwise.
const TABLES: usize = 300;
const CONNECTIONS_PER_TABLE: usize = 5;
/// From this number of tables on, the run is long enough to judge memory by it.
const LONG: usize = 5000;
/// The least time of a run: quick servers get more tables and connections than told.
const LEAST_TIME: Duration = Duration::from_secs(12);
/// The number of clients that connect at the same time.
const CLIENTS: usize = 16;
/// The number of tables that there are at the same time.
const ALIVE: usize = 50;
/// The interval between two cut-overs, each of which stands for a minute.
const CUT_OVER: Duration = Duration::from_secs(3);
/// The most series of counters: what `docs/reference/metrics.md` allows, with all buckets, is far more.
const MOST_SERIES: usize = 12_000;
/// The most memory, in KiB, that the second half may take in addition to the first.
const MORE_MEMORY: u64 = 4096;

const SCHEMA: &str = "(id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, c VARCHAR(60) NOT NULL, KEY k_1 (k))";

/// What is done to the server.
struct Churn {
    url: String,
    tables: usize,
    began: Instant,
    connections: AtomicUsize,
    made: AtomicUsize,
    cut_overs: AtomicUsize,
    is_over: AtomicBool,
}

impl Churn {
    fn new(server: &Server, tables: usize) -> Churn {
        let url = format!("mysql://root@localhost/churn?socket={}", server.socket().display());
        let zero = AtomicUsize::default;
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        Churn { url, tables, began, connections: zero(), made: zero(), cut_overs: zero(), is_over }
    }

    /// Whether more is to be done, after so many of all.
    fn goes_on(&self, done: usize, all: usize) -> bool {
        done < all || self.began.elapsed() < LEAST_TIME
    }

    fn connect(&self) -> Result<Conn> {
        Ok(Conn::new(Opts::from_url(&self.url)?)?)
    }

    /// Connects for one statement again and again. Each waits for the same pages as the others.
    fn connections(&self) -> Result<()> {
        while self.goes_on(self.connections.load(Ordering::Relaxed), CONNECTIONS_PER_TABLE * self.tables) {
            self.connections.fetch_add(1, Ordering::Relaxed);
            let newest = self.made.load(Ordering::Relaxed).saturating_sub(1);
            let mut client = self.connect()?;
            client.query_drop("INSERT INTO hot (k, c) VALUES (FLOOR(RAND() * 1000), REPEAT('x', 50))")?;
            // It may have gone meanwhile.
            let insert = format!("INSERT INTO t{newest} (k, c) VALUES (FLOOR(RAND() * 1000), REPEAT('y', 50))");
            if let Err(error) = client.query_drop(insert) {
                ensure!(matches!(&error, mysql::Error::MySqlError(why) if why.code == 1146), "{error}");
            }
        }
        Ok(())
    }

    /// Makes tables, and drops those that have been there for a while.
    fn tables(&self) -> Result<()> {
        let mut client = self.connect()?;
        for table in (0..).take_while(|table| self.goes_on(*table, self.tables)) {
            client.query_drop(format!("CREATE TABLE t{table} {SCHEMA}"))?;
            self.made.store(table + 1, Ordering::Relaxed);
            if let Some(old) = table.checked_sub(ALIVE) {
                client.query_drop(format!("DROP TABLE t{old}"))?;
            }
        }
        Ok(())
    }

    /// Lets a copy of the table take its place, as gh-ost does.
    fn cut_overs(&self) -> Result<()> {
        let mut client = self.connect()?;
        while !self.is_over.load(Ordering::Relaxed) {
            for sql in [
                "CREATE TABLE _hot_gho LIKE hot",
                "INSERT INTO _hot_gho (k, c) VALUES (1, 'copied')",
                "RENAME TABLE hot TO _hot_del, _hot_gho TO hot",
                "DROP TABLE _hot_del",
            ] {
                client.query_drop(sql).with_context(|| sql.to_owned())?;
            }
            self.cut_overs.fetch_add(1, Ordering::Relaxed);
            sleep(CUT_OVER);
        }
        Ok(())
    }
}

/// The size of an agent at one moment.
#[derive(Clone, Debug, Default)]
struct Size {
    series: usize,
    resident_kib: u64,
    /// The entries of each of the programs' maps, by the map's name.
    entries: BTreeMap<String, usize>,
    scrape: Duration,
}

impl Size {
    fn of(agent: &Agent, counters: &mut Counters) -> Result<Size> {
        let began = Instant::now();
        let metrics = agent.metrics()?;
        let scrape = began.elapsed();
        counters.check(&metrics)?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no memory")?;
        let resident_kib = resident.trim().trim_end_matches(" kB").parse()?;
        Ok(Size { series: counters.len(), resident_kib, entries: entries(agent.pid())?, scrape })
    }

    /// Returns the largest of each figure.
    fn largest(sizes: &[Size]) -> Size {
        let mut largest = Size::default();
        for size in sizes {
            largest.series = largest.series.max(size.series);
            largest.resident_kib = largest.resident_kib.max(size.resident_kib);
            largest.scrape = largest.scrape.max(size.scrape);
            for (map, entries) in &size.entries {
                let most = largest.entries.entry(map.clone()).or_default();
                *most = (*most).max(*entries);
            }
        }
        largest
    }
}

/// Returns a process's hash maps of threads and of waits, by name.
fn maps(pid: i32) -> Result<BTreeMap<String, MapHandle>> {
    let mut maps = BTreeMap::new();
    for info in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
        let info = std::fs::read_to_string(info.path()).unwrap_or_default();
        let Some(id) = info.lines().find_map(|line| line.strip_prefix("map_id:")) else { continue };
        let map = MapHandle::from_map_id(id.trim().parse()?)?;
        let name = map.name().to_string_lossy().into_owned();
        if ["threads", "latches", "callsites", "pages", "words"].contains(&name.as_str()) {
            maps.insert(name, map);
        }
    }
    Ok(maps)
}

/// Returns the number of entries in each of these maps.
fn entries(pid: i32) -> Result<BTreeMap<String, usize>> {
    Ok(maps(pid)?.into_iter().map(|(name, map)| (name, map.keys().count())).collect())
}

fn churn(release: Release) -> Result<()> {
    let tables = std::env::var("ARMTRACE_CHURN").map_or(Ok(TABLES), |tables| tables.parse())?;
    let server = Server::start(release, &Options { defaults: true, ..Options::default() })?;
    server.query(&format!("CREATE DATABASE churn; CREATE TABLE churn.hot {SCHEMA}"))?;
    let agent = Agent::attach(&server)?;
    let churn = Churn::new(&server, tables);
    let mut counters = Counters::default();
    let mut sizes = Vec::new();
    let result = scope(|scope| {
        let cut_overs = scope.spawn(|| churn.cut_overs());
        let mut workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| churn.connections())).collect();
        workers.push(scope.spawn(|| churn.tables()));
        let scraped = (|| -> Result<()> {
            while workers.iter().any(|worker| !worker.is_finished()) {
                sizes.push(Size::of(&agent, &mut counters)?);
                sleep(Duration::from_secs(1));
            }
            Ok(())
        })();
        churn.is_over.store(true, Ordering::Relaxed);
        // All of them end by themselves.
        let ended = workers.into_iter().chain([cut_overs]).map(|worker| worker.join().expect("a client has panicked"));
        ended.fold(scraped, Result::and)
    });
    result?;
    let cut_overs = churn.cut_overs.load(Ordering::Relaxed);
    println!(
        "{}: {:?} connections, {:?} tables, {cut_overs} cut-overs in {:?}",
        release.name(),
        churn.connections,
        churn.made,
        churn.began.elapsed()
    );
    let halves = sizes.split_at(sizes.len() / 2);
    let [first, second] = [halves.0, halves.1].map(Size::largest);
    let last = Size::of(&agent, &mut counters)?;
    println!("first half:  {first:?}\nsecond half: {second:?}\nat the end:  {last:?}");
    ensure!(cut_overs > 0 && sizes.len() >= 4, "too short: {} scrapes, {cut_overs} cut-overs", sizes.len());
    ensure!(second.series <= MOST_SERIES, "{} series", second.series);
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid()))?.count();
    let of_threads = last.entries.get("threads").copied().context("no map of threads")?;
    ensure!(of_threads <= threads + CLIENTS, "{of_threads} threads in the map, and {threads} in the server");
    if tables >= LONG {
        ensure!(second.resident_kib <= first.resident_kib + MORE_MEMORY, "memory: {first:?}, then {second:?}");
        ensure!(10 * second.series <= 11 * first.series, "series: {first:?}, then {second:?}");
        for (map, entries) in &second.entries {
            let before = first.entries.get(map).copied().unwrap_or(0);
            // The map of pages fills up to three quarters, and is then made to have room again.
            let may_grow = map == "pages" && *entries < 3200;
            ensure!(may_grow || *entries <= before + before / 4 + 50, "{map} has {entries} entries, and had {before}");
        }
    }
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn figures_stay_right_while_tables_and_connections_of_mysql_come_and_go() -> Result<()> {
    churn(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn figures_stay_right_while_tables_and_connections_of_mariadb_come_and_go() -> Result<()> {
    churn(Release::MARIADB_11_4)
}

/// What finds no room is counted as such, and not as what found a place that was being changed.
#[test]
fn a_full_map_is_told_apart_from_a_busy_one() -> Result<()> {
    /// More than the number of a thread can be.
    const NO_THREAD: u32 = 1 << 23;
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let agent = Agent::attach_without_budget(&server)?;
    let threads = maps(agent.pid())?.remove("threads").context("no map of threads")?;
    let nothing = vec![0; threads.value_size() as usize];
    let is_full = (NO_THREAD..2 * NO_THREAD)
        .any(|thread| threads.update(&thread.to_ne_bytes(), &nothing, MapFlags::NO_EXIST).is_err());
    ensure!(is_full, "the map of threads is not bounded");
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let lost = |reason: &str| -> Result<f64> {
        let series = format!("armtrace_lost_events_total{{reason=\"{reason}\"}} ");
        let metrics = agent.metrics()?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
        Ok(value.with_context(|| format!("no {reason}"))?.parse()?)
    };
    wait_for("threads without room", Duration::from_secs(20), || Ok((lost("threads_full")? > 100.0).then_some(())))?;
    let (full, busy) = (lost("threads_full")?, lost("map_busy")?);
    ensure!(busy < 0.01 * full, "{full} found no room, {busy} a busy place");
    load.stop()?;
    agent.stop()?;
    server.stop()
}

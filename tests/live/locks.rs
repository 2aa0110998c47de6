//! Waits for row locks and metadata locks agree with what servers count themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, sleep, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::measure::locks::LockBlocker;
use armtrace::recording::{self, Recording};
use armtrace::server::cpu_time_ns;

use lab::agent::{doctor, Agent, Sample};
use lab::load::Load;
use lab::machine::patience;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

use crate::recordings::Recorder;

const ROW: &str = "row lock";
const TABLE: &str = "table metadata lock";
const WAITING: &str = "armtrace_lock_waiting_threads";
const LONGEST: &str = "armtrace_lock_longest_current_wait_seconds";

/// The longest time until a wait is seen.
const LIMIT: Duration = Duration::from_secs(10);
/// The most by which the time may differ from the server's own, and what each wait may take beyond that: a sleep ends
/// some time before its statement, and servers count milliseconds.
const TOLERANCE: f64 = 0.05;
const EACH: f64 = 0.003;

/// How long an answer to a scrape may be used for the next one.
const NEW_FIGURES: Duration = Duration::from_millis(1100);

/// How often threads waited, and for how many seconds.
type Waited = (f64, f64);

fn of(samples: &[Sample], name: &str, lock: &str) -> Option<f64> {
    let is_it = |s: &&Sample| s.name == name && s.labels.get("lock").is_some_and(|label| label == lock);
    samples.iter().find(is_it).map(|s| s.value)
}

/// Returns the waits for each lock.
fn measured(agent: &Agent) -> Result<BTreeMap<String, Waited>> {
    let samples = agent.scrape()?;
    let locks = samples.iter().filter(|s| s.name == "armtrace_lock_wait_seconds_count");
    let waited = |s: &Sample| {
        let lock = s.labels.get("lock").context("no lock")?.clone();
        let seconds = of(&samples, "armtrace_lock_wait_seconds_sum", &lock).context("no sum")?;
        Ok((lock, (s.value, seconds)))
    };
    locks.map(waited).collect()
}

/// Returns the waits for one lock, in a scrape that is answered with new figures.
fn waits_for(agent: &Agent, lock: &str) -> Result<Waited> {
    sleep(NEW_FIGURES);
    measured(agent)?.get(lock).copied().with_context(|| format!("no series for {lock}"))
}

/// Returns InnoDB's own count of waits for row locks.
fn counted_by_innodb(server: &Server) -> Result<Waited> {
    let [waits, ms] = [server.status("Innodb_row_lock_waits")?, server.status("Innodb_row_lock_time")?];
    Ok((waits as f64, ms as f64 / 1e3))
}

/// Returns performance_schema's own count of waits for metadata locks of all kinds.
fn counted_by_performance_schema(server: &Server) -> Result<Waited> {
    let rows = server.query(
        "SELECT COUNT_STAR, SUM_TIMER_WAIT / 1e12 FROM performance_schema.events_waits_summary_global_by_event_name
         WHERE EVENT_NAME = 'wait/lock/metadata/sql/mdl'",
    )?;
    let [waits, seconds] = &rows.first().context("no such instrument")?[..] else { anyhow::bail!("{rows:?}") };
    Ok((waits.parse()?, seconds.parse()?))
}

fn minus(now: Waited, before: Waited) -> Waited {
    (now.0 - before.0, now.1 - before.1)
}

/// The count is the server's, and the time nearly so.
fn agree(what: &str, ours: Waited, theirs: Waited) -> Result<()> {
    println!("{what}: {} waits in {:.3} s, the server {} in {:.3} s", ours.0, ours.1, theirs.0, theirs.1);
    ensure!(ours.0 == theirs.0, "{what}: {} waits, the server counts {}", ours.0, theirs.0);
    let most = TOLERANCE * theirs.1 + EACH * theirs.0;
    ensure!((ours.1 - theirs.1).abs() <= most, "{what}: {:.3} s, the server {:.3} s", ours.1, theirs.1);
    Ok(())
}

/// Starts a server with a table of a few rows, and the agent.
fn start(release: Release) -> Result<(Server, Agent)> {
    let server = Server::start(release, &Options { perf_schema: true, ..Options::default() })?;
    server.query(
        "UPDATE performance_schema.setup_instruments SET ENABLED = 'YES', TIMED = 'YES'
         WHERE NAME = 'wait/lock/metadata/sql/mdl';
         CREATE DATABASE locks; CREATE TABLE locks.t (id INT PRIMARY KEY, n INT);
         INSERT INTO locks.t VALUES (1, 0), (2, 0), (3, 0)",
    )?;
    let agent = Agent::attach(&server)?;
    Ok((server, agent))
}

/// Runs statements in a session of their own meanwhile.
fn meanwhile<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    server: &'scope Server,
    sql: String,
) -> ScopedJoinHandle<'scope, Result<Vec<Vec<String>>>> {
    scope.spawn(move || server.query(&sql))
}

/// Returns once so many threads wait for a lock.
fn until_waiting(agent: &Agent, lock: &str, threads: f64) -> Result<()> {
    wait_for(&format!("{threads} threads that wait for a {lock}"), LIMIT, || {
        Ok((of(&agent.scrape()?, WAITING, lock) == Some(threads)).then_some(()))
    })
}

fn update(id: u32) -> String {
    format!("UPDATE locks.t SET n = n + 1 WHERE id = {id};")
}

/// A session holds a row ten times for 300 ms, for which another waits each time.
fn conflicts(server: &Server) -> Result<()> {
    let hold = format!("BEGIN; {} DO SLEEP(0.3); COMMIT; DO SLEEP(0.1);", update(1));
    let want = format!("DO SLEEP(0.2); {} DO SLEEP(0.15);", update(1));
    thread::scope(|scope| {
        let holder = meanwhile(scope, server, hold.repeat(10));
        let waiter = meanwhile(scope, server, want.repeat(10));
        holder.join().expect("no panic")?;
        waiter.join().expect("no panic").map(|_| ())
    })
}

/// A wait that goes on is seen, and ends with an error after a second.
fn timeout(server: &Server, agent: &Agent) -> Result<()> {
    thread::scope(|scope| {
        let holder = meanwhile(scope, server, format!("BEGIN; {} DO SLEEP(2.5); COMMIT", update(1)));
        sleep(Duration::from_millis(300));
        let sql = format!("SET innodb_lock_wait_timeout = 1; {}", update(1));
        let waiter = meanwhile(scope, server, sql);
        until_waiting(agent, ROW, 1.0)?;
        let longest = of(&agent.scrape()?, LONGEST, ROW).context("no longest wait")?;
        ensure!(longest > 0.0 && longest < 3.0, "{longest} s");
        let error = waiter.join().expect("no panic").expect_err("a timeout").to_string();
        ensure!(error.contains("1205"), "{error}");
        holder.join().expect("no panic").map(|_| ())
    })
}

/// Two sessions wait for each other: one of them gets an error, the other its row.
fn deadlock(server: &Server) -> Result<()> {
    let both = |first, second| format!("BEGIN; {} DO SLEEP(0.4); {} COMMIT", update(first), update(second));
    thread::scope(|scope| {
        let sessions = [both(1, 2), both(2, 1)].map(|sql| meanwhile(scope, server, sql));
        let results = sessions.map(|session| session.join().expect("no panic"));
        let errors: Vec<String> = results.iter().filter_map(|r| r.as_ref().err().map(ToString::to_string)).collect();
        ensure!(errors.len() == 1 && errors[0].contains("1213"), "{errors:?}");
        Ok(())
    })
}

/// `ALTER TABLE` waits for a session that has locked the table, in pieces of a second.
fn metadata(server: &Server, agent: &Agent) -> Result<()> {
    thread::scope(|scope| {
        let lock = "LOCK TABLES locks.t READ; DO SLEEP(2.6); UNLOCK TABLES".to_owned();
        let holder = meanwhile(scope, server, lock);
        sleep(Duration::from_millis(300));
        let alter = meanwhile(scope, server, "ALTER TABLE locks.t ADD COLUMN more INT".to_owned());
        until_waiting(agent, TABLE, 1.0)?;
        alter.join().expect("no panic")?;
        holder.join().expect("no panic").map(|_| ())
    })
}

/// A session waits for another's lock of a name that users give.
fn user_lock(server: &Server) -> Result<()> {
    thread::scope(|scope| {
        let holder = meanwhile(scope, server, "SELECT GET_LOCK('a', 1); DO SLEEP(0.8)".to_owned());
        sleep(Duration::from_millis(300));
        let waiter = meanwhile(scope, server, "SELECT GET_LOCK('a', 10)".to_owned());
        waiter.join().expect("no panic")?;
        holder.join().expect("no panic").map(|_| ())
    })
}

/// Row locks and metadata locks, and that nothing else counts.
fn locks_agree_with_the_server(release: Release) -> Result<()> {
    let (server, agent) = start(release)?;
    let first = waits_for(&agent, ROW)?;
    ensure!(first == (0.0, 0.0), "{first:?}");
    server.query(&update(3).repeat(200))?;
    server.query("ALTER TABLE locks.t COMMENT 'nobody uses it'")?;
    let quiet = measured(&agent)?;
    ensure!(quiet.values().all(|waited| *waited == (0.0, 0.0)), "nobody waited: {quiet:?}");

    let mut before = counted_by_innodb(&server)?;
    let mut ours = waits_for(&agent, ROW)?;
    let mut step = |what: &str, least: f64, act: &dyn Fn() -> Result<()>| -> Result<()> {
        act()?;
        let (now, theirs) = (waits_for(&agent, ROW)?, counted_by_innodb(&server)?);
        let waited = minus(now, ours);
        agree(&format!("{} {what}", release.name()), waited, minus(theirs, before))?;
        ensure!(waited.0 >= least, "{what}: too few waits");
        (ours, before) = (now, theirs);
        Ok(())
    };
    step("conflicts", 5.0, &|| conflicts(&server))?;
    step("timeout", 1.0, &|| timeout(&server, &agent))?;
    step("deadlock", 1.0, &|| deadlock(&server))?;

    let before = counted_by_performance_schema(&server)?;
    metadata(&server, &agent)?;
    let table = waits_for(&agent, TABLE)?;
    let theirs = minus(counted_by_performance_schema(&server)?, before);
    agree(&format!("{} metadata", release.name()), table, theirs)?;
    ensure!(table.0 >= 1.0 && table.1 >= 1.5, "{table:?}");
    user_lock(&server)?;
    let user = waits_for(&agent, "user lock")?;
    ensure!(user.0 == 1.0 && (0.2..2.0).contains(&user.1), "{user:?}");
    sleep(NEW_FIGURES);
    let waiting = agent.scrape()?.iter().filter(|s| s.name == WAITING).map(|s| s.value).sum::<f64>();
    ensure!(waiting == 0.0, "{waiting} threads still wait");

    let report = doctor(server.pid())?;
    let probes = report["server"]["probes"].as_array().context("no probes")?;
    let has = |name: &str| probes.iter().any(|probe| probe["name"].as_str().is_some_and(|n| n.starts_with(name)));
    ensure!(has("mdl_timed_wait:begin") && has("lock_wait"), "{probes:?}");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn mysql_9_7_locks_agree_with_the_server() -> Result<()> {
    locks_agree_with_the_server(Release::MYSQL_9_7)
}

#[test]
fn mariadb_11_4_locks_agree_with_the_server() -> Result<()> {
    locks_agree_with_the_server(Release::MARIADB_11_4)
}

/// A schema change whose client has gone gives up between two steps of its wait, and does not wait for ever.
#[test]
fn who_gives_up_no_longer_waits() -> Result<()> {
    let (server, agent) = start(Release::MARIADB_11_4)?;
    let reader = server.session("BEGIN; SET @n = (SELECT COUNT(*) FROM locks.t)")?;
    let mut alter = server.session("DO 1")?;
    alter.send("ALTER TABLE locks.t ADD COLUMN more INT")?;
    until_waiting(&agent, TABLE, 1.0)?;
    alter.kill()?;
    until_waiting(&agent, TABLE, 0.0)?;
    drop(reader);
    server.query("ALTER TABLE locks.t ADD COLUMN more INT")?;
    ensure!(agent.stop()?.0.success());
    server.stop()
}

/// The connections for which others wait: two whose transactions have rows, of which one is idle and the other executes
/// `DO SLEEP`, and idle ones whose transaction has read a table, and that have a user lock.
struct Holding {
    idle: u32,
    executing: u32,
    reader: u32,
    user: u32,
}

/// Sessions wait for rows of two tables, for a table, and for a user lock, for seconds. `attach` is called when some of
/// them wait already.
fn wait_for_objects(server: &Server, attach: impl FnOnce() -> Result<Recorder>) -> Result<(Holding, Recorder)> {
    let order = |id| format!("UPDATE shop.orders SET n = n + 1 WHERE id = {id};");
    let [items, item] = [2, 3].map(|id| format!("SELECT id FROM shop.items WHERE id = {id};"));
    let locked_item = "SELECT id FROM shop.items FORCE INDEX (k_1) WHERE k = 1 FOR UPDATE;";
    let [gap, held] = [300, 4500].map(|ms| patience(Duration::from_millis(ms)));
    let hold = format!("DO SLEEP({})", held.as_secs_f64());
    // Transactions that hold other rows, and are older and newer than those that others wait for.
    let older = server.session(&format!("BEGIN; {}", order(2)))?;
    let idle = server.session(&format!("BEGIN; {}", order(1)))?;
    let mut executing = server.session("BEGIN; UPDATE shop.items SET n = 1 WHERE k = 1")?;
    let newer = server.session(&format!("BEGIN; {}", order(3)))?;
    let reader = server.session("BEGIN; SET @n = (SELECT COUNT(*) FROM shop.plain)")?;
    let user = server.session("DO GET_LOCK('job', 1)")?;
    let [idle_id, executing_id, reader_id, user_id] =
        [&idle, &executing, &reader, &user].map(|session| session.connection());
    let holding = Holding { idle: idle_id, executing: executing_id, reader: reader_id, user: user_id };
    executing.send(&hold)?;
    thread::scope(|scope| {
        let mut sessions = Vec::new();
        let mut begin = |sql: String| {
            sessions.push(meanwhile(scope, server, sql));
            sleep(gap);
        };
        // What a session did before leaves traces on its stack.
        for _ in 0..2 {
            begin(format!("{items} SELECT COUNT(*) FROM shop.plain; {}", order(1)));
        }
        begin("SELECT GET_LOCK('job', 100)".to_owned());
        let recorder = attach()?;
        begin(format!("SELECT * FROM shop.orders; {locked_item}"));
        // This one waits too, and another one for it.
        begin(format!("BEGIN; {} {}", item.replace(';', " FOR UPDATE;"), order(1)));
        begin(format!("{items} UPDATE shop.items SET n = 2 WHERE id = 3"));
        begin("ALTER TABLE shop.plain ADD COLUMN more INT".to_owned());
        begin("SELECT COUNT(*) FROM shop.plain".to_owned());
        sleep(held.saturating_sub(5 * gap));
        [older, idle, executing, newer, reader, user].into_iter().for_each(drop);
        sessions.into_iter().try_for_each(|session| session.join().expect("no panic").map(|_| ()))?;
        Ok((holding, recorder))
    })
}

/// Of which locks servers of a release show who blocks them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blocking {
    All,
    /// Transactions do not have what blocks them.
    Metadata,
}

/// The tables and indexes for which threads wait are those of the statements, and who blocks them is who does, as far
/// as servers of this release show that.
fn locks_have_objects(release: Release, shows: Blocking) -> Result<()> {
    // On an emulated machine, the waits take longer than the default.
    let args = vec!["--innodb-lock-wait-timeout=1000".to_owned()];
    let server = Server::start(release, &Options { args, ..Options::default() })?;
    server.query(
        "CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY, n INT);
         CREATE TABLE shop.items (id INT PRIMARY KEY, k INT, n INT, KEY k_1 (k));
         CREATE TABLE shop.plain (id INT PRIMARY KEY);
         INSERT INTO shop.orders VALUES (1, 0), (2, 0), (3, 0);
         INSERT INTO shop.items VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0)",
    )?;
    let file = server.dir().join("locks.rec");
    let duration = format!("{}s", patience(Duration::from_secs(7)).as_secs());
    let attach = || Recorder::start(&server, &file, &["--duration", &duration]);
    let (holding, recorder) = wait_for_objects(&server, attach)?;
    recorder.complete()?;
    let recording = recording::read(&file)?;
    let seen = |lock: &str| -> Vec<(String, f64)> {
        recording.locked_objects(lock).iter().map(|(object, share)| (object.name(), *share)).collect()
    };
    println!("{}: {:?} {:?} {:?}", release.name(), seen(ROW), seen(TABLE), seen("user lock"));
    // Three sessions wait for one row, and two that begin later for others.
    let rows = seen(ROW);
    let names: BTreeSet<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["shop.items (PRIMARY)", "shop.items (k_1)", "shop.orders (PRIMARY)"];
    ensure!(names == BTreeSet::from(expected) && rows[0].0 == expected[2], "{rows:?}");
    ensure!((0.5..0.8).contains(&rows[0].1), "{rows:?}");
    ensure!(seen(TABLE) == [("shop.plain".to_owned(), 1.0)] && seen("user lock") == [("job".to_owned(), 1.0)]);
    blockers_are_right(&recording, &holding, shows)?;
    server.stop()
}

/// Returns the share of the waits of which it is not known who blocks them, and who blocks the others.
fn blockers(recording: &Recording, lock: &str) -> (f64, Vec<(LockBlocker, f64)>) {
    let mut blockers = recording.lock_blockers(lock);
    println!("{lock}: {:?}", blockers.iter().map(|(who, share)| (who.name(), *share)).collect::<Vec<_>>());
    let is_known = |blocker: &LockBlocker| blocker.statement != LockBlocker::UNKNOWN;
    let unknown = blockers.iter().filter(|(blocker, _)| !is_known(blocker)).map(|(_, share)| share).sum();
    blockers.retain(|(blocker, _)| is_known(blocker));
    (unknown, blockers)
}

/// Of five sessions that wait for rows, four wait for the transaction that is idle, one of them behind another. A
/// schema change waits for a transaction that has read the table, and a reader behind it.
fn blockers_are_right(recording: &Recording, holding: &Holding, shows: Blocking) -> Result<()> {
    let [rows, table, user] = [ROW, TABLE, "user lock"].map(|lock| blockers(recording, lock));
    let are_unknown = |(unknown, known): &(f64, Vec<_>)| *unknown == 1.0 && known.is_empty();
    for ((unknown, known), connection) in [(table, holding.reader), (user, holding.user)] {
        let [(blocker, _)] = &known[..] else { anyhow::bail!("{known:?}") };
        ensure!((blocker.connection, blocker.statement.as_str()) == (connection, LockBlocker::IDLE), "{blocker:?}");
        ensure!(unknown <= 0.2, "{unknown}");
    }
    if shows == Blocking::Metadata {
        ensure!(are_unknown(&rows), "{rows:?}");
        return Ok(());
    }
    // It takes some looks to find where the server keeps it.
    let (unknown, blockers) = rows;
    ensure!(unknown <= 0.25, "{unknown}");
    let [(idle, idle_share), (executing, share), rest @ ..] = &blockers[..] else { anyhow::bail!("{blockers:?}") };
    ensure!((idle.connection, idle.statement.as_str()) == (holding.idle, LockBlocker::IDLE_IN_TRANSACTION), "{idle:?}");
    ensure!((executing.connection, executing.statement.as_str()) == (holding.executing, "DO SLEEP (?)"));
    // The statement ends before the transaction.
    ensure!(rest.iter().all(|(blocker, _)| blocker.connection == holding.executing), "{blockers:?}");
    let share = share + rest.iter().map(|(_, share)| share).sum::<f64>();
    ensure!((0.7..0.95).contains(&(idle_share / (idle_share + share))), "{blockers:?}");
    Ok(())
}

#[test]
fn mysql_9_7_locks_have_objects() -> Result<()> {
    locks_have_objects(Release::MYSQL_9_7, Blocking::All)
}

#[test]
fn mariadb_11_4_locks_have_objects() -> Result<()> {
    locks_have_objects(Release::MARIADB_11_4, Blocking::All)
}

#[test]
#[ignore = "on arm64, in a guest: make test-all"]
fn mysql_8_0_33_locks_have_objects() -> Result<()> {
    locks_have_objects(Release::MYSQL_8_0, Blocking::All)
}

#[test]
#[ignore = "takes a minute: make test-all"]
fn locks_of_older_servers_have_objects() -> Result<()> {
    let older = [
        (Release::MYSQL_5_7, Blocking::Metadata),
        (Release::MYSQL_8_0_12, Blocking::Metadata),
        (Release::MYSQL_8_0_31, Blocking::All),
        (Release::MARIADB_10_1, Blocking::Metadata),
        (Release::MARIADB_10_11, Blocking::All),
    ];
    older.into_iter().try_for_each(|(release, shows)| locks_have_objects(release, shows))
}

/// What the probes of these waits have cost so far, in seconds, and their state.
fn probes(samples: &[Sample]) -> (f64, Option<String>) {
    let of = |name: &'static str| {
        samples.iter().filter(move |s| s.name == name && s.labels["probe"].starts_with("lock_waits:"))
    };
    let state = of("armtrace_probe_state").find(|s| s.value == 1.0).map(|s| s.labels["state"].clone());
    (of("armtrace_probe_cost_seconds_total").map(|s| s.value).sum(), state)
}

/// Sixteen threads that change one row wait thousands of times a second. Within the default budget that is not
/// measured, which is said, and costs nothing. Without a budget it is measured, and agrees with the server's own count.
#[test]
#[ignore = "takes long: make test-all"]
fn a_storm_of_waits_for_one_row_keeps_to_the_budget() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "one_row", 16)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    // Until it is known what hits cost, a high price is assumed, and nothing said.
    let said = || Ok::<_, anyhow::Error>(agent.errors()?.matches("metadata locks are so frequent").count());
    wait_for("word of a rest", Duration::from_secs(30), || Ok((said()? > 0).then_some(())))?;
    sleep(2 * NEW_FIGURES);
    let cost = probes(&agent.scrape()?).0;
    let cpu = || cpu_time_ns(server.pid()).context("no CPU time");
    let before = cpu()?;
    sleep(Duration::from_secs(5));
    let used = (cpu()? - before) as f64 / 1e9;
    let samples = agent.scrape()?;
    let (after, state) = probes(&samples);
    println!("the probes took {cost:.4} s before they rested, then {:.4} s of {used:.1} s", after - cost);
    // Half a second of the storm, after which they are looked at, takes 0.15 s on hosts where a probe on an instruction
    // that is single-stepped takes 35 µs.
    ensure!(after == cost && cost < 0.4, "{after} s, before {cost} s");
    ensure!(of(&samples, WAITING, ROW).is_none() && of(&samples, "armtrace_lock_wait_seconds_sum", ROW).is_none());
    ensure!(state.as_deref() == Some("detached") && said()? == 1, "{state:?}, {}", agent.errors()?);
    ensure!(agent.stop()?.0.success());

    let agent = Agent::attach_without_budget(&server)?;
    let (ours, theirs) = (waits_for(&agent, ROW)?, counted_by_innodb(&server)?);
    let (cost, before) = (probes(&agent.scrape()?).0, cpu()?);
    sleep(Duration::from_secs(5));
    let (ours, theirs) = (minus(waits_for(&agent, ROW)?, ours), minus(counted_by_innodb(&server)?, theirs));
    let (cost, used) = (probes(&agent.scrape()?).0 - cost, (cpu()? - before) as f64 / 1e9);
    println!("{} waits in {:.2} s, the server {} in {:.2} s", ours.0, ours.1, theirs.0, theirs.1);
    println!("the probes took {:.2} % of the server's {used:.1} s", 100.0 * cost / used);
    let ratios = [ours.0 / theirs.0, ours.1 / theirs.1];
    ensure!(ratios.iter().all(|ratio| (0.9..1.1).contains(ratio)), "{ratios:?}");
    ensure!(agent.stop()?.0.success());
    load.stop()?;
    server.stop()
}

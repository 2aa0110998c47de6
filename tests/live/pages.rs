//! Waits for pages: their indexes must exist in the server, and no wait may be missing.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use lab::agent::{by_latch, Agent, Sample};
use lab::counters::Counters;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

const METRIC: &str = "armtrace_latch_page_wait_seconds_total";
const LATCH: &str = "wait/synch/sxlock/innodb/buf_block_lock";
/// The least wait time for pages, in seconds, before the figures are checked.
const LEAST: f64 = 0.2;

fn label<'a>(sample: &'a Sample, name: &str) -> &'a str {
    sample.labels.get(name).map_or("", String::as_str)
}

/// Returns the server's indexes, as table and index.
fn indexes(server: &Server, views: &str) -> Result<BTreeSet<(String, String)>> {
    let rows = server.query(&format!(
        "SELECT t.NAME, i.NAME FROM information_schema.INNODB_{views}INDEXES i \
         JOIN information_schema.INNODB_{views}TABLES t USING (TABLE_ID)"
    ))?;
    rows.into_iter()
        .map(|row| <[String; 2]>::try_from(row).map(|[t, i]| (t, i)).ok().context("not two columns"))
        .collect()
}

/// Whether the waits for pages took as long as those for their latches.
fn is_complete(samples: &[Sample]) -> bool {
    let pages: f64 = samples.iter().filter(|s| s.name == METRIC).map(|s| s.value).sum();
    let latches = by_latch(samples, "armtrace_latch_wait_seconds_sum").get(LATCH).copied().unwrap_or_default();
    println!("waits for pages took {pages} s, for their latches {latches} s");
    (pages - latches).abs() <= 0.01 * latches + 0.001
}

fn pages_belong_to_existing_indexes(release: Release, test: &str, views: &str) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, test, 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let pages = |samples: &[Sample]| -> Vec<Sample> { samples.iter().filter(|s| s.name == METRIC).cloned().collect() };
    wait_for("waits for pages of sysbench's indexes", Duration::from_secs(60), || {
        let pages = pages(&agent.scrape()?);
        let of_load =
            pages.iter().filter(|p| label(p, "table").starts_with("sbtest/") && !label(p, "level").is_empty());
        Ok((of_load.map(|p| p.value).sum::<f64>() >= LEAST).then_some(()))
    })?;
    let indexes = indexes(&server, views)?;
    load.stop()?;
    // The load has stopped, but purge has not, and the agent reads latches and pages one after the other.
    let samples = wait_for("waits for pages that add up to those for their latches", Duration::from_secs(20), || {
        let samples = agent.scrape()?;
        Ok(is_complete(&samples).then_some(samples))
    })?;
    let pages = pages(&samples);
    let mut of_indexes = 0.0;
    for page in &pages {
        println!("{:>9.3}s {:?}", page.value, page.labels);
        let (table, index, level) = (label(page, "table"), label(page, "index"), label(page, "level"));
        if level.is_empty() {
            ensure!(index.starts_with('(') || table == "other", "{page:?}");
            continue;
        }
        // The B-trees of sysbench's tables have two or three levels, those of the server's own tables fewer.
        ensure!(level.parse::<u16>()? <= 3, "{page:?}");
        // MySQL's views do not have the tables of its data dictionary.
        if table.starts_with("mysql/") && !indexes.iter().any(|(table, _)| table.starts_with("mysql/")) {
            continue;
        }
        ensure!(indexes.contains(&(table.to_owned(), index.to_owned())), "the server has no such index: {page:?}");
        of_indexes += page.value;
    }
    let all: f64 = pages.iter().map(|p| p.value).sum();
    let other: f64 = pages.iter().filter(|p| label(p, "table") == "other").map(|p| p.value).sum();
    ensure!(
        other <= 0.02 * all && of_indexes >= LEAST,
        "{of_indexes} s in indexes and {other} s in others, of {all} s"
    );
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn mysql_9_7_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MYSQL_9_7, "oltp_update_index", "")
}

#[test]
fn mysql_8_0_31_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MYSQL_8_0_31, "oltp_update_index", "")
}

#[test]
fn mariadb_11_4_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MARIADB_11_4, "oltp_insert", "SYS_")
}

#[test]
fn stripped_mariadb_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MARIADB_10_11_DEBIAN, "oltp_insert", "SYS_")
}

/// How long a table that was renamed may keep its old name: the interval at which names are read again, and some.
const RENAMED: Duration = Duration::from_secs(90);

/// Returns the wait time for pages of a table's indexes.
fn waits_for(agent: &Agent, table: &str) -> Result<f64> {
    let samples = agent.scrape()?;
    Ok(samples.iter().filter(|s| s.name == METRIC && label(s, "table") == table).map(|s| s.value).sum())
}

/// Changes a table's schema as pt-online-schema-change does, under load: triggers keep a copy up to date, which then
/// takes the place of the table. Later waits must be the table's, not the copy's, and no counter may step back.
#[test]
#[ignore = "takes long: make test-all"]
fn pages_of_a_copy_that_takes_a_tables_place_get_its_name() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    for sql in [
        "CREATE TABLE sbtest._sbtest1_new LIKE sbtest.sbtest1",
        "CREATE TRIGGER sbtest.copied AFTER UPDATE ON sbtest.sbtest1 FOR EACH ROW \
         REPLACE INTO sbtest._sbtest1_new (id, k, c, pad) VALUES (NEW.id, NEW.k, NEW.c, NEW.pad)",
    ] {
        server.query(sql)?;
    }
    let mut counters = Counters::default();
    wait_for("waits for pages of the copy", Duration::from_secs(120), || {
        counters.check(&agent.metrics()?)?;
        Ok((waits_for(&agent, "sbtest/_sbtest1_new")? > 0.01).then_some(()))
    })?;
    for sql in [
        "DROP TRIGGER sbtest.copied",
        "RENAME TABLE sbtest.sbtest1 TO sbtest._sbtest1_old, sbtest._sbtest1_new TO sbtest.sbtest1",
        "ALTER TABLE sbtest.sbtest2 FORCE",
    ] {
        server.query(sql)?;
    }
    let begin = Instant::now();
    wait_for("the copy's new name", RENAMED, || {
        counters.check(&agent.metrics()?)?;
        let read = || Ok::<_, anyhow::Error>(["sbtest/_sbtest1_new", "sbtest/sbtest1"].map(|t| waits_for(&agent, t)));
        let [copy_before, table_before] = read()?;
        sleep(Duration::from_secs(3));
        let [copy, table] = read()?;
        Ok((copy? <= copy_before? && table? > table_before?).then_some(()))
    })?;
    println!("renamed after {:?}, with {} series of counters", begin.elapsed(), counters.len());
    counters.check(&agent.metrics()?)?;
    load.stop()?;
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

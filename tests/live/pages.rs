//! Waits for pages: their indexes must exist in the server, and no wait may be missing.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use lab::agent::{by_latch, Agent, Sample};
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
    let samples = agent.scrape()?;
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
        ensure!(indexes.contains(&(table.to_owned(), index.to_owned())), "the server has no such index: {page:?}");
        of_indexes += page.value;
    }
    let all: f64 = pages.iter().map(|p| p.value).sum();
    let other: f64 = pages.iter().filter(|p| label(p, "table") == "other").map(|p| p.value).sum();
    ensure!(
        other <= 0.02 * all && of_indexes >= LEAST,
        "{of_indexes} s in indexes and {other} s in others, of {all} s"
    );
    // The readings are not simultaneous, and purge is still running.
    let latch = by_latch(&samples, "armtrace_latch_wait_seconds_sum").get(LATCH).copied().unwrap_or_default();
    ensure!((all - latch).abs() <= 0.01 * latch + 0.001, "waits for pages took {all} s, for their latches {latch} s");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn mysql_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MYSQL_9_7, "oltp_update_index", "")
}

#[test]
fn mariadb_11_4_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MARIADB_11_4, "oltp_insert", "SYS_")
}

#[test]
fn stripped_mariadb_pages_belong_to_existing_indexes() -> Result<()> {
    pages_belong_to_existing_indexes(Release::MARIADB_10_11_DEBIAN, "oltp_insert", "SYS_")
}

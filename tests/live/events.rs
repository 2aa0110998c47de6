//! A build in which only sleeps can be seen: MariaDB 10.5 without a symbol table.

use std::collections::BTreeSet;

use anyhow::{ensure, Context, Result};

use crate::library::{measured, small_table_cache, COND, LATCH, LIMIT, TABLE_CACHE};
use lab::agent::{doctor, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Server};

const EVENTS: &str = "unnamed:os_event";

/// Waits of the SQL layer have names and InnoDB's are counted. No name is wrong: none has more wait time than
/// performance_schema reports.
#[test]
#[ignore = "takes long: make test-all"]
fn mariadb_10_5_without_symbols_shows_its_sleeps() -> Result<()> {
    let server = Server::start(Release::MARIADB_10_5_DEBIAN, &small_table_cache(true, &[]))?;
    let mut load = Load::start(&server, "oltp_read_write", 64)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let (latches, conds) = wait_for("waits of both layers", LIMIT, || {
        let (latches, conds) = (measured(&agent, LATCH)?, measured(&agent, COND)?);
        let at_least = |waits: Option<&(f64, f64)>, count| waits.is_some_and(|(waits, _)| *waits >= count);
        let enough = at_least(latches.get(TABLE_CACHE), 50.0) && at_least(conds.get(EVENTS), 100.0);
        Ok(enough.then_some((latches, conds)))
    })?;
    let truth = server.wait_summary()?;
    let report = doctor(server.pid())?;
    load.stop()?;
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()?;
    println!("{latches:#?}\n{conds:#?}");
    for (name, (_, ours)) in latches.iter().chain(&conds).filter(|(name, _)| name.starts_with("wait/")) {
        let (_, theirs) = truth.get(name).with_context(|| format!("performance_schema has no {name}"))?;
        ensure!(*ours <= theirs * 1.05 + 0.01, "{name}: {ours:.3}s, performance_schema {theirs:.3}s");
    }
    let innodb: BTreeSet<&String> = latches.keys().filter(|name| name.contains("/innodb/")).collect();
    ensure!(innodb.iter().all(|name| name.contains("/mutex/")), "an event is not a latch: {innodb:?}");
    let report = &report["server"];
    ensure!(report["symbol_source"] == "dynsym", "{report}");
    let advice = report["symbols_advice"].as_str().context("doctor gives no advice")?;
    ensure!(advice.contains("mariadb-server-core-10.5-dbgsym"), "{advice}");
    let gap = report["not_measured"][0]["why"].as_str().context("doctor reports nothing as not measured")?;
    ensure!(gap.contains(EVENTS), "{gap}");
    Ok(())
}

//! What armtrace measures against what the server's own performance_schema measures in the same run.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::agent::{by_latch, Agent};
use crate::load::Load;
use crate::server::{Family, Options, Server};

/// Seconds compared.
const WINDOW: Duration = Duration::from_secs(12);

/// performance_schema's sums for InnoDB's latches.
type Truth = BTreeMap<String, PerfSchema>;

#[derive(Clone, Copy, Debug, Default)]
struct PerfSchema {
    count: f64,
    sum_s: f64,
    min_s: f64,
}

/// One latch, both sides.
#[derive(Debug)]
struct Row {
    latch: String,
    /// performance_schema's sum, less what its uncontended acquisitions took at the least: it times those too.
    truth_s: f64,
    raw_s: f64,
    truth_count: f64,
    ours_s: f64,
    ours_count: f64,
}

fn perf_schema(server: &Server) -> Result<Truth> {
    const PICOSECONDS: f64 = 1e12;
    let rows = server.query(
        "SELECT EVENT_NAME, COUNT_STAR, SUM_TIMER_WAIT, MIN_TIMER_WAIT \
         FROM performance_schema.events_waits_summary_global_by_event_name \
         WHERE EVENT_NAME REGEXP '^wait/synch/(mutex|rwlock|sxlock)/innodb/' AND COUNT_STAR > 0",
    )?;
    rows.iter()
        .map(|row| {
            let number = |i: usize| row.get(i).context("a short row")?.parse::<f64>().context("not a number");
            let figures =
                PerfSchema { count: number(1)?, sum_s: number(2)? / PICOSECONDS, min_s: number(3)? / PICOSECONDS };
            Ok((row[0].clone(), figures))
        })
        .collect()
}

/// Runs a load with both sides measuring, and pairs their figures for the same seconds.
fn compare(family: Family, test: &str, threads: u32, args: &[&str]) -> Result<Vec<Row>> {
    let options = Options { perf_schema: true, args: args.iter().map(|a| (*a).to_owned()).collect() };
    let server = Server::start(family, &options)?;
    let mut load = Load::start(&server, test, threads)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    sleep(Duration::from_secs(2));
    let truth_before = perf_schema(&server)?;
    let ours_before = agent.scrape()?;
    sleep(WINDOW);
    let ours_after = agent.scrape()?;
    let truth_after = perf_schema(&server)?;
    let report = load.stop()?;
    ensure!(report.errors == 0, "{report:?}");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()?;

    let grown = |metric: &str| {
        let before = by_latch(&ours_before, metric);
        let mut after = by_latch(&ours_after, metric);
        after.iter_mut().for_each(|(latch, v)| *v -= before.get(latch).copied().unwrap_or(0.0));
        after
    };
    let (sums, counts) = (grown("armtrace_latch_wait_seconds_sum"), grown("armtrace_latch_wait_seconds_count"));
    let mut rows: Vec<Row> = truth_after
        .iter()
        .map(|(latch, after)| {
            let before = truth_before.get(latch).copied().unwrap_or_default();
            let ours_count = counts.get(latch).copied().unwrap_or(0.0);
            let (raw_s, truth_count) = (after.sum_s - before.sum_s, after.count - before.count);
            Row {
                latch: latch.clone(),
                truth_s: raw_s - (truth_count - ours_count).max(0.0) * after.min_s,
                raw_s,
                truth_count,
                ours_s: sums.get(latch).copied().unwrap_or(0.0),
                ours_count,
            }
        })
        .collect();
    rows.sort_by(|a, b| b.raw_s.total_cmp(&a.raw_s));
    Ok(rows)
}

fn print(rows: &[Row]) {
    println!(
        "{:<52} {:>10} {:>10} {:>10} {:>10} {:>8} {:>6} {:>6}",
        "latch", "P_S count", "P_S sum", "less min", "armtrace", "waits", "raw", "ratio"
    );
    for r in rows.iter().take(14) {
        println!(
            "{:<52} {:>10} {:>9.3}s {:>9.3}s {:>9.3}s {:>8} {:>6.3} {:>6.3}",
            r.latch,
            r.truth_count,
            r.raw_s,
            r.truth_s,
            r.ours_s,
            r.ours_count,
            r.ours_s / r.raw_s,
            r.ours_s / r.truth_s
        );
    }
}

#[test]
fn mysql_waits_agree_with_performance_schema() -> Result<()> {
    let rows = compare(Family::Mysql97, "oltp_update_index", 16, &[])?;
    print(&rows);
    Ok(())
}

#[test]
fn mariadb_waits_agree_with_performance_schema() -> Result<()> {
    let rows = compare(Family::Mariadb114, "oltp_update_index", 16, &[])?;
    print(&rows);
    Ok(())
}

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

/// How far a latch's wait sum may be from performance_schema's.
const TOLERANCE: f64 = 0.15;

/// Seconds of the runs with one client, in which nobody waits for another.
const QUIET: Duration = Duration::from_secs(2);

/// How many of the most contended latches must agree.
const TOP: usize = 5;

/// One latch, both sides, over the same seconds.
#[derive(Clone, Debug, Default)]
struct Row {
    latch: String,
    truth_count: f64,
    /// As performance_schema says.
    raw_s: f64,
    /// Less what its uncontended acquisitions took, which it times too, at what they took in the quiet runs.
    truth_s: f64,
    waits: f64,
    ours_s: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours_s / self.truth_s
    }
}

/// performance_schema's count and sum, in seconds, for each InnoDB latch that was acquired.
fn perf_schema(server: &Server) -> Result<BTreeMap<String, (f64, f64)>> {
    const PICOSECONDS: f64 = 1e12;
    let rows = server.query(
        "SELECT EVENT_NAME, COUNT_STAR, SUM_TIMER_WAIT \
         FROM performance_schema.events_waits_summary_global_by_event_name \
         WHERE EVENT_NAME REGEXP '^wait/synch/(mutex|rwlock|sxlock)/innodb/' AND COUNT_STAR > 0",
    )?;
    rows.iter()
        .map(|row| {
            let number = |i: usize| row.get(i).context("a short row")?.parse::<f64>().context("not a number");
            Ok((row[0].clone(), (number(1)?, number(2)? / PICOSECONDS)))
        })
        .collect()
}

/// What an uncontended acquisition of each latch takes by performance_schema's account, in seconds: the least mean of
/// several runs with one client.
fn uncontended(server: &Server, test: &str) -> Result<BTreeMap<String, f64>> {
    let mut least = BTreeMap::new();
    let mut load = Load::start(server, test, 1)?;
    load.wait_running()?;
    for _ in 0..3 {
        let before = perf_schema(server)?;
        sleep(QUIET);
        for (latch, (count, sum)) in perf_schema(server)? {
            let (count_before, sum_before) = before.get(&latch).copied().unwrap_or_default();
            if count > count_before {
                let mean = (sum - sum_before) / (count - count_before);
                least.entry(latch).and_modify(|l: &mut f64| *l = l.min(mean)).or_insert(mean);
            }
        }
    }
    load.stop()?;
    Ok(least)
}

/// Runs a load with both sides measuring, and pairs their figures for the same seconds.
fn compare(family: Family, test: &str, threads: u32, args: &[&str]) -> Result<Vec<Row>> {
    let options = Options { perf_schema: true, args: args.iter().map(|a| (*a).to_owned()).collect() };
    let server = Server::start(family, &options)?;
    let quiet = uncontended(&server, test)?;
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
        .map(|(latch, (count, sum))| {
            let before = truth_before.get(latch).copied().unwrap_or_default();
            let (truth_count, raw_s) = (count - before.0, sum - before.1);
            let waits = counts.get(latch).copied().unwrap_or(0.0);
            let each = quiet.get(latch).copied().unwrap_or(0.0);
            Row {
                latch: latch.clone(),
                truth_count,
                raw_s,
                truth_s: raw_s - (truth_count - waits).max(0.0) * each,
                waits,
                ours_s: sums.get(latch).copied().unwrap_or(0.0),
            }
        })
        .collect();
    rows.sort_by(|a, b| b.truth_s.total_cmp(&a.truth_s));
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<52} {:>10} {:>10} {:>10} {:>8} {:>10} {:>6} {:>6}\n",
        "latch", "P_S count", "P_S sum", "contended", "waits", "armtrace", "raw", "ratio"
    );
    for r in rows.iter().take(2 * TOP) {
        text += &format!(
            "{:<52} {:>10} {:>9.3}s {:>9.3}s {:>8} {:>9.3}s {:>6.3} {:>6.3}\n",
            r.latch,
            r.truth_count,
            r.raw_s,
            r.truth_s,
            r.waits,
            r.ours_s,
            r.ours_s / r.raw_s,
            r.ratio()
        );
    }
    text
}

/// The most contended latches by either side's account, whose sums must agree.
fn agree(rows: &[Row]) -> Result<()> {
    ensure!(rows.len() >= TOP, "performance_schema saw only {} latches", rows.len());
    let mut ours = rows.to_vec();
    ours.sort_by(|a, b| b.ours_s.total_cmp(&a.ours_s));
    for row in rows.iter().take(TOP).chain(ours.iter().take(TOP)) {
        let off = (row.ratio() - 1.0).abs();
        ensure!(off <= TOLERANCE, "{} differs by {:.0} %:\n{}", row.latch, off * 100.0, table(rows));
    }
    Ok(())
}

#[test]
fn mysql_waits_agree_with_performance_schema() -> Result<()> {
    let rows = compare(Family::Mysql97, "oltp_update_index", 64, &[])?;
    println!("{}", table(&rows));
    agree(&rows)
}

#[test]
fn mysql_redo_waits_agree_with_performance_schema() -> Result<()> {
    let rows = compare(Family::Mysql97, "oltp_update_index", 32, &["--innodb-flush-log-at-trx-commit=1"])?;
    println!("{}", table(&rows));
    agree(&rows)
}

#[test]
fn mariadb_waits_agree_with_performance_schema() -> Result<()> {
    let rows = compare(Family::Mariadb114, "oltp_update_index", 64, &[])?;
    println!("{}", table(&rows));
    agree(&rows)
}

#[test]
fn disagreement_is_noticed() {
    let row = |latch: &str, truth_s, ours_s| Row { latch: latch.to_owned(), truth_s, ours_s, ..Row::default() };
    let mut rows: Vec<Row> = (0..6).map(|i| row(&i.to_string(), 6.0 - f64::from(i), 5.8 - f64::from(i))).collect();
    rows.truncate(5);
    rows[4].ours_s = 1.9;
    assert!(agree(&rows).is_ok());
    rows[2].ours_s *= 0.8;
    assert!(agree(&rows).is_err());
}

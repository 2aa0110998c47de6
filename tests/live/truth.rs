//! armtrace's wait times, compared with those of the server's own performance_schema in the same run.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context as _, Result};
use procfs::{CurrentSI as _, KernelStats};

use crate::naming;
use lab::agent::{by_latch, Agent};
use lab::load::Load;
use lab::machine::is_emulated;
use lab::releases::Release;
use lab::server::{Options, Server};

/// The number of windows per run. The median of each latch's ratios counts, because performance_schema's sum also
/// includes the time for which a thread was preempted while it acquired a free latch. When many threads share few CPUs,
/// that happens rarely but takes long.
const WINDOWS: usize = 5;
/// The lengths of these windows in each attempt. Most servers need the first one only.
const ATTEMPTS: [Duration; 4] =
    [Duration::from_millis(1500), Duration::from_secs(3), Duration::from_secs(3), Duration::from_secs(3)];
/// The duration of each run with one client, in which there is no contention.
const QUIET: Duration = Duration::from_secs(1);

/// Returns how far a latch's wait sum may differ from performance_schema's. An emulator can suspend a thread between
/// the two sides' clock readings for longer than many waits take.
fn tolerance() -> f64 {
    if is_emulated() {
        0.35
    } else {
        0.10
    }
}

/// How many of the most contended latches must agree.
const TOP: usize = 5;
/// The least number of latches whose sums can be compared.
const LEAST: usize = 2;
/// The least share of the threads' time that a latch's waits must take for it to be compared.
const FLOOR: f64 = 0.001;

/// Both sides' figures for one latch over the same seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub latch: String,
    /// The acquisitions that performance_schema counted.
    pub truth_count: f64,
    /// performance_schema's sum, in seconds.
    pub raw_s: f64,
    /// `raw_s` without the uncontended acquisitions that it includes, at their mean time in the quiet runs.
    pub truth_s: f64,
    /// How much of `truth_s` may still be uncontended acquisitions. Those in which the thread was preempted last as
    /// long as the other threads run; their number is proportional to the CPU time that acquisitions take.
    pub preempted_s: f64,
    pub waits: f64,
    pub ours_s: f64,
    /// `ours_s` divided by `truth_s`, in each window.
    pub ratios: Vec<f64>,
}

impl Row {
    /// Returns whether at least nine tenths of performance_schema's sum are waits. For a latch with millions of
    /// acquisitions, preemptions during uncontended ones can take longer than the waits.
    ///
    /// If performance_schema does not time all threads, it must also have counted at least as many acquisitions as
    /// armtrace has waits. If it times all threads, more waits than that are an error of armtrace's and must not be
    /// excluded.
    pub fn is_comparable(&self, times_all: bool) -> bool {
        self.truth_s - self.preempted_s >= 0.9 * self.raw_s && (times_all || self.waits <= self.truth_count)
    }

    /// Returns whether the sum agrees with performance_schema's own. If so, preemptions took little, however many there
    /// may have been.
    fn agrees_as_it_is(&self) -> bool {
        (self.ours_s / self.raw_s - 1.0).abs() <= tolerance()
    }

    fn ratio(&self) -> f64 {
        let mut ratios = self.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Both sides' counters at one time.
pub(crate) struct Reading {
    truth: BTreeMap<String, (f64, f64)>,
    waits: BTreeMap<String, f64>,
    sums: BTreeMap<String, f64>,
}

impl Reading {
    pub fn take(server: &Server, agent: &Agent) -> Result<Reading> {
        let truth = perf_schema(server)?;
        let ours = agent.scrape()?;
        Ok(Reading {
            truth,
            waits: by_latch(&ours, "armtrace_latch_wait_seconds_count"),
            sums: by_latch(&ours, "armtrace_latch_wait_seconds_sum"),
        })
    }

    /// Returns the latches acquired so far, according to performance_schema.
    pub fn latches(&self) -> impl Iterator<Item = &String> {
        self.truth.keys()
    }

    /// Returns the increase of a latch's counters since an earlier reading. `uncontended` is the mean time of an
    /// uncontended acquisition, and `delay` the result of [`sleep_and_measure_delay`] for the same time.
    pub fn since(&self, earlier: &Reading, latch: &str, uncontended: f64, delay: f64) -> Row {
        let grown = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            now.get(latch).copied().unwrap_or(0.0) - then.get(latch).copied().unwrap_or(0.0)
        };
        let (count, sum) = self.truth.get(latch).copied().unwrap_or_default();
        let (count_then, sum_then) = earlier.truth.get(latch).copied().unwrap_or_default();
        let (truth_count, raw_s) = (count - count_then, sum - sum_then);
        let (waits, ours_s) = (grown(&self.waits, &earlier.waits), grown(&self.sums, &earlier.sums));
        let free_s = (truth_count - waits).max(0.0) * uncontended;
        let (truth_s, preempted_s) = (raw_s - free_s, free_s * delay);
        Row {
            latch: latch.to_owned(),
            truth_count,
            raw_s,
            truth_s,
            preempted_s,
            waits,
            ours_s,
            ratios: vec![ours_s / truth_s],
        }
    }
}

/// Returns performance_schema's count and sum, in seconds, for each latch that was acquired.
fn perf_schema(server: &Server) -> Result<BTreeMap<String, (f64, f64)>> {
    let mut all = server.wait_summary()?;
    all.retain(|event, (count, _)| !event.contains("/cond/") && *count > 0.0);
    Ok(all)
}

/// Sleeps, and returns how long threads had to wait for a CPU meanwhile, per second that they ran.
pub(crate) fn sleep_and_measure_delay(time: Duration) -> Result<f64> {
    const SAMPLES: u32 = 30;
    let cpus = std::thread::available_parallelism()?.get() as f64;
    let mut runnable = 0.0;
    for _ in 0..SAMPLES {
        sleep(time / SAMPLES);
        // All runnable threads but this one.
        let others = KernelStats::current()?.procs_running.context("no count of runnable threads")?.saturating_sub(1);
        runnable += f64::from(others) / f64::from(SAMPLES);
    }
    Ok((runnable / cpus - 1.0).max(0.0))
}

/// Returns the mean time of an uncontended acquisition of each latch in seconds, according to performance_schema: the
/// least of several runs of a load with a single client.
pub(crate) fn uncontended(server: &Server, load: Load, each: Duration) -> Result<BTreeMap<String, f64>> {
    let mut least = BTreeMap::new();
    for _ in 0..3 {
        let before = perf_schema(server)?;
        sleep(each);
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

/// Returns both sides' figures for the same seconds, most contended latches first.
fn compare(server: &Server, agent: &Agent, quiet: &BTreeMap<String, f64>, window: Duration) -> Result<Vec<Row>> {
    let (mut readings, mut delay) = (vec![Reading::take(server, agent)?], 0.0);
    for _ in 0..WINDOWS {
        delay += sleep_and_measure_delay(window)? / WINDOWS as f64;
        readings.push(Reading::take(server, agent)?);
    }
    let mut rows: Vec<Row> = readings[WINDOWS]
        .latches()
        .filter(|latch| latch.contains("/innodb/"))
        .map(|latch| {
            let each = quiet.get(latch).copied().unwrap_or(0.0);
            let ratios = readings.windows(2).flat_map(|w| w[1].since(&w[0], latch, each, delay).ratios).collect();
            Row { ratios, ..readings[WINDOWS].since(&readings[0], latch, each, delay) }
        })
        .collect();
    rows.sort_by(|a, b| b.truth_s.total_cmp(&a.truth_s));
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<52} {:>10} {:>10} {:>10} {:>8} {:>10} {:>6} {:>6}\n",
        "latch", "P_S count", "P_S sum", "contended", "waits", "armtrace", "raw", "median"
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

/// Checks that the sums of the most contended latches, according to either side, agree over the whole run or in the
/// median window.
fn agree(rows: &[Row], threads: u32, window: Duration, times_all: bool) -> Result<()> {
    let floor = FLOOR * f64::from(threads) * WINDOWS as f64 * window.as_secs_f64();
    let counts = |r: &&Row| (r.is_comparable(times_all) || r.agrees_as_it_is()) && r.truth_s.max(r.ours_s) >= floor;
    let rows: Vec<Row> = rows.iter().filter(counts).cloned().collect();
    ensure!(rows.len() >= LEAST, "only {} latches can be compared", rows.len());
    let mut ours = rows.clone();
    ours.sort_by(|a, b| b.ours_s.total_cmp(&a.ours_s));
    // An emulated CPU can also stall during an uncontended acquisition, which performance_schema includes. And
    // `sync_array_mutex`, a mutex of the C library, is contended only on emulated machines.
    let theirs = if is_emulated() { 0 } else { TOP };
    for row in rows.iter().take(theirs).chain(ours.iter().take(TOP)) {
        // performance_schema's own sum is an upper limit for the wait time, so agreement with it counts too.
        let ratios = [row.ratio(), row.ours_s / row.truth_s, row.ours_s / row.raw_s];
        let least = ratios.map(|ratio| (ratio - 1.0).abs()).into_iter().fold(f64::INFINITY, f64::min);
        ensure!(least <= tolerance(), "{} differs by {:.0} %:\n{}", row.latch, least * 100.0, table(&rows));
    }
    Ok(())
}

/// Compares up to four times under one load. Disturbances, such as a thread preempted while it acquires a free latch,
/// can make a correct measurement fail, but cannot make a wrong one pass.
fn agrees(release: Release, threads: u32, args: &[&str]) -> Result<()> {
    let test = "oltp_update_index";
    let options =
        Options { perf_schema: true, args: args.iter().map(|a| (*a).to_owned()).collect(), ..Options::default() };
    let server = Server::start(release, &options)?;
    naming::any_latch_ids_agree(&server)?;
    let _history = (!release.times_purge()).then(|| server.keep_history()).transpose()?;
    let mut single = Load::start(&server, test, 1)?;
    single.wait_running()?;
    let quiet = uncontended(&server, single, QUIET)?;
    let mut load = Load::start(&server, test, threads)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    sleep(Duration::from_secs(1));
    let mut last = Ok(());
    for window in ATTEMPTS {
        let rows = compare(&server, &agent, &quiet, window)?;
        println!("{}", table(&rows));
        last = agree(&rows, threads, window, release.times_purge());
        if last.is_ok() {
            break;
        }
    }
    let report = load.stop()?;
    ensure!(report.transactions > 0, "{report:?}");
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()?;
    last
}

#[test]
fn mysql_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MYSQL_9_7, 64, &[])
}

/// To run it on arm64: `tests/vm/live arm64 6.12 --server mysql-8.0 --ignored truth::mysql_8_0_33`.
#[test]
#[ignore = "downloads 550 MB: make test-all"]
fn mysql_8_0_33_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MYSQL_8_0, 32, &[])
}

/// Its mutexes are inlined into hundreds of functions, as in 8.0.12 and 5.7.
#[test]
#[ignore = "inlined as in 5.7: make test-all"]
fn mysql_8_0_31_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MYSQL_8_0_31, 32, &[])
}

#[test]
#[ignore = "as on 8.0.31: make test-all"]
fn mysql_8_0_12_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MYSQL_8_0_12, 32, &[])
}

#[test]
fn mysql_5_7_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MYSQL_5_7, 32, &[])
}

#[test]
#[ignore = "takes long: make test-all"]
fn mysql_redo_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MYSQL_9_7, 32, &["--innodb-flush-log-at-trx-commit=1"])
}

#[test]
fn mariadb_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MARIADB_11_4, 64, &[])
}

#[test]
fn mariadb_10_1_waits_agree_with_performance_schema() -> Result<()> {
    agrees(Release::MARIADB_10_1, 32, &[])
}

#[test]
fn disagreement_is_an_error() {
    let row = |latch: &str, truth_s, ours_s| Row {
        latch: latch.to_owned(),
        truth_s,
        ours_s,
        ratios: vec![ours_s / truth_s],
        ..Row::default()
    };
    let mut rows: Vec<Row> = (0..6).map(|i| row(&i.to_string(), 6.0 - f64::from(i), 5.9 - f64::from(i))).collect();
    rows.truncate(5);
    assert!(agree(&rows, 1, ATTEMPTS[0], true).is_ok());
    let right = rows[2].clone();
    rows[2].ratios = vec![1.0, 0.8, 0.8];
    rows[2].ours_s *= 0.8;
    assert!(agree(&rows, 1, ATTEMPTS[0], true).is_err());
    // Too many waits are also an error, unless performance_schema does not time some threads.
    rows[2] = Row { ours_s: 2.0 * right.ours_s, ratios: vec![2.0], waits: 2.0, truth_count: 1.0, ..right };
    assert!(agree(&rows, 1, ATTEMPTS[0], true).is_err() && agree(&rows, 1, ATTEMPTS[0], false).is_ok());
    // If preemptions may have taken more than the waits, a latch counts only if nothing was added to its sum.
    let busy = |ours_s| Row { raw_s: 6.0, preempted_s: 3.0, ..row("busy", 5.9, ours_s) };
    assert!(agree(&[busy(5.8), busy(5.8)], 1, ATTEMPTS[0], true).is_ok());
    assert!(agree(&[busy(5.8), busy(4.0)], 1, ATTEMPTS[0], true).is_err());
}

//! One recording, told: figures, findings in words, text, JSON, a web page, folded stacks.

mod cpu;
mod findings;
mod folded;
mod handoffs;
mod html;
mod text;

pub use findings::Finding;
pub use folded::Folded;
pub use html::Html;
pub(crate) use text::heading;
pub use text::Text;

use std::collections::BTreeMap;

use serde::Serialize;

use cpu::{ChecksumReport, CpuReport, FunctionReport, OrderingReport};
use handoffs::HandoffsReport;

use super::{Ending, Host, Probe, Recording, Server};
use crate::measure::latch::{CallsiteWaits, LatchWaits, PageWaits, Reacquires};
use crate::measure::spin::SpinSettings;
use crate::model::{Histogram, Kind, Mode, BUCKET_BOUNDS_NS};
use crate::present::advice::{advice, Figures};

/// What a recording comes to. Times are in seconds. What is not known is absent.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the armtrace that recorded.
    pub armtrace: String,
    /// Milliseconds since 1970, UTC.
    pub began_ms: u64,
    pub duration: f64,
    /// `None` where the file was cut short.
    pub ending: Option<Ending>,
    pub host: Host,
    pub server: Server,
    pub labels: BTreeMap<String, String>,
    pub findings: Vec<Finding>,
    pub totals: Totals,
    /// When each second of the recording ended, since its beginning.
    pub at: Vec<f64>,
    /// Contention, longest wait first.
    pub latches: Vec<LatchReport>,
    /// Idle waits in condition variables, longest first.
    pub conditions: Vec<LatchReport>,
    /// Waits to get a mutex back after those, longest first; in no sum.
    pub reacquires: Vec<ReacquireReport>,
    pub pages: Vec<PageReport>,
    /// `None` where it was not sampled.
    pub cpu: Option<CpuReport>,
    /// Between which parts of the machine latches were handed over; `None` where that was not counted.
    pub handoffs: Option<HandoffsReport>,
    /// Those of which it is known.
    pub checksums: Vec<ChecksumReport>,
    /// How long waiters spin, as it was last set; times are in nanoseconds.
    pub spin_settings: Option<SpinSettings>,
    pub lost: BTreeMap<String, u64>,
    pub probes: Vec<Probe>,
    pub static_barriers: BTreeMap<String, u64>,
}

/// Sums over the whole recording.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    pub waits: u64,
    /// Waited by all threads together.
    pub wait: f64,
    pub sleep: Option<f64>,
    /// Awake while waiting: spinning, or ready and without a CPU.
    pub spin: Option<f64>,
    /// The part of `wait` that was not seen but estimated.
    pub estimated: f64,
    pub queries: Option<u64>,
    pub server_cpu: Option<f64>,
    pub probe_cost: Option<f64>,
}

/// The waits for a latch in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct LatchReport {
    pub latch: String,
    pub kind: &'static str,
    pub mode: &'static str,
    pub waits: u64,
    pub wait: f64,
    /// Of the wait time of all rows of this list.
    pub share: f64,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: f64,
    pub sleep: Option<f64>,
    pub spin: Option<f64>,
    pub sleeps: Option<u64>,
    /// CPU time spent spinning for it; `None` where that was not sampled.
    pub spin_cpu: Option<f64>,
    /// Waits that began with spinning; `None` where there were none, or sleeps were not seen.
    pub spins: Option<Spins>,
    pub estimated: f64,
    /// Buckets that hold waits, by ascending bound.
    pub histogram: Vec<Bucket>,
    /// Waited in each second of the recording, by all threads together.
    pub wait_by_second: Vec<f64>,
    /// Where waits in this mode began, longest first; where that is not known, waits in any mode.
    pub callsites: Vec<CallsiteReport>,
}

/// The waits for a mutex of threads that a condition variable had woken.
#[derive(Clone, Debug, Serialize)]
pub struct ReacquireReport {
    pub latch: String,
    pub waits: u64,
    pub wait: f64,
    /// What else was waited for it: contention, and part of the sums.
    pub other_wait: f64,
}

/// What came of spinning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spins {
    /// Got the latch without a sleep.
    pub won: u64,
    /// Slept after all.
    pub wasted: u64,
}

impl Spins {
    pub(crate) fn of(latch: &LatchWaits) -> Option<Spins> {
        (latch.spins() > 0).then_some(Spins { won: latch.spins_won, wasted: latch.spins_wasted })
    }

    /// Share of those that were won, 0 to 1.
    pub fn won_share(&self) -> f64 {
        self.won as f64 / (self.won as f64 + self.wasted as f64)
    }
}

/// Waits that took up to `le` and longer than the bucket before.
#[derive(Clone, Debug, Serialize)]
pub struct Bucket {
    /// `None`: without bound.
    pub le: Option<f64>,
    pub waits: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct CallsiteReport {
    pub callsite: String,
    pub waits: u64,
    pub wait: f64,
    /// Of the wait time at all of these call sites.
    pub share: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct PageReport {
    pub table: String,
    pub index: String,
    pub level: Option<u16>,
    pub waits: u64,
    pub wait: f64,
}

impl PageReport {
    /// `sbtest/sbtest1.k_1 level 0`
    fn place(&self) -> String {
        let index = if self.index.is_empty() { String::new() } else { format!(".{}", self.index) };
        let level = self.level.map_or_else(String::new, |level| format!(" level {level}"));
        format!("{}{index}{level}", self.table)
    }
}

impl Report {
    pub fn new(recording: &Recording) -> Report {
        let (conditions, latches): (Vec<LatchWaits>, Vec<LatchWaits>) =
            recording.latches().into_iter().partition(|latch| latch.kind == Kind::Cond);
        let parts = Parts::new(recording);
        let end = recording.end.as_ref();
        let mut report = Report {
            armtrace: recording.start.armtrace.clone(),
            began_ms: recording.start.began_ms,
            duration: recording.duration().as_secs_f64(),
            ending: end.map(|end| end.ending),
            host: recording.start.host.clone(),
            server: recording.start.server.clone(),
            labels: recording.start.labels.clone(),
            findings: Vec::new(),
            totals: totals(recording, &latches),
            at: recording.seconds.iter().map(|second| second.at_ns as f64 / 1e9).collect(),
            latches: parts.reports(&latches),
            conditions: parts.reports(&conditions),
            reacquires: reacquires(recording, &latches),
            pages: recording.pages().into_iter().filter(|page| page.wait_ns > 0).map(page).collect(),
            cpu: CpuReport::new(recording),
            handoffs: HandoffsReport::new(recording),
            checksums: cpu::checksums(recording),
            spin_settings: recording.code.spin.clone(),
            lost: recording.lost().into_iter().filter(|(_, events)| *events > 0).collect(),
            probes: end.map(|end| end.probes.clone()).unwrap_or_default(),
            static_barriers: end.map(|end| end.static_barriers.clone()).unwrap_or_default(),
        };
        let advice = advice(&Figures {
            latches: &latches,
            cpu: &recording.cpu(),
            checksums: &recording.code.checksums,
            spin: recording.code.spin.as_ref(),
        });
        report.findings = findings::findings(&report, &advice);
        report
    }

    /// Threads that wait for a latch at any moment, on average.
    pub fn threads_waiting(&self) -> f64 {
        self.totals.wait / self.duration
    }

    /// Share of the server's CPU time that probes took.
    pub fn overhead(&self) -> Option<f64> {
        Some(self.totals.probe_cost? / self.totals.server_cpu.filter(|cpu| *cpu > 0.0)?)
    }
}

fn totals(recording: &Recording, latches: &[LatchWaits]) -> Totals {
    let sum = |figure: fn(&LatchWaits) -> u64| seconds(latches.iter().map(figure).fold(0, u64::saturating_add));
    let seen = |time: f64| recording.start.sleeps_seen.then_some(time);
    Totals {
        waits: latches.iter().map(|latch| latch.waits.count).fold(0, u64::saturating_add),
        wait: sum(|latch| latch.waits.sum_ns),
        sleep: seen(sum(|latch| latch.sleep_ns.min(latch.waits.sum_ns))),
        spin: seen(sum(LatchWaits::spin_ns)),
        estimated: sum(|latch| latch.estimated_ns),
        queries: recording.queries(),
        server_cpu: recording.server_cpu_ns().map(seconds),
        probe_cost: recording.probe_cost_ns().map(seconds),
    }
}

/// What latches' reports are put together from.
struct Parts<'a> {
    recording: &'a Recording,
    samples_cpu: bool,
    callsites: Vec<CallsiteWaits>,
    /// By latch, kind and mode: nanoseconds in each second.
    by_second: BTreeMap<(&'a str, &'a str, &'a str), Vec<f64>>,
}

impl<'a> Parts<'a> {
    fn new(recording: &'a Recording) -> Parts<'a> {
        let mut by_second = BTreeMap::new();
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.latches {
                let (latch, kind, mode) = recording.latch(delta.r);
                let row = by_second.entry((latch, kind.as_str(), mode.as_str()));
                row.or_insert_with(|| vec![0.0; recording.seconds.len()])[i] += delta.ns as f64 / 1e9;
            }
        }
        Parts { recording, samples_cpu: !recording.rows.cpu.is_empty(), callsites: recording.callsites(), by_second }
    }

    fn reports(&self, latches: &[LatchWaits]) -> Vec<LatchReport> {
        let all = latches.iter().map(|latch| latch.waits.sum_ns as f64).sum::<f64>().max(1.0);
        latches.iter().filter(|latch| latch.waits.count > 0).map(|latch| self.report(latch, all)).collect()
    }

    fn report(&self, latch: &LatchWaits, all_ns: f64) -> LatchReport {
        let seen = self.recording.start.sleeps_seen;
        let (kind, mode, waits) = (latch.kind.as_str(), latch.mode.as_str(), &latch.waits);
        LatchReport {
            latch: latch.latch.clone(),
            kind,
            mode,
            waits: waits.count,
            wait: seconds(waits.sum_ns),
            share: waits.sum_ns as f64 / all_ns,
            mean: waits.mean_ns().map(|ns| ns / 1e9),
            p50: waits.quantile_ns(0.5).map(|ns| ns / 1e9),
            p99: waits.quantile_ns(0.99).map(|ns| ns / 1e9),
            max: seconds(waits.max_ns),
            sleep: seen.then(|| seconds(latch.sleep_ns.min(waits.sum_ns))),
            spin: seen.then(|| seconds(latch.spin_ns())),
            sleeps: seen.then_some(latch.sleeps),
            spin_cpu: self.samples_cpu.then(|| seconds(latch.spin_cpu_ns)),
            spins: Spins::of(latch).filter(|_| seen),
            estimated: seconds(latch.estimated_ns),
            histogram: buckets(waits),
            wait_by_second: self.by_second.get(&(latch.latch.as_str(), kind, mode)).cloned().unwrap_or_default(),
            callsites: self.callsites(&latch.latch, latch.mode),
        }
    }

    fn callsites(&self, latch: &str, mode: Mode) -> Vec<CallsiteReport> {
        let of_latch = || self.callsites.iter().filter(|site| site.is_of(latch, mode) && site.wait_ns > 0);
        let all: f64 = of_latch().map(|site| site.wait_ns as f64).sum();
        let report = |site: &CallsiteWaits| CallsiteReport {
            callsite: site.callsite.clone(),
            waits: site.waits,
            wait: seconds(site.wait_ns),
            share: site.wait_ns as f64 / all,
        };
        of_latch().map(report).collect()
    }
}

fn buckets(waits: &Histogram) -> Vec<Bucket> {
    let bounds = BUCKET_BOUNDS_NS.iter().map(|&ns| Some(seconds(ns))).chain([None]);
    bounds.zip(waits.buckets).filter(|(_, waits)| *waits > 0).map(|(le, waits)| Bucket { le, waits }).collect()
}

fn reacquires(recording: &Recording, latches: &[LatchWaits]) -> Vec<ReacquireReport> {
    let other_ns = |name: &str| {
        let of_latch = latches.iter().filter(|latch| latch.latch == name);
        of_latch.map(|latch| latch.waits.sum_ns).fold(0, u64::saturating_add)
    };
    let report = |row: Reacquires| ReacquireReport {
        waits: row.waits,
        wait: seconds(row.wait_ns),
        other_wait: seconds(other_ns(&row.latch)),
        latch: row.latch,
    };
    recording.reacquires().into_iter().filter(|row| row.waits > 0).map(report).collect()
}

fn page(page: PageWaits) -> PageReport {
    PageReport {
        table: page.table,
        index: page.index,
        level: page.level,
        waits: page.waits,
        wait: seconds(page.wait_ns),
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

//! Reports waits for latches.

mod call_stacks;
mod findings;
mod handoffs;
mod html;
mod text;

pub use call_stacks::CallStackReport;
pub(crate) use call_stacks::{towers, Tower};
pub use handoffs::HandoffsReport;
pub(in crate::measure) use html::clients as html_clients;
pub(in crate::measure) use text::{write_clients, write_statement};

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use maud::Markup;
use serde::Serialize;

use super::figures::{Account, CallsiteWaits, LatchWaits, PageWaits, Reacquires, StatementWaits};
use super::shares::{self, Client, Share, Statement};
use crate::model::{Histogram, Mode, BUCKET_BOUNDS_NS};
use crate::recording::report::{seconds, Findings, Report, Section};
use crate::recording::Recording;

/// All waits for latches. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatchesReport {
    /// Contended waits by latch and mode, longest first.
    pub latches: Vec<LatchReport>,
    /// Idle waits on condition variables, longest first.
    pub conditions: Vec<LatchReport>,
    /// Waits to reacquire a mutex after a wake-up by a condition variable, longest first; no sum includes them.
    pub reacquires: Vec<ReacquireReport>,
    /// Waits for pages by table, index and level, longest first.
    pub pages: Vec<PageReport>,
    /// What threads executed that waited for contended latches, by time, longest first. Empty if statements were not
    /// read.
    pub statements: Vec<StatementReport>,
    /// For whom they executed it, by time, longest first. Empty if that is not known.
    pub clients: Vec<ClientReport>,
    /// Through which calls threads came to wait for contended latches, longest first. Empty if call stacks were not
    /// read.
    pub call_stacks: Vec<CallStackReport>,
}

impl LatchesReport {
    /// Reports on a recording whose latches are these: contended ones and condition variables.
    pub(crate) fn new(recording: &Recording, contended: &[LatchWaits], conditions: &[LatchWaits]) -> LatchesReport {
        let builder = Builder::new(recording);
        let all = shares::contended_ns(contended) / 1e9;
        LatchesReport {
            latches: builder.reports(contended),
            conditions: builder.reports(conditions),
            reacquires: reacquires(recording, contended),
            pages: recording.pages().into_iter().filter(|page| page.wait_ns > 0).map(page).collect(),
            statements: statements(&shares::of_all(contended, &builder.statements, Statement::of), all),
            clients: clients(&shares::of_all(contended, &builder.statements, Client::of), all),
            call_stacks: call_stacks::call_stacks(recording),
        }
    }
}

impl Section for LatchesReport {
    fn text(&self, report: &Report, f: &mut Formatter) -> fmt::Result {
        text::write(self, report, f)
    }

    fn html(&self, report: &Report) -> Markup {
        html::latches(self, report)
    }

    fn html_details(&self, report: &Report) -> Markup {
        html::details(self, report.duration)
    }

    fn findings(&self, report: &Report, findings: &mut Findings) {
        findings::find(self, report, findings);
    }

    fn lesser_findings(&self, report: &Report, findings: &mut Findings) {
        findings::find_lesser(self, report, findings);
    }
}

/// The waits for a latch in one mode.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatchReport {
    /// The event name.
    pub latch: String,
    /// The kind, as in the `kind` label.
    pub kind: &'static str,
    /// The mode, as in the `mode` label; empty for a latch without modes.
    pub mode: &'static str,
    /// The number of waits; `None` if they were not counted.
    pub waits: Option<u64>,
    /// The time that all threads together waited.
    pub wait: f64,
    /// The share of the wait time of all rows of this list, 0 to 1.
    pub share: f64,
    /// The mean wait; `None` if there were none, or they were not counted.
    pub mean: Option<f64>,
    /// The median wait, interpolated within its bucket; `None` as for `mean`.
    pub p50: Option<f64>,
    /// The 99th percentile of the waits, interpolated within its bucket; `None` as for `mean`.
    pub p99: Option<f64>,
    /// The longest wait; `None` if waits were not counted.
    pub max: Option<f64>,
    /// The part of `wait` spent asleep; `None` if sleeps were not seen.
    pub sleep: Option<f64>,
    /// The part of `wait` spent awake; `None` if sleeps were not seen.
    pub spin: Option<f64>,
    /// The number of sleeps; `None` if they were not seen or not counted.
    pub sleeps: Option<u64>,
    /// CPU time spent spinning for it; `None` if CPU time was not sampled.
    pub spin_cpu: Option<f64>,
    /// Waits that began with spinning; `None` if there were none, or sleeps were not seen.
    pub spins: Option<Spins>,
    /// The part of `wait` that is estimated because probes were off; all of it if there were none.
    pub estimated: f64,
    /// Half the width of the 95 % confidence interval of `wait`; `None` if nothing is estimated, or in recordings
    /// that lack it.
    pub error: Option<f64>,
    /// Buckets that hold waits, by ascending bound.
    pub histogram: Vec<Bucket>,
    /// The time that all threads together waited in each second of the recording.
    pub wait_by_second: Vec<f64>,
    /// The places where waits in this mode began, longest first. Waits whose mode is not known count in every mode.
    pub callsites: Vec<CallsiteReport>,
    /// What threads executed that waited for it in this mode, by time, longest first. Empty if none was seen.
    pub statements: Vec<StatementReport>,
}

impl LatchReport {
    /// Returns half the width of the 95 % confidence interval of the wait time, as a part of it; `None` if nothing is
    /// estimated, or in recordings that lack it.
    pub(super) fn error_ratio(&self) -> Option<f64> {
        self.error.map(|error| error / self.wait)
    }

    /// Returns the mode for a sentence: ` (SX)`, or nothing for a latch without modes.
    pub(crate) fn in_mode(&self) -> String {
        if self.mode.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.mode.to_uppercase())
        }
    }
}

/// The waits to reacquire a mutex after a wake-up by a condition variable.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReacquireReport {
    /// The mutex's event name.
    pub latch: String,
    /// The number of waits; `None` if they were not counted.
    pub waits: Option<u64>,
    /// The time that all threads together waited.
    pub wait: f64,
    /// The time of all other waits for the mutex, which are contention and part of the sums.
    pub other_wait: f64,
}

/// The outcome of spins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Spins {
    /// Spins that got the latch without a sleep.
    pub won: u64,
    /// Spins that ended in a sleep.
    pub wasted: u64,
}

impl Spins {
    pub(crate) fn of(latch: &LatchWaits) -> Option<Spins> {
        (latch.spins() > 0).then_some(Spins { won: latch.spins_won, wasted: latch.spins_wasted })
    }

    /// Returns the share of spins that were won, 0 to 1.
    pub fn won_share(&self) -> f64 {
        self.won as f64 / (self.won as f64 + self.wasted as f64)
    }
}

/// Waits that took up to `le` and longer than the bucket before.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bucket {
    /// The upper bound, in seconds, inclusive; `None` for the last bucket.
    pub le: Option<f64>,
    /// The number of waits.
    pub waits: u64,
}

/// The waits that began at one place.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallsiteReport {
    /// The place: a source file and line, or a function.
    pub callsite: String,
    /// The number of waits that began there; `None` if they were not counted.
    pub waits: Option<u64>,
    /// The time that all threads together waited.
    pub wait: f64,
    /// The share of the wait time at all of these call sites, 0 to 1.
    pub share: f64,
}

/// A statement's part of the wait time, by the number of times that threads were seen.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatementReport {
    /// The hash of the statement without its values; empty if this is no single statement.
    pub digest: String,
    /// The statement without its values, or its first word; or what stands in its place: `no statement`, `not read`,
    /// `other`.
    pub statement: String,
    /// The number of times that a thread was seen which waited and executed it.
    pub samples: u64,
    /// The time that all threads together waited.
    pub wait: f64,
    /// The share of the wait time, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % confidence interval of `share`, if samples were independent.
    pub share_error: f64,
}

/// A user's part, in one schema, of the time that threads waited or used the CPU, by the number of times that threads
/// were seen.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClientReport {
    /// The name of the user, without the host; empty if it is not known, or if this is no user.
    pub user: String,
    /// The schema that was chosen; empty if none was, if it is not known, or if this is no user.
    pub schema: String,
    /// What stands in place of a user: `no statement`, `not read`, `other`; empty if this is one.
    pub instead: String,
    /// The number of times that a thread was seen.
    pub samples: u64,
    /// The time of all threads together.
    pub time: f64,
    /// The share of the time of all, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % confidence interval of `share`, if samples were independent.
    pub share_error: f64,
}

impl ClientReport {
    /// Returns how the client is shown: `app in shop`.
    pub(in crate::measure) fn name(&self) -> String {
        if self.instead.is_empty() {
            return Account { user: self.user.clone(), schema: self.schema.clone() }.to_string();
        }
        self.instead.clone()
    }
}

/// The waits for pages at one level of an index.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PageReport {
    /// The table or tablespace; see [`PageWaits::table`].
    pub table: String,
    /// The index, or the purpose of a page without one; see [`PageWaits::index`].
    pub index: String,
    /// The level, 0 for leaf pages; `None` for pages without an index.
    pub level: Option<u16>,
    /// The number of waits.
    pub waits: u64,
    /// The time that all threads together waited.
    pub wait: f64,
}

impl PageReport {
    /// Returns the table, index and level: `sbtest/sbtest1.k_1 level 0`.
    fn location(&self) -> String {
        let index = if self.index.is_empty() { String::new() } else { format!(".{}", self.index) };
        let level = self.level.map_or_else(String::new, |level| format!(" level {level}"));
        format!("{}{index}{level}", self.table)
    }
}

/// Builds latches' reports.
struct Builder<'a> {
    recording: &'a Recording,
    samples_cpu: bool,
    callsites: Vec<CallsiteWaits>,
    statements: Vec<StatementWaits>,
    /// By latch, kind and mode: nanoseconds in each second.
    by_second: BTreeMap<(&'a str, &'a str, &'a str), Vec<f64>>,
}

impl<'a> Builder<'a> {
    fn new(recording: &'a Recording) -> Builder<'a> {
        let mut by_second = BTreeMap::new();
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.latches {
                let (latch, kind, mode) = recording.latch(delta.row);
                let row = by_second.entry((latch, kind.as_str(), mode.as_str()));
                row.or_insert_with(|| vec![0.0; recording.seconds.len()])[i] += delta.wait_ns as f64 / 1e9;
            }
        }
        Builder {
            recording,
            samples_cpu: !recording.rows.cpu.is_empty(),
            callsites: recording.callsites(),
            statements: recording.statements(),
            by_second,
        }
    }

    fn reports(&self, latches: &[LatchWaits]) -> Vec<LatchReport> {
        let all = latches.iter().map(|latch| latch.waits.sum_ns as f64).sum::<f64>().max(1.0);
        let is_there = |latch: &&LatchWaits| match self.recording.start.sampled {
            true => latch.waits.sum_ns > 0,
            false => latch.waits.count > 0,
        };
        latches.iter().filter(is_there).map(|latch| self.report(latch, all)).collect()
    }

    fn report(&self, latch: &LatchWaits, all_ns: f64) -> LatchReport {
        let seen = self.recording.start.sleeps_seen;
        let (kind, mode, waits) = (latch.kind.as_str(), latch.mode.as_str(), &latch.waits);
        LatchReport {
            latch: latch.latch.clone(),
            kind,
            mode,
            waits: self.recording.counted(waits.count),
            wait: seconds(waits.sum_ns),
            share: waits.sum_ns as f64 / all_ns,
            mean: waits.mean_ns().map(|ns| ns / 1e9),
            p50: waits.quantile_ns(0.5).map(|ns| ns / 1e9),
            p99: waits.quantile_ns(0.99).map(|ns| ns / 1e9),
            max: self.recording.counted(waits.max_ns).map(seconds),
            sleep: seen.then(|| seconds(latch.sleep_ns.min(waits.sum_ns))),
            spin: seen.then(|| seconds(latch.spin_ns())),
            sleeps: self.recording.counted(latch.sleeps).filter(|_| seen),
            spin_cpu: self.samples_cpu.then(|| seconds(latch.spin_cpu_ns)),
            spins: Spins::of(latch).filter(|_| seen),
            estimated: seconds(latch.estimated_ns),
            error: latch.error_ns().map(|ns| ns / 1e9),
            histogram: buckets(waits),
            wait_by_second: self.by_second.get(&(latch.latch.as_str(), kind, mode)).cloned().unwrap_or_default(),
            callsites: self.callsites(&latch.latch, latch.mode),
            statements: statements(&shares::of_latch(latch, &self.statements, Statement::of), seconds(waits.sum_ns)),
        }
    }

    fn callsites(&self, latch: &str, mode: Mode) -> Vec<CallsiteReport> {
        let of_latch = || self.callsites.iter().filter(|site| site.is_of(latch, mode) && site.wait_ns > 0);
        let all: f64 = of_latch().map(|site| site.wait_ns as f64).sum();
        let report = |site: &CallsiteWaits| CallsiteReport {
            callsite: site.callsite.clone(),
            waits: self.recording.counted(site.waits),
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
        waits: recording.counted(row.waits),
        wait: seconds(row.wait_ns),
        other_wait: seconds(other_ns(&row.latch)),
        latch: row.latch,
    };
    recording
        .reacquires()
        .into_iter()
        .filter(|row| row.waits > 0 || recording.start.sampled && row.wait_ns > 0)
        .map(report)
        .collect()
}

/// Reports on the parts of so many seconds.
fn statements(parts: &[Share<Statement>], all: f64) -> Vec<StatementReport> {
    let report = |part: &Share<Statement>| StatementReport {
        digest: part.of.digest.to_owned(),
        statement: part.of.text.to_owned(),
        samples: part.samples,
        wait: part.share * all,
        share: part.share,
        share_error: part.error,
    };
    parts.iter().map(report).collect()
}

/// Reports on the parts of so many seconds; on none if nothing is known of any client.
pub(in crate::measure) fn clients(parts: &[Share<Client>], all: f64) -> Vec<ClientReport> {
    let report = |part: &Share<Client>| {
        let (account, instead) = match part.of {
            Client::Account(account) => (account.clone(), ""),
            Client::Instead(text) => (Account::default(), text),
        };
        ClientReport {
            user: account.user,
            schema: account.schema,
            instead: instead.to_owned(),
            samples: part.samples,
            time: part.share * all,
            share: part.share,
            share_error: part.error,
        }
    };
    if Client::are_known(parts) {
        parts.iter().map(report).collect()
    } else {
        Vec::new()
    }
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

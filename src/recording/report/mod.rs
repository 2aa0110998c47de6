//! Reports on one recording: figures and findings, as text, JSON, a web page or folded stacks.
//!
//! It is about waits for latches and about CPU time, and has a [`Part`] of each measurement that adds one.

mod findings;
pub(crate) mod flame;
mod folded;
mod html;
mod text;
mod timeline;

pub use findings::Finding;
pub(crate) use findings::{count_of, Findings};
pub use folded::Folded;
pub use html::Html;
pub(crate) use html::{recorded, what_to_do};
pub(crate) use text::heading;
pub use text::Text;
pub(crate) use timeline::timeline;

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};

use maud::Markup;
use serde::Serialize;

use super::{Ending, Host, Probe, Recording, Server};
use crate::advice::{self, Advised};
use crate::measure::advice::{advice, Figures};
use crate::measure::cpu::report::CpuReport;
use crate::measure::latch::report::{HandoffsReport, LatchesReport};
use crate::measure::latch::LatchWaits;
use crate::measure::{measurements, Known, Nothing, Room};
use crate::model::Kind;

/// What one measurement writes in a report.
pub trait Section {
    /// Writes its part of a report for a terminal, if it has any.
    fn text(&self, _report: &Report, _f: &mut Formatter) -> fmt::Result {
        Ok(())
    }

    /// Returns its part of a page, if it has any.
    fn html(&self, _report: &Report) -> Markup {
        Markup::default()
    }

    /// Returns tables that follow the main parts of all sections on a page.
    fn html_details(&self, _report: &Report) -> Markup {
        Markup::default()
    }

    /// Returns names and values for the end of a report.
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Adds the most important findings, which come before any advice.
    fn findings(&self, _report: &Report, _findings: &mut Findings) {}

    /// Adds the less important findings, which follow the advice.
    fn lesser_findings(&self, _report: &Report, _findings: &mut Findings) {}
}

/// What one measurement adds to a report: its fields are those of the report, and what is written of them.
pub trait Part: Section + Clone + Debug + Serialize {
    /// Reports on a recording.
    fn new(recording: &Recording) -> Self;
}

impl Section for Nothing {}

impl Part for Nothing {
    fn new(_recording: &Recording) -> Nothing {
        Nothing {}
    }
}

macro_rules! parts {
    ($($room:ident: $measurement:ident $rows:tt,)+) => {
        /// What the measurements add to a report.
        #[derive(Clone, Debug, Serialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub struct Parts {
            $(#[doc = concat!("The part of [`", stringify!($room), "`](crate::measure::", stringify!($room), ").")]
            #[serde(flatten)]
            pub $room: <crate::measure::$room::$measurement as Room>::Report,)+
        }

        impl Parts {
            fn new(recording: &Recording) -> Parts {
                Parts { $($room: Part::new(recording)),+ }
            }

            fn sections(&self) -> Vec<&dyn Section> {
                vec![$(&self.$room),+]
            }
        }
    };
}

measurements!(parts);

/// A report. Times are in seconds unless a name ends in `_ns` or `_ms`. What is not known is absent.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// The version of the armtrace that recorded.
    pub armtrace: String,
    /// When recording began, in milliseconds since 1970, UTC.
    pub began_ms: u64,
    /// The length of the recording.
    pub duration: f64,
    /// Why recording ended; `None` if the file was cut short.
    pub ending: Option<Ending>,
    /// The machine that the server ran on.
    pub host: Host,
    /// The server that was recorded.
    pub server: Server,
    /// The labels given with `--label`.
    pub labels: BTreeMap<String, String>,
    /// What the figures say, the most important first.
    pub findings: Vec<Finding>,
    /// What to do about them, as far as the figures show the cause; the heaviest first.
    pub what_to_do: Vec<Advised>,
    /// Whether waits were read from the threads' stacks, without probes: then all times of waits are estimates, and how
    /// many there were is not known.
    pub sampled: bool,
    /// Sums over the whole recording.
    pub totals: Totals,
    /// When each second of the recording ended, since its beginning.
    pub at: Vec<f64>,
    /// The waits, by latch, call site and page.
    #[serde(flatten)]
    pub latch: LatchesReport,
    /// CPU time by class and function; `None` if it was not sampled.
    pub cpu: Option<CpuReport>,
    /// Handoffs of latches between parts of the machine; `None` if they were not counted.
    pub handoffs: Option<HandoffsReport>,
    /// What other measurements add.
    #[serde(flatten)]
    pub parts: Parts,
    /// Events that are in no other figure, by cause.
    pub lost: BTreeMap<String, u64>,
    /// The probes, as they were at the end; empty if the file was cut short.
    pub probes: Vec<Probe>,
    /// The number of each instruction in the server's code that orders memory; empty if the file was cut short.
    pub static_barriers: BTreeMap<String, u64>,
}

/// Sums over the whole recording.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Totals {
    /// The number of waits; `None` if they were not counted.
    pub waits: Option<u64>,
    /// The time that all threads together waited.
    pub wait: f64,
    /// The part of `wait` spent asleep; `None` if sleeps were not seen.
    pub sleep: Option<f64>,
    /// The part of `wait` spent awake: spinning, or ready and without a CPU.
    pub spin: Option<f64>,
    /// The part of `wait` that was not seen but estimated.
    pub estimated: f64,
    /// The number of statements that clients sent; `None` if they were not counted.
    pub queries: Option<u64>,
    /// The CPU time that the server used; `None` if it is not known.
    pub server_cpu: Option<f64>,
    /// The part of `server_cpu` that probes took; `None` if the cost of a hit is not known.
    pub probe_cost: Option<f64>,
}

impl Report {
    /// Evaluates a recording.
    pub fn new(recording: &Recording) -> Report {
        let (conditions, latches): (Vec<LatchWaits>, Vec<LatchWaits>) =
            recording.latches().into_iter().partition(|latch| latch.kind == Kind::Cond);
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
            what_to_do: advice::find(&Known::from(recording)),
            sampled: recording.start.sampled,
            totals: totals(recording, &latches),
            at: recording.seconds.iter().map(|second| second.at_ns as f64 / 1e9).collect(),
            latch: LatchesReport::new(recording, &latches, &conditions),
            cpu: CpuReport::new(recording),
            handoffs: HandoffsReport::new(recording),
            parts: Parts::new(recording),
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

    /// Returns its sections, in the order of text and pages.
    fn sections(&self) -> Vec<&dyn Section> {
        let mut sections: Vec<&dyn Section> = vec![&self.latch, &self.handoffs, &self.cpu];
        sections.extend(self.parts.sections());
        sections
    }

    /// Returns how many threads wait for a latch at any moment, on average.
    pub fn threads_waiting(&self) -> f64 {
        self.totals.wait / self.duration
    }

    /// Returns the share of the server's CPU time that probes took, 0 to 1; `None` if either is not known.
    pub fn overhead(&self) -> Option<f64> {
        Some(self.totals.probe_cost? / self.totals.server_cpu.filter(|cpu| *cpu > 0.0)?)
    }
}

fn totals(recording: &Recording, latches: &[LatchWaits]) -> Totals {
    let sum = |figure: fn(&LatchWaits) -> u64| seconds(latches.iter().map(figure).fold(0, u64::saturating_add));
    let seen = |time: f64| recording.start.sleeps_seen.then_some(time);
    Totals {
        waits: recording.counted(latches.iter().map(|latch| latch.waits.count).fold(0, u64::saturating_add)),
        wait: sum(|latch| latch.waits.sum_ns),
        sleep: seen(sum(|latch| latch.sleep_ns.min(latch.waits.sum_ns))),
        spin: seen(sum(LatchWaits::spin_ns)),
        estimated: sum(|latch| latch.estimated_ns),
        queries: recording.queries(),
        server_cpu: recording.server_cpu_ns().map(seconds),
        probe_cost: recording.probe_cost_ns().map(seconds),
    }
}

pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

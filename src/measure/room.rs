//! What a measurement consists of, and how it begins on a server.

use std::fmt::Debug;
use std::sync::Arc;

use anyhow::Result;
use prometheus::proto::MetricFamily;

use super::latch::{Latches, Plan};
use super::statements::StatementCounter;
use super::{Begun, Snapshot};
use crate::attach::Costs;
use crate::metrics::Family;
use crate::recording::{compare, report};
use crate::server::Target;

/// One thing measured on a server: the probes attached for it, and what they counted so far.
///
/// All methods may be called by any thread, and none fails for what another measurement does.
pub trait Measurement: Send + Sync {
    /// Returns what is not measured here, and which probes the kernel refused: one line each.
    fn refused(&self) -> Vec<String> {
        Vec::new()
    }

    /// Called when all measurements have begun: what counts from attach for the server as a whole counts from now.
    /// `server_cpu_ns` is the CPU time that the server has used by now, in nanoseconds, if it is known.
    fn all_attached(&self, _server_cpu_ns: Option<u64>) {}

    /// Returns the CPU time that its probes have taken from the server since attach, in nanoseconds. `costs` has the
    /// cost of a hit on this machine.
    fn cost_ns(&self, _costs: &Costs) -> u64 {
        0
    }

    /// Returns whether it keeps its probes within the budget itself, after what all others cost.
    fn is_governed(&self) -> bool {
        false
    }

    /// Keeps its probes within a part of the budget if they have no turns. `share` is what all probes may take of the
    /// server's CPU time, 0 to 1. Called when `costs` is measured, at first and again.
    fn limit(&self, _share: f64, _costs: &Costs) {}

    /// Adds everything counted since attach to `snapshot`. `costs` is `None` until it is measured.
    ///
    /// # Errors
    /// Fails when the kernel's maps cannot be read.
    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()>;

    /// Detaches the probes until [`Measurement::resume`], and returns when they are detached. What was counted stays.
    fn pause(&self) {}

    /// Attaches the probes again.
    fn resume(&self) {}

    /// Detaches the probes for good, and returns when they are detached. What was counted stays readable.
    fn detach(&self) {}
}

/// A measurement with everything that is made of it. What it has none of is [`Nothing`].
pub trait Room: Measurement + Sized + 'static {
    /// Its part of a [`Snapshot`].
    type Figures: Clone + Debug + Default + PartialEq;
    /// Its metrics.
    type Metrics: Metrics + Default + 'static;
    /// Its part of a report on a recording.
    type Report: report::Part;
    /// Its part of a comparison of two recordings.
    type Comparison: compare::Part;

    /// Attaches its probes; returns `None` if it was not asked for.
    ///
    /// # Errors
    /// The error's message begins with what is not measured. Then this measurement is missing, and the rest works.
    fn begin(on: &mut Attaching) -> Option<Result<Arc<Self>>>;
}

/// The metrics of one measurement, made from snapshots. What a snapshot does not know is absent, never zero.
pub trait Metrics: Send {
    /// Returns all metric families that a scrape can have.
    fn families(&self) -> &'static [Family];

    /// Returns the families of one scrape with their samples; those without samples may be among them. Scrapes come in
    /// the order in which their snapshots were taken.
    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily>;
}

/// Stands for what a measurement does not have: figures, metrics, or a part of a report or of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Nothing {}

impl Metrics for Nothing {
    fn families(&self) -> &'static [Family] {
        &[]
    }

    fn collect(&mut self, _snapshot: &Snapshot) -> Vec<MetricFamily> {
        Vec::new()
    }
}

/// Measurements in addition to waits for latches.
pub struct More {
    /// The frequency at which each CPU is sampled, in hertz; 0: CPU time is not sampled; `None`: as the budget allows.
    pub sample_hz: Option<u32>,
    /// Whether hardware events are counted.
    pub hardware_events: bool,
    /// Counts statements of clients.
    pub statements: Option<Arc<StatementCounter>>,
}

/// Work that takes too long for attaching, up to some tenths of a second. Until it is done, snapshots lack the figures
/// that need it.
pub type Later = Box<dyn FnOnce() + Send>;

/// A server to which measurements are being attached.
pub struct Attaching<'a> {
    /// The server.
    pub target: &'a Arc<Target>,
    /// The sites of its latch waits.
    pub plan: &'a Arc<Plan>,
    /// The waits for its latches, which are measured already.
    pub latches: &'a Arc<Latches>,
    /// What else to measure, if anything.
    pub more: Option<&'a More>,
    /// The share of the server's CPU time that probes may take, 0 to 1.
    pub max_overhead: f64,
    /// The measurements that have begun so far, in the order of their list.
    pub begun: Begun,
    later: Vec<Later>,
}

impl<'a> Attaching<'a> {
    /// Begins all measurements that are asked for and that a budget of `max_overhead` (0 to 1) allows: `more`, and the
    /// `latches`, whose sites are those of `plan`.
    pub fn begin(
        target: &'a Arc<Target>,
        plan: &'a Arc<Plan>,
        latches: &'a Arc<Latches>,
        more: Option<&'a More>,
        max_overhead: f64,
    ) -> Attached {
        let mut on =
            Attaching { target, plan, latches, more, max_overhead, begun: Begun::default(), later: Vec::new() };
        let degraded = Begun::begin(&mut on);
        Attached { measurements: on.begun.measurements(), degraded, later: on.later }
    }

    /// Leaves work for a thread in the background, which does it once all measurements have begun.
    pub fn later(&mut self, work: impl FnOnce() + Send + 'static) {
        self.later.push(Box::new(work));
    }
}

/// The measurements on one server.
pub struct Attached {
    /// In the order in which snapshots are made.
    pub measurements: Vec<Arc<dyn Measurement>>,
    /// What could not be attached, with the reason.
    pub degraded: Vec<String>,
    /// The work that remains to be done in the background, in this order.
    pub later: Vec<Later>,
}

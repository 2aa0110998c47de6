//! One room per measurement: its plan, its probes, its figures, and the metrics made from them.
//!
//! A [`Measurement`] attaches its probes when it is created, and adds what they counted to each [`Snapshot`]. The agent
//! has a list of them; what they have in common ends here.
//!
//! A new measurement needs three lines in this file: its module, its figures in [`Snapshot`], and its [`Metrics`] in
//! [`metrics`].

mod address_space;
pub mod advice;
pub mod barriers;
pub mod checksum;
pub mod cpu;
pub mod hardware;
pub mod latch;
mod maps;
mod replayed;
pub mod spin;
pub mod statements;
pub mod watchpoint;

pub use replayed::Replayed;

use std::time::Duration;

use anyhow::Result;
use prometheus::proto::MetricFamily;

use crate::attach::Costs;
use crate::metrics::Family;
use crate::model::{ProbeStatus, TargetInfo};

/// One thing measured on a server: the probes attached for it, and what they counted so far.
///
/// All methods may be called by any thread, and none fails for what another measurement does.
pub trait Measurement: Send + Sync {
    /// Returns what is not measured here, and which probes the kernel refused: one line each.
    fn refused(&self) -> Vec<String> {
        Vec::new()
    }

    /// Finds out what takes too long for attaching, up to some tenths of a second; until then, snapshots lack the
    /// figures that need it. Called once, in the background.
    fn prepare(&self) {}

    /// Returns the CPU time that its probes have taken from the server since attach, in nanoseconds. `costs` has the
    /// cost of a hit on this machine.
    fn cost_ns(&self, _costs: &Costs) -> u64 {
        0
    }

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

/// The metrics of one measurement, made from snapshots. What a snapshot does not know is absent, never zero.
pub trait Metrics: Send {
    /// Returns all metric families that a scrape can have.
    fn families(&self) -> &'static [Family];

    /// Returns the families of one scrape with their samples; those without samples may be among them. Scrapes come in
    /// the order in which their snapshots were taken.
    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily>;
}

/// Returns the metrics of all measurements.
pub fn metrics() -> Vec<Box<dyn Metrics>> {
    vec![
        Box::new(latch::LatchMetrics::new()),
        Box::new(cpu::CpuMetrics),
        Box::new(checksum::ChecksumMetrics),
        Box::new(barriers::BarrierMetrics),
        Box::new(hardware::HardwareMetrics),
        Box::new(statements::StatementMetrics),
    ]
}

/// Everything measured at one instant, counted since the agent attached. The exporter serves it, the live table shows the
/// difference of two, and recordings hold it second by second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The time since attach.
    pub elapsed: Duration,
    pub target: TargetInfo,
    /// False once the server has ended.
    pub up: bool,
    /// Whether the probes are detached for a while, so that nothing is counted.
    pub paused: bool,
    pub latch: latch::Figures,
    pub cpu: cpu::Figures,
    pub checksum: checksum::Figures,
    pub spin: spin::Figures,
    pub hardware: hardware::Figures,
    pub barriers: barriers::Figures,
    pub statements: statements::Figures,
    pub probes: Vec<ProbeStatus>,
    /// The cost of one hit on this machine, in nanoseconds, by class of probe; those that are known.
    pub costs: Vec<(&'static str, f64)>,
    /// Events that are in no other figure, by cause; every cause that exists is listed, also at zero.
    pub lost: Vec<(String, u64)>,
    /// CPU time that the server has used since attach (user and system), in nanoseconds; `None` if /proc does not say.
    pub server_cpu_ns: Option<u64>,
    /// The recording that it is from; `None` if the server is live.
    pub replayed: Option<Replayed>,
}

/// Returns the CPU time that these probes have taken from the server, in nanoseconds, as far as their costs are known.
fn cost_ns(probes: impl IntoIterator<Item = ProbeStatus>) -> u64 {
    probes.into_iter().filter_map(|probe| probe.total_cost_ns()).sum::<f64>() as u64
}

impl Snapshot {
    /// CPU time that probes took from the server since attach, nanoseconds; `None` where the cost of a
    /// probe that was hit is unknown, for a sum without it would be too low.
    pub fn probe_cost_ns(&self) -> Option<f64> {
        if let Some(replayed) = &self.replayed {
            return replayed.probe_cost_ns.map(|ns| ns as f64);
        }
        let hit = self.probes.iter().filter(|probe| probe.hits > 0);
        hit.map(ProbeStatus::total_cost_ns).try_fold(0.0, |sum, cost| Some(sum + cost?))
    }

    /// Share of the server's CPU time since attach that probes took, 0 to 1; `None` where either is unknown.
    pub fn overhead_ratio(&self) -> Option<f64> {
        let cpu_ns = self.server_cpu_ns.filter(|&ns| ns > 0)?;
        Some(self.probe_cost_ns()? / cpu_ns as f64)
    }
}

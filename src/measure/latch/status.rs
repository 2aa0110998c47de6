//! The state of the probes, as other threads read it.

use parking_lot::Mutex;

use super::maps::Tracepoint;
use super::missed::Missed;
use crate::model::ProbeState;

/// The state of the probes, as others may read it.
#[derive(Default)]
pub(crate) struct Status {
    /// In the order of [`Plan::probes`](super::Plan::probes).
    pub probes: Mutex<Vec<ProbeState>>,
    /// Those that are needed here.
    pub tracepoints: Mutex<Vec<(Tracepoint, ProbeState)>>,
    /// The estimates for the time in which probes were off.
    pub missed: Mutex<Missed>,
}

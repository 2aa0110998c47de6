//! The state of the probes, as other threads read it.

use parking_lot::Mutex;

use super::missed::Missed;
use crate::model::ProbeState;

/// The state of the probes, as others may read it.
#[derive(Default)]
pub(crate) struct Status {
    /// In the order of [`Plan::probes`](super::Plan::probes).
    pub probes: Mutex<Vec<ProbeState>>,
    /// In the order of [`TRACEPOINTS`](super::maps::TRACEPOINTS), without those that are not needed here.
    pub tracepoints: Mutex<Vec<ProbeState>>,
    /// The estimates for the time in which probes were off.
    pub missed: Mutex<Missed>,
}

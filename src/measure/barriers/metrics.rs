//! Instructions that order memory: the metric family.

use prometheus::proto::MetricFamily;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, Family};

families! {
    BARRIERS = gauge(
        "armtrace_barriers_static",
        &["instruction"],
        "Barrier, atomic, spin-hint and checksum instructions in the server's code."
    );
}

/// Serves the counted instructions.
#[derive(Default)]
pub struct BarrierMetrics;

impl Metrics for BarrierMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let counts = snapshot.barriers.iter();
        vec![BARRIERS.with(counts.map(|(instruction, n)| BARRIERS.sample(&[instruction], *n as f64)))]
    }
}

//! Turns snapshots into metric families.
//!
//! What a snapshot does not know is absent from the scrape, never zero.

use std::sync::Arc;

use parking_lot::Mutex;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use super::agent::AgentMetrics;
use super::servers::FAMILIES_OF_MANY;
use super::SnapshotSource;
use crate::measure::{self, Metrics};
use crate::metrics::Family;

/// Serves a source of snapshots as the metrics of `docs/reference/metrics.md`.
pub struct SnapshotCollector {
    source: Arc<dyn SnapshotSource>,
    descs: Vec<Desc>,
    metrics: Mutex<Vec<Box<dyn Metrics>>>,
}

impl SnapshotCollector {
    /// Creates a collector that takes a snapshot at each scrape.
    pub fn new(source: Arc<dyn SnapshotSource>) -> SnapshotCollector {
        SnapshotCollector { source, descs: families().map(Family::desc).collect(), metrics: Mutex::new(metrics()) }
    }
}

impl Collector for SnapshotCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The lock comes first, so that simultaneous scrapes see snapshots in the order in which they were taken.
        let mut metrics = self.metrics.lock();
        let snapshot = self.source.snapshot();
        metrics.iter_mut().flat_map(|metrics| metrics.collect(&snapshot)).collect()
    }
}

/// Returns all metric families that a scrape can have, apart from those of armtrace's own process.
pub fn families() -> impl Iterator<Item = &'static Family> {
    metrics().into_iter().flat_map(|metrics| metrics.families()).chain(FAMILIES_OF_MANY)
}

/// Returns the metrics of all measurements, and those that belong to none.
fn metrics() -> Vec<Box<dyn Metrics>> {
    let mut metrics = measure::metrics();
    metrics.push(Box::new(AgentMetrics));
    metrics
}

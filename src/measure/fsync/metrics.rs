//! Flushes of files: the metric family.

use prometheus::proto::MetricFamily;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, Family};

families! {
    CALLS = histogram(
        "armtrace_fsync_seconds",
        &["file"],
        "Calls of fsync and fdatasync, from beginning to end, by performance_schema's event name of the file."
    );
}

/// Serves the flushes of files.
#[derive(Default)]
pub struct FsyncMetrics;

impl Metrics for FsyncMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        // What was counted before would look as if nothing were flushed.
        let calls = snapshot.fsync.calls.iter().filter(|_| !snapshot.fsync.rests);
        vec![CALLS.with(calls.map(|row| CALLS.distribution(&[&row.event], &row.calls)))]
    }
}

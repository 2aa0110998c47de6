//! Waits for files: the metric families.

use std::collections::BTreeMap;

use prometheus::proto::MetricFamily;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};

const FILE: &[&str] = &["file", "operation"];

families! {
    WAIT = counter(
        "armtrace_file_wait_seconds_total",
        FILE,
        "Sampled time of threads in system calls for files, without running, by performance_schema's event name of the \
         file; not part of any latch wait time."
    );
    VARIANCE = counter(
        "armtrace_file_wait_variance_seconds_squared_total",
        FILE,
        "Square of the standard error of the time waited for files. 1.96 times the square root of its increase is half \
         the 95 % interval."
    );
}

/// Serves the waits for files.
#[derive(Default)]
pub struct FileMetrics;

impl Metrics for FileMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let mut sums: BTreeMap<[&str; 2], [u64; 2]> = BTreeMap::new();
        for row in &snapshot.files.waits {
            let [ns, variance] = sums.entry([&row.event, row.operation.as_str()]).or_default();
            *ns = ns.saturating_add(row.wait_ns);
            *variance = variance.saturating_add(row.variance_ms2);
        }
        vec![
            WAIT.with(sums.iter().map(|(labels, [ns, _])| WAIT.sample(labels, seconds(*ns)))),
            VARIANCE.with(sums.iter().map(|(labels, [_, ms2])| VARIANCE.sample(labels, *ms2 as f64 / 1e6))),
        ]
    }
}

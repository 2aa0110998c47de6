//! CPU time of the server: the metric families.

use prometheus::proto::MetricFamily;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};

families! {
    TIME = counter(
        "armtrace_cpu_seconds_total",
        &["class", "function"],
        "Sampled CPU time of the server's threads by the purpose of the function; small ones are summed in \
         function=\"other\"."
    );
    ORDERING = counter(
        "armtrace_barrier_cpu_seconds_total",
        &["instruction", "function"],
        "Sampled CPU time of the server's threads on barriers, atomics, and ordered loads and stores."
    );
    GETCPU = counter(
        "armtrace_getcpu_calls_total",
        &["path"],
        "Calls of sched_getcpu in the server's threads, by path; only those that are system calls are counted."
    );
}

/// Serves CPU time, whose rows [`Table`](super::Table) bounds.
#[derive(Default)]
pub struct CpuMetrics;

impl Metrics for CpuMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let cpu = &snapshot.cpu;
        let time = cpu.time.iter().map(|row| TIME.sample(&[row.class.as_str(), &row.function], seconds(row.ns)));
        let ordering = cpu.ordering.iter();
        let ordering = ordering.map(|row| ORDERING.sample(&[&row.instruction, &row.function], seconds(row.ns)));
        let getcpu = cpu.getcpu_calls.map(|calls| GETCPU.sample(&["syscall"], calls as f64));
        vec![TIME.with(time), ORDERING.with(ordering), GETCPU.with(getcpu)]
    }
}

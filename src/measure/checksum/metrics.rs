//! Checksums that the server computes: the metric families.

use std::collections::BTreeMap;

use prometheus::proto::{Metric, MetricFamily};

use super::{Checksum, ChecksumCalls};
use crate::measure::cpu::CpuTime;
use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};

const CHOSEN: &[&str] = &["function", "implementation"];

families! {
    TIME = counter(
        "armtrace_checksum_seconds_total",
        CHOSEN,
        "Sampled CPU time of the server's threads in the checksum implementations that the server has chosen."
    );
    CALLS = counter(
        "armtrace_checksum_calls_total",
        CHOSEN,
        "Calls of the checksum implementations that the server has chosen, scaled up from short bursts of \
         counting."
    );
    UNUSED = gauge(
        "armtrace_checksum_instruction_unused",
        &["purpose", "function"],
        "1 if the server computes this checksum in software although the host's CPU has an instruction for it, 0 if not."
    );
    BYTES = counter(
        "armtrace_checksum_bytes_total",
        CHOSEN,
        "Bytes that the server computed checksums of, scaled up from short bursts of counting."
    );
}

/// Serves the chosen checksums: their CPU time and calls.
#[derive(Default)]
pub struct ChecksumMetrics;

impl Metrics for ChecksumMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let checksum = &snapshot.checksum;
        vec![
            time(&checksum.chosen, &snapshot.cpu.time),
            CALLS.with(checksum.calls.iter().map(|row| CALLS.sample(&labels(row), row.calls as f64))),
            UNUSED.with(checksum.chosen.iter().map(unused)),
            BYTES.with(checksum.calls.iter().map(|row| BYTES.sample(&labels(row), row.bytes as f64))),
        ]
    }
}

/// Returns the CPU time of each implementation. Without samples, it is not known.
fn time(chosen: &[Checksum], cpu: &[CpuTime]) -> MetricFamily {
    let sampled = if cpu.is_empty() { &[] } else { chosen };
    // One function may be chosen for two checksums.
    let times: BTreeMap<_, _> =
        sampled.iter().map(|c| ((&*c.function, c.implementation.as_str()), c.cpu_ns(cpu))).collect();
    TIME.with(times.into_iter().map(|((function, how), ns)| TIME.sample(&[function, how], seconds(ns))))
}

fn unused(checksum: &Checksum) -> Metric {
    UNUSED.sample(&[&checksum.purpose, &checksum.function], f64::from(checksum.is_slow()))
}

fn labels(row: &ChecksumCalls) -> [&str; 2] {
    [&row.function, row.implementation.as_str()]
}

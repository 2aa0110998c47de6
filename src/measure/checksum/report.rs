//! Checksums that the server computes, in a report.

use serde::Serialize;

use super::figures::Checksum;
use super::record::ChecksumKey;
use crate::present::format;
use crate::recording::report::{seconds, Part, Report, Section};
use crate::recording::{Recording, LEAST_BURSTS, LEAST_SAMPLED};

/// The checksums of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ChecksumsReport {
    /// Those whose implementation is known.
    pub checksums: Vec<ChecksumReport>,
}

/// The implementation of a checksum that the server has chosen, and what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct ChecksumReport {
    /// The implementation.
    #[serde(flatten)]
    pub checksum: Checksum,
    /// CPU time, in seconds; `None` if it was not sampled.
    pub cpu: Option<f64>,
    /// How often it was called, scaled up from bursts; `None` if there was none.
    pub calls: Option<CallsReport>,
    /// CPU time per KiB, in seconds; `None` if there are too few bursts or samples.
    pub cpu_per_kib: Option<f64>,
}

/// The calls of a checksum, as bursts counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CallsReport {
    /// The number of calls, scaled up to the whole recording.
    pub calls: u64,
    /// The number of bytes that checksums were computed of, scaled up likewise.
    pub bytes: u64,
    /// The number of bursts in which calls were counted.
    pub bursts: usize,
}

impl Part for ChecksumsReport {
    fn new(recording: &Recording) -> ChecksumsReport {
        let rows = recording.cpu();
        let report = |checksum: &Checksum| {
            let cpu = (!rows.is_empty()).then(|| seconds(checksum.cpu_ns(&rows)));
            let calls = calls(recording, checksum);
            ChecksumReport { cpu, calls, cpu_per_kib: cpu_per_kib(cpu, calls), checksum: checksum.clone() }
        };
        ChecksumsReport { checksums: recording.code.checksums.iter().map(report).collect() }
    }
}

fn calls(recording: &Recording, checksum: &Checksum) -> Option<CallsReport> {
    let is_it = |key: &ChecksumKey| key.function == checksum.function && key.implementation == checksum.implementation;
    let row = recording.rows.checksum_calls.iter().position(is_it)?;
    let counted = &recording.checksum_calls()[row];
    let deltas = recording.seconds.iter().flat_map(|second| &second.checksum_calls);
    let bursts = deltas.filter(|delta| delta.row == row).count();
    Some(CallsReport { calls: counted.calls, bytes: counted.bytes, bursts })
}

fn cpu_per_kib(cpu: Option<f64>, calls: Option<CallsReport>) -> Option<f64> {
    let (cpu, calls) = (cpu?, calls?);
    let is_known = cpu >= LEAST_SAMPLED && calls.bursts >= LEAST_BURSTS && calls.bytes > 0;
    is_known.then(|| cpu / (calls.bytes as f64 / 1024.0))
}

impl Section for ChecksumsReport {
    fn facts(&self, report: &Report) -> Vec<(String, String)> {
        self.checksums.iter().map(|row| (row.checksum.purpose.clone(), row.fact(report.duration))).collect()
    }
}

impl ChecksumReport {
    /// Returns the implementation, its calls and its cost.
    fn fact(&self, duration: f64) -> String {
        let calls = self.calls.filter(|counted| counted.calls > 0).map(|counted| {
            let rate = format::count(counted.calls as f64 / duration);
            let bytes = format::count(counted.bytes as f64 / counted.calls as f64);
            let bursts = if counted.bursts == 1 { "burst" } else { "bursts" };
            format!(", {rate} calls/s of {bytes} bytes by {} {bursts}", counted.bursts)
        });
        let cost = self.cpu_per_kib.map(|cpu| format!(", {} a KiB", format::nanoseconds(cpu * 1e9)));
        [Some(self.checksum.to_string()), calls, cost].into_iter().flatten().collect()
    }
}

//! Checksums that the server computes, in a comparison.

use std::collections::BTreeSet;

use crate::model::CpuClass;
use crate::recording::compare::Sample;
use crate::recording::{CountsDelta, CpuKey, Recording, Second, LEAST_BURSTS, LEAST_SAMPLED};

/// Returns for each second the CPU seconds of the checksums whose calls were counted, and the KiB that they were
/// computed of; `None` if there are too few samples or bursts.
pub(crate) fn costs(recording: &Recording) -> Option<Vec<Sample>> {
    let counted = &recording.rows.checksum_calls;
    (!counted.is_empty() && !recording.rows.cpu.is_empty()).then_some(())?;
    let functions: BTreeSet<&str> = counted.iter().map(|key| key.function.as_str()).collect();
    let is_counted = |key: &CpuKey| key.class() == CpuClass::Checksum && functions.contains(key.function.as_str());
    let is_counted: Vec<bool> = recording.rows.cpu.iter().map(is_counted).collect();
    let sample = |second: &Second| {
        let cpu = second.cpu.iter().filter(|delta| is_counted[delta.row]).map(|delta| delta.counts[0] as f64);
        let bytes = second.checksum_calls.iter().map(|&CountsDelta { counts: [_, bytes], .. }| bytes as f64);
        Sample { amount: cpu.sum::<f64>() / 1e9, per: bytes.sum::<f64>() / 1024.0, host: 0 }
    };
    let samples: Vec<Sample> = recording.seconds.iter().map(sample).collect();
    let cpu: f64 = samples.iter().map(|sample| sample.amount).sum();
    let bursts = samples.iter().filter(|sample| sample.per > 0.0).count();
    (cpu >= LEAST_SAMPLED && bursts >= LEAST_BURSTS).then_some(samples)
}

//! Where the server's CPU time went, and what is known of the code that it went into.

use std::collections::BTreeMap;

use serde::Serialize;

use super::seconds;
use crate::measure::checksum::Checksum;
use crate::measure::cpu::{CpuTime, OrderingTime};
use crate::model::CpuClass;
use crate::present::format;
use crate::recording::reader::{LEAST_BURSTS, LEAST_SAMPLED};
use crate::recording::{ChecksumKey, Recording};

/// CPU time that was sampled. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct CpuReport {
    pub cpu: f64,
    /// Those that there were, the most time first.
    pub classes: Vec<ClassReport>,
    /// The most time first; `other` is all of its class that have no row of their own.
    pub functions: Vec<FunctionReport>,
    /// The part of it in instructions that order memory, the most first; none where that was not seen.
    pub ordering: Vec<OrderingReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    pub class: &'static str,
    pub cpu: f64,
    /// Of all CPU time.
    pub share: f64,
    /// In each second of the recording.
    pub cpu_by_second: Vec<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FunctionReport {
    pub class: &'static str,
    pub function: String,
    pub cpu: f64,
    /// Of all CPU time.
    pub share: f64,
}

/// An instruction that orders memory, in a function.
#[derive(Clone, Debug, Serialize)]
pub struct OrderingReport {
    pub instruction: String,
    pub function: String,
    pub cpu: f64,
    /// Of all CPU time.
    pub share: f64,
}

/// The implementation of a checksum that the server has chosen, and what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct ChecksumReport {
    #[serde(flatten)]
    pub checksum: Checksum,
    /// CPU time; `None` where it was not sampled.
    pub cpu: Option<f64>,
    /// How often it was called, scaled up from bursts; `None` where there was none.
    pub calls: Option<CallsReport>,
    /// CPU time that a KiB takes; `None` where bursts or samples are too few to tell.
    pub cpu_per_kib: Option<f64>,
}

/// What bursts say of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CallsReport {
    pub calls: u64,
    /// That they were given.
    pub bytes: u64,
    pub bursts: usize,
}

impl CpuReport {
    /// `None` where CPU time was not sampled, or none was used.
    pub(super) fn new(recording: &Recording) -> Option<CpuReport> {
        let rows = recording.cpu();
        let all = seconds(CpuTime::sum(rows.iter()));
        (all > 0.0).then_some(())?;
        let by_second = |class| by_second(recording, class);
        let class = |class: CpuClass| {
            let cpu = seconds(CpuTime::sum(rows.iter().filter(|row| row.class == class)));
            let report =
                || ClassReport { class: class.as_str(), cpu, share: cpu / all, cpu_by_second: by_second(class) };
            (cpu > 0.0).then(report)
        };
        let mut classes: Vec<ClassReport> = CpuClass::ALL.into_iter().filter_map(class).collect();
        classes.sort_by(|a, b| b.cpu.total_cmp(&a.cpu));
        let function = |row: &CpuTime| FunctionReport {
            class: row.class.as_str(),
            function: row.function.clone(),
            cpu: seconds(row.ns),
            share: seconds(row.ns) / all,
        };
        let functions = rows.iter().filter(|row| row.ns > 0).map(function).collect();
        let ordering = |row: OrderingTime| OrderingReport {
            cpu: seconds(row.ns),
            share: seconds(row.ns) / all,
            instruction: row.instruction,
            function: row.function,
        };
        let ordering = recording.ordering().into_iter().filter(|row| row.ns > 0).map(ordering).collect();
        Some(CpuReport { cpu: all, classes, functions, ordering })
    }

    /// Share of the CPU time in instructions that order memory, 0 to 1; `None` where that was not seen.
    pub fn ordering_share(&self) -> Option<f64> {
        (!self.ordering.is_empty()).then(|| self.ordering.iter().map(|row| row.share).sum())
    }

    /// The same by instruction, in all functions, the most first.
    pub fn instructions(&self) -> Vec<(&str, f64)> {
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        self.ordering.iter().for_each(|row| *shares.entry(&row.instruction).or_default() += row.share);
        let mut shares: Vec<(&str, f64)> = shares.into_iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// A class's share of the CPU time, 0 to 1.
    pub fn share(&self, class: CpuClass) -> f64 {
        self.classes.iter().find(|row| row.class == class.as_str()).map_or(0.0, |row| row.share)
    }

    /// `cpu: other 61% · kernel 22% · spin 9%`
    pub(super) fn line(&self) -> Option<String> {
        let shares = CpuClass::ALL.map(|class| (class, self.share(class)));
        let mut shares: Vec<(CpuClass, f64)> = shares.into_iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        format::cpu_classes(&shares)
    }
}

fn by_second(recording: &Recording, class: CpuClass) -> Vec<f64> {
    let of_class = |row: usize| recording.cpu_class(row) == class;
    let sum =
        |cpu: &[(usize, i64)]| cpu.iter().filter(|(row, _)| of_class(*row)).map(|(_, ns)| *ns as f64).sum::<f64>();
    recording.seconds.iter().map(|second| sum(&second.cpu) / 1e9).collect()
}

pub(super) fn checksums(recording: &Recording) -> Vec<ChecksumReport> {
    let rows = recording.cpu();
    let report = |checksum: &Checksum| {
        let cpu = (!rows.is_empty()).then(|| seconds(checksum.cpu_ns(&rows)));
        let calls = calls(recording, checksum);
        ChecksumReport { cpu, calls, cpu_per_kib: cpu_per_kib(cpu, calls), checksum: checksum.clone() }
    };
    recording.code.checksums.iter().map(report).collect()
}

fn calls(recording: &Recording, checksum: &Checksum) -> Option<CallsReport> {
    let is_it = |key: &ChecksumKey| key.function == checksum.function && key.implementation == checksum.implementation;
    let row = recording.rows.checksum_calls.iter().position(is_it)?;
    let counted = &recording.checksum_calls()[row];
    let deltas = recording.seconds.iter().flat_map(|second| &second.checksum_calls);
    let bursts = deltas.filter(|delta| delta.0 == row).count();
    Some(CallsReport { calls: counted.calls, bytes: counted.bytes, bursts })
}

fn cpu_per_kib(cpu: Option<f64>, calls: Option<CallsReport>) -> Option<f64> {
    let (cpu, calls) = (cpu?, calls?);
    let is_known = cpu >= LEAST_SAMPLED && calls.bursts >= LEAST_BURSTS && calls.bytes > 0;
    is_known.then(|| cpu / (calls.bytes as f64 / 1024.0))
}

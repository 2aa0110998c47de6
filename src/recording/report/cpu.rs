//! Where the server's CPU time went, and what is known of the code that it went into.

use serde::Serialize;

use super::seconds;
use crate::model::{Checksum, CpuClass, CpuTime};
use crate::recording::Recording;
use crate::ui::format;

/// CPU time that was sampled. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct CpuReport {
    pub cpu: f64,
    /// Those that there were, the most time first.
    pub classes: Vec<ClassReport>,
    /// The most time first; `other` is all of its class that have no row of their own.
    pub functions: Vec<FunctionReport>,
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

/// The implementation of a checksum that the server has chosen, and what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct ChecksumReport {
    #[serde(flatten)]
    pub checksum: Checksum,
    /// CPU time; `None` where it was not sampled.
    pub cpu: Option<f64>,
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
        Some(CpuReport { cpu: all, classes, functions })
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
    let cpu = |checksum: &Checksum| (!rows.is_empty()).then(|| seconds(checksum.cpu_ns(&rows)));
    let report = |checksum: &Checksum| ChecksumReport { cpu: cpu(checksum), checksum: checksum.clone() };
    recording.code.checksums.iter().map(report).collect()
}

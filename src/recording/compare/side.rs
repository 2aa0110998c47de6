//! One of the systems that are compared: a recording, or an old dump of performance_schema's.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Dump, Per, Sample, LEAST_SAMPLES};
use crate::model::Kind;
use crate::recording::{report, Ending, Recording};

/// Who it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct About {
    /// The file.
    pub name: String,
    pub heading: String,
    pub flavor: String,
    pub arch: String,
    pub labels: BTreeMap<String, String>,
    pub settings: BTreeMap<String, String>,
    /// CPUs that the server may use.
    pub cores: Option<f64>,
    pub ghz: Option<f64>,
    /// Seconds.
    pub duration: f64,
}

/// The waits for one latch, second by second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Seconds waited.
    pub wait: Vec<f64>,
    pub waits: Vec<f64>,
    /// Seconds asleep in all; `None` where that is not known.
    sleep: Option<f64>,
}

impl Series {
    pub(super) fn total(&self) -> f64 {
        self.wait.iter().sum()
    }

    /// Share of the wait time spent awake.
    pub(super) fn awake(&self) -> Option<f64> {
        let total = self.total();
        (total > 0.0).then_some(())?;
        Some((1.0 - self.sleep? / total).clamp(0.0, 1.0))
    }

    fn add(&mut self, second: usize, wait: f64, waits: f64, sleep: Option<f64>) {
        self.wait[second] += wait;
        self.waits[second] += waits;
        self.sleep = self.sleep.zip(sleep).map(|(sum, sleep)| sum + sleep);
    }
}

/// A system's figures, second by second.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub about: About,
    /// Of its seconds, in seconds.
    pub(super) lengths: Vec<f64>,
    /// Statements in each second.
    queries: Option<Vec<f64>>,
    /// CPU seconds in each second.
    pub(super) server_cpu: Option<Vec<f64>>,
    /// Contention, by latch; modes together.
    pub(super) latches: BTreeMap<String, Series>,
    pub(super) all: Series,
    pub(super) barriers: BTreeMap<String, u64>,
    pub(super) remarks: Vec<String>,
}

impl Side {
    /// `name` says which file it is. `qps`, statements a second, stands in for what the recording has of that.
    pub fn of_recording(name: &str, recording: &Recording, qps: Option<f64>) -> Side {
        let (host, server) = (&recording.start.host, &recording.start.server);
        let lengths: Vec<f64> = recording.lengths().collect();
        let each = |of: fn(&crate::recording::Second) -> Option<u64>| -> Option<Vec<f64>> {
            recording.seconds.iter().map(|second| of(second).map(|n| n as f64)).collect()
        };
        let given = qps.map(|qps| lengths.iter().map(|length| length * qps).collect());
        let mut side = Side {
            about: About {
                name: name.to_owned(),
                heading: report::heading(server, host),
                flavor: server.flavor.clone(),
                arch: server.arch.clone(),
                labels: recording.start.labels.clone(),
                settings: server.settings.clone(),
                cores: Some(host.server_cpus.unwrap_or(host.cpus)).filter(|n| *n > 0).map(f64::from),
                ghz: host.ghz,
                duration: recording.duration().as_secs_f64(),
            },
            queries: given.or_else(|| each(|second| second.queries)),
            server_cpu: each(|second| second.server_cpu_ns).map(|cpu| cpu.iter().map(|ns| ns / 1e9).collect()),
            latches: BTreeMap::new(),
            all: empty(lengths.len(), recording.start.sleeps_seen),
            barriers: recording.end.as_ref().map(|end| end.static_barriers.clone()).unwrap_or_default(),
            remarks: remarks(recording),
            lengths,
        };
        side.add_latches(recording);
        side
    }

    /// A dump has one sum over `seconds`, and so nothing that tells how sure it is.
    pub fn of_dump(name: &str, dump: &Dump, seconds: f64, qps: Option<f64>) -> Side {
        let mut all = empty(1, false);
        let mut latches = BTreeMap::new();
        for (latch, wait, waits) in &dump.rows {
            let series = latches.entry(latch.clone()).or_insert_with(|| empty(1, false));
            series.add(0, *wait, *waits, None);
            all.add(0, *wait, *waits, None);
        }
        let remark = "performance_schema counts every acquisition, also of a free latch: compare the time waited, not the waits.";
        Side {
            about: About {
                name: name.to_owned(),
                heading: "performance_schema".to_owned(),
                duration: seconds,
                ..About::default()
            },
            lengths: vec![seconds],
            queries: qps.map(|qps| vec![qps * seconds]),
            server_cpu: None,
            latches,
            all,
            barriers: BTreeMap::new(),
            remarks: vec![remark.to_owned()],
        }
    }

    fn add_latches(&mut self, recording: &Recording) {
        let seen = recording.start.sleeps_seen;
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.latches {
                let (latch, kind, _) = recording.latch(delta.r);
                if kind == Kind::Cond {
                    continue;
                }
                let sleep = seen.then_some(delta.sl as f64 / 1e9);
                let series = self.latches.entry(latch.to_owned()).or_insert_with(|| empty(self.lengths.len(), seen));
                series.add(i, delta.ns as f64 / 1e9, delta.n as f64, sleep);
                self.all.add(i, delta.ns as f64 / 1e9, delta.n as f64, sleep);
            }
        }
    }

    /// Whether it has seconds enough to tell how sure anything is.
    pub(super) fn is_long_enough(&self) -> bool {
        self.lengths.len() >= LEAST_SAMPLES
    }

    /// Whether there is anything to count by.
    pub(super) fn has(&self, per: Per) -> bool {
        self.units(per).is_some()
    }

    /// Each second's amount, beside what it is counted by; no amount is none in any second. `None` where there is nothing to
    /// count by.
    pub(super) fn samples(&self, per: Per, amounts: Option<&[f64]>) -> Option<Vec<Sample>> {
        let units = self.units(per)?;
        let amount = |i: usize| amounts.and_then(|amounts| amounts.get(i)).copied().unwrap_or(0.0);
        Some(units.into_iter().enumerate().map(|(i, per)| Sample { amount: amount(i), per }).collect())
    }

    /// Statements beside seconds.
    pub(super) fn throughput(&self) -> Option<Vec<Sample>> {
        self.samples(Per::Second, Some(self.queries.as_deref()?))
    }

    fn units(&self, per: Per) -> Option<Vec<f64>> {
        match per {
            Per::Second => Some(self.lengths.clone()),
            Per::Query => Some(self.queries.as_ref()?.iter().map(|queries| queries / 1000.0).collect()),
            Per::Core => {
                let cores = self.about.cores?;
                Some(self.lengths.iter().map(|length| length * cores).collect())
            }
        }
    }
}

fn empty(seconds: usize, sleeps_seen: bool) -> Series {
    Series { wait: vec![0.0; seconds], waits: vec![0.0; seconds], sleep: sleeps_seen.then_some(0.0) }
}

fn remarks(recording: &Recording) -> Vec<String> {
    let ending = match recording.end.as_ref().map(|end| end.ending) {
        None => Some("the file has no end: armtrace was killed"),
        Some(Ending::ServerEnded) => Some("the server ended while it was recorded"),
        Some(Ending::Complete | Ending::Interrupted) => None,
    };
    let sum = |of: fn(&crate::model::LatchWaits) -> u64| {
        recording.latches().iter().map(of).fold(0, u64::saturating_add) as f64
    };
    let estimated = sum(|latch| latch.estimated_ns) / sum(|latch| latch.waits.sum_ns).max(1.0);
    let estimated = (estimated >= 0.01).then(|| {
        format!(
            "{} of the wait time is estimated, to keep the budget for probes",
            crate::ui::format::percent(estimated)
        )
    });
    ending.map(str::to_owned).into_iter().chain(estimated).collect()
}

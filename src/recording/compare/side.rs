//! One of the systems that are compared: a recording, or a dump of performance_schema.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::distributions::{lengths as lengths_of_waits, Lengths};
use super::{Dump, Per, Sample, SideParts, LEAST_HOSTS, LEAST_SAMPLES};
use crate::advice::{self, Advised};
use crate::measure::checksum;
use crate::measure::cpu::compare::{seconds_by_class, OrderingSide};
use crate::measure::latch::compare::HandoffSide;
use crate::measure::Known;
use crate::model::{CpuClass, Kind};
use crate::recording::reader::LEAST_SAMPLED;
use crate::recording::{report, Code, CountsDelta, Ending, Recording};

/// What identifies a system.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct About {
    /// The name of the file.
    pub name: String,
    /// The server and its host in one line; empty for a dump.
    pub heading: String,
    /// The maintainer, as in [`Server::flavor`]; empty for a dump.
    pub flavor: String,
    /// The architecture, `x86_64` or `aarch64`; empty for a dump.
    pub arch: String,
    /// The recording's labels.
    pub labels: BTreeMap<String, String>,
    /// The server's settings, by name.
    pub settings: BTreeMap<String, String>,
    /// The number of CPUs that the server may use; `None` for a dump.
    pub cores: Option<f64>,
    /// The CPUs' highest clock, in GHz; `None` if it is not known.
    pub ghz: Option<f64>,
    /// The name of the host; empty if there is not one.
    pub host: String,
    /// When recording began, in milliseconds since 1970, UTC; `None` if that is not known.
    pub began_ms: Option<u64>,
    /// The length of the recording, in seconds; 0 for a dump of which it is not known.
    pub duration: f64,
    /// What the figures are of, if they come from Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<Fleet>,
}

/// The servers and the time that a system's figures from Prometheus are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fleet {
    /// The number of servers.
    pub servers: usize,
    /// The number of hosts that they run on.
    pub hosts: usize,
    /// The windows of all servers that the figures are of.
    pub windows: usize,
    /// Windows that are left out, because they have no data, or the server or armtrace was restarted in them.
    pub windows_left_out: usize,
    /// The beginning of the range, in milliseconds since 1970, UTC.
    pub from_ms: i64,
    /// The end of the range, likewise.
    pub to_ms: i64,
}

/// The waits for one latch, second by second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Seconds waited, in each second.
    pub wait: Vec<f64>,
    /// Waits, in each second.
    pub waits: Vec<f64>,
    /// Seconds slept in the whole recording; `None` if that is not known.
    sleep: Option<f64>,
    /// Seconds of CPU time spent spinning in the whole recording; `None` if CPU time was not sampled.
    spin_cpu: Option<f64>,
    /// Waits of the whole recording that began with spinning, and those of them that ended without a sleep.
    spins: f64,
    spins_won: f64,
}

/// What one second adds to a latch's series.
struct Added {
    wait: f64,
    waits: f64,
    sleep: Option<f64>,
    spin_cpu: Option<f64>,
    spins: f64,
    spins_won: f64,
}

impl Series {
    pub(super) fn total(&self) -> f64 {
        self.wait.iter().sum()
    }

    /// Returns the share of the wait time spent awake.
    pub(super) fn awake(&self) -> Option<f64> {
        let total = self.total();
        (total > 0.0).then_some(())?;
        Some((1.0 - self.sleep? / total).clamp(0.0, 1.0))
    }

    /// Returns the CPU time spent spinning, divided by the wait time; `None` if samples are too few.
    pub(super) fn spinning(&self) -> Option<f64> {
        let total = self.total();
        (total >= LEAST_SAMPLED).then_some(())?;
        Some(self.spin_cpu? / total).map(|share| share.max(0.0))
    }

    /// Returns the share of spins that were won; `None` if there were none.
    pub(super) fn won(&self) -> Option<f64> {
        (self.spins > 0.0).then(|| (self.spins_won / self.spins).clamp(0.0, 1.0))
    }

    fn add(&mut self, second: usize, added: &Added) {
        let sum = |sum: Option<f64>, more: Option<f64>| Some(sum? + more?);
        self.wait[second] += added.wait;
        self.waits[second] += added.waits;
        self.sleep = sum(self.sleep, added.sleep);
        self.spin_cpu = sum(self.spin_cpu, added.spin_cpu);
        self.spins += added.spins;
        self.spins_won += added.spins_won;
    }
}

/// A system's figures, second by second.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// What identifies it.
    pub about: About,
    /// Whether waits are times only, read from the threads' stacks.
    pub(super) sampled: bool,
    /// The exact lengths of its seconds, in seconds; 0 if they are not known.
    pub(super) lengths: Vec<f64>,
    /// The host of each of its seconds; empty if all are of one.
    hosts: Vec<usize>,
    /// Statements in each second.
    queries: Option<Vec<f64>>,
    /// CPU seconds in each second.
    pub(super) server_cpu: Option<Vec<f64>>,
    /// Contention by latch, all modes together.
    pub(super) latches: BTreeMap<String, Series>,
    pub(super) all: Series,
    /// How long the waits took, by latch; `None` if that is not known.
    pub(super) waits_by_length: Option<BTreeMap<String, Lengths>>,
    /// Waits to reacquire the mutex of a condition variable after a wake-up, which are in none of the above; `None` if
    /// the recording has no such figures.
    pub(super) reacquires: Option<BTreeMap<String, Series>>,
    /// CPU seconds in each second, by class; empty if CPU time was not sampled.
    pub(crate) cpu: BTreeMap<CpuClass, Vec<f64>>,
    /// `None` if CPU time was not sampled, or no instruction that orders memory was seen.
    pub(crate) ordering: Option<OrderingSide>,
    /// CPU seconds of checksums per KiB; `None` if that is unknown.
    pub(super) checksums: Option<Vec<Sample>>,
    /// `None` if they were not counted.
    pub(crate) handoffs: Option<HandoffSide>,
    pub(super) parts: SideParts,
    pub(super) code: Code,
    pub(super) barriers: BTreeMap<String, u64>,
    pub(super) remarks: Vec<String>,
    /// What to do about its waits, as far as its figures show the cause.
    pub(super) advised: Vec<Advised>,
}

impl Side {
    /// Returns the figures of a recording. `name` identifies the file. `qps`, in statements per second, replaces the
    /// count in the recording.
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
                host: host.name.clone(),
                began_ms: Some(recording.start.began_ms),
                duration: recording.duration().as_secs_f64(),
                fleet: None,
            },
            sampled: recording.start.sampled,
            queries: given.or_else(|| each(|second| second.queries)),
            server_cpu: each(|second| second.server_cpu_ns).map(|cpu| cpu.iter().map(|ns| ns / 1e9).collect()),
            latches: BTreeMap::new(),
            all: empty(lengths.len()),
            waits_by_length: lengths_of_waits(recording),
            reacquires: recording.start.reacquires_seen.then(|| reacquires(recording)),
            cpu: seconds_by_class(recording),
            ordering: OrderingSide::new(recording),
            checksums: checksum::compare::costs(recording),
            handoffs: HandoffSide::new(recording),
            parts: SideParts::new(recording),
            code: recording.code.clone(),
            barriers: recording.end.as_ref().map(|end| end.static_barriers.clone()).unwrap_or_default(),
            remarks: remarks(recording),
            hosts: Vec::new(),
            advised: advice::find(&Known::from(recording)),
            lengths,
        };
        side.add_latches(recording);
        side
    }

    /// Returns the figures of several servers, whose windows are the seconds of one recording. `hosts` has the number
    /// of each window's host.
    pub fn of_fleet(about: About, recording: &Recording, hosts: Vec<usize>, remarks: Vec<String>) -> Side {
        let mut side = Side::of_recording("", recording, None);
        side.about = about;
        side.hosts = hosts;
        side.remarks.splice(0..0, remarks);
        side
    }

    /// Returns the figures of a dump. It has one sum over all its `seconds` and `statements`, each of which may be
    /// unknown, so how certain it is cannot be known.
    pub fn of_dump(name: &str, dump: &Dump, seconds: Option<f64>, statements: Option<f64>) -> Side {
        let mut all = empty(1);
        let mut latches = BTreeMap::new();
        for (latch, wait, waits) in &dump.rows {
            let series = latches.entry(latch.clone()).or_insert_with(|| empty(1));
            let added = Added { wait: *wait, waits: *waits, sleep: None, spin_cpu: None, spins: 0.0, spins_won: 0.0 };
            series.add(0, &added);
            all.add(0, &added);
        }
        let seconds = seconds.unwrap_or(0.0);
        let remark = "performance_schema counts every acquisition, even of a free latch: compare the time waited, not the waits.";
        Side {
            about: About {
                name: name.to_owned(),
                heading: "performance_schema".to_owned(),
                duration: seconds,
                ..About::default()
            },
            sampled: false,
            lengths: vec![seconds],
            hosts: Vec::new(),
            queries: statements.map(|statements| vec![statements]),
            server_cpu: None,
            latches,
            all,
            waits_by_length: None,
            reacquires: None,
            cpu: BTreeMap::new(),
            ordering: None,
            checksums: None,
            handoffs: None,
            parts: SideParts::default(),
            code: Code::default(),
            barriers: BTreeMap::new(),
            remarks: vec![remark.to_owned()],
            advised: Vec::new(),
        }
    }

    fn add_latches(&mut self, recording: &Recording) {
        let (seen, sampled) = (recording.start.sleeps_seen, !self.cpu.is_empty());
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.latches {
                let (latch, kind, _) = recording.latch(delta.row);
                if kind == Kind::Cond {
                    continue;
                }
                let won = if seen { delta.spins_won as f64 } else { 0.0 };
                let added = Added {
                    wait: delta.wait_ns as f64 / 1e9,
                    waits: delta.waits as f64,
                    sleep: seen.then_some(delta.sleep_ns as f64 / 1e9),
                    spin_cpu: sampled.then_some(delta.spin_cpu_ns as f64 / 1e9),
                    spins: if seen { won + delta.spins_wasted as f64 } else { 0.0 },
                    spins_won: won,
                };
                let series = self.latches.entry(latch.to_owned()).or_insert_with(|| empty(self.lengths.len()));
                series.add(i, &added);
                self.all.add(i, &added);
            }
        }
    }

    /// Returns whether it has enough seconds or hosts for an interval.
    pub(super) fn is_long_enough(&self) -> bool {
        self.lengths.len() >= LEAST_SAMPLES || self.hosts() >= LEAST_HOSTS
    }

    /// Returns whether its figures come from Prometheus.
    pub(super) fn is_fleet(&self) -> bool {
        self.about.fleet.is_some()
    }

    /// Returns the number of hosts.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.iter().collect::<BTreeSet<_>>().len().max(1)
    }

    /// Returns whether it counts this unit.
    pub(super) fn has(&self, per: Per) -> bool {
        self.units(per).is_some()
    }

    /// Returns each second's amount with the units to divide it by. `amounts` of `None` stands for zeros. Returns
    /// `None` if the system does not count this unit.
    pub(crate) fn samples(&self, per: Per, amounts: Option<&[f64]>) -> Option<Vec<Sample>> {
        Some(self.samples_of(amounts.unwrap_or_default(), &self.units(per)?))
    }

    /// Returns each second's amount with the units to divide it by, both given second by second. Amounts that are not
    /// given are zeros.
    pub(crate) fn samples_of(&self, amounts: &[f64], units: &[f64]) -> Vec<Sample> {
        let amount = |i: usize| amounts.get(i).copied().unwrap_or(0.0);
        let host = |i: usize| self.hosts.get(i).copied().unwrap_or(0);
        units.iter().enumerate().map(|(i, &per)| Sample { amount: amount(i), per, host: host(i) }).collect()
    }

    /// Returns each second's statements and length.
    pub(super) fn throughput(&self) -> Option<Vec<Sample>> {
        self.samples(Per::Second, Some(self.queries.as_deref()?))
    }

    fn units(&self, per: Per) -> Option<Vec<f64>> {
        let lengths = || Some(&self.lengths).filter(|lengths| lengths.iter().sum::<f64>() > 0.0);
        match per {
            Per::Second => lengths().cloned(),
            Per::Query => Some(self.queries.as_ref()?.iter().map(|queries| queries / 1000.0).collect()),
            Per::Core => {
                let cores = self.about.cores?;
                Some(lengths()?.iter().map(|length| length * cores).collect())
            }
            Per::Share => Some(self.all.wait.clone()),
        }
    }
}

fn empty(seconds: usize) -> Series {
    Series {
        wait: vec![0.0; seconds],
        waits: vec![0.0; seconds],
        sleep: Some(0.0),
        spin_cpu: Some(0.0),
        spins: 0.0,
        spins_won: 0.0,
    }
}

fn reacquires(recording: &Recording) -> BTreeMap<String, Series> {
    let mut latches = BTreeMap::new();
    for (i, second) in recording.seconds.iter().enumerate() {
        for &CountsDelta { row, counts: [waits, wait_ns] } in &second.reacquires {
            let (waits, wait) = (waits as f64, wait_ns as f64 / 1e9);
            let added = Added { wait, waits, sleep: None, spin_cpu: None, spins: 0.0, spins_won: 0.0 };
            let latch = recording.rows.reacquires[row].clone();
            latches.entry(latch).or_insert_with(|| empty(recording.seconds.len())).add(i, &added);
        }
    }
    latches
}

fn remarks(recording: &Recording) -> Vec<String> {
    let ending = match recording.end.as_ref().map(|end| end.ending) {
        None => Some("the recording is incomplete, because armtrace was killed"),
        Some(Ending::ServerEnded) => Some("the server ended while it was recorded"),
        Some(Ending::Complete | Ending::Interrupted) => None,
    };
    let sum = |of: fn(&crate::measure::latch::LatchWaits) -> u64| {
        recording.latches().iter().map(of).fold(0, u64::saturating_add) as f64
    };
    let estimated = sum(|latch| latch.estimated_ns) / sum(|latch| latch.waits.sum_ns).max(1.0);
    let sampled = recording.start.sampled;
    let estimated = (estimated >= 0.01 && !sampled).then(|| {
        format!(
            "{} of the wait time is estimated, because probes were off to stay within the budget",
            crate::present::format::percent(estimated)
        )
    });
    let slow = recording.code.checksums.iter().filter(|checksum| checksum.is_slow()).map(|checksum| {
        format!(
            "{} is computed in software ({}), although the CPU has an instruction for it",
            checksum.purpose, checksum.function
        )
    });
    let sampled = sampled.then(|| {
        "waits were read from the threads' stacks, without probes: their times are estimates, and they were not counted"
            .to_owned()
    });
    ending.map(str::to_owned).into_iter().chain(sampled).chain(estimated).chain(slow).collect()
}

//! What a recording's frames hold, as they are written. Short names: they are repeated each second.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::checksum::{Checksum, Implementation};
use crate::measure::latch::{Handoffs, Locality};
use crate::measure::spin::SpinSettings;

/// The machine that a server runs on; what could not be found out is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub name: String,
    /// As `uname -r` says.
    pub kernel: String,
    /// `PRETTY_NAME` of the system that armtrace runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    pub cpu_model: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// CPUs that the server may use, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpus: Option<u32>,
    /// The CPU's highest clock, GHz, where the kernel says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ghz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The server that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    pub pid: i32,
    pub flavor: String,
    pub version: String,
    pub arch: String,
    pub build_id: String,
    pub symbol_source: String,
    /// Settings that decide how it waits and how much it can do at once, by their names in the server.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// What is known when recording begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// Version of the armtrace that recorded.
    pub armtrace: String,
    /// Milliseconds since 1970, UTC.
    pub began_ms: u64,
    pub host: Host,
    pub server: Server,
    /// As given with `--label`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Upper bounds of the histograms' buckets, nanoseconds; one more bucket has no bound.
    pub bounds_ns: Vec<u64>,
    /// Whether sleeping could be told from spinning.
    pub sleeps_seen: bool,
    /// Whether waits for a mutex after a condition variable were kept apart from others: not by older versions, nor on kernels that
    /// do not show programs the stack of a thread.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reacquires_seen: bool,
    /// The parts of the machine between which handoffs were counted; none where they were not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

/// A latch in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LatchKey {
    pub latch: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallsiteKey {
    pub latch: String,
    /// Absent where it is not known, as in the files of older versions, and in the row of all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    pub callsite: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageKey {
    pub table: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub index: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u16>,
}

/// A function, and what it is there for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpuKey {
    pub class: String,
    pub function: String,
}

/// Where a latch came from, and where it went.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HandoffKey {
    pub latch: String,
    /// Parts of the machine. `None`: not known, or this row stands for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `local` or `remote`. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
}

impl HandoffKey {
    pub(super) fn of(handoffs: &Handoffs) -> HandoffKey {
        HandoffKey {
            latch: handoffs.latch.clone(),
            from: handoffs.from.clone(),
            to: handoffs.to.clone(),
            locality: handoffs.locality().map(|locality| locality.as_str().to_owned()),
        }
    }

    /// All of the same latch and locality.
    pub(super) fn of_latch(self) -> HandoffKey {
        HandoffKey { from: None, to: None, ..self }
    }

    /// `None` where it is not known.
    pub fn locality(&self) -> Option<Locality> {
        Locality::from_name(self.locality.as_deref()?)
    }
}

/// An instruction that orders memory, in a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OrderingKey {
    pub instruction: String,
    pub function: String,
}

/// An implementation of a checksum.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChecksumKey {
    pub function: String,
    pub implementation: Implementation,
}

/// Rows that are new in a second. A row's number is its place among all that came before, by kind of row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewRows {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latches: Vec<LatchKey>,
    /// Names of mutexes that threads woken by a condition variable had to get back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reacquires: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callsites: Vec<CallsiteKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<CpuKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handoffs: Vec<HandoffKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ordering: Vec<OrderingKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checksum_calls: Vec<ChecksumKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl NewRows {
    /// Rows of all kinds.
    pub(super) fn count(&self) -> usize {
        let NewRows { latches, reacquires, callsites, pages, cpu, handoffs, ordering, checksum_calls, lost } = self;
        let waits = latches.len() + reacquires.len() + callsites.len() + pages.len() + handoffs.len();
        waits + cpu.len() + ordering.len() + checksum_calls.len() + lost.len()
    }
}

/// What one latch added in a second.
///
/// Less than nothing is possible: a latch that gets a name, or loses one, takes all its waits with it to another row. So the
/// sum over all seconds is right for each row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatchDelta {
    /// Number of the row.
    pub r: usize,
    /// Waits that ended.
    #[serde(default)]
    pub n: i64,
    /// Nanoseconds waited.
    #[serde(default)]
    pub ns: i64,
    /// Of which asleep.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sl: i64,
    /// Sleeps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub s: i64,
    /// Nanoseconds of `ns` that were not seen but estimated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub e: i64,
    /// Nanoseconds of CPU time, sampled, that waiters spun in the server's code.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub c: i64,
    /// Spins that were won, and those that ended in a sleep.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub w: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub l: i64,
    /// The longest wait since recording began, nanoseconds; absent where it is what it was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub x: i64,
    /// Buckets that changed: bucket, waits, bucket, waits, …
    #[serde(default)]
    pub b: Vec<i64>,
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// What one row added in a second: its number, waits, nanoseconds.
pub type WaitDelta = (usize, i64, i64);

/// What one row of handoffs added in a second: its number, waits, their nanoseconds, and how many of the waiters had moved.
pub type HandoffDelta = (usize, i64, i64, i64);

/// What is known of the server's code: it is looked into while recording goes on, and the settings of spinning may change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Code {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checksums: Vec<Checksum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spin: Option<SpinSettings>,
}

/// One second, as the difference from the one before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Second {
    /// Nanoseconds since recording began, at this second's end.
    pub at_ns: u64,
    pub new: NewRows,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latches: Vec<LatchDelta>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reacquires: Vec<WaitDelta>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callsites: Vec<WaitDelta>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<WaitDelta>,
    /// Number of the row, nanoseconds of CPU time, sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<(usize, i64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handoffs: Vec<HandoffDelta>,
    /// Number of the row, nanoseconds of CPU time, sampled: a part of `cpu`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ordering: Vec<(usize, i64)>,
    /// Number of the row, calls, bytes: scaled up from bursts, so that most seconds have none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checksum_calls: Vec<WaitDelta>,
    /// Absent where it is as in the second before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Number of the cause, events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(usize, i64)>,
    /// CPU time that the server used, nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<u64>,
    /// CPU time that probes took from it, nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_cost_ns: Option<u64>,
    /// Statements that clients sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queries: Option<u64>,
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The time asked for was over.
    Complete,
    /// By Ctrl-C or SIGTERM.
    Interrupted,
    ServerEnded,
}

/// A probe at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub probe: String,
    pub state: String,
    pub hits: u64,
    /// CPU time that its hits took, nanoseconds, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_ns: Option<u64>,
}

/// What is known only when recording ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub ending: Ending,
    #[serde(default)]
    pub probes: Vec<Probe>,
    /// Absent where it is as in the last second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Barrier and atomic instructions in the server's code, by instruction.
    #[serde(default)]
    pub static_barriers: BTreeMap<String, u64>,
}

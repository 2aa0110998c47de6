//! The vocabulary of measurements: plain values, independent of I/O, the kernel and processes.

use serde::{Deserialize, Serialize};
use strum::{EnumIter, EnumString, IntoStaticStr};

mod bounded;
mod cpu;
mod cumulative;
mod histogram;
mod rotating;

pub use bounded::{Bounded, OTHER};
pub use cpu::CpuClass;
pub(crate) use cumulative::cumulative;
pub use cumulative::{merged, since, Cumulative};
#[cfg(test)]
pub(crate) use histogram::tests::histograms;
pub use histogram::{Histogram, BUCKETS, BUCKET_BOUNDS_NS};
pub use rotating::Rotating;

/// The kind of a latch, named as in performance_schema.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString, Serialize, Deserialize,
)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A lock with one mode, held by one thread at a time.
    Mutex,
    /// A lock with a shared and an exclusive mode.
    Rwlock,
    /// A lock with a third mode, shared-exclusive, in which one thread can hold it together with shared holders.
    Sxlock,
    /// A lock with a shared and an exclusive mode that prefers readers.
    Prlock,
    /// A condition variable.
    Cond,
}

impl Kind {
    /// Returns the kind with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Kind> {
        name.parse().ok()
    }

    /// Returns the value of the `kind` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The mode in which a latch is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// The latch has no modes, like a mutex.
    #[strum(serialize = "")]
    None,
    /// Shared: together with other shared holders.
    S,
    /// Shared-exclusive: together with shared holders only.
    Sx,
    /// Exclusive: alone.
    X,
}

impl Mode {
    /// Returns the mode with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Mode> {
        name.parse().ok()
    }

    /// Returns the value of the `mode` label, which is empty for a mutex.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum ProbeState {
    /// Attached all the time.
    Attached,
    /// Attached part of the time to stay within the overhead budget.
    DutyCycle,
    /// Not attached: because of the overhead budget, or not yet.
    #[default]
    Detached,
    /// Could not be attached.
    Failed,
}

impl ProbeState {
    /// Returns the value of the `state` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of a probe, and its cost so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeStatus {
    /// A bounded, readable name: `mutex_enter_inline:begin`, `futex_enter`.
    pub probe: String,
    /// The state that the probe is in.
    pub state: ProbeState,
    /// How often the probe was hit.
    pub hits: u64,
    /// The cost of one hit's trap on this machine, in nanoseconds; `None` if it was not measured.
    pub trap_ns: Option<f64>,
    /// The run time of the probe's program over all hits, in nanoseconds.
    pub program_ns: u64,
}

/// The traced server. Constant while attached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetInfo {
    /// The server's process ID, as armtrace's PID namespace has it.
    pub pid: i32,
    /// The maintainer: `mysql`, `mariadb` or `percona`.
    pub flavor: String,
    /// The version that the server reports, for example `9.7.4`.
    pub version: String,
    /// The architecture: `x86_64` or `aarch64`.
    pub arch: String,
    /// The CPU's own name; empty if the kernel does not say.
    pub cpu_model: String,
    /// The GNU build ID in hexadecimal, or empty if the binary has none.
    pub build_id: String,
    /// The source of function names: `symtab`, `dynsym`, …
    pub symbol_source: String,
    /// The machine that it runs on.
    pub host: HostInfo,
}

/// The machine that a server runs on, for comparisons between machines. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostInfo {
    /// The kernel's release, as `uname -r` shows it; empty if the kernel does not say.
    pub kernel: String,
    /// The number of CPUs that the server may use.
    pub server_cpus: Option<u32>,
    /// The CPU's highest clock, in GHz.
    pub ghz: Option<f64>,
    /// The number of NUMA nodes.
    pub numa_nodes: Option<u32>,
    /// The size of a page of memory, in bytes.
    pub page_bytes: Option<u64>,
}

impl ProbeStatus {
    /// Returns the CPU time of all hits in nanoseconds, or `None` if the cost of a trap is unknown.
    pub fn total_cost_ns(&self) -> Option<f64> {
        self.trap_ns.map(|trap| trap * self.hits as f64 + self.program_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_costs_its_traps_and_the_time_of_its_program() {
        let probe = |trap_ns| ProbeStatus {
            probe: "begin".to_owned(),
            state: ProbeState::Attached,
            hits: 1000,
            trap_ns,
            program_ns: 50_000,
        };
        assert_eq!(probe(Some(700.0)).total_cost_ns(), Some(750_000.0));
        assert_eq!(probe(None).total_cost_ns(), None);
    }
}

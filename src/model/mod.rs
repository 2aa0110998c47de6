//! The vocabulary of measurements: plain values without I/O, kernel or process.

use strum::{EnumIter, EnumString, IntoStaticStr};

mod cpu;
mod cumulative;
mod histogram;

pub use cpu::CpuClass;
pub use cumulative::{since, Cumulative};
pub use histogram::{Histogram, BUCKETS, BUCKET_BOUNDS_NS};

/// What sort of latch it is, in performance_schema's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    Mutex,
    Rwlock,
    Sxlock,
    Prlock,
    Cond,
}

impl Kind {
    /// The kind that has this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        name.parse().ok()
    }

    /// The value of the `kind` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// In which mode a latch was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// A mutex has no modes.
    #[strum(serialize = "")]
    None,
    S,
    Sx,
    X,
}

impl Mode {
    /// The mode that has this name.
    pub fn from_name(name: &str) -> Option<Mode> {
        name.parse().ok()
    }

    /// The value of the `mode` label: empty for a mutex.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// How one probe stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum ProbeState {
    Attached,
    /// Attached part of the time to keep the overhead budget.
    DutyCycle,
    #[default]
    Detached,
    Failed,
}

impl ProbeState {
    /// Returns the value of the `state` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One probe and what it cost so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeStatus {
    /// A bounded, readable name: `mutex_enter_inline:begin`, `futex_enter`.
    pub probe: String,
    pub state: ProbeState,
    pub hits: u64,
    /// What the trap of one hit costs the server on this machine, nanoseconds; `None` where it was not measured.
    pub trap_ns: Option<f64>,
    /// For how long the probe's program ran in all hits, nanoseconds.
    pub program_ns: u64,
}

/// Who is being watched. Constant while attached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetInfo {
    pub pid: i32,
    /// `mysql`, `mariadb` or `percona`.
    pub flavor: String,
    /// `9.7.4`
    pub version: String,
    /// `x86_64` or `aarch64`.
    pub arch: String,
    pub cpu_model: String,
    /// Hexadecimal GNU build id; empty where the binary has none.
    pub build_id: String,
    /// Where function names came from: `symtab`, `dynsym`, …
    pub symbol_source: String,
}

impl ProbeStatus {
    /// CPU time that all hits of this probe took, nanoseconds; `None` where one trap's cost is unknown.
    pub fn total_cost_ns(&self) -> Option<f64> {
        self.trap_ns.map(|trap| trap * self.hits as f64 + self.program_ns as f64)
    }
}

//! The vocabulary of measurements: plain values, independent of I/O, the kernel and processes.

mod cpu;
mod cumulative;
mod histogram;

pub use cpu::CpuClass;
pub use cumulative::{since, Cumulative};
pub use histogram::{Histogram, BUCKETS, BUCKET_BOUNDS_NS};

/// The kind of a latch, named as in performance_schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Mutex,
    Rwlock,
    Sxlock,
    Prlock,
    Cond,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Mutex, Kind::Rwlock, Kind::Sxlock, Kind::Prlock, Kind::Cond];

    /// Returns the kind with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns the value of the `kind` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Rwlock => "rwlock",
            Kind::Sxlock => "sxlock",
            Kind::Prlock => "prlock",
            Kind::Cond => "cond",
        }
    }
}

/// The mode in which a latch is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// The latch has no modes, like a mutex.
    None,
    S,
    Sx,
    X,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::None, Mode::S, Mode::Sx, Mode::X];

    /// Returns the mode with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// Returns the value of the `mode` label, which is empty for a mutex.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::None => "",
            Mode::S => "s",
            Mode::Sx => "sx",
            Mode::X => "x",
        }
    }
}

/// The state of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeState {
    Attached,
    /// Attached part of the time to stay within the overhead budget.
    DutyCycle,
    #[default]
    Detached,
    Failed,
}

impl ProbeState {
    pub const ALL: [ProbeState; 4] =
        [ProbeState::Attached, ProbeState::DutyCycle, ProbeState::Detached, ProbeState::Failed];

    /// Returns the value of the `state` label.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeState::Attached => "attached",
            ProbeState::DutyCycle => "duty_cycle",
            ProbeState::Detached => "detached",
            ProbeState::Failed => "failed",
        }
    }
}

/// The state of a probe, and its cost so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeStatus {
    /// A bounded, readable name: `mutex_enter_inline:begin`, `futex_enter`.
    pub probe: String,
    pub state: ProbeState,
    pub hits: u64,
    /// The cost of one hit's trap on this machine, in nanoseconds, or `None` if it was not measured.
    pub trap_ns: Option<f64>,
    /// The run time of the probe's program over all hits, in nanoseconds.
    pub program_ns: u64,
}

/// The traced server. Constant while attached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetInfo {
    pub pid: i32,
    /// `mysql`, `mariadb` or `percona`.
    pub flavor: String,
    /// For example `9.7.4`.
    pub version: String,
    /// `x86_64` or `aarch64`.
    pub arch: String,
    pub cpu_model: String,
    /// The GNU build ID in hexadecimal, or empty if the binary has none.
    pub build_id: String,
    /// The source of function names: `symtab`, `dynsym`, …
    pub symbol_source: String,
}

impl ProbeStatus {
    /// Returns the CPU time of all hits in nanoseconds, or `None` if the cost of a trap is unknown.
    pub fn total_cost_ns(&self) -> Option<f64> {
        self.trap_ns.map(|trap| trap * self.hits as f64 + self.program_ns as f64)
    }
}

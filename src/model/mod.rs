//! Plain values that describe what was measured: no I/O, no kernel, no process.
//!
//! A [`Snapshot`] is everything known at one instant, counted since the agent attached. It is what the
//! exporter serves, what the live table shows (as the difference of two), and what recordings hold.

mod cpu;
mod hardware;
mod histogram;
mod watch;

pub use cpu::{Checksum, ChecksumCalls, CpuClass, CpuTime, Implementation, OrderingTime, SpinSettings};
pub use hardware::{EventCount, Scope};
pub use histogram::{Histogram, BUCKETS, BUCKET_BOUNDS_NS};
pub use watch::{LineWatch, Moves, TouchingFunction, Verdict, WatchedWord, LEAST_MOVES};

use std::time::Duration;

/// What sort of latch it is, in performance_schema's own words.
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

    /// The kind that has this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The value of the `kind` label.
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

/// In which mode a latch was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// A mutex has no modes.
    None,
    S,
    Sx,
    X,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::None, Mode::S, Mode::Sx, Mode::X];

    /// The mode that has this name.
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// The value of the `mode` label: empty for a mutex.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::None => "",
            Mode::S => "s",
            Mode::Sx => "sx",
            Mode::X => "x",
        }
    }
}

/// The contended waits for one latch name in one mode.
#[derive(Clone, Debug, PartialEq)]
pub struct LatchWaits {
    /// The performance_schema event name (`wait/synch/mutex/innodb/log_writer_mutex`), a stable name built
    /// the same way, or `unnamed:FUNCTION`.
    pub latch: String,
    pub kind: Kind,
    pub mode: Mode,
    /// Whole waits, from finding the latch taken to having it. Nanoseconds.
    pub waits: Histogram,
    /// The part of the waits' time spent asleep in the kernel, nanoseconds; the rest was spinning.
    pub sleep_ns: u64,
    /// How many times waiters went to sleep (one wait can sleep more than once, or not at all).
    pub sleeps: u64,
    /// CPU time that was sampled in waiters that were awake and outside of the kernel, nanoseconds.
    pub spin_cpu_ns: u64,
    /// Of the waits in functions that spin: those that ended without a sleep, and those that slept after all.
    pub spins_won: u64,
    pub spins_wasted: u64,
    /// The part of the waits' time that was not seen, because probes were off to keep the overhead budget, but is
    /// estimated from what was seen. Nanoseconds.
    pub estimated_ns: u64,
}

impl LatchWaits {
    /// Nanoseconds of the waits that were spent on the CPU.
    pub fn spin_ns(&self) -> u64 {
        self.waits.sum_ns.saturating_sub(self.sleep_ns)
    }

    /// Waits that began with spinning.
    pub fn spins(&self) -> u64 {
        self.spins_won.saturating_add(self.spins_wasted)
    }
}

/// The waits for one latch in one mode that began at one place in the server's code.
#[derive(Clone, Debug, PartialEq)]
pub struct CallsiteWaits {
    pub latch: String,
    /// `None`: not known, as in older recordings, or several.
    pub mode: Option<Mode>,
    /// `row0ins.cc:2345`, or the waiting function's name.
    pub callsite: String,
    pub wait_ns: u64,
    pub waits: u64,
}

impl CallsiteWaits {
    /// Whether waits for this latch in this mode may have begun here.
    pub fn is_of(&self, latch: &str, mode: Mode) -> bool {
        self.latch == latch && self.mode.is_none_or(|own| own == mode)
    }
}

/// The waits for one mutex of threads that a condition variable had woken, and that have to get the mutex back. They tell how long
/// wake-ups take rather than how hot the mutex is, and are not among its [`LatchWaits`].
#[derive(Clone, Debug, PartialEq)]
pub struct Reacquires {
    pub latch: String,
    pub waits: u64,
    pub wait_ns: u64,
}

/// The waits for latches of pages that are part of the same level of the same index.
#[derive(Clone, Debug, PartialEq)]
pub struct PageWaits {
    /// `db/table`, a tablespace's name, or [`PageWaits::OTHER`].
    pub table: String,
    /// The index's name; for a page of no index what it is, in brackets; empty in the row of all others.
    pub index: String,
    /// Leaf pages are of level 0; `None` for pages of no index.
    pub level: Option<u16>,
    pub waits: u64,
    pub wait_ns: u64,
}

impl PageWaits {
    /// In place of a table: pages of which nothing is known, and all that have no row of their own.
    pub const OTHER: &str = "other";

    /// The row of all others.
    pub fn other() -> PageWaits {
        PageWaits { table: PageWaits::OTHER.to_owned(), index: String::new(), level: None, waits: 0, wait_ns: 0 }
    }

    /// What tells it from other rows.
    pub fn place(&self) -> (&str, &str, Option<u16>) {
        (&self.table, &self.index, self.level)
    }
}

/// How often a function of the server had a hardware event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventFunction {
    pub event: String,
    /// [`CpuTime::OTHER`]: all that have no row of their own.
    pub function: String,
    pub count: u64,
}

/// How one probe stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeState {
    Attached,
    /// Attached part of the time to keep the overhead budget.
    DutyCycle,
    #[default]
    Detached,
    Failed,
}

impl ProbeState {
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeState::Attached => "attached",
            ProbeState::DutyCycle => "duty_cycle",
            ProbeState::Detached => "detached",
            ProbeState::Failed => "failed",
        }
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
#[derive(Clone, Debug, PartialEq)]
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

/// Contended waits for a latch, by where the thread ran that woke the waiter, and where the waiter ran when it had the latch.
#[derive(Clone, Debug, PartialEq)]
pub struct Handoffs {
    pub latch: String,
    /// `None`: the wait ended without being woken, or who did it is not known.
    pub from: Option<String>,
    /// `None`: on a CPU that is in no known place.
    pub to: Option<String>,
    pub count: u64,
    /// Of those waits, nanoseconds.
    pub wait_ns: u64,
    /// Of those waits, how many began in another place than `to`.
    pub migrations: u64,
}

/// Whether a latch came from another part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Locality {
    Local,
    Remote,
}

impl Locality {
    /// The locality that has this name.
    pub fn from_name(name: &str) -> Option<Locality> {
        [Locality::Local, Locality::Remote].into_iter().find(|locality| locality.as_str() == name)
    }

    /// The value of the `locality` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Locality::Local => "local",
            Locality::Remote => "remote",
        }
    }
}

impl Handoffs {
    /// `None` where one of the places is not known.
    pub fn locality(&self) -> Option<Locality> {
        let (from, to) = (self.from.as_ref()?, self.to.as_ref()?);
        Some(if from == to { Locality::Local } else { Locality::Remote })
    }
}

/// Everything measured, counted since the agent attached.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Time since attach.
    pub elapsed: Duration,
    pub target: TargetInfo,
    /// False once the server has ended.
    pub up: bool,
    /// Whether the probes were taken off for a while, so that nothing is counted.
    pub paused: bool,
    /// One entry per (latch, kind, mode).
    pub latches: Vec<LatchWaits>,
    /// Whether sleeping can be told from spinning here. If not, the latches' sleeps are unknown, not zero.
    pub sleeps_seen: bool,
    /// One entry per latch.
    pub reacquires: Vec<Reacquires>,
    /// One entry per (latch, mode, call site).
    pub callsites: Vec<CallsiteWaits>,
    /// One entry per (table, index, level).
    pub pages: Vec<PageWaits>,
    /// The parts of the machine between which handoffs are counted: `0` for the node of that number, `cpus 0-7`. Empty where they
    /// are not counted.
    pub places: Vec<String>,
    /// One entry per (latch, from, to).
    pub handoffs: Vec<Handoffs>,
    /// CPU time of the server's threads, one entry per (class, function); empty where nothing samples it.
    pub cpu: Vec<CpuTime>,
    /// The part of it in instructions that order memory, by instruction and function.
    pub ordering: Vec<OrderingTime>,
    /// How the server computes checksums; those of which it is known.
    pub checksums: Vec<Checksum>,
    /// How often they were computed; empty until the first burst.
    pub checksum_calls: Vec<ChecksumCalls>,
    /// How long waiters spin; `None` where that is not known.
    pub spin: Option<SpinSettings>,
    /// `getcpu` system calls of the server's threads; `None` where they are not counted.
    pub getcpu_calls: Option<u64>,
    /// Hardware events that count on this host, one entry per event.
    pub events: Vec<EventCount>,
    /// Those of which it matters who has them, sampled, one entry per (event, function).
    pub event_functions: Vec<EventFunction>,
    pub probes: Vec<ProbeStatus>,
    /// What one hit costs on this machine, nanoseconds, by class of probe; those that are known.
    pub costs: Vec<(&'static str, f64)>,
    /// Events that are in no other figure, by cause; every cause that exists is listed, also at zero.
    pub lost: Vec<(String, u64)>,
    /// Barrier, atomic, spin-hint and checksum instructions in the server's code, by instruction; empty until they are counted, and
    /// where they cannot be.
    pub static_barriers: Vec<(String, u64)>,
    /// Statements that clients have sent, at most a second old; `None` where the server is not asked or does not answer.
    pub statements: Option<u64>,
    /// CPU time the server has used since attach (user + system), nanoseconds; `None` if /proc did not say.
    pub server_cpu_ns: Option<u64>,
}

impl Snapshot {
    /// CPU time that probes took from the server since attach, nanoseconds; `None` where the cost of a
    /// probe that was hit is unknown, for a sum without it would be too low.
    pub fn probe_cost_ns(&self) -> Option<f64> {
        let hit = self.probes.iter().filter(|probe| probe.hits > 0);
        hit.map(ProbeStatus::total_cost_ns).try_fold(0.0, |sum, cost| Some(sum + cost?))
    }

    /// Share of the server's CPU time since attach that probes took, 0 to 1; `None` where either is unknown.
    pub fn overhead_ratio(&self) -> Option<f64> {
        let cpu_ns = self.server_cpu_ns.filter(|&ns| ns > 0)?;
        Some(self.probe_cost_ns()? / cpu_ns as f64)
    }
}

impl ProbeStatus {
    /// CPU time that all hits of this probe took, nanoseconds; `None` where one trap's cost is unknown.
    pub fn total_cost_ns(&self) -> Option<f64> {
        self.trap_ns.map(|trap| trap * self.hits as f64 + self.program_ns as f64)
    }
}

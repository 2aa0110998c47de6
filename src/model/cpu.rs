//! What CPU time goes into.

use serde::{Deserialize, Serialize};

/// What a function is there for, where that is a known cost of database servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CpuClass {
    /// Spin loops of latches, and the locks' own code where the loop is inlined.
    Spin,
    /// The rest of the latches' code: taking, giving back, going to sleep.
    Latch,
    Checksum,
    /// Conversion between character sets.
    Charset,
    /// Atomic instructions in code that is there for nothing else here.
    Atomic,
    /// The same of barriers, and of loads and stores that order.
    Barrier,
    /// Asking which CPU the thread runs on.
    Getcpu,
    /// Copying, filling and comparing memory.
    Memcpy,
    /// In the kernel, in a futex system call.
    Futex,
    /// In the kernel, for anything else.
    Kernel,
    Other,
}

impl CpuClass {
    pub const ALL: [CpuClass; 11] = [
        CpuClass::Spin,
        CpuClass::Latch,
        CpuClass::Checksum,
        CpuClass::Charset,
        CpuClass::Atomic,
        CpuClass::Barrier,
        CpuClass::Getcpu,
        CpuClass::Memcpy,
        CpuClass::Futex,
        CpuClass::Kernel,
        CpuClass::Other,
    ];

    /// The class that has this name.
    pub fn from_name(name: &str) -> Option<CpuClass> {
        CpuClass::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// The value of the `class` label.
    pub fn as_str(self) -> &'static str {
        match self {
            CpuClass::Spin => "spin",
            CpuClass::Latch => "latch",
            CpuClass::Checksum => "checksum",
            CpuClass::Charset => "charset",
            CpuClass::Atomic => "atomic",
            CpuClass::Barrier => "barrier",
            CpuClass::Getcpu => "getcpu",
            CpuClass::Memcpy => "memcpy",
            CpuClass::Futex => "futex",
            CpuClass::Kernel => "kernel",
            CpuClass::Other => "other",
        }
    }
}

/// CPU time that the server's threads spent in one function.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTime {
    pub class: CpuClass,
    /// The function's name, or [`CpuTime::OTHER`].
    pub function: String,
    pub ns: u64,
}

impl CpuTime {
    /// In place of a function: all of the class that have no row of their own.
    pub const OTHER: &str = "other";

    /// Nanoseconds of these rows together.
    pub fn sum<'a>(rows: impl Iterator<Item = &'a CpuTime>) -> u64 {
        rows.map(|row| row.ns).fold(0, u64::saturating_add)
    }
}

/// CPU time that one sort of instruction that orders memory took in one function.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderingTime {
    /// `lock cmpxchg`, `dmb ish`
    pub instruction: String,
    /// The function's name, or [`CpuTime::OTHER`].
    pub function: String,
    pub ns: u64,
}

/// How a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Implementation {
    /// With instructions for it.
    Hardware,
    Software,
}

impl Implementation {
    /// The value of the `implementation` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Implementation::Hardware => "hardware",
            Implementation::Software => "software",
        }
    }
}

/// The implementation of a checksum that the server has chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checksum {
    /// `crc32c of pages and redo log`
    pub purpose: String,
    pub function: String,
    pub implementation: Implementation,
    /// That it uses; none in software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// Whether the host's CPU has an instruction for it.
    pub cpu_has_instruction: bool,
}

/// How often an implementation of a checksum was called, scaled up from bursts in which each call was counted.
#[derive(Clone, Debug, PartialEq)]
pub struct ChecksumCalls {
    pub function: String,
    pub implementation: Implementation,
    pub calls: u64,
    /// That it was given.
    pub bytes: u64,
}

impl Checksum {
    /// Whether it could be computed faster here than it is.
    pub fn is_slow(&self) -> bool {
        self.implementation == Implementation::Software && self.cpu_has_instruction
    }

    /// CPU time of these rows that was spent in it, nanoseconds.
    pub fn cpu_ns(&self, cpu: &[CpuTime]) -> u64 {
        CpuTime::sum(cpu.iter().filter(|row| row.class == CpuClass::Checksum && row.function == self.function))
    }
}

/// How long the server's waiters spin before they sleep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpinSettings {
    /// That tells the CPU that the code spins: `pause`, `isb`. `None`: the build's loop has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// One turn of the loop on this CPU, nanoseconds.
    pub turn_ns: f64,
    /// `innodb_spin_wait_delay` and `innodb_sync_spin_loops`.
    pub delay: u32,
    pub rounds: u32,
    /// Turns of the loop in a round, on average.
    pub turns: f64,
}

impl SpinSettings {
    /// One round on average, nanoseconds.
    pub fn round_ns(&self) -> f64 {
        self.turn_ns * self.turns
    }

    /// All rounds before a sleep, nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.round_ns() * f64::from(self.rounds)
    }
}

//! The figures of checksums that the server computes.

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::measure::cpu::CpuTime;
use crate::model::CpuClass;

/// The figures of checksums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The implementation of each checksum, as far as it is known.
    pub chosen: Vec<Checksum>,
    /// The calls since attach; empty until the first burst.
    pub calls: Vec<ChecksumCalls>,
}

/// How a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "snake_case")]
pub enum Implementation {
    /// With instructions for this checksum.
    Hardware,
    /// With ordinary instructions.
    Software,
}

impl Implementation {
    /// Returns the value of the `implementation` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The implementation of a checksum that the server has chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checksum {
    /// What the server computes it for: `crc32c of pages and redo log`.
    pub purpose: String,
    /// The function's name in source form.
    pub function: String,
    /// Whether the function uses instructions for this checksum.
    pub implementation: Implementation,
    /// The instruction that it uses; `None` in software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// Whether the host's CPU has an instruction for it.
    pub cpu_has_instruction: bool,
}

/// How often an implementation of a checksum was called, scaled up from bursts in which each call was counted.
#[derive(Clone, Debug, PartialEq)]
pub struct ChecksumCalls {
    /// The function's name in source form.
    pub function: String,
    /// Whether the function uses instructions for this checksum.
    pub implementation: Implementation,
    /// The number of calls.
    pub calls: u64,
    /// The number of bytes that checksums were computed of.
    pub bytes: u64,
}

/// Formats how it is computed: `hardware::crc32_using_pclmul (pclmulqdq)`, `software::crc32, in software`.
impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.instruction {
            Some(instruction) => write!(f, "{} ({instruction})", self.function),
            None => write!(f, "{}, in software", self.function),
        }
    }
}

impl Checksum {
    /// Returns whether it is computed in software although the host's CPU has an instruction for it.
    pub fn is_slow(&self) -> bool {
        self.implementation == Implementation::Software && self.cpu_has_instruction
    }

    /// Returns the CPU time in these rows that was spent on it, in nanoseconds.
    pub fn cpu_ns(&self, cpu: &[CpuTime]) -> u64 {
        CpuTime::sum(cpu.iter().filter(|row| row.class == CpuClass::Checksum && row.function == self.function))
    }
}

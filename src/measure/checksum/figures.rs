//! Checksums that the server computes: the figures.

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::measure::cpu::CpuTime;
use crate::model::CpuClass;

/// Everything known about checksums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// How the server computes checksums; those of which it is known.
    pub chosen: Vec<Checksum>,
    /// How often they were computed since attach; empty until the first burst.
    pub calls: Vec<ChecksumCalls>,
}

/// How a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "snake_case")]
pub enum Implementation {
    /// With instructions for it.
    Hardware,
    Software,
}

impl Implementation {
    /// The value of the `implementation` label.
    pub fn as_str(self) -> &'static str {
        self.into()
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

/// How it is computed: `hardware::crc32_using_pclmul (pclmulqdq)`, `software::crc32, in software`.
impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.instruction {
            Some(instruction) => write!(f, "{} ({instruction})", self.function),
            None => write!(f, "{}, in software", self.function),
        }
    }
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

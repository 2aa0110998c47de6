//! Recordings: everything measured on one server, second by second, in one self-contained file.

pub mod compare;
mod frame;
mod host;
mod join;
mod pace;
mod reader;
mod recent;
mod replay;
pub(crate) mod report;
mod rows;
mod schema;
pub mod table;
mod writer;

use std::time::Duration;

pub use frame::{FormatError, VERSION};
pub use pace::Pace;
pub use reader::{read, Recording};
pub(crate) use reader::{LEAST_BURSTS, LEAST_SAMPLED};
pub use recent::Recent;
pub use replay::Replay;
pub use report::{Finding, Folded, Html, Report, Section, Text};
pub(crate) use rows::difference;
pub use rows::{Bound, Counts, CountsDelta, Delta, Row, Total};
pub use schema::{Code, End, Ending, Host, NewRows, Probe, Recorded, Second, Server, Start};
pub use writer::Recorder;

pub use crate::measure::checksum::record::ChecksumKey;
pub use crate::measure::cpu::record::{CpuKey, OrderingKey};
pub use crate::measure::latch::record::{CallsiteKey, Handed, HandoffKey, LatchDelta, LatchKey, PageKey};
pub use crate::measure::latch::report::Bucket;

/// The longest recording. `report` and `compare` read the whole file into memory.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);
/// The length of a second of a recording, as far as it can be kept.
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The shortest remainder after the last whole second that is a second of its own.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

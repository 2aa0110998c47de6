//! Records calls of checksums.

use serde::{Deserialize, Serialize};

use super::figures::{ChecksumCalls, Implementation};
use crate::measure::Snapshot;
use crate::recording::{Counts, Recording, Row};

/// An implementation of a checksum.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChecksumKey {
    /// The function's name.
    pub function: String,
    /// Whether the function uses instructions for the checksum.
    pub implementation: Implementation,
}

/// Calls and bytes by implementation.
impl Row for ChecksumCalls {
    type Key = ChecksumKey;
    type Total = Counts<2>;

    fn entries(now: &Snapshot) -> Vec<&ChecksumCalls> {
        now.checksum.calls.iter().collect()
    }

    fn key(&self) -> ChecksumKey {
        ChecksumKey { function: self.function.clone(), implementation: self.implementation }
    }

    fn total(&self) -> Counts<2> {
        Counts([self.calls, self.bytes])
    }

    fn restore(key: &ChecksumKey, Counts([calls, bytes]): Counts<2>) -> ChecksumCalls {
        ChecksumCalls { function: key.function.clone(), implementation: key.implementation, calls, bytes }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<ChecksumCalls> {
        &mut snapshot.checksum.calls
    }
}

impl Recording {
    /// Returns how often checksums were computed, in the order of the rows; empty if there was no burst.
    pub fn checksum_calls(&self) -> Vec<ChecksumCalls> {
        self.entries::<ChecksumCalls>()
    }
}

//! Records waits for locks of the database.

use super::figures::LockWaits;
use crate::measure::latch::record::LatchTotal;
use crate::measure::Snapshot;
use crate::model::OTHER;
use crate::recording::{Bound, Recording, Row};

/// Waits by lock, in the form of those for latches.
impl Row for LockWaits {
    type Key = String;
    type Total = LatchTotal;

    const BOUNDS: &'static [Bound<String>] = &[Bound { rows: 100, other: |_| OTHER.to_owned() }];

    fn entries(now: &Snapshot) -> Vec<&LockWaits> {
        now.locks.waits.iter().collect()
    }

    fn key(&self) -> String {
        self.lock.clone()
    }

    fn total(&self) -> LatchTotal {
        LatchTotal::of_waits(self.waits.clone())
    }

    fn restore(lock: &String, total: LatchTotal) -> LockWaits {
        LockWaits { lock: lock.clone(), waits: total.into_waits() }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<LockWaits> {
        &mut snapshot.locks.waits
    }

    fn weight(total: &LatchTotal) -> u64 {
        total.clone().into_waits().sum_ns
    }
}

impl Recording {
    /// Returns the waits for locks, longest first; empty if they were not measured, or if nobody waited.
    pub fn lock_waits(&self) -> Vec<LockWaits> {
        let mut rows = self.entries::<LockWaits>();
        rows.retain(|row| row.waits.count > 0);
        rows.sort_by(|a, b| b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| a.lock.cmp(&b.lock)));
        rows
    }
}

//! Records waits for locks of the database.

use super::figures::{LockWaits, Rested};
use crate::measure::latch::record::LatchTotal;
use crate::measure::Snapshot;
use crate::model::OTHER;
use crate::recording::{Bound, Counts, Recording, Row};

/// Waits by lock, in the form of those for latches.
impl Row for LockWaits {
    type Key = String;
    type Total = LatchTotal;

    const KEEPS_EMPTY: bool = true;

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

/// There is one row, and only if there was such a time.
impl Row for Rested {
    type Key = ();
    type Total = Counts<1>;

    fn entries(now: &Snapshot) -> Vec<&Rested> {
        now.locks.rested.iter().collect()
    }

    fn key(&self) {}

    fn total(&self) -> Counts<1> {
        Counts([self.ns])
    }

    fn restore((): &(), Counts([ns]): Counts<1>) -> Rested {
        Rested { ns }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<Rested> {
        &mut snapshot.locks.rested
    }
}

impl Recording {
    /// Returns for how long waits for locks were not measured because of the budget, in nanoseconds.
    pub fn lock_rest_ns(&self) -> u64 {
        self.entries::<Rested>().iter().map(|rested| rested.ns).sum()
    }

    /// Returns the waits for locks, longest first; empty if they were not measured, or if nobody waited.
    pub fn lock_waits(&self) -> Vec<LockWaits> {
        let mut rows = self.entries::<LockWaits>();
        rows.retain(|row| row.waits.count > 0);
        rows.sort_by(|a, b| b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| a.lock.cmp(&b.lock)));
        rows
    }
}

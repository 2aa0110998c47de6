//! Records flushes of files.

use super::figures::Fsyncs;
use crate::measure::files::FileWaits;
use crate::measure::latch::record::LatchTotal;
use crate::measure::Snapshot;
use crate::recording::{Bound, Recording, Row};

/// Flushes by what the file is for, in the form of waits for latches.
impl Row for Fsyncs {
    type Key = String;
    type Total = LatchTotal;

    const BOUNDS: &'static [Bound<String>] = &[Bound { rows: 100, other: |_| FileWaits::UNKNOWN.to_owned() }];

    fn entries(now: &Snapshot) -> Vec<&Fsyncs> {
        now.fsync.calls.iter().collect()
    }

    fn key(&self) -> String {
        self.event.clone()
    }

    fn total(&self) -> LatchTotal {
        LatchTotal::of_waits(self.calls.clone())
    }

    fn restore(event: &String, total: LatchTotal) -> Fsyncs {
        Fsyncs { event: event.clone(), calls: total.into_waits() }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<Fsyncs> {
        &mut snapshot.fsync.calls
    }

    fn keeps_empty(_event: &String) -> bool {
        true
    }

    fn weight(total: &LatchTotal) -> u64 {
        total.clone().into_waits().sum_ns
    }
}

impl Recording {
    /// Returns the flushes of files, those that took longest in all first.
    pub fn fsyncs(&self) -> Vec<Fsyncs> {
        let mut rows = self.entries::<Fsyncs>();
        rows.sort_by(|a, b| b.calls.sum_ns.cmp(&a.calls.sum_ns).then_with(|| a.event.cmp(&b.event)));
        rows
    }
}

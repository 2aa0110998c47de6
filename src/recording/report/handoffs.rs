//! Between which parts of the machine latches were handed over.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::seconds;
use crate::measure::latch::Locality;
use crate::recording::{Handed, HandoffKey, Recording};

/// Contended waits by where the latch came from. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct HandoffsReport {
    /// The parts of the machine that are told apart.
    pub places: Vec<String>,
    pub all: HandoffSums,
    /// Those of each latch, of which the most time was waited for what came from elsewhere first.
    pub latches: Vec<LatchHandoffs>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LatchHandoffs {
    pub latch: String,
    #[serde(flatten)]
    pub sums: HandoffSums,
}

/// The handoffs of one latch, or of all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HandoffSums {
    /// The latch came from the part of the machine in which the waiter had it.
    pub local: HandoffSum,
    /// It came from another.
    pub remote: HandoffSum,
    /// Nobody is known to have handed it over: the waiter was not woken.
    pub unknown: HandoffSum,
    /// Waits that began in another part of the machine than they ended in.
    pub migrations: u64,
    /// By where from and where to, as far as these have rows of their own; `None`: not known.
    #[serde(serialize_with = "as_list")]
    pub cells: BTreeMap<(Option<String>, Option<String>), HandoffSum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HandoffSum {
    pub waits: u64,
    pub wait: f64,
}

/// JSON has no keys of two parts.
fn as_list<S: Serializer>(
    cells: &BTreeMap<(Option<String>, Option<String>), HandoffSum>,
    to: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Cell<'a> {
        from: &'a Option<String>,
        to: &'a Option<String>,
        #[serde(flatten)]
        sum: HandoffSum,
    }
    to.collect_seq(cells.iter().map(|((from, to), sum)| Cell { from, to, sum: *sum }))
}

impl HandoffSum {
    fn add(&mut self, handed: Handed) {
        self.waits = self.waits.saturating_add(handed.waits);
        self.wait += seconds(handed.wait_ns);
    }
}

impl HandoffSums {
    fn add(&mut self, key: &HandoffKey, handed: Handed) {
        let sum = match key.locality() {
            Some(Locality::Local) => &mut self.local,
            Some(Locality::Remote) => &mut self.remote,
            None => &mut self.unknown,
        };
        sum.add(handed);
        self.migrations = self.migrations.saturating_add(handed.migrations);
        if key.from.is_some() || key.to.is_some() {
            self.cells.entry((key.from.clone(), key.to.clone())).or_default().add(handed);
        }
    }

    /// All waits.
    pub fn waits(&self) -> u64 {
        [self.local, self.remote, self.unknown].into_iter().fold(0, |sum, part| sum.saturating_add(part.waits))
    }

    /// All time waited.
    pub fn wait(&self) -> f64 {
        self.local.wait + self.remote.wait + self.unknown.wait
    }

    /// Share of the time waited for latches that are known to come from somewhere, for those from elsewhere, 0 to 1; `None` where
    /// none is known to.
    pub fn remote_share(&self) -> Option<f64> {
        let known = self.local.wait + self.remote.wait;
        (known > 0.0).then(|| self.remote.wait / known)
    }

    /// Share of the waiters that moved while they waited, 0 to 1; `None` where nobody waited.
    pub fn moved_share(&self) -> Option<f64> {
        (self.waits() > 0).then(|| self.migrations as f64 / self.waits() as f64)
    }

    /// Waits for what came from `from` and was had in `to`.
    pub fn between(&self, from: Option<&str>, to: Option<&str>) -> HandoffSum {
        let key = (from.map(str::to_owned), to.map(str::to_owned));
        self.cells.get(&key).copied().unwrap_or_default()
    }
}

impl HandoffsReport {
    /// `None` where they were not counted.
    pub(super) fn new(recording: &Recording) -> Option<HandoffsReport> {
        recording.has_handoffs().then_some(())?;
        let mut all = HandoffSums::default();
        let mut latches: BTreeMap<&str, HandoffSums> = BTreeMap::new();
        for (key, handed) in recording.handoffs().filter(|(_, handed)| handed.waits > 0) {
            all.add(key, handed);
            latches.entry(&key.latch).or_default().add(key, handed);
        }
        let latch = |(latch, sums): (&str, HandoffSums)| LatchHandoffs { latch: latch.to_owned(), sums };
        let mut latches: Vec<LatchHandoffs> = latches.into_iter().map(latch).collect();
        let time = |latch: &LatchHandoffs| (latch.sums.remote.wait, latch.sums.wait());
        latches.sort_by(|a, b| time(b).partial_cmp(&time(a)).unwrap_or(std::cmp::Ordering::Equal));
        Some(HandoffsReport { places: recording.start.places.clone(), all, latches })
    }
}

//! Records the server's CPU time.

use serde::{Deserialize, Serialize};

use super::figures::{CpuTime, OrderingTime};
use crate::measure::Snapshot;
use crate::model::CpuClass;
use crate::recording::{Bound, Counts, Recording, Row};

/// A function and the class that its time counts as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CpuKey {
    /// The class, as in the `class` label.
    pub class: String,
    /// The function's name, or `other`.
    pub function: String,
}

/// An instruction that orders memory, in a function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OrderingKey {
    /// The instruction: `lock cmpxchg`, `dmb ish`.
    pub instruction: String,
    /// The function's name, or `other`.
    pub function: String,
}

/// Nanoseconds by class and function.
impl Row for CpuTime {
    type Key = CpuKey;
    type Total = Counts<1>;

    const BOUNDS: &'static [Bound<CpuKey>] =
        &[Bound { rows: 250, other: |key| CpuKey { function: CpuTime::OTHER.to_owned(), ..key.clone() } }];

    fn entries(now: &Snapshot) -> Vec<&CpuTime> {
        now.cpu.time.iter().collect()
    }

    fn key(&self) -> CpuKey {
        CpuKey { class: self.class.as_str().to_owned(), function: self.function.clone() }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.ns])
    }

    fn restore(key: &CpuKey, Counts([ns]): Counts<1>) -> CpuTime {
        CpuTime { class: key.class(), function: key.function.clone(), ns }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<CpuTime> {
        &mut snapshot.cpu.time
    }

    fn weight(Counts([ns]): &Counts<1>) -> u64 {
        *ns
    }
}

/// Nanoseconds by instruction and function.
impl Row for OrderingTime {
    type Key = OrderingKey;
    type Total = Counts<1>;

    const BOUNDS: &'static [Bound<OrderingKey>] =
        &[Bound { rows: 150, other: |key| OrderingKey { function: CpuTime::OTHER.to_owned(), ..key.clone() } }];

    fn entries(now: &Snapshot) -> Vec<&OrderingTime> {
        now.cpu.ordering.iter().collect()
    }

    fn key(&self) -> OrderingKey {
        OrderingKey { instruction: self.instruction.clone(), function: self.function.clone() }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.ns])
    }

    fn restore(key: &OrderingKey, Counts([ns]): Counts<1>) -> OrderingTime {
        OrderingTime { instruction: key.instruction.clone(), function: key.function.clone(), ns }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<OrderingTime> {
        &mut snapshot.cpu.ordering
    }

    fn weight(Counts([ns]): &Counts<1>) -> u64 {
        *ns
    }
}

impl CpuKey {
    /// Returns the function's class. A class that only a later armtrace knows counts as [`CpuClass::Other`].
    pub fn class(&self) -> CpuClass {
        CpuClass::from_name(&self.class).unwrap_or(CpuClass::Other)
    }
}

impl Recording {
    /// Returns the CPU time of all functions, the most first; empty if it was not sampled.
    pub fn cpu(&self) -> Vec<CpuTime> {
        let mut cpu = self.entries::<CpuTime>();
        cpu.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| (a.class, &a.function).cmp(&(b.class, &b.function))));
        cpu
    }

    /// Returns the CPU time of instructions that order memory, the most first; empty if CPU time was not sampled.
    pub fn ordering(&self) -> Vec<OrderingTime> {
        let mut ordering = self.entries::<OrderingTime>();
        ordering.sort_by(|a, b| {
            b.ns.cmp(&a.ns).then_with(|| (&a.instruction, &a.function).cmp(&(&b.instruction, &b.function)))
        });
        ordering
    }
}

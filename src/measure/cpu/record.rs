//! Records the server's CPU time.

use serde::{Deserialize, Serialize};

use super::figures::{CpuTime, OrderingTime, StatementCpu};
use crate::measure::latch::Account;
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

/// A statement that used CPU time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StatementCpuKey {
    /// The hash of the statement without its values; absent if this is no single statement.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// The statement; see [`StatementCpu::statement`].
    pub statement: String,
    /// For whom it was executed.
    #[serde(flatten)]
    pub account: Account,
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

/// Samples by statement, all and those at instructions that order memory.
impl Row for StatementCpu {
    type Key = StatementCpuKey;
    type Total = Counts<2>;

    const BOUNDS: &'static [Bound<StatementCpuKey>] = &[Bound {
        rows: 200,
        other: |_| {
            let (digest, statement) = (String::new(), StatementCpu::OTHER.to_owned());
            StatementCpuKey { digest, statement, account: Account::default() }
        },
    }];

    fn entries(now: &Snapshot) -> Vec<&StatementCpu> {
        now.cpu.statements.iter().collect()
    }

    fn key(&self) -> StatementCpuKey {
        let (digest, statement) = (self.digest.clone(), self.statement.clone());
        StatementCpuKey { digest, statement, account: self.account.clone() }
    }

    fn total(&self) -> Counts<2> {
        Counts([self.samples, self.ordering_samples])
    }

    fn restore(key: &StatementCpuKey, Counts([samples, ordering_samples]): Counts<2>) -> StatementCpu {
        let StatementCpuKey { digest, statement, account } = key.clone();
        StatementCpu { digest, statement, account, samples, ordering_samples }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<StatementCpu> {
        &mut snapshot.cpu.statements
    }

    fn weight(Counts([samples, _]): &Counts<2>) -> u64 {
        *samples
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

    /// Returns how often each statement was seen in samples of CPU time, most often first; empty if they were not read.
    pub fn cpu_statements(&self) -> Vec<StatementCpu> {
        let mut rows = self.entries::<StatementCpu>();
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.key().cmp(&b.key())));
        rows
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

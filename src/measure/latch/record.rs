//! Records waits for latches.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::figures::{
    Account, CallsiteWaits, Handoffs, LatchWaits, Locality, PageWaits, Reacquires, StackWaits, StatementWaits,
};
use crate::measure::Snapshot;
use crate::model::{cumulative, Histogram, Kind, Mode, OTHER};
use crate::recording::{difference, Bound, Counts, Delta, Recording, Row, Total};

/// A latch in one mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LatchKey {
    /// The event name.
    pub latch: String,
    /// The kind, as in the `kind` label.
    pub kind: String,
    /// The mode, as in the `mode` label; empty for a latch without modes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
}

/// A place in the server's code where waits for a latch begin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallsiteKey {
    /// The event name.
    pub latch: String,
    /// The mode; absent if it is not known, as in the files of older versions, and in the row for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The place: a source file and line, or a function.
    pub callsite: String,
}

/// A level of an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageKey {
    /// The table or tablespace; see [`PageWaits::table`].
    pub table: String,
    /// The index, or the purpose of a page without one; see [`PageWaits::index`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub index: String,
    /// The level, 0 for leaf pages; absent for pages without an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u16>,
}

/// The parts of the machine that a latch was handed from and to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HandoffKey {
    /// The event name.
    pub latch: String,
    /// The part of the machine that the latch came from; absent if it is not known, or if the row stands for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The part of the machine that the latch went to; absent as `from` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether the latch came from another part: `local` or `remote`; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
}

/// A statement that waited for a latch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StatementKey {
    /// The event name.
    pub latch: String,
    /// The mode; absent in the row for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The hash of the statement without its values; absent if this is no single statement.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// The statement; see [`StatementWaits::statement`].
    pub statement: String,
    /// For whom it was executed.
    #[serde(flatten)]
    pub account: Account,
}

/// Through which calls a thread came to wait for a latch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StackKey {
    /// The event name.
    pub latch: String,
    /// The mode; absent in the row for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The calls; see [`StackWaits::calls`].
    pub calls: String,
}

/// What was counted for a latch in one mode.
#[derive(Clone, Default, PartialEq)]
pub struct LatchTotal {
    waits: Histogram,
    sleep_ns: u64,
    sleeps: u64,
    estimated_ns: u64,
    variance_us2: u64,
    spin_cpu_ns: u64,
    spins_won: u64,
    spins_wasted: u64,
}

/// What one second added to a [`LatchTotal`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatchDelta {
    /// The number of the row.
    #[serde(rename = "r")]
    pub row: usize,
    /// The number of waits.
    #[serde(rename = "n", default)]
    pub waits: i64,
    /// Nanoseconds waited.
    #[serde(rename = "ns", default)]
    pub wait_ns: i64,
    /// The part of `wait_ns` spent asleep.
    #[serde(rename = "sl", default, skip_serializing_if = "is_zero")]
    pub sleep_ns: i64,
    /// The number of sleeps.
    #[serde(rename = "s", default, skip_serializing_if = "is_zero")]
    pub sleeps: i64,
    /// The part of `wait_ns` that is estimated.
    #[serde(rename = "e", default, skip_serializing_if = "is_zero")]
    pub estimated_ns: i64,
    /// The square of the standard error of `wait_ns`, in square microseconds.
    #[serde(rename = "v", default, skip_serializing_if = "is_zero")]
    pub variance_us2: i64,
    /// Sampled CPU time that waiters spent spinning in the server's code, in nanoseconds.
    #[serde(rename = "c", default, skip_serializing_if = "is_zero")]
    pub spin_cpu_ns: i64,
    /// Spins that ended without a sleep.
    #[serde(rename = "w", default, skip_serializing_if = "is_zero")]
    pub spins_won: i64,
    /// Spins that ended in a sleep.
    #[serde(rename = "l", default, skip_serializing_if = "is_zero")]
    pub spins_wasted: i64,
    /// The longest wait since recording began, in nanoseconds; absent if it has not changed.
    #[serde(rename = "x", default, skip_serializing_if = "is_zero")]
    pub longest_ns: i64,
    /// The histogram buckets that changed: number of the bucket, waits, number, waits, …
    #[serde(rename = "b", default)]
    pub buckets: Vec<i64>,
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// Waits by latch and mode.
impl Row for LatchWaits {
    type Key = LatchKey;
    type Total = LatchTotal;

    const BOUNDS: &'static [Bound<LatchKey>] =
        &[Bound { rows: 300, other: |key| LatchKey { latch: OTHER.to_owned(), ..key.clone() } }];

    fn entries(now: &Snapshot) -> Vec<&LatchWaits> {
        now.latch.waits.iter().collect()
    }

    fn key(&self) -> LatchKey {
        let (kind, mode) = (self.kind.as_str().to_owned(), self.mode.as_str().to_owned());
        LatchKey { latch: self.latch.clone(), kind, mode }
    }

    fn total(&self) -> LatchTotal {
        LatchTotal {
            waits: self.waits.clone(),
            sleep_ns: self.sleep_ns,
            sleeps: self.sleeps,
            estimated_ns: self.estimated_ns,
            variance_us2: self.variance_us2,
            spin_cpu_ns: self.spin_cpu_ns,
            spins_won: self.spins_won,
            spins_wasted: self.spins_wasted,
        }
    }

    fn restore(key: &LatchKey, total: LatchTotal) -> LatchWaits {
        let (kind, mode) = key.kind_and_mode().expect("checked when the file was read");
        LatchWaits {
            latch: key.latch.clone(),
            kind,
            mode,
            waits: total.waits,
            sleep_ns: total.sleep_ns,
            sleeps: total.sleeps,
            spin_cpu_ns: total.spin_cpu_ns,
            spins_won: total.spins_won,
            spins_wasted: total.spins_wasted,
            estimated_ns: total.estimated_ns,
            variance_us2: total.variance_us2,
        }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<LatchWaits> {
        &mut snapshot.latch.waits
    }

    fn weight(total: &LatchTotal) -> u64 {
        total.waits.sum_ns
    }

    fn fault(key: &LatchKey) -> Option<&'static str> {
        key.kind_and_mode().is_none().then_some("a latch of an unknown kind")
    }
}

/// Waits and nanoseconds by mutex.
impl Row for Reacquires {
    type Key = String;
    type Total = Counts<2>;

    const BOUNDS: &'static [Bound<String>] = &[Bound { rows: 100, other: |_| OTHER.to_owned() }];

    fn entries(now: &Snapshot) -> Vec<&Reacquires> {
        now.latch.reacquires.iter().collect()
    }

    fn key(&self) -> String {
        self.latch.clone()
    }

    fn total(&self) -> Counts<2> {
        Counts([self.waits, self.wait_ns])
    }

    fn restore(latch: &String, Counts([waits, wait_ns]): Counts<2>) -> Reacquires {
        Reacquires { latch: latch.clone(), waits, wait_ns }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<Reacquires> {
        &mut snapshot.latch.reacquires
    }

    fn weight(Counts([_, wait_ns]): &Counts<2>) -> u64 {
        *wait_ns
    }
}

/// Waits and nanoseconds by latch, mode and call site.
impl Row for CallsiteWaits {
    type Key = CallsiteKey;
    type Total = Counts<2>;

    const BOUNDS: &'static [Bound<CallsiteKey>] = &[Bound {
        rows: 400,
        other: |_| CallsiteKey { latch: OTHER.to_owned(), mode: None, callsite: OTHER.to_owned() },
    }];

    fn entries(now: &Snapshot) -> Vec<&CallsiteWaits> {
        now.latch.callsites.iter().collect()
    }

    fn key(&self) -> CallsiteKey {
        let mode = self.mode.map(|mode| mode.as_str().to_owned());
        CallsiteKey { latch: self.latch.clone(), mode, callsite: self.callsite.clone() }
    }

    fn total(&self) -> Counts<2> {
        Counts([self.waits, self.wait_ns])
    }

    /// A mode that only a later armtrace knows is unknown.
    fn restore(key: &CallsiteKey, Counts([waits, wait_ns]): Counts<2>) -> CallsiteWaits {
        CallsiteWaits {
            latch: key.latch.clone(),
            mode: key.mode.as_deref().and_then(Mode::from_name),
            callsite: key.callsite.clone(),
            wait_ns,
            waits,
        }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<CallsiteWaits> {
        &mut snapshot.latch.callsites
    }

    fn weight(Counts([_, wait_ns]): &Counts<2>) -> u64 {
        *wait_ns
    }
}

/// Waits and nanoseconds by table, index and level.
impl Row for PageWaits {
    type Key = PageKey;
    type Total = Counts<2>;

    const BOUNDS: &'static [Bound<PageKey>] = &[Bound {
        rows: 200,
        other: |_| PageKey { table: PageWaits::OTHER.to_owned(), index: String::new(), level: None },
    }];

    fn entries(now: &Snapshot) -> Vec<&PageWaits> {
        now.latch.pages.iter().collect()
    }

    fn key(&self) -> PageKey {
        PageKey { table: self.table.clone(), index: self.index.clone(), level: self.level }
    }

    fn total(&self) -> Counts<2> {
        Counts([self.waits, self.wait_ns])
    }

    fn restore(key: &PageKey, Counts([waits, wait_ns]): Counts<2>) -> PageWaits {
        PageWaits { table: key.table.clone(), index: key.index.clone(), level: key.level, waits, wait_ns }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<PageWaits> {
        &mut snapshot.latch.pages
    }

    fn weight(Counts([_, wait_ns]): &Counts<2>) -> u64 {
        *wait_ns
    }
}

/// Waits, nanoseconds and migrations by latch and parts of the machine.
impl Row for Handoffs {
    type Key = HandoffKey;
    type Total = Counts<3>;

    /// A machine with many nodes has a row for each pair of them. Beyond the first bound, one row counts all handoffs
    /// of a latch that are alike local, remote or unknown.
    const BOUNDS: &'static [Bound<HandoffKey>] = &[
        Bound { rows: 200, other: HandoffKey::of_latch },
        Bound { rows: 200, other: |key| if *key == key.of_latch() { key.of_others() } else { key.clone() } },
    ];

    fn entries(now: &Snapshot) -> Vec<&Handoffs> {
        now.latch.handoffs.iter().collect()
    }

    fn key(&self) -> HandoffKey {
        HandoffKey {
            latch: self.latch.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            locality: self.locality.map(|locality| locality.as_str().to_owned()),
        }
    }

    fn total(&self) -> Counts<3> {
        Counts([self.count, self.wait_ns, self.migrations])
    }

    fn restore(key: &HandoffKey, Counts([count, wait_ns, migrations]): Counts<3>) -> Handoffs {
        Handoffs {
            latch: key.latch.clone(),
            from: key.from.clone(),
            to: key.to.clone(),
            locality: key.locality(),
            count,
            wait_ns,
            migrations,
        }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<Handoffs> {
        &mut snapshot.latch.handoffs
    }

    fn weight(Counts([_, wait_ns, _]): &Counts<3>) -> u64 {
        *wait_ns
    }
}

/// Samples by latch, mode and statement.
impl Row for StatementWaits {
    type Key = StatementKey;
    type Total = Counts<1>;

    /// Beyond the first bound, one row counts all statements of a latch without a row of their own.
    const BOUNDS: &'static [Bound<StatementKey>] = &[
        Bound { rows: 400, other: StatementKey::of_latch },
        Bound { rows: 200, other: |key| if *key == key.of_latch() { StatementKey::of_others() } else { key.clone() } },
    ];

    fn entries(now: &Snapshot) -> Vec<&StatementWaits> {
        now.latch.statements.iter().collect()
    }

    fn key(&self) -> StatementKey {
        StatementKey {
            latch: self.latch.clone(),
            mode: self.mode.map(|mode| mode.as_str().to_owned()),
            digest: self.digest.clone(),
            statement: self.statement.clone(),
            account: self.account.clone(),
        }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.samples])
    }

    /// A mode that only a later armtrace knows is unknown.
    fn restore(key: &StatementKey, Counts([samples]): Counts<1>) -> StatementWaits {
        StatementWaits {
            latch: key.latch.clone(),
            mode: key.mode.as_deref().and_then(Mode::from_name),
            digest: key.digest.clone(),
            statement: key.statement.clone(),
            account: key.account.clone(),
            samples,
        }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<StatementWaits> {
        &mut snapshot.latch.statements
    }

    fn weight(Counts([samples]): &Counts<1>) -> u64 {
        *samples
    }
}

/// Samples by latch, mode and call stack.
impl Row for StackWaits {
    type Key = StackKey;
    type Total = Counts<1>;

    /// Beyond the first bound, one row counts all call stacks of a latch without a row of their own.
    const BOUNDS: &'static [Bound<StackKey>] = &[
        Bound { rows: 400, other: StackKey::of_latch },
        Bound { rows: 200, other: |key| if *key == key.of_latch() { StackKey::of_others() } else { key.clone() } },
    ];

    fn entries(now: &Snapshot) -> Vec<&StackWaits> {
        now.latch.call_stacks.iter().collect()
    }

    fn key(&self) -> StackKey {
        let mode = self.mode.map(|mode| mode.as_str().to_owned());
        StackKey { latch: self.latch.clone(), mode, calls: self.calls.clone() }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.samples])
    }

    /// A mode that only a later armtrace knows is unknown.
    fn restore(key: &StackKey, Counts([samples]): Counts<1>) -> StackWaits {
        let mode = key.mode.as_deref().and_then(Mode::from_name);
        StackWaits { latch: key.latch.clone(), mode, calls: key.calls.clone(), samples }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<StackWaits> {
        &mut snapshot.latch.call_stacks
    }

    fn weight(Counts([samples]): &Counts<1>) -> u64 {
        *samples
    }
}

impl StackKey {
    /// Returns the key of all call stacks of the same latch and mode that have no row of their own.
    fn of_latch(&self) -> StackKey {
        StackKey { calls: StackWaits::OTHER.to_owned(), ..self.clone() }
    }

    /// Returns the key of all call stacks of latches without a row of their own.
    fn of_others() -> StackKey {
        StackKey { latch: OTHER.to_owned(), mode: None, calls: StackWaits::OTHER.to_owned() }
    }
}

impl StatementKey {
    /// Returns the key of all statements of the same latch and mode that have no row of their own.
    fn of_latch(&self) -> StatementKey {
        let (latch, mode) = (self.latch.clone(), self.mode.clone());
        let (digest, statement) = (String::new(), StatementWaits::OTHER.to_owned());
        StatementKey { latch, mode, digest, statement, account: Account::default() }
    }

    /// Returns the key of all statements of latches without a row of their own.
    fn of_others() -> StatementKey {
        let (digest, statement) = (String::new(), StatementWaits::OTHER.to_owned());
        StatementKey { latch: OTHER.to_owned(), mode: None, digest, statement, account: Account::default() }
    }
}

impl LatchKey {
    /// Returns the latch's kind and mode; `None` if this version does not know one of them.
    fn kind_and_mode(&self) -> Option<(Kind, Mode)> {
        Kind::from_name(&self.kind).zip(Mode::from_name(&self.mode))
    }
}

impl HandoffKey {
    /// Returns the key of all handoffs of the same latch and locality.
    fn of_latch(&self) -> HandoffKey {
        HandoffKey { latch: self.latch.clone(), from: None, to: None, locality: self.locality.clone() }
    }

    /// Returns the key of all handoffs of latches without a row of their own, of the same locality.
    fn of_others(&self) -> HandoffKey {
        HandoffKey { latch: OTHER.to_owned(), ..self.of_latch() }
    }

    /// Returns whether the latch came from another part of the machine; `None` if that is unknown.
    pub fn locality(&self) -> Option<Locality> {
        Locality::from_name(self.locality.as_deref()?)
    }
}

cumulative!(LatchTotal { sleep_ns, sleeps, spin_cpu_ns, spins_won, spins_wasted, estimated_ns, variance_us2 } with waits);

impl LatchTotal {
    /// Returns the total of waits of which nothing else is known.
    pub(in crate::measure) fn of_waits(waits: Histogram) -> LatchTotal {
        LatchTotal { waits, ..LatchTotal::default() }
    }

    /// Returns the waits.
    pub(in crate::measure) fn into_waits(self) -> Histogram {
        self.waits
    }
}

impl Total for LatchTotal {
    type Delta = LatchDelta;

    fn delta(&self, before: &LatchTotal, row: usize) -> LatchDelta {
        let mut buckets = Vec::new();
        for (i, (now, before)) in self.waits.buckets.iter().zip(before.waits.buckets).enumerate() {
            if *now != before {
                buckets.extend([i as i64, difference(*now, before)]);
            }
        }
        let is_longer = self.waits.max_ns > before.waits.max_ns;
        LatchDelta {
            row,
            waits: difference(self.waits.count, before.waits.count),
            wait_ns: difference(self.waits.sum_ns, before.waits.sum_ns),
            sleep_ns: difference(self.sleep_ns, before.sleep_ns),
            sleeps: difference(self.sleeps, before.sleeps),
            estimated_ns: difference(self.estimated_ns, before.estimated_ns),
            variance_us2: difference(self.variance_us2, before.variance_us2),
            spin_cpu_ns: difference(self.spin_cpu_ns, before.spin_cpu_ns),
            spins_won: difference(self.spins_won, before.spins_won),
            spins_wasted: difference(self.spins_wasted, before.spins_wasted),
            longest_ns: if is_longer { self.waits.max_ns as i64 } else { 0 },
            buckets,
        }
    }

    fn add(&mut self, delta: &LatchDelta, buckets: &[usize]) {
        let add = |sum: &mut u64, n: i64| *sum = sum.saturating_add_signed(n);
        for bucket in delta.buckets.chunks_exact(2) {
            add(&mut self.waits.buckets[buckets[bucket[0] as usize]], bucket[1]);
        }
        add(&mut self.waits.count, delta.waits);
        add(&mut self.waits.sum_ns, delta.wait_ns);
        add(&mut self.sleep_ns, delta.sleep_ns);
        add(&mut self.sleeps, delta.sleeps);
        add(&mut self.estimated_ns, delta.estimated_ns);
        add(&mut self.variance_us2, delta.variance_us2);
        add(&mut self.spin_cpu_ns, delta.spin_cpu_ns);
        add(&mut self.spins_won, delta.spins_won);
        add(&mut self.spins_wasted, delta.spins_wasted);
        self.waits.max_ns = self.waits.max_ns.max(delta.longest_ns.max(0) as u64);
    }

    /// The longest wait stays known when all waits have moved to another row.
    fn is_empty(&self) -> bool {
        let waits = Histogram { max_ns: 0, ..self.waits.clone() };
        LatchTotal { waits, ..self.clone() } == LatchTotal::default()
    }
}

impl Delta for LatchDelta {
    fn row(&self) -> usize {
        self.row
    }

    fn of_row(self, row: usize) -> LatchDelta {
        LatchDelta { row, ..self }
    }

    fn is_valid(&self, buckets: usize) -> bool {
        let changed = self.buckets.chunks(2).map(|bucket| bucket[0]);
        self.buckets.len().is_multiple_of(2)
            && changed.clone().is_sorted_by(|a, b| a < b)
            && changed.into_iter().all(|bucket| (0..buckets as i64).contains(&bucket))
    }
}

/// Waits that ended with a latch handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// The number of waits.
    pub waits: u64,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
    /// Waits that began in another part of the machine than they ended in.
    pub migrations: u64,
}

impl Recording {
    /// Returns the name, kind and mode of the latch that has this row.
    pub fn latch(&self, row: usize) -> (&str, Kind, Mode) {
        let key = &self.rows.latches[row];
        let (kind, mode) = key.kind_and_mode().expect("checked when the file was read");
        (&key.latch, kind, mode)
    }

    /// Returns all waits for each latch and mode, longest first.
    pub fn latches(&self) -> Vec<LatchWaits> {
        let mut latches = self.entries::<LatchWaits>();
        latches.sort_by(|a, b| {
            b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| (&a.latch, a.mode).cmp(&(&b.latch, b.mode)))
        });
        latches
    }

    /// Returns all waits for each latch for which threads contend, in each of its modes, longest first.
    pub fn contended(&self) -> Vec<Vec<LatchWaits>> {
        let mut latches: Vec<Vec<LatchWaits>> = Vec::new();
        let mut numbers: HashMap<String, usize> = HashMap::new();
        for row in self.latches().into_iter().filter(|row| row.kind != Kind::Cond) {
            let number = *numbers.entry(row.latch.clone()).or_insert(latches.len());
            match latches.get_mut(number) {
                Some(modes) => modes.push(row),
                None => latches.push(vec![row]),
            }
        }
        latches
    }

    /// Returns all waits to reacquire a mutex after a wake-up by a condition variable, longest first.
    pub fn reacquires(&self) -> Vec<Reacquires> {
        let mut rows = self.entries::<Reacquires>();
        rows.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.latch.cmp(&b.latch)));
        rows
    }

    /// Returns all waits by latch, mode and call site, longest first. The mode is `None` if only a later armtrace knows
    /// it.
    pub fn callsites(&self) -> Vec<CallsiteWaits> {
        let mut sites = self.entries::<CallsiteWaits>();
        sites.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| (&a.callsite, a.mode).cmp(&(&b.callsite, b.mode))));
        sites
    }

    /// Returns all waits for pages by table, index and level, longest first.
    pub fn pages(&self) -> Vec<PageWaits> {
        let mut pages = self.entries::<PageWaits>();
        pages.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.location().cmp(&b.location())));
        pages
    }

    /// Returns what waiting threads were seen to execute, most often seen first.
    pub fn statements(&self) -> Vec<StatementWaits> {
        let mut rows = self.entries::<StatementWaits>();
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.place().cmp(&b.place())));
        rows
    }

    /// Returns through which calls threads came to wait, most often seen first.
    pub fn call_stacks(&self) -> Vec<StackWaits> {
        let mut rows = self.entries::<StackWaits>();
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.place().cmp(&b.place())));
        rows
    }

    /// Returns whether handoffs were counted.
    pub fn has_handoffs(&self) -> bool {
        !self.start.places.is_empty()
    }

    /// Returns all handoffs by latch and parts of the machine, in the order of the rows.
    pub fn handoffs(&self) -> impl Iterator<Item = (&HandoffKey, Handed)> {
        let handed = |(key, Counts([waits, wait_ns, migrations]))| (key, Handed { waits, wait_ns, migrations });
        self.totals::<Handoffs>().map(handed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_buckets_are_in_order_and_exist() {
        let is_valid = |buckets: &[i64]| LatchDelta { buckets: buckets.to_vec(), ..LatchDelta::default() }.is_valid(4);
        assert!(is_valid(&[]) && is_valid(&[0, 7, 3, -7]));
        assert!(!is_valid(&[0, 7, 3]), "a bucket without a number of waits");
        assert!(!is_valid(&[1, 7, 1, 7]) && !is_valid(&[2, 7, 1, 7]), "twice, and out of order");
        assert!(!is_valid(&[4, 7]) && !is_valid(&[-1, 7]), "not in this file");
    }

    #[test]
    fn waits_that_have_moved_to_another_row_leave_only_the_longest() {
        let delta = |waits: i64, longest_ns| LatchDelta {
            waits,
            wait_ns: 100 * waits,
            sleep_ns: 50 * waits,
            sleeps: 2 * waits,
            estimated_ns: 40 * waits,
            spin_cpu_ns: 30 * waits,
            spins_won: 3 * waits,
            spins_wasted: 4 * waits,
            longest_ns,
            buckets: vec![1, waits],
            ..LatchDelta::default()
        };
        let mut total = LatchTotal::default();
        assert!(total.is_empty());
        total.add(&delta(5, 90), &[0, 6]);
        assert!(!total.is_empty());
        assert_eq!((total.waits.count, total.waits.buckets[6], total.waits.max_ns), (5, 5, 90));
        total.add(&delta(-5, 0), &[0, 6]);
        assert!(total.is_empty());
        assert_eq!(total.waits.max_ns, 90);
    }
}

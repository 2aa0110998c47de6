//! Records waits for locks of the database.

use serde::{Deserialize, Serialize};

use super::figures::{shares, LockBlocker, LockWaits, LockedObject, Rested};
use crate::measure::latch::record::LatchTotal;
use crate::measure::Snapshot;
use crate::model::OTHER;
use crate::recording::{Bound, Counts, Recording, Row};

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

    fn keeps_empty(_lock: &String) -> bool {
        true
    }

    fn weight(total: &LatchTotal) -> u64 {
        total.clone().into_waits().sum_ns
    }
}

/// An object that has locks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The kind of lock; see [`LockWaits::lock`].
    pub lock: String,
    /// The object; see [`LockedObject::object`].
    pub object: String,
    /// The index; see [`LockedObject::index`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub index: String,
}

impl Row for LockedObject {
    type Key = ObjectKey;
    type Total = Counts<1>;

    const BOUNDS: &'static [Bound<ObjectKey>] = &[
        Bound { rows: 200, other: ObjectKey::of_lock },
        Bound { rows: 100, other: |key| if *key == key.of_lock() { ObjectKey::of_others() } else { key.clone() } },
    ];

    fn entries(now: &Snapshot) -> Vec<&LockedObject> {
        now.locks.objects.iter().collect()
    }

    fn key(&self) -> ObjectKey {
        ObjectKey { lock: self.lock.clone(), object: self.object.clone(), index: self.index.clone() }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.samples])
    }

    fn restore(key: &ObjectKey, Counts([samples]): Counts<1>) -> LockedObject {
        let ObjectKey { lock, object, index } = key.clone();
        LockedObject { lock, object, index, samples }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<LockedObject> {
        &mut snapshot.locks.objects
    }

    fn weight(Counts([samples]): &Counts<1>) -> u64 {
        *samples
    }
}

impl ObjectKey {
    /// Returns the key of all objects with this kind of lock that have no row of their own.
    fn of_lock(&self) -> ObjectKey {
        ObjectKey { lock: self.lock.clone(), object: LockedObject::OTHER.to_owned(), index: String::new() }
    }

    /// Returns the key of all objects with a kind of lock that has no row of its own.
    fn of_others() -> ObjectKey {
        ObjectKey { lock: OTHER.to_owned(), object: LockedObject::OTHER.to_owned(), index: String::new() }
    }
}

/// Who blocks others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockerKey {
    /// The kind of lock; see [`LockWaits::lock`].
    pub lock: String,
    /// The connection; see [`LockBlocker::connection`].
    #[serde(default)]
    pub connection: u32,
    /// The statement; see [`LockBlocker::statement`].
    pub statement: String,
}

impl Row for LockBlocker {
    type Key = BlockerKey;
    type Total = Counts<1>;

    /// Beyond the first bound, statements are counted without their connections.
    const BOUNDS: &'static [Bound<BlockerKey>] = &[
        Bound { rows: 200, other: |key| BlockerKey { connection: 0, ..key.clone() } },
        Bound {
            rows: 200,
            other: |key| if key.connection == 0 { BlockerKey::of_others(&key.lock) } else { key.clone() },
        },
        Bound {
            rows: 100,
            other: |key| {
                let is_of_lock = *key == BlockerKey::of_others(&key.lock);
                if is_of_lock {
                    BlockerKey::of_others(OTHER)
                } else {
                    key.clone()
                }
            },
        },
    ];

    fn entries(now: &Snapshot) -> Vec<&LockBlocker> {
        now.locks.blockers.iter().collect()
    }

    fn key(&self) -> BlockerKey {
        BlockerKey { lock: self.lock.clone(), connection: self.connection, statement: self.statement.clone() }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.samples])
    }

    fn restore(key: &BlockerKey, Counts([samples]): Counts<1>) -> LockBlocker {
        let BlockerKey { lock, connection, statement } = key.clone();
        LockBlocker { lock, connection, statement, samples }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<LockBlocker> {
        &mut snapshot.locks.blockers
    }

    fn weight(Counts([samples]): &Counts<1>) -> u64 {
        *samples
    }
}

impl BlockerKey {
    /// Returns the key of all that have no row of their own.
    fn of_others(lock: &str) -> BlockerKey {
        BlockerKey { lock: lock.to_owned(), connection: 0, statement: LockBlocker::OTHER.to_owned() }
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

    /// Returns the objects whose locks of this kind threads were seen to wait for, most first, each with its share of
    /// the samples, 0 to 1; empty if none were seen.
    pub fn locked_objects(&self, lock: &str) -> Vec<(LockedObject, f64)> {
        let mut rows = self.entries::<LockedObject>();
        rows.retain(|row| row.lock == lock && row.samples > 0);
        shares(rows)
    }

    /// Returns who blocked threads that waited for locks of this kind, most first, each with its share of the samples,
    /// 0 to 1; empty if nobody was seen.
    pub fn lock_blockers(&self, lock: &str) -> Vec<(LockBlocker, f64)> {
        let mut rows = self.entries::<LockBlocker>();
        rows.retain(|row| row.lock == lock && row.samples > 0);
        shares(rows)
    }

    /// Returns the waits for locks, longest first; empty if they were not measured, or if nobody waited.
    pub fn lock_waits(&self) -> Vec<LockWaits> {
        let mut rows = self.entries::<LockWaits>();
        rows.retain(|row| row.waits.count > 0);
        rows.sort_by(|a, b| b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| a.lock.cmp(&b.lock)));
        rows
    }
}

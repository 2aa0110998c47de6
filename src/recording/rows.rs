//! Turns a measurement's figures into the rows of a file, and back.
//!
//! A file counts by row: a latch in one mode, a function, a page. Each second of a file holds the keys of the rows that
//! are new in it, and what was added to every row that changed. A row's number is its position among all rows of its
//! kind. Each kind is implemented in its measurement's room, and listed in [`super::schema`].

use std::array;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::mem;

use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::measure::Snapshot;
use crate::model::{merged, Bounded, Cumulative};

/// One kind of row, implemented by the entries of a snapshot that it is made of.
pub trait Row: Sized + 'static {
    /// What distinguishes a row from others of its kind.
    type Key: Clone + Debug + Eq + Hash + Ord + Serialize + DeserializeOwned + 'static;
    /// What is counted for a row.
    type Total: Total;

    /// Bounds on the number of rows in a file, so that recordings of servers with thousands of tables stay small. Each
    /// applies to what the one before it leaves.
    const BOUNDS: &'static [Bound<Self::Key>] = &[];

    /// Returns the snapshot's entries.
    fn entries(now: &Snapshot) -> Vec<&Self>;

    /// Returns the key of the row that this entry is counted in.
    fn key(&self) -> Self::Key;

    /// Returns what was counted since the beginning.
    fn total(&self) -> Self::Total;

    /// Returns the entry whose key and total these are: the inverse of [`Row::key`] and [`Row::total`].
    fn restore(key: &Self::Key, total: Self::Total) -> Self;

    /// Returns the list of entries in a snapshot that is being restored.
    fn list(snapshot: &mut Snapshot) -> &mut Vec<Self>;

    /// Returns whether a row says something also if nothing was counted for it: that it is measured.
    fn keeps_empty(_key: &Self::Key) -> bool {
        false
    }

    /// Returns the weight of a row: if more keys appear at once than may have rows, the heaviest get them.
    fn weight(_total: &Self::Total) -> u64 {
        0
    }

    /// Returns what is wrong with a key that was read, if anything.
    fn fault(_key: &Self::Key) -> Option<&'static str> {
        None
    }
}

/// A bound on the number of rows of one kind.
pub struct Bound<K> {
    /// The most keys that have a row of their own.
    pub rows: usize,
    /// Returns the key of the row that stands for a key without a row of its own, and for others like it. A key for
    /// which this is the key itself is not bounded.
    pub other: fn(&K) -> K,
}

/// What is counted for a row, from the beginning of the recording up to some second.
pub trait Total: Cumulative + Default + PartialEq {
    /// The form in which a second's difference is written.
    type Delta: Delta;

    /// Returns the difference from `before`, which may be negative, for the row of this number.
    fn delta(&self, before: &Self, row: usize) -> Self::Delta;

    /// Adds one second's difference. For each histogram bucket of the file, `buckets` has the number of the bucket to
    /// add it to.
    fn add(&mut self, delta: &Self::Delta, buckets: &[usize]);

    /// Returns whether nothing is counted, as for a row that does not exist yet, or whose latch has got another name.
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What one second added to one row, as it is written.
///
/// It can be negative: a latch that gets a name, or loses one, takes all its waits with it to another row. So for each
/// row, the sum over all seconds is right.
pub trait Delta: Clone + Debug + PartialEq + Serialize + DeserializeOwned {
    /// Returns the number of the row.
    fn row(&self) -> usize;

    /// Returns the same for the row of another number, in another file.
    fn of_row(self, row: usize) -> Self;

    /// Returns whether it refers only to histogram buckets that exist in a file with this many.
    fn is_valid(&self, _buckets: usize) -> bool {
        true
    }
}

/// The key of a kind of row.
pub type Key<R> = <R as Row>::Key;

/// The difference by which a kind of row is written.
pub type DeltaOf<R> = <<R as Row>::Total as Total>::Delta;

/// Totals that are plain numbers, each with a meaning that its kind of row defines.
#[derive(Clone, PartialEq)]
pub struct Counts<const N: usize>(pub [u64; N]);

/// What one second added to [`Counts`]. A file holds it as a list: the row's number, then the counts.
#[derive(Clone, Debug, PartialEq)]
pub struct CountsDelta<const N: usize> {
    /// The number of the row.
    pub row: usize,
    /// What was added to each count.
    pub counts: [i64; N],
}

impl<const N: usize> Default for Counts<N> {
    fn default() -> Counts<N> {
        Counts([0; N])
    }
}

impl<const N: usize> Cumulative for Counts<N> {
    fn merge(&mut self, other: &Counts<N>) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count = count.saturating_add(more));
    }

    fn since(&self, earlier: &Counts<N>) -> Counts<N> {
        Counts(array::from_fn(|i| self.0[i].saturating_sub(earlier.0[i])))
    }
}

impl<const N: usize> Total for Counts<N> {
    type Delta = CountsDelta<N>;

    fn delta(&self, before: &Counts<N>, row: usize) -> CountsDelta<N> {
        CountsDelta { row, counts: array::from_fn(|i| difference(self.0[i], before.0[i])) }
    }

    fn add(&mut self, delta: &CountsDelta<N>, _buckets: &[usize]) {
        self.0.iter_mut().zip(delta.counts).for_each(|(count, more)| *count = count.saturating_add_signed(more));
    }
}

impl<const N: usize> Delta for CountsDelta<N> {
    fn row(&self) -> usize {
        self.row
    }

    fn of_row(self, row: usize) -> CountsDelta<N> {
        CountsDelta { row, ..self }
    }
}

impl<const N: usize> Serialize for CountsDelta<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_tuple(1 + N)?;
        list.serialize_element(&self.row)?;
        self.counts.iter().try_for_each(|count| list.serialize_element(count))?;
        list.end()
    }
}

impl<'de, const N: usize> Deserialize<'de> for CountsDelta<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CountsDelta<N>, D::Error> {
        struct List<const N: usize>;

        impl<'de, const N: usize> Visitor<'de> for List<N> {
            type Value = CountsDelta<N>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(f, "a row's number and {N} counts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CountsDelta<N>, A::Error> {
                let too_short = |length| A::Error::invalid_length(length, &self);
                let row = list.next_element()?.ok_or_else(|| too_short(0))?;
                let mut counts = [0; N];
                for (i, count) in counts.iter_mut().enumerate() {
                    *count = list.next_element()?.ok_or_else(|| too_short(1 + i))?;
                }
                Ok(CountsDelta { row, counts })
            }
        }

        from.deserialize_tuple(1 + N, List)
    }
}

/// Returns `now - before`.
pub fn difference(now: u64, before: u64) -> i64 {
    now.wrapping_sub(before) as i64
}

/// The rows of one kind in a file that is being written.
pub struct Rows<R: Row> {
    /// Which keys have rows, by each of [`Row::BOUNDS`].
    bounded: Vec<Bounded<R::Key>>,
    numbers: HashMap<R::Key, usize>,
    /// What the file's seconds add up to so far, by row.
    totals: Vec<R::Total>,
    /// Keys of rows that are not in the file yet.
    new: Vec<R::Key>,
    /// What was counted before the file began, by keys that have no row yet, because nothing was added.
    before: HashMap<R::Key, R::Total>,
}

impl<R: Row> Default for Rows<R> {
    fn default() -> Rows<R> {
        let bounded = R::BOUNDS.iter().map(|bound| Bounded::new(bound.rows)).collect();
        Rows { bounded, numbers: HashMap::new(), totals: Vec::new(), new: Vec::new(), before: HashMap::new() }
    }
}

impl<R: Row> Rows<R> {
    /// Returns the rows of a file of what is counted after this snapshot was taken. Every key for which something is
    /// added will get one of its own, because what was much until then may be nothing now.
    pub fn after(before: &Snapshot) -> Rows<R> {
        let entries: Vec<(R::Key, R::Total)> =
            R::entries(before).into_iter().map(|entry| (entry.key(), entry.total())).collect();
        let mut rows = Rows { bounded: Vec::new(), ..Rows::default() };
        let kept: Vec<R::Key> = entries.iter().map(|(key, _)| key).filter(|key| R::keeps_empty(key)).cloned().collect();
        rows.before = merged(entries).into_iter().collect();
        kept.into_iter().for_each(|key| rows.add(key));
        rows
    }

    /// Returns the keys that are new since the last call, and what was added to each row that changed, by ascending
    /// number. A row whose key the snapshot no longer has goes back to zero.
    pub fn second(&mut self, now: &Snapshot) -> (Vec<R::Key>, Vec<DeltaOf<R>>) {
        let entries: Vec<(R::Key, R::Total)> =
            R::entries(now).into_iter().map(|entry| (entry.key(), entry.total())).collect();
        let keys: Vec<R::Key> = entries.iter().map(|(key, _)| key.clone()).collect();
        let mut rows = merged(entries);
        for (bounded, bound) in self.bounded.iter_mut().zip(R::BOUNDS) {
            rows = bounded.rows(rows, R::weight, bound.other);
        }
        rows.retain(|key, total| self.before.get(key) != Some(&*total));
        let keys = keys.into_iter().filter(|key| !self.before.contains_key(key) || rows.contains_key(key));
        // New rows are in the order of the snapshot.
        keys.collect::<Vec<_>>().into_iter().for_each(|key| self.add(key));
        let mut totals = vec![R::Total::default(); self.totals.len()];
        for (key, total) in rows {
            totals[self.numbers[&key]] = total;
        }
        let before = mem::replace(&mut self.totals, totals);
        let changes = self.totals.iter().zip(&before).enumerate().filter(|(_, (now, before))| now != before);
        let deltas = changes.map(|(row, (now, before))| now.delta(before, row)).collect();
        (mem::take(&mut self.new), deltas)
    }

    /// Adds the row in which the figures of this key are counted, unless there is one.
    fn add(&mut self, key: R::Key) {
        let bounds = self.bounded.iter().zip(R::BOUNDS);
        let key = bounds.fold(key, |key, (bounded, bound)| bounded.row_of(key, bound.other));
        if !self.numbers.contains_key(&key) {
            self.numbers.insert(key.clone(), self.totals.len());
            self.totals.push(self.before.remove(&key).unwrap_or_default());
            self.new.push(key);
        }
    }
}

/// The sums of a file's seconds for one kind of row, by the numbers of the rows.
pub struct Totals<R: Row>(Vec<R::Total>);

impl<R: Row> Default for Totals<R> {
    fn default() -> Totals<R> {
        Totals(Vec::new())
    }
}

impl<R: Row> Totals<R> {
    /// Adds one second. `buckets` is as for [`Total::add`].
    pub fn add(&mut self, deltas: &[DeltaOf<R>], buckets: &[usize]) {
        for delta in deltas {
            if self.0.len() <= delta.row() {
                self.0.resize_with(delta.row() + 1, R::Total::default);
            }
            self.0[delta.row()].add(delta, buckets);
        }
    }

    /// Returns the entries that a snapshot would have now. `keys` are those of all rows, in the order of their numbers.
    pub fn entries(&self, keys: &[R::Key]) -> Vec<R> {
        let rows = keys.iter().zip(&self.0).filter(|(_, total)| !total.is_empty());
        rows.map(|(key, total)| R::restore(key, total.clone())).collect()
    }
}

/// The numbers of one kind of row in a file that is made of others.
pub struct Numbers<R: Row> {
    numbers: HashMap<R::Key, usize>,
    /// The keys in the order of their numbers.
    keys: Vec<R::Key>,
}

impl<R: Row> Default for Numbers<R> {
    fn default() -> Numbers<R> {
        Numbers { numbers: HashMap::new(), keys: Vec::new() }
    }
}

impl<R: Row> Numbers<R> {
    /// Returns what a second of another file adds to the rows of this one. `keys` are those of the other's rows. Only
    /// rows to which something is added get a number, unless empty ones are kept.
    pub fn renumbered(&mut self, keys: &[R::Key], deltas: &[DeltaOf<R>]) -> Vec<DeltaOf<R>> {
        keys.iter().filter(|key| R::keeps_empty(key)).for_each(|key| _ = self.number(key));
        let renumber = |delta: &DeltaOf<R>| delta.clone().of_row(self.number(&keys[delta.row()]));
        let mut renumbered: Vec<DeltaOf<R>> = deltas.iter().map(renumber).collect();
        renumbered.sort_unstable_by_key(Delta::row);
        renumbered
    }

    fn number(&mut self, key: &R::Key) -> usize {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = self.keys.len();
        self.numbers.insert(key.clone(), number);
        self.keys.push(key.clone());
        number
    }

    /// Returns the keys of all rows, by their numbers.
    pub fn into_keys(self) -> Vec<R::Key> {
        self.keys
    }
}

/// Returns whether these are the differences of rows that exist, each at most once, in a file with this many histogram
/// buckets.
pub fn are_valid<D: Delta>(deltas: &[D], rows: usize, buckets: usize) -> bool {
    deltas.is_sorted_by(|a, b| a.row() < b.row())
        && deltas.last().is_none_or(|last| last.row() < rows)
        && deltas.iter().all(|delta| delta.is_valid(buckets))
}

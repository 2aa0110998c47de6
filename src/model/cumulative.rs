//! Rows of figures that are counted from attach on.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A row of figures that never decrease: two rows can be merged, and two states of one row have a difference.
///
/// Neither operation changes what identifies the row, such as the latch, and neither overflows.
pub trait Cumulative: Clone {
    /// Adds the figures of `other` to this row.
    fn merge(&mut self, other: &Self);

    /// Returns what was counted after `earlier`, an older state of the same row. A figure that is less than it was
    /// yields zero.
    fn since(&self, earlier: &Self) -> Self;
}

/// Returns what was counted after `earlier`: one row for each in `now`, in the same order. A row without an earlier
/// state has all of its figures.
pub fn since<'a, T: Cumulative, K: Eq + Hash>(now: &'a [T], earlier: &'a [T], key: impl Fn(&'a T) -> K) -> Vec<T> {
    let earlier: HashMap<_, _> = earlier.iter().map(|row| (key(row), row)).collect();
    now.iter().map(|row| earlier.get(&key(row)).map_or_else(|| row.clone(), |earlier| row.since(earlier))).collect()
}

/// Returns one row per key.
pub fn merged<K: Ord, T: Cumulative>(rows: impl IntoIterator<Item = (K, T)>) -> BTreeMap<K, T> {
    let mut merged = BTreeMap::<K, T>::new();
    for (key, row) in rows {
        match merged.get_mut(&key) {
            Some(sum) => sum.merge(&row),
            None => _ = merged.insert(key, row),
        }
    }
    merged
}

/// Implements [`Cumulative`] for rows of counters, with or without a histogram.
macro_rules! cumulative {
    ($row:ident { $($counter:ident),* } $(with $histogram:ident)?) => {
        impl $crate::model::Cumulative for $row {
            fn merge(&mut self, other: &$row) {
                $(self.$counter = self.$counter.saturating_add(other.$counter);)*
                $(self.$histogram.merge(&other.$histogram);)?
            }

            // Some rows consist of nothing but counters.
            #[allow(clippy::needless_update)]
            fn since(&self, earlier: &$row) -> $row {
                $row {
                    $($counter: self.$counter.saturating_sub(earlier.$counter),)*
                    $($histogram: self.$histogram.since(&earlier.$histogram),)?
                    ..self.clone()
                }
            }
        }
    };
}

pub(crate) use cumulative;

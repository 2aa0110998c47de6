//! A bound on the number of rows.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

use super::{merged, Cumulative};

/// In place of a name, in the rows that stand for all that have no row of their own.
pub const OTHER: &str = "other";

/// Bounded rows plus other: the first `limit` keys have a row of their own, as a series of a metric or in a recording,
/// and all later ones share one.
///
/// A key that has a row keeps it, and one that was counted in the shared row stays there. If keys moved between the
/// two, the counters would decrease, which Prometheus would take for a restart.
pub struct Bounded<K> {
    limit: usize,
    named: HashSet<K>,
}

impl<K: Eq + Hash + Ord + Clone> Bounded<K> {
    /// Creates a bound of `limit` rows. No key has one yet.
    pub fn new(limit: usize) -> Bounded<K> {
        Bounded { limit, named: HashSet::new() }
    }

    /// Changes the bound. Keys that have a row keep it.
    pub fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns all rows at one moment, merged by key. Those of a key without a row of its own are merged into the row
    /// `other(key)`. While rows are left, the keys with the largest `weight` get them.
    pub fn rows<T: Cumulative>(
        &mut self,
        rows: impl IntoIterator<Item = (K, T)>,
        weight: impl Fn(&T) -> u64,
        other: impl Fn(&K) -> K,
    ) -> BTreeMap<K, T> {
        let rows = merged(rows);
        let own = rows.iter().filter(|(key, _)| **key != other(key));
        self.admit(own.map(|(key, row)| (key.clone(), weight(row))));
        merged(rows.into_iter().map(|(key, row)| (self.row_of(key, &other), row)))
    }

    /// Returns the key of the row in which the figures of this key are counted.
    pub fn row_of(&self, key: K, other: impl Fn(&K) -> K) -> K {
        if self.is_named(&key) {
            key
        } else {
            other(&key)
        }
    }

    /// Gives keys their rows, largest weight first, while any are left. Each key comes once.
    fn admit(&mut self, keys: impl Iterator<Item = (K, u64)>) {
        let mut new: Vec<_> = keys.filter(|(key, _)| !self.named.contains(key)).collect();
        new.sort_by(|(a, weight_a), (b, weight_b)| weight_b.cmp(weight_a).then_with(|| a.cmp(b)));
        let left = self.limit.saturating_sub(self.named.len());
        self.named.extend(new.into_iter().take(left).map(|(key, _)| key));
    }

    /// Returns whether this key has a row of its own.
    pub fn is_named(&self, key: &K) -> bool {
        self.named.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_are_named_first() {
        let mut bounded = Bounded::new(2);
        bounded.admit([("a", 1), ("b", 3), ("c", 2)].into_iter());
        assert_eq!(["a", "b", "c"].map(|key| bounded.is_named(&key)), [false, true, true]);
    }

    #[test]
    fn a_counted_key_never_moves() {
        let mut bounded = Bounded::new(1);
        bounded.admit([("a", 1), ("b", 0)].into_iter());
        bounded.admit([("a", 1), ("b", 100)].into_iter());
        assert!(bounded.is_named(&"a") && !bounded.is_named(&"b"));
    }

    #[test]
    fn later_keys_get_the_series_that_are_left() {
        let mut bounded = Bounded::new(2);
        bounded.admit([("a", 1)].into_iter());
        bounded.admit([("a", 1), ("b", 1)].into_iter());
        assert!(bounded.is_named(&"a") && bounded.is_named(&"b"));
    }
}

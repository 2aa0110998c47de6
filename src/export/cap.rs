//! Bounds the number of series.

use std::collections::HashSet;
use std::hash::Hash;

/// Gives the first `limit` keys a series of their own. All later keys share one.
///
/// A key with its own series keeps it, and a key in the shared series stays there. If keys moved between the two,
/// counters would step back, and Prometheus would take that for a restart.
pub struct Cap<K> {
    limit: usize,
    named: HashSet<K>,
}

impl<K: Eq + Hash + Ord + Clone> Cap<K> {
    pub fn new(limit: usize) -> Cap<K> {
        Cap { limit, named: HashSet::new() }
    }

    /// Gives new keys of a scrape their own series while there is room, those with the largest weight first.
    pub fn admit(&mut self, keys: impl Iterator<Item = (K, u64)>) {
        let mut new: Vec<_> = keys.filter(|(key, _)| !self.named.contains(key)).collect();
        new.sort_by(|(a, weight_a), (b, weight_b)| weight_b.cmp(weight_a).then_with(|| a.cmp(b)));
        let room = self.limit - self.named.len();
        self.named.extend(new.into_iter().take(room).map(|(key, _)| key));
    }

    /// Returns whether `key` has a series of its own.
    pub fn is_named(&self, key: &K) -> bool {
        self.named.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_are_named_first() {
        let mut cap = Cap::new(2);
        cap.admit([("a", 1), ("b", 3), ("c", 2)].into_iter());
        assert_eq!(["a", "b", "c"].map(|key| cap.is_named(&key)), [false, true, true]);
    }

    #[test]
    fn nobody_moves_once_counted() {
        let mut cap = Cap::new(1);
        cap.admit([("a", 1), ("b", 0)].into_iter());
        cap.admit([("a", 1), ("b", 100)].into_iter());
        assert!(cap.is_named(&"a") && !cap.is_named(&"b"));
    }

    #[test]
    fn room_that_is_left_goes_to_later_ones() {
        let mut cap = Cap::new(2);
        cap.admit([("a", 1)].into_iter());
        cap.admit([("a", 1), ("b", 1)].into_iter());
        assert!(cap.is_named(&"a") && cap.is_named(&"b"));
    }
}

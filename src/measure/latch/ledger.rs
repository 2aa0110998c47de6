//! Keeps what was counted under one name from moving to another.
//!
//! What a key of the maps stands for can get another name: one place in the code turns out to wait for different
//! latches, or a table is renamed. If its whole history moved along, the counters under the old name would step back,
//! which Prometheus would take for a restart. So what was shown under a name stays there, and only what is counted
//! later goes to the new one. A key that is gone, because what it had was added to that of others, is forgotten.

use std::collections::hash_map::{Entry, HashMap};
use std::hash::Hash;

use crate::model::Cumulative;

/// What was counted under each key, by the names that the key has had.
pub(super) struct Ledger<K, N, T>(HashMap<K, Account<N, T>>);

struct Account<N, T> {
    name: N,
    /// What had been counted in all when it was last shown.
    seen: T,
    /// What had been counted in all when it got its present name; `None` if it had no other before.
    before: Option<T>,
    /// What was counted under earlier names, each of which comes once.
    earlier: Vec<(N, T)>,
}

impl<K, N, T> Default for Ledger<K, N, T> {
    fn default() -> Self {
        Ledger(HashMap::new())
    }
}

impl<K: Eq + Hash, N: Eq + Clone, T: Cumulative> Ledger<K, N, T> {
    /// Divides what was counted under a key in all among the names that it has had; `name` is the present one.
    pub fn shares(&mut self, key: K, name: N, now: T) -> Vec<(N, T)> {
        let account = match self.0.entry(key) {
            Entry::Occupied(account) => {
                let account = account.into_mut();
                account.rename(name);
                account.seen = now;
                account
            }
            Entry::Vacant(new) => new.insert(Account { name, seen: now, before: None, earlier: Vec::new() }),
        };
        let present = (account.name.clone(), account.present());
        account.earlier.iter().cloned().chain([present]).collect()
    }
}

impl<K: Eq + Hash, N, T> Ledger<K, N, T> {
    /// Returns what had been counted under a key in all when it was last shown.
    pub fn seen(&self, key: &K) -> Option<&T> {
        self.0.get(key).map(|account| &account.seen)
    }

    /// Forgets a key, which begins anew if it comes back.
    pub fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Forgets all keys but these.
    pub fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }
}

impl<N: Eq + Clone, T: Cumulative> Account<N, T> {
    /// Returns what was counted under the present name.
    fn present(&self) -> T {
        self.before.as_ref().map_or_else(|| self.seen.clone(), |before| self.seen.since(before))
    }

    fn rename(&mut self, name: N) {
        if self.name == name {
            return;
        }
        let counted = self.present();
        let left = std::mem::replace(&mut self.name, name);
        match self.earlier.iter_mut().find(|(name, _)| *name == left) {
            Some((_, sum)) => sum.merge(&counted),
            None => self.earlier.push((left, counted)),
        }
        self.before = Some(self.seen.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reacquires;
    use super::*;

    fn row(latch: &str, waits: u64) -> Reacquires {
        Reacquires { latch: latch.to_owned(), waits, wait_ns: 10 * waits }
    }

    fn shares(ledger: &mut Ledger<u8, String, Reacquires>, name: &str, waits: u64) -> Vec<(String, u64)> {
        let shares = ledger.shares(1, name.to_owned(), row(name, waits));
        assert!(shares.iter().all(|(name, row)| *name == row.latch && row.wait_ns == 10 * row.waits), "{shares:?}");
        shares.into_iter().map(|(name, row)| (name, row.waits)).collect()
    }

    fn expected(shares: &[(&str, u64)]) -> Vec<(String, u64)> {
        shares.iter().map(|(name, waits)| ((*name).to_owned(), *waits)).collect()
    }

    #[test]
    fn what_was_counted_under_a_name_stays_there() {
        let mut ledger = Ledger::default();
        assert_eq!(shares(&mut ledger, "a", 10), expected(&[("a", 10)]));
        assert_eq!(shares(&mut ledger, "b", 12), expected(&[("a", 10), ("b", 2)]));
        assert_eq!(shares(&mut ledger, "b", 15), expected(&[("a", 10), ("b", 5)]));
    }

    /// Two tables that swap names again and again have two names, not one for each swap.
    #[test]
    fn a_name_that_comes_back_goes_on_where_it_was() {
        let mut ledger = Ledger::default();
        for (name, waits) in [("a", 10), ("b", 12), ("a", 13), ("b", 15)] {
            shares(&mut ledger, name, waits);
        }
        let all = shares(&mut ledger, "a", 20);
        let mut sums = std::collections::BTreeMap::<_, u64>::new();
        for (name, waits) in &all {
            *sums.entry(name.as_str()).or_default() += waits;
        }
        assert_eq!(sums.into_iter().collect::<Vec<_>>(), [("a", 16), ("b", 4)]);
        assert!(all.len() <= 3, "{all:?}");
    }

    #[test]
    fn a_key_that_was_forgotten_begins_anew() {
        let mut ledger = Ledger::default();
        shares(&mut ledger, "a", 10);
        shares(&mut ledger, "b", 12);
        assert_eq!(ledger.seen(&1).map(|row| row.waits), Some(12));
        ledger.retain(|key| *key == 1);
        assert_eq!(shares(&mut ledger, "b", 13), expected(&[("a", 10), ("b", 3)]));
        ledger.forget(&1);
        assert_eq!(shares(&mut ledger, "b", 2), expected(&[("b", 2)]));
    }
}

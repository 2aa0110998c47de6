//! A bound on the number of rows, in which rows come and go.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use super::{merged, Cumulative};

/// In this time, the weight of what was counted falls to a third.
const HORIZON: Duration = Duration::from_secs(600);
/// A row is shown for at least this long. It bounds how many series a metric has in a day.
const SHOWN: Duration = Duration::from_secs(3600);
/// A row makes room for one that was counted so many times as much of late.
const TIMES: f64 = 2.0;

/// Bounded rows plus other, of keys that come and go over weeks, such as tables: what was counted of late decides which
/// of them have a row of their own.
///
/// No row ever decreases, nor does the sum of all. A row begins at zero, unless its key had a row when it was first
/// seen, and what was counted before stays in the shared row. When a row makes room for another, what it had is added
/// to the shared row. If it comes back, it begins at zero again, which Prometheus takes for the restart that it is.
pub struct Rotating<K, T> {
    limit: usize,
    least: f64,
    now: Duration,
    known: HashMap<K, Known<T>>,
}

/// A key, and what was counted of it.
struct Known<T> {
    weight: u64,
    recent: f64,
    /// `None` if it is counted in the shared row.
    shown: Option<Shown<T>>,
}

struct Shown<T> {
    since: Duration,
    /// What had been counted in the shared row before.
    before: Option<T>,
}

impl<K: Eq + Hash + Ord + Clone, T: Cumulative> Rotating<K, T> {
    /// Creates a bound of `limit` rows. A key has to have a weight of `least` of late to take the place of another.
    pub fn new(limit: usize, least: u64) -> Rotating<K, T> {
        Rotating { limit, least: least as f64, now: Duration::ZERO, known: HashMap::new() }
    }

    /// Returns all rows at a time since attach, merged by key. Those of a key without a row of its own are merged into
    /// the row `other`. Time that runs backwards means that all counters have begun anew.
    pub fn rows(
        &mut self,
        now: Duration,
        rows: impl IntoIterator<Item = (K, T)>,
        weight: impl Fn(&T) -> u64,
        other: &K,
    ) -> BTreeMap<K, T> {
        if now < self.now {
            self.known.clear();
        }
        let keep = (-now.saturating_sub(self.now).as_secs_f64() / HORIZON.as_secs_f64()).exp();
        self.now = now;
        let rows = merged(rows);
        self.known.retain(|key, _| rows.contains_key(key));
        let new = self.note(rows.iter().filter(|(key, _)| *key != other).map(|(key, row)| (key, weight(row))), keep);
        self.fill(&new);
        self.rotate(&rows);
        merged(rows.into_iter().flat_map(|(key, row)| self.split(key, row, other)))
    }

    /// Notes what was counted since the last time. Returns the keys that are new.
    fn note<'k>(&mut self, weights: impl Iterator<Item = (&'k K, u64)>, keep: f64) -> Vec<K>
    where
        K: 'k,
    {
        let mut new = Vec::new();
        for (key, weight) in weights {
            match self.known.get_mut(key) {
                // If there is less than there was, it was gone meanwhile, and what it had is in the shared row.
                Some(known) if weight >= known.weight => {
                    known.recent = keep * known.recent + (weight - known.weight) as f64;
                    known.weight = weight;
                }
                _ => {
                    self.known.insert(key.clone(), Known { weight, recent: weight as f64, shown: None });
                    new.push(key.clone());
                }
            }
        }
        new
    }

    /// Gives new keys the rows that are left, largest weight first.
    fn fill(&mut self, new: &[K]) {
        let left = self.limit.saturating_sub(self.known.values().filter(|known| known.shown.is_some()).count());
        let mut new: Vec<_> = new.iter().filter_map(|key| Some((self.known.get(key)?.weight, key))).collect();
        new.sort_by(|(a, key_a), (b, key_b)| b.cmp(a).then_with(|| key_a.cmp(key_b)));
        for (_, key) in new.into_iter().take(left) {
            let shown = Shown { since: self.now, before: None };
            self.known.entry(key.clone()).and_modify(|known| known.shown = Some(shown));
        }
    }

    /// Gives keys that were counted much of late the rows that are left, or those of keys that were not.
    fn rotate(&mut self, rows: &BTreeMap<K, T>) {
        let (mut shown, mut waiting) = (Vec::new(), Vec::new());
        for (key, known) in &self.known {
            match &known.shown {
                Some(_) => shown.push((known.recent, known.weight, key.clone())),
                None if known.recent >= self.least => waiting.push((known.recent, known.weight, key.clone())),
                None => {}
            }
        }
        let mut left = self.limit.saturating_sub(shown.len());
        shown.retain(|(_, _, key)| self.has_been_shown(key));
        let order =
            |a: &(f64, u64, K), b: &(f64, u64, K)| a.0.total_cmp(&b.0).then_with(|| (a.1, &a.2).cmp(&(b.1, &b.2)));
        shown.sort_by(order);
        waiting.sort_by(|a, b| order(b, a));
        let mut coldest = shown.into_iter();
        for (recent, _, key) in waiting {
            if left > 0 {
                left -= 1;
            } else {
                let Some((_, _, victim)) = coldest.next().filter(|(cold, ..)| recent > TIMES * cold) else { return };
                self.known.entry(victim).and_modify(|known| known.shown = None);
            }
            let shown = Shown { since: self.now, before: rows.get(&key).cloned() };
            self.known.entry(key).and_modify(|known| known.shown = Some(shown));
        }
    }

    fn has_been_shown(&self, key: &K) -> bool {
        let shown = self.known.get(key).and_then(|known| known.shown.as_ref());
        shown.is_some_and(|shown| self.now.saturating_sub(shown.since) >= SHOWN)
    }

    /// Divides a row into its own part and that of the shared row.
    fn split(&self, key: K, row: T, other: &K) -> Vec<(K, T)> {
        match self.known.get(&key).and_then(|known| known.shown.as_ref()) {
            Some(Shown { before: Some(before), .. }) => {
                vec![(key, row.since(before)), (other.clone(), before.clone())]
            }
            Some(_) => vec![(key, row)],
            None => vec![(other.clone(), row)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cumulative;
    use super::*;

    #[derive(Clone, Debug)]
    struct Row {
        ns: u64,
    }

    cumulative!(Row { ns });

    const OTHER: &str = "other";
    const HOUR: u64 = 3600;

    /// Rows with room for two, compared at each scrape with those before.
    struct Scrapes {
        rotating: Rotating<String, Row>,
        before: BTreeMap<String, u64>,
    }

    impl Scrapes {
        fn new() -> Scrapes {
            Scrapes { rotating: Rotating::new(2, 10), before: BTreeMap::new() }
        }

        fn at(&mut self, seconds: u64, rows: &[(&str, u64)]) -> Vec<(String, u64)> {
            let given = rows.iter().map(|(key, ns)| ((*key).to_owned(), Row { ns: *ns }));
            let now = self.rotating.rows(Duration::from_secs(seconds), given, |row| row.ns, &OTHER.to_owned());
            let now: BTreeMap<String, u64> = now.into_iter().map(|(key, row)| (key, row.ns)).collect();
            assert!(now.keys().filter(|key| *key != OTHER).count() <= 2, "{now:?}");
            for (key, ns) in &now {
                let before = self.before.get(key).copied().unwrap_or(0);
                assert!(*ns >= before, "{key} was {before}, and is {ns}");
            }
            let sum = |rows: &BTreeMap<String, u64>| rows.values().sum::<u64>();
            assert!(sum(&now) >= sum(&self.before), "{:?}, then {now:?}", self.before);
            assert_eq!(sum(&now), rows.iter().map(|(_, ns)| ns).sum::<u64>(), "the sum is that of all");
            self.before.clone_from(&now);
            now.into_iter().collect()
        }
    }

    fn expected(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        rows.iter().map(|(key, ns)| ((*key).to_owned(), *ns)).collect()
    }

    #[test]
    fn a_key_that_is_hot_takes_the_place_of_a_cold_one_and_begins_at_zero() {
        let mut scrapes = Scrapes::new();
        assert_eq!(scrapes.at(0, &[("a", 50), ("b", 70)]), expected(&[("a", 50), ("b", 70)]));
        assert_eq!(
            scrapes.at(60, &[("a", 60), ("b", 71), ("c", 500)]),
            expected(&[("a", 60), ("b", 71), (OTHER, 500)]),
            "rows stay for an hour"
        );
        assert_eq!(
            scrapes.at(2 * HOUR, &[("a", 200), ("b", 71), ("c", 900)]),
            expected(&[("a", 200), ("c", 0), (OTHER, 971)])
        );
        assert_eq!(
            scrapes.at(2 * HOUR + 60, &[("a", 200), ("b", 71), ("c", 950)]),
            expected(&[("a", 200), ("c", 50), (OTHER, 971)])
        );
    }

    #[test]
    fn a_row_that_comes_back_begins_at_zero_again() {
        let mut scrapes = Scrapes::new();
        scrapes.at(0, &[("a", 50), ("b", 70)]);
        scrapes.at(60, &[("a", 50), ("b", 70), ("c", 1)]);
        assert_eq!(
            scrapes.at(2 * HOUR, &[("a", 50), ("b", 170), ("c", 101)]),
            expected(&[("b", 170), ("c", 0), (OTHER, 151)])
        );
        scrapes.before.remove("a");
        assert_eq!(
            scrapes.at(4 * HOUR, &[("a", 90), ("b", 500), ("c", 101)]),
            expected(&[("a", 0), ("b", 500), (OTHER, 191)])
        );
        assert_eq!(
            scrapes.at(4 * HOUR + 1, &[("a", 95), ("b", 500), ("c", 101)]),
            expected(&[("a", 5), ("b", 500), (OTHER, 191)])
        );
    }

    #[test]
    fn keys_that_are_about_as_hot_do_not_take_turns() {
        let mut scrapes = Scrapes::new();
        let mut shown = Vec::new();
        for step in 0..100 {
            let all = [("a", 10 * step), ("b", 10 * step), ("c", 15 * step), ("d", 9)];
            shown = scrapes.at(step * HOUR, &all).into_iter().map(|(key, _)| key).collect();
        }
        assert_eq!(shown, ["a", "c", OTHER]);
    }

    #[test]
    fn what_is_gone_leaves_its_row_to_others() {
        let mut scrapes = Scrapes::new();
        scrapes.at(0, &[("a", 50), ("b", 70)]);
        assert_eq!(scrapes.at(1, &[("a", 50), ("b", 70), ("c", 5)])[2], (OTHER.to_owned(), 5));
        assert_eq!(scrapes.at(2, &[("b", 70), ("c", 25), (OTHER, 50)]), expected(&[("b", 70), ("c", 0), (OTHER, 75)]));
        assert_eq!(scrapes.at(3, &[("a", 1), ("b", 70), ("c", 26), (OTHER, 50)]).len(), 3);
    }

    #[test]
    fn an_agent_that_attaches_anew_begins_anew() {
        let mut scrapes = Scrapes::new();
        scrapes.at(100, &[("a", 50), ("b", 70), ("c", 5)]);
        scrapes.before.clear();
        assert_eq!(scrapes.at(1, &[("c", 5), ("d", 1)]), expected(&[("c", 5), ("d", 1)]));
    }

    /// Tables come and go for weeks.
    #[test]
    fn memory_is_bounded_by_the_keys_that_there_are() {
        let mut scrapes = Scrapes::new();
        let mut gone = 0;
        for hour in 0..2000u64 {
            let names: Vec<String> = (hour.saturating_sub(5)..=hour).map(|n| format!("t{n}")).collect();
            let mut all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1000)).collect();
            gone += if hour > 5 { 1000 } else { 0 };
            all.push((OTHER, gone));
            scrapes.before.retain(|key, _| key == OTHER || names.contains(key));
            let sum = scrapes.at(hour * HOUR, &all);
            assert!(sum.len() <= 3 && scrapes.rotating.known.len() <= 6);
        }
    }
}

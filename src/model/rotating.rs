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
/// A key loses its row below this part of the share with which it got it.
const KEPT: f64 = 0.25;

/// Bounded rows plus other, of keys that matter at some times and not at others: what was counted of late decides which
/// of them have a row of their own.
///
/// No row ever decreases. A row begins with what was counted since the call before, and what was counted earlier stays
/// in the shared row; so each event is in exactly one row from the time on when it is counted. A row that ends is not
/// added to the shared row: to Prometheus, that would be as if everything had happened again at that moment. If its key
/// comes back, its row begins anew, which Prometheus takes for the restart that it is.
pub struct Rotating<K, T> {
    limit: usize,
    least: f64,
    share: f64,
    now: Duration,
    known: HashMap<K, Known<T>>,
}

/// A key, and what was counted of it.
struct Known<T> {
    /// Its figures at the last call; `None` if this is the first one.
    last: Option<T>,
    recent: f64,
    /// What was counted in rows of its own that have ended.
    ended: Option<T>,
    /// `None` if it is counted in the shared row.
    shown: Option<Shown<T>>,
}

struct Shown<T> {
    since: Duration,
    /// What had been counted before.
    before: Option<T>,
}

impl<K: Eq + Hash + Ord + Clone, T: Cumulative> Rotating<K, T> {
    /// Creates a bound of `limit` rows. A key has to have a weight of `least` of late to take the place of another, and
    /// `share` of the weight of all to get a row.
    pub fn new(limit: usize, least: u64, share: f64) -> Rotating<K, T> {
        Rotating { limit, least: least as f64, share, now: Duration::ZERO, known: HashMap::new() }
    }

    /// Returns all rows at a time since attach, merged by key. Those of a key without a row of its own are merged into
    /// the row `other(key)`. Time that runs backwards means that all counters have begun anew.
    pub fn rows(
        &mut self,
        now: Duration,
        rows: impl IntoIterator<Item = (K, T)>,
        weight: impl Fn(&T) -> u64,
        other: impl Fn(&K) -> K,
    ) -> BTreeMap<K, T> {
        if now < self.now {
            self.known.clear();
        }
        let keep = (-now.saturating_sub(self.now).as_secs_f64() / HORIZON.as_secs_f64()).exp();
        self.now = now;
        let rows = merged(rows);
        self.known.retain(|key, _| rows.contains_key(key));
        let own = || rows.iter().filter(|(key, _)| **key != other(key));
        own().for_each(|(key, row)| self.note(key, row, keep, &weight));
        let total: f64 = self.known.values().map(|known| known.recent).sum();
        self.end_cold(KEPT * self.share * total);
        self.begin_hot(self.share * total);
        let split: Vec<_> = own().flat_map(|(key, row)| self.split(key, row, &other)).collect();
        let shared = rows.into_iter().filter(|(key, _)| *key == other(key));
        merged(shared.chain(split))
    }

    /// Notes what was counted of a key since the last time.
    fn note(&mut self, key: &K, row: &T, keep: f64, weight: impl Fn(&T) -> u64) {
        let now = weight(row);
        let known = self.known.get_mut(key);
        let before = known.and_then(|known| Some((weight(known.last.as_ref()?), known)));
        match before {
            Some((before, known)) if before <= now => known.recent = keep * known.recent + (now - before) as f64,
            // If there is less than there was, it was gone meanwhile, and what it had is in the shared row.
            _ => {
                let known = Known { last: None, recent: now as f64, ended: None, shown: None };
                self.known.insert(key.clone(), known);
            }
        }
    }

    /// Ends the rows of keys of which less than this was counted of late.
    fn end_cold(&mut self, least: f64) {
        let now = self.now;
        for known in self.known.values_mut().filter(|known| known.has_been_shown(now) && known.recent < least) {
            known.end();
        }
    }

    /// Gives keys of which at least this was counted of late the rows that are left, or those of keys that were counted
    /// much less.
    fn begin_hot(&mut self, least: f64) {
        let (mut shown, mut waiting) = (Vec::new(), Vec::new());
        for (key, known) in &self.known {
            match &known.shown {
                Some(_) => shown.push((known.recent, key.clone())),
                None if known.recent > 0.0 && known.recent >= least => waiting.push((known.recent, key.clone())),
                None => {}
            }
        }
        let mut left = self.limit.saturating_sub(shown.len());
        shown.retain(|(_, key)| self.known[key].has_been_shown(self.now));
        let order = |a: &(f64, K), b: &(f64, K)| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(&a.1));
        shown.sort_by(order);
        waiting.sort_by(|a, b| order(b, a));
        let mut coldest = shown.into_iter();
        for (recent, key) in waiting {
            if left > 0 {
                left -= 1;
            } else {
                let has_to_go = |cold: f64| recent >= self.least && recent > TIMES * cold;
                let Some((_, victim)) = coldest.next().filter(|(cold, _)| has_to_go(*cold)) else { return };
                self.known.entry(victim).and_modify(Known::end);
            }
            let now = self.now;
            self.known.entry(key).and_modify(|known| known.begin(now));
        }
    }

    /// Divides a row into its own part and that of the shared row.
    fn split(&mut self, key: &K, row: &T, other: impl Fn(&K) -> K) -> Vec<(K, T)> {
        let Some(known) = self.known.get_mut(key) else { return Vec::new() };
        known.last = Some(row.clone());
        let (own, shared) = match &known.shown {
            Some(Shown { before: Some(before), .. }) => (Some(row.since(before)), Some(before)),
            Some(Shown { before: None, .. }) => (Some(row.clone()), None),
            None => (None, Some(row)),
        };
        let not_ended = |shared: &T| known.ended.as_ref().map_or_else(|| shared.clone(), |ended| shared.since(ended));
        let shared = shared.map(|shared| (other(key), not_ended(shared)));
        own.map(|own| (key.clone(), own)).into_iter().chain(shared).collect()
    }
}

impl<T: Cumulative> Known<T> {
    fn has_been_shown(&self, now: Duration) -> bool {
        self.shown.as_ref().is_some_and(|shown| now.saturating_sub(shown.since) >= SHOWN)
    }

    fn begin(&mut self, now: Duration) {
        self.shown = Some(Shown { since: now, before: self.last.clone() });
    }

    fn end(&mut self) {
        let Some((shown, last)) = self.shown.take().zip(self.last.as_ref()) else { return };
        let row = shown.before.map_or_else(|| last.clone(), |before| last.since(&before));
        match &mut self.ended {
            Some(ended) => ended.merge(&row),
            None => self.ended = Some(row),
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
        given: BTreeMap<String, u64>,
    }

    impl Scrapes {
        fn new() -> Scrapes {
            Scrapes { rotating: Rotating::new(2, 10, 1e-3), before: BTreeMap::new(), given: BTreeMap::new() }
        }

        /// Checks that what was counted since the last scrape is in the increases of the rows, once.
        fn at(&mut self, seconds: u64, rows: &[(&str, u64)]) -> Vec<(String, u64)> {
            let given = rows.iter().map(|(key, ns)| ((*key).to_owned(), Row { ns: *ns }));
            let now = self.rotating.rows(Duration::from_secs(seconds), given, |row| row.ns, |_| OTHER.to_owned());
            let now: BTreeMap<String, u64> = now.into_iter().map(|(key, row)| (key, row.ns)).collect();
            assert!(now.keys().filter(|key| *key != OTHER).count() <= 2, "{now:?}");
            let mut increase = 0;
            for (key, ns) in &now {
                let before = self.before.get(key).copied().unwrap_or(0);
                assert!(*ns >= before, "{key} was {before}, and is {ns}");
                increase += ns - before;
            }
            let given: BTreeMap<String, u64> = rows.iter().map(|(key, ns)| ((*key).to_owned(), *ns)).collect();
            let counted: u64 = given.iter().map(|(key, ns)| ns - self.given.get(key).copied().unwrap_or(0)).sum();
            // What is gone has moved to the shared row already.
            if !given.contains_key(OTHER) {
                assert_eq!(increase, counted, "{:?}, then {now:?}", self.before);
            }
            (self.before, self.given) = (now.clone(), given);
            now.into_iter().collect()
        }
    }

    fn expected(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        rows.iter().map(|(key, ns)| ((*key).to_owned(), *ns)).collect()
    }

    #[test]
    fn a_key_that_is_hot_takes_the_place_of_a_cold_one() {
        let mut scrapes = Scrapes::new();
        assert_eq!(scrapes.at(0, &[("a", 50), ("b", 70)]), expected(&[("a", 50), ("b", 70)]));
        assert_eq!(
            scrapes.at(60, &[("a", 60), ("b", 71), ("c", 500)]),
            expected(&[("a", 60), ("b", 71), (OTHER, 500)]),
            "rows stay for an hour"
        );
        assert_eq!(
            scrapes.at(2 * HOUR, &[("a", 200), ("b", 71), ("c", 900)]),
            expected(&[("a", 200), ("c", 400), (OTHER, 500)])
        );
        assert_eq!(
            scrapes.at(2 * HOUR + 60, &[("a", 200), ("b", 73), ("c", 950)]),
            expected(&[("a", 200), ("c", 450), (OTHER, 502)]),
            "what b had in its row is not counted again"
        );
    }

    #[test]
    fn a_row_that_comes_back_begins_anew() {
        let mut scrapes = Scrapes::new();
        scrapes.at(0, &[("a", 50), ("b", 70)]);
        scrapes.at(60, &[("a", 50), ("b", 70), ("c", 1)]);
        assert_eq!(
            scrapes.at(2 * HOUR, &[("a", 51), ("b", 170), ("c", 101)]),
            expected(&[("b", 170), ("c", 100), (OTHER, 2)])
        );
        assert_eq!(
            scrapes.at(4 * HOUR, &[("a", 91), ("b", 500), ("c", 101)]),
            expected(&[("a", 40), ("b", 500), (OTHER, 2)])
        );
        assert_eq!(
            scrapes.at(4 * HOUR + 1, &[("a", 95), ("b", 500), ("c", 103)]),
            expected(&[("a", 44), ("b", 500), (OTHER, 4)])
        );
    }

    #[test]
    fn keys_that_are_about_as_hot_do_not_take_turns() {
        let mut scrapes = Scrapes::new();
        let mut shown = Vec::new();
        for step in 1..100 {
            let all = [("a", 10 * step), ("b", 10 * step), ("c", 15 * step), ("d", 9)];
            shown = scrapes.at(step * HOUR, &all).into_iter().map(|(key, _)| key).collect();
        }
        assert_eq!(shown, ["a", "c", OTHER]);
    }

    #[test]
    fn a_key_gets_a_row_with_a_thousandth_of_what_was_counted_and_loses_it_with_less() {
        let mut scrapes = Scrapes::new();
        assert_eq!(scrapes.at(0, &[("a", 10_000), ("b", 9)]), expected(&[("a", 10_000), (OTHER, 9)]));
        assert_eq!(scrapes.at(1, &[("a", 10_000), ("b", 11)]), expected(&[("a", 10_000), ("b", 2), (OTHER, 9)]));
        let later = |hours| (hours * HOUR, [("a", 10_000_000 * hours), ("b", 11)]);
        for hours in [1, 2] {
            let (at, rows) = later(hours);
            let shown = scrapes.at(at, &rows).len();
            assert_eq!(shown, if hours == 1 { 3 } else { 2 }, "a row stays for an hour");
        }
    }

    #[test]
    fn a_server_at_rest_keeps_its_rows() {
        let mut scrapes = Scrapes::new();
        for hours in 0..10 {
            assert_eq!(scrapes.at(hours * HOUR, &[("a", 500), ("b", 7)]).len(), 2);
        }
    }

    #[test]
    fn what_is_gone_leaves_its_row_to_others() {
        let mut scrapes = Scrapes::new();
        scrapes.at(0, &[("a", 50), ("b", 70)]);
        assert_eq!(scrapes.at(1, &[("a", 50), ("b", 70), ("c", 5)])[2], (OTHER.to_owned(), 5));
        assert_eq!(scrapes.at(2, &[("b", 70), ("c", 25), (OTHER, 50)]), expected(&[("b", 70), ("c", 20), (OTHER, 55)]));
        assert_eq!(scrapes.at(3, &[("a", 1), ("b", 70), ("c", 26), (OTHER, 50)]).len(), 3);
    }

    #[test]
    fn an_agent_that_attaches_anew_begins_anew() {
        let mut scrapes = Scrapes::new();
        scrapes.at(100, &[("a", 50), ("b", 70), ("c", 5)]);
        (scrapes.before, scrapes.given) = (BTreeMap::new(), BTreeMap::new());
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

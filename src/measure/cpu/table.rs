//! A table of CPU time, or of event counts, by function, with a bounded number of rows.

use std::collections::HashMap;
use std::hash::Hash;

use crate::measure::cpu::CpuTime;

/// The most functions with rows of their own; the others are summed in one row per class.
const MAX_FUNCTIONS: usize = 100;
/// Other functions get a row once they have taken this much time, in nanoseconds, ...
const LEAST_NS: u64 = 100_000_000;
/// ... and one part in this many of all time in the table.
const LEAST_SHARE: u64 = 400;

/// CPU time in nanoseconds, or event counts, by kind and function.
///
/// A function's row starts empty when the function is found to deserve one; what was counted before stays in its kind's
/// row for others. So no row ever decreases, and the sum over all rows is everything that was added.
///
/// This is not a [`Bounded`](crate::model::Bounded), which sees only sums: it has to decide when a key first appears,
/// and can never change that. Here each addition is seen, so that functions which matter only later still get rows.
#[derive(Debug)]
pub struct Table<K> {
    rows: HashMap<(K, String), Row>,
    /// The rows for others.
    others: HashMap<K, u64>,
    named: usize,
    total: u64,
    /// The amount with which a function gets a row.
    least: u64,
}

#[derive(Debug)]
enum Row {
    /// Counted with others so far.
    Candidate(u64),
    Own(u64),
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table::with_least(LEAST_NS)
    }
}

impl<K> Table<K> {
    /// Creates a table in which functions get a row at this amount.
    pub fn with_least(least: u64) -> Table<K> {
        Table { rows: HashMap::new(), others: HashMap::new(), named: 0, total: 0, least }
    }
}

impl<K: Copy + Eq + Hash + Ord> Table<K> {
    /// Adds CPU time of a function. A known cost gets a row at once, however little it takes.
    pub fn add(&mut self, kind: K, function: &str, ns: u64, is_known_cost: bool) {
        self.total += ns;
        let row = self.rows.entry((kind, function.to_owned())).or_insert(Row::Candidate(0));
        if let Row::Candidate(seen) = row {
            let is_much = *seen >= self.least && *seen >= self.total / LEAST_SHARE;
            if self.named < MAX_FUNCTIONS && (is_known_cost || is_much) {
                *row = Row::Own(0);
                self.named += 1;
            }
        }
        match row {
            Row::Own(total) => *total += ns,
            Row::Candidate(seen) => {
                *seen += ns;
                *self.others.entry(kind).or_default() += ns;
            }
        }
    }

    /// Returns kind, function and time, largest time first.
    pub fn rows(&self) -> Vec<(K, &str, u64)> {
        let own = self.rows.iter().filter_map(|((kind, function), row)| match row {
            Row::Own(ns) => Some((*kind, function.as_str(), *ns)),
            Row::Candidate(_) => None,
        });
        let others = self.others.iter().map(|(kind, ns)| (*kind, CpuTime::OTHER, *ns));
        let mut rows: Vec<_> = own.chain(others).collect();
        rows.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| (a.0, a.1).cmp(&(b.0, b.1))));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CpuClass;

    #[test]
    fn a_known_cost_has_a_row_at_once_and_others_when_they_are_worth_one() {
        let mut table = Table::default();
        table.add(CpuClass::Spin, "ut_delay", 1, true);
        table.add(CpuClass::Other, "parse", LEAST_NS, false);
        assert_eq!(table.rows(), [(CpuClass::Other, "other", LEAST_NS), (CpuClass::Spin, "ut_delay", 1)]);
        table.add(CpuClass::Other, "parse", 3, false);
        assert_eq!(table.rows()[1..], [(CpuClass::Other, "parse", 3), (CpuClass::Spin, "ut_delay", 1)]);
    }

    #[test]
    fn a_function_that_is_seldom_seen_stays_with_the_others() {
        let mut table = Table::default();
        table.add(CpuClass::Other, "busy", LEAST_NS * (LEAST_SHARE + 2), false);
        table.add(CpuClass::Other, "quiet", LEAST_NS, false);
        table.add(CpuClass::Other, "quiet", 1, false);
        assert!(table.rows().iter().all(|row| row.1 == "other"), "{:?}", table.rows());
    }

    #[test]
    fn rows_are_bounded_and_their_sum_stays_true() {
        let mut table = Table::default();
        for round in 0..3 {
            for i in 0..10 * MAX_FUNCTIONS {
                table.add(CpuClass::Latch, &format!("f{i}"), 1 + round, true);
            }
        }
        let rows = table.rows();
        assert_eq!(rows.len(), MAX_FUNCTIONS + 1);
        assert_eq!(rows.iter().map(|row| row.2).sum::<u64>(), 60 * MAX_FUNCTIONS as u64);
    }

    #[test]
    fn no_row_steps_back() {
        let mut table = Table::default();
        let mut before: Vec<(CpuClass, String, u64)> = Vec::new();
        for n in 0..500 {
            table.add(CpuClass::Kernel, if n % 3 == 0 { "a" } else { "b" }, n * 1_000_000, false);
            let now = table.rows();
            for old in &before {
                let new = now.iter().find(|row| (row.0, row.1) == (old.0, old.1.as_str()));
                assert!(new.is_some_and(|new| new.2 >= old.2), "{old:?}, then {new:?}");
            }
            before = now.into_iter().map(|(class, function, ns)| (class, function.to_owned(), ns)).collect();
        }
        assert_eq!(before.len(), 3);
    }
}

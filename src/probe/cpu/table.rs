//! CPU time by function, in a bounded number of rows.

use std::collections::HashMap;

use crate::model::{CpuClass, CpuTime};

/// How many functions have rows of their own; the others add up in one row for each class.
const MAX_FUNCTIONS: usize = 200;
/// A function of no known cost has its own row once it has taken this much, in nanoseconds, ...
const LEAST_NS: u64 = 100_000_000;
/// ... and one part in so many of all CPU time.
const LEAST_SHARE: u64 = 400;

/// CPU time by class and function, in nanoseconds.
///
/// A function's row begins empty when the function is found to be worth one: what was counted before stays in its class's
/// row for others. So no row ever steps back, and the sum over all rows is all that was added.
#[derive(Debug, Default)]
pub struct Table {
    rows: HashMap<Key, Row>,
    /// In the rows for others.
    others: HashMap<CpuClass, u64>,
    named: usize,
    total: u64,
}

type Key = (CpuClass, String);

#[derive(Debug)]
enum Row {
    /// Counted with others so far.
    Candidate(u64),
    Own(u64),
}

impl Table {
    /// Adds CPU time of a function.
    pub fn add(&mut self, class: CpuClass, function: &str, ns: u64) {
        self.total += ns;
        let row = self.rows.entry((class, function.to_owned())).or_insert(Row::Candidate(0));
        if let Row::Candidate(seen) = row {
            let is_known_cost = !matches!(class, CpuClass::Other | CpuClass::Kernel | CpuClass::Futex);
            let is_much = *seen >= LEAST_NS && *seen >= self.total / LEAST_SHARE;
            if self.named < MAX_FUNCTIONS && (is_known_cost || is_much) {
                *row = Row::Own(0);
                self.named += 1;
            }
        }
        match row {
            Row::Own(total) => *total += ns,
            Row::Candidate(seen) => {
                *seen += ns;
                *self.others.entry(class).or_default() += ns;
            }
        }
    }

    /// The rows, the most time first.
    pub fn rows(&self) -> Vec<CpuTime> {
        let own = self.rows.iter().filter_map(|((class, function), row)| match row {
            Row::Own(ns) => Some((*class, function.as_str(), *ns)),
            Row::Candidate(_) => None,
        });
        let others = self.others.iter().map(|(class, ns)| (*class, CpuTime::OTHER, *ns));
        let time = |(class, function, ns): (CpuClass, &str, u64)| CpuTime { class, function: function.to_owned(), ns };
        let mut rows: Vec<CpuTime> = own.chain(others).map(time).collect();
        rows.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| (a.class, &a.function).cmp(&(b.class, &b.function))));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(class: CpuClass, function: &str, ns: u64) -> CpuTime {
        CpuTime { class, function: function.to_owned(), ns }
    }

    #[test]
    fn a_known_cost_has_a_row_at_once_and_others_when_they_are_worth_one() {
        let mut table = Table::default();
        table.add(CpuClass::Spin, "ut_delay", 1);
        table.add(CpuClass::Other, "parse", LEAST_NS);
        assert_eq!(table.rows(), [row(CpuClass::Other, "other", LEAST_NS), row(CpuClass::Spin, "ut_delay", 1)]);
        table.add(CpuClass::Other, "parse", 3);
        assert_eq!(table.rows()[1..], [row(CpuClass::Other, "parse", 3), row(CpuClass::Spin, "ut_delay", 1)]);
    }

    #[test]
    fn a_function_that_is_seldom_seen_stays_with_the_others() {
        let mut table = Table::default();
        table.add(CpuClass::Other, "busy", LEAST_NS * (LEAST_SHARE + 2));
        table.add(CpuClass::Other, "quiet", LEAST_NS);
        table.add(CpuClass::Other, "quiet", 1);
        assert!(table.rows().iter().all(|row| row.function == "other"), "{:?}", table.rows());
    }

    #[test]
    fn rows_are_bounded_and_their_sum_stays_true() {
        let mut table = Table::default();
        for round in 0..3 {
            for i in 0..10 * MAX_FUNCTIONS {
                table.add(CpuClass::Latch, &format!("f{i}"), 1 + round);
            }
        }
        let rows = table.rows();
        assert_eq!(rows.len(), MAX_FUNCTIONS + 1);
        assert_eq!(rows.iter().map(|row| row.ns).sum::<u64>(), 60 * MAX_FUNCTIONS as u64);
    }

    #[test]
    fn no_row_steps_back() {
        let mut table = Table::default();
        let mut before: Vec<CpuTime> = Vec::new();
        for n in 0..500 {
            table.add(CpuClass::Kernel, if n % 3 == 0 { "a" } else { "b" }, n * 1_000_000);
            let now = table.rows();
            for old in &before {
                let new = now.iter().find(|row| (row.class, &row.function) == (old.class, &old.function));
                assert!(new.is_some_and(|new| new.ns >= old.ns), "{old:?}, then {new:?}");
            }
            before = now;
        }
        assert_eq!(before.len(), 3);
    }
}

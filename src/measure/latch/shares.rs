//! Divides the time waited for latches among the statements that threads were seen to execute meanwhile.

use std::collections::BTreeMap;

use super::figures::{LatchWaits, StatementWaits, NORMAL_95};
use crate::model::Kind;

/// A statement's part of the time waited for one latch in one mode, or for all latches.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementShare<'a> {
    /// The hash of the statement; see [`StatementWaits::digest`].
    pub digest: &'a str,
    /// The statement; see [`StatementWaits::statement`].
    pub statement: &'a str,
    /// The number of times that a thread was seen.
    pub samples: u64,
    /// The wait time, in nanoseconds.
    pub wait_ns: f64,
    /// The share of the wait time of the latch, or of all latches, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % interval of `share`, if samples were independent.
    pub error: f64,
}

/// Divides the waits for one latch in one mode, most first.
pub fn of_latch<'a>(waits: &LatchWaits, statements: &'a [StatementWaits]) -> Vec<StatementShare<'a>> {
    let of_latch = || statements.iter().filter(|row| row.samples > 0 && row.is_of(&waits.latch, waits.mode));
    let all: u64 = of_latch().map(|row| row.samples).sum();
    let share = |row: &'a StatementWaits| {
        let share = row.samples as f64 / all as f64;
        StatementShare {
            digest: &row.digest,
            statement: &row.statement,
            samples: row.samples,
            wait_ns: waits.waits.sum_ns as f64 * share,
            share,
            error: error(row.samples, all),
        }
    };
    sorted(of_latch().map(share).collect())
}

/// Divides the waits for all latches, most first. Time waited for latches for which no thread was seen to wait is in
/// no part.
pub fn of_all<'a>(waits: &[LatchWaits], statements: &'a [StatementWaits]) -> Vec<StatementShare<'a>> {
    let contended = || waits.iter().filter(|latch| latch.kind != Kind::Cond);
    let all_ns = contended().map(|latch| latch.waits.sum_ns as f64).sum::<f64>().max(1.0);
    let mut sums: BTreeMap<(&str, &str), StatementShare> = BTreeMap::new();
    for latch in contended() {
        for part in of_latch(latch, statements) {
            let error_ns = part.error * latch.waits.sum_ns as f64;
            let sum = sums.entry((part.digest, part.statement)).or_insert(StatementShare {
                samples: 0,
                wait_ns: 0.0,
                error: 0.0,
                ..part
            });
            sum.samples += part.samples;
            sum.wait_ns += part.wait_ns;
            // The errors of different latches are independent, so their squares add up.
            sum.error += (error_ns / all_ns).powi(2);
        }
    }
    let whole =
        |sum: StatementShare<'a>| StatementShare { share: sum.wait_ns / all_ns, error: sum.error.sqrt(), ..sum };
    sorted(sums.into_values().map(whole).collect())
}

fn sorted(mut parts: Vec<StatementShare>) -> Vec<StatementShare> {
    parts.sort_by(|a, b| {
        b.wait_ns.total_cmp(&a.wait_ns).then_with(|| (a.digest, a.statement).cmp(&(b.digest, b.statement)))
    });
    parts
}

/// Returns half the width of the 95 % interval of a share (Agresti and Coull's, which is right for few samples too).
pub(in crate::measure) fn error(samples: u64, all: u64) -> f64 {
    let all = all as f64 + NORMAL_95 * NORMAL_95;
    let share = (samples as f64 + NORMAL_95 * NORMAL_95 / 2.0) / all;
    NORMAL_95 * (share * (1.0 - share) / all).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Histogram, Mode};

    fn waits(latch: &str, kind: Kind, sum_ns: u64) -> LatchWaits {
        LatchWaits {
            latch: latch.to_owned(),
            kind,
            mode: Mode::None,
            waits: Histogram { sum_ns, ..Histogram::default() },
            sleep_ns: 0,
            sleeps: 0,
            spin_cpu_ns: 0,
            spins_won: 0,
            spins_wasted: 0,
            estimated_ns: 0,
            variance_us2: 0,
        }
    }

    fn seen(latch: &str, digest: &str, samples: u64) -> StatementWaits {
        let (latch, digest) = (latch.to_owned(), digest.to_owned());
        StatementWaits { latch, mode: Some(Mode::None), statement: digest.to_uppercase(), digest, samples }
    }

    #[test]
    fn a_latchs_time_is_divided_by_samples() {
        let statements = [seen("l", "a", 100), seen("l", "b", 300), seen("m", "a", 5), seen("l", "c", 0)];
        let parts = of_latch(&waits("l", Kind::Mutex, 8_000), &statements);
        let shown: Vec<_> = parts.iter().map(|part| (part.statement, part.samples, part.share, part.wait_ns)).collect();
        assert_eq!(shown, [("B", 300, 0.75, 6_000.0), ("A", 100, 0.25, 2_000.0)]);
        assert!((0.040..0.045).contains(&parts[0].error), "{parts:?}");
        assert!(of_latch(&waits("n", Kind::Mutex, 8_000), &statements).is_empty());
    }

    /// One sample says next to nothing.
    #[test]
    fn few_samples_have_a_large_error() {
        assert!(error(1, 1) > 0.3 && error(5, 5) > 0.2 && error(1000, 1000) < 0.01);
    }

    #[test]
    fn all_latches_together_are_weighted_by_time() {
        let latches = [waits("l", Kind::Mutex, 1_000), waits("m", Kind::Mutex, 3_000), waits("c", Kind::Cond, 9_000)];
        let statements = [seen("l", "a", 10), seen("m", "a", 1), seen("m", "b", 2), seen("c", "b", 50)];
        let parts = of_all(&latches, &statements);
        let shown: Vec<_> = parts.iter().map(|part| (part.digest, part.samples, part.wait_ns, part.share)).collect();
        assert_eq!(shown, [("a", 11, 2_000.0, 0.5), ("b", 2, 2_000.0, 0.5)]);
        let [l, m] = [error(10, 10) / 4.0, error(1, 3) * 0.75];
        assert!((parts[0].error - (l * l + m * m).sqrt()).abs() < 1e-9);
    }
}

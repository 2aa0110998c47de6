//! Divides the server's CPU time among statements: some of its samples say what the thread executed.

use std::collections::HashMap;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapHandle};
use parking_lot::Mutex;

use super::code_map::CodeMap;
use super::figures::StatementCpu;
use crate::bpf::sample::types;
use crate::measure::latch::{shares, Executes, Sample, Texts};

/// How many samples say a second, on all CPUs together, what the thread executed. Each costs user space some
/// microseconds.
const PER_SECOND: u32 = 100;

/// The kernel has room for so many samples that nobody has taken yet.
pub(super) const ROOM: u32 = 4 * PER_SECOND;

/// The statements of one server's threads that ran.
pub(super) struct CpuStatements {
    /// Samples that the kernel keeps.
    queue: MapHandle,
    /// By whether the thread was at an instruction that orders memory.
    texts: Mutex<Texts<bool>>,
}

/// A statement's part of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuShare<'a> {
    /// The statement.
    pub statement: &'a StatementCpu,
    /// The number of times that a thread was seen in this part.
    pub samples: u64,
    /// Its share, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % interval of `share`.
    pub error: f64,
}

impl CpuShare<'_> {
    /// Divides the server's CPU time among statements, most first.
    pub fn of_all(statements: &[StatementCpu]) -> Vec<CpuShare<'_>> {
        CpuShare::of(statements, |row| row.samples)
    }

    /// Divides the CPU time of instructions that order memory among statements, most first.
    pub fn of_ordering(statements: &[StatementCpu]) -> Vec<CpuShare<'_>> {
        CpuShare::of(statements, |row| row.ordering_samples)
    }

    fn of(statements: &[StatementCpu], samples: fn(&StatementCpu) -> u64) -> Vec<CpuShare<'_>> {
        let all = statements.iter().map(samples).fold(0, u64::saturating_add);
        let share = |statement| {
            let samples = samples(statement);
            let (share, error) = (samples as f64 / all as f64, shares::error(samples, all));
            (samples > 0).then_some(CpuShare { statement, samples, share, error })
        };
        let mut parts: Vec<CpuShare<'_>> = statements.iter().filter_map(share).collect();
        parts.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.place().cmp(&b.place())));
        parts
    }

    fn place(&self) -> (&str, &str) {
        (&self.statement.digest, &self.statement.statement)
    }
}

/// Returns in one of how many samples statements are read, if each of so many CPUs has `hz` samples a second.
pub(super) fn samples_per_statement(cpus: usize, hz: u32) -> u32 {
    let each_second = (cpus as u32).saturating_mul(hz);
    each_second.div_ceil(PER_SECOND).max(1)
}

impl CpuStatements {
    /// Counts in `texts` what the kernel puts into a queue.
    pub fn new(queue: MapHandle, texts: Texts<bool>) -> CpuStatements {
        CpuStatements { queue, texts: Mutex::new(texts) }
    }

    /// Takes what was sampled out of the kernel. `code` knows the instructions.
    ///
    /// # Errors
    /// Fails if the queue cannot be read.
    pub fn take(&self, code: &mut CodeMap) -> Result<()> {
        let mut texts = self.texts.lock();
        // More may come meanwhile.
        for _ in 0..ROOM {
            let next = self.queue.lookup_and_delete(&[]).context("reading sampled statements")?;
            let Some(bytes) = next else { return Ok(()) };
            let sampled: &types::sampled_statement =
                plain::from_bytes(&bytes).ok().context("a sampled statement has an unexpected size")?;
            let orders = code.function(sampled.address, types::sampled_call::CALL_OTHER.0).ordering.is_some();
            executes(sampled).add_to(&mut texts, orders, 1);
        }
        Ok(())
    }

    /// Returns how often each statement was seen, most often first.
    pub fn rows(&self) -> Vec<StatementCpu> {
        rows(self.texts.lock().all())
    }
}

/// Adds up samples by statement.
fn rows(all: Vec<Sample<bool>>) -> Vec<StatementCpu> {
    let mut by_statement: HashMap<(String, String), (u64, u64)> = HashMap::new();
    for sample in all {
        let (samples, ordering) = by_statement.entry(sample.statement()).or_default();
        *samples += sample.samples;
        *ordering += if sample.doing { sample.samples } else { 0 };
    }
    let row = |((digest, statement), (samples, ordering_samples))| StatementCpu {
        digest,
        statement,
        samples,
        ordering_samples,
    };
    let mut rows: Vec<StatementCpu> = by_statement.into_iter().map(row).collect();
    rows.sort_by(|a, b| {
        b.samples.cmp(&a.samples).then_with(|| (&a.digest, &a.statement).cmp(&(&b.digest, &b.statement)))
    });
    rows
}

/// Returns what a thread executed, without values.
fn executes(sampled: &types::sampled_statement) -> Executes {
    let length = sampled.length as usize;
    match types::sampled_executes(sampled.executes) {
        types::sampled_executes::SAMPLED_NOTHING => Executes::Nothing,
        types::sampled_executes::SAMPLED_STATEMENT => {
            Executes::of(&sampled.text[..length.min(sampled.text.len())], length > sampled.text.len())
        }
        _ => Executes::Unread,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::measure::latch::{Shown, Text};
    use types::sampled_executes as kinds;

    fn sampled(executes: kinds, text: &str) -> types::sampled_statement {
        let mut sampled =
            types::sampled_statement { executes: executes.0, length: text.len() as u32, ..Default::default() };
        let part = text.len().min(sampled.text.len());
        sampled.text[..part].copy_from_slice(&text.as_bytes()[..part]);
        sampled
    }

    #[test]
    fn statements_lose_their_values() {
        let statement = |text: &str| Executes::Statement(text.to_owned());
        let long = format!("SELECT {}", "a".repeat(2000));
        let cases = [
            (sampled(kinds::SAMPLED_STATEMENT, "SELECT 'x'"), statement("SELECT ?")),
            (sampled(kinds::SAMPLED_STATEMENT, &long), statement("SELECT ...")),
            (sampled(kinds::SAMPLED_STATEMENT, "hello, world"), Executes::Unread),
            (sampled(kinds::SAMPLED_NOTHING, "SELECT 'x'"), Executes::Nothing),
            (sampled(kinds::SAMPLED_UNREAD, "SELECT 'x'"), Executes::Unread),
        ];
        for (sampled, expected) in cases {
            assert_eq!(executes(&sampled), expected);
        }
    }

    #[test]
    fn about_as_many_statements_are_read_on_every_machine() {
        assert_eq!(
            [(1, 99), (2, 99), (64, 99), (64, 19), (2, 10)].map(|(cpus, hz)| samples_per_statement(cpus, hz)),
            [1, 2, 64, 13, 1]
        );
        assert_eq!(samples_per_statement(usize::MAX, u32::MAX), u32::MAX.div_ceil(PER_SECOND));
    }

    #[test]
    fn the_time_is_divided_by_samples() {
        let row = |digest: &str, samples| StatementCpu {
            digest: digest.to_owned(),
            statement: digest.to_uppercase(),
            samples,
            ordering_samples: samples.saturating_sub(200),
        };
        let rows = [row("a", 100), row("b", 300), row("c", 0)];
        let parts = CpuShare::of_all(&rows);
        let shown = |parts: &[CpuShare]| -> Vec<(String, u64, f64)> {
            parts.iter().map(|part| (part.statement.statement.clone(), part.samples, part.share)).collect()
        };
        assert_eq!(shown(&parts), [("B".to_owned(), 300, 0.75), ("A".to_owned(), 100, 0.25)]);
        assert!((0.040..0.045).contains(&parts[0].error), "{parts:?}");
        assert_eq!(shown(&CpuShare::of_ordering(&rows)), [("B".to_owned(), 100, 1.0)]);
        assert!(CpuShare::of_all(&[]).is_empty());
    }

    #[test]
    fn samples_at_instructions_that_order_memory_are_a_part_of_all() {
        let text = Arc::new(Text { hash: "d1".to_owned(), shown: "COMMIT".to_owned() });
        let sample = |doing, shown, samples| {
            let text = matches!(shown, Shown::Text(_)).then(|| Arc::clone(&text));
            Sample { doing, shown, text, samples }
        };
        let all =
            vec![sample(true, Shown::Text(1), 3), sample(false, Shown::Text(1), 4), sample(false, Shown::Unread, 9)];
        let shown: Vec<_> =
            rows(all).into_iter().map(|row| (row.statement, row.samples, row.ordering_samples)).collect();
        assert_eq!(shown, [("not read".to_owned(), 9, 0), ("COMMIT".to_owned(), 7, 3)]);
    }
}

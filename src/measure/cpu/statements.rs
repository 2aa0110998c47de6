//! Divides the server's CPU time among statements: some of its samples say what the thread executed.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapHandle};
use parking_lot::Mutex;

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
    texts: Mutex<Texts<()>>,
}

/// A statement's part of the server's CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuShare<'a> {
    /// The statement.
    pub statement: &'a StatementCpu,
    /// Its share, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % interval of `share`.
    pub error: f64,
}

impl CpuShare<'_> {
    /// Divides the CPU time among statements, most first.
    pub fn of_all(statements: &[StatementCpu]) -> Vec<CpuShare<'_>> {
        let all = statements.iter().map(|row| row.samples).fold(0, u64::saturating_add);
        let share = |row| CpuShare {
            statement: row,
            share: row.samples as f64 / all as f64,
            error: shares::error(row.samples, all),
        };
        let mut parts: Vec<CpuShare<'_>> = statements.iter().filter(|row| row.samples > 0).map(share).collect();
        parts.sort_by(|a, b| b.statement.samples.cmp(&a.statement.samples).then_with(|| a.place().cmp(&b.place())));
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
    pub fn new(queue: MapHandle, texts: Texts<()>) -> CpuStatements {
        CpuStatements { queue, texts: Mutex::new(texts) }
    }

    /// Takes what was sampled out of the kernel.
    ///
    /// # Errors
    /// Fails if the queue cannot be read.
    pub fn take(&self) -> Result<()> {
        let mut texts = self.texts.lock();
        // More may come meanwhile.
        for _ in 0..ROOM {
            let next = self.queue.lookup_and_delete(&[]).context("reading sampled statements")?;
            let Some(bytes) = next else { return Ok(()) };
            let sampled = plain::from_bytes(&bytes).ok().context("a sampled statement has an unexpected size")?;
            executes(sampled).add_to(&mut texts, (), 1);
        }
        Ok(())
    }

    /// Returns how often each statement was seen, most often first.
    pub fn rows(&self) -> Vec<StatementCpu> {
        let row = |sample: Sample<()>| {
            let (digest, statement) = sample.statement();
            StatementCpu { digest, statement, samples: sample.samples }
        };
        let mut rows: Vec<StatementCpu> = self.texts.lock().all().into_iter().map(row).collect();
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.digest.cmp(&b.digest)));
        rows
    }
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
    use super::*;
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
        };
        let rows = [row("a", 100), row("b", 300), row("c", 0)];
        let parts = CpuShare::of_all(&rows);
        let shown: Vec<_> = parts.iter().map(|part| (&*part.statement.statement, part.share)).collect();
        assert_eq!(shown, [("B", 0.75), ("A", 0.25)]);
        assert!((0.040..0.045).contains(&parts[0].error), "{parts:?}");
        assert!(CpuShare::of_all(&[]).is_empty());
    }
}

//! Divides the server's CPU time among statements: some of its samples say what the thread executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapHandle};
use parking_lot::Mutex;

use super::code_map::CodeMap;
use super::figures::StatementCpu;
use crate::bpf::sample::types;
use crate::measure::latch::{executes, Account, Sample, Texts};

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

/// Returns in one of how many samples statements are read, if each of so many CPUs has `hz` samples a second.
pub(super) fn samples_per_statement(cpus: usize, hz: f64) -> u32 {
    (cpus as f64 * hz / f64::from(PER_SECOND)).ceil().max(1.0) as u32
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
            let (executes, account) = executes(&sampled.executed);
            executes.add_to(&account, &mut texts, orders, 1);
        }
        Ok(())
    }

    /// Takes what was sampled out of the kernel, and counts none of it.
    ///
    /// # Errors
    /// Fails if the queue cannot be read.
    pub fn forget(&self) -> Result<()> {
        for _ in 0..ROOM {
            if self.queue.lookup_and_delete(&[]).context("reading sampled statements")?.is_none() {
                break;
            }
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
    let mut by_statement: BTreeMap<(String, String, Account), (u64, u64)> = BTreeMap::new();
    for sample in all {
        let ((digest, statement), account) = (sample.statement(), sample.account());
        let (samples, ordering) = by_statement.entry((digest, statement, account)).or_default();
        *samples += sample.samples;
        *ordering += if sample.doing { sample.samples } else { 0 };
    }
    let row = |((digest, statement, account), (samples, ordering_samples))| StatementCpu {
        digest,
        statement,
        account,
        samples,
        ordering_samples,
    };
    let mut rows: Vec<StatementCpu> = by_statement.into_iter().map(row).collect();
    // Rows with as many samples stay in the order of their statements.
    rows.sort_by_key(|row| Reverse(row.samples));
    rows
}

/// Returns whether a program may read memory in an interrupt of a thread that is in the kernel. From Linux 5.18 to 6.3,
/// the kernel checked such a copy under a lock that the thread may have.
pub(super) fn may_read_in_kernel((major, minor): (u32, u32)) -> bool {
    !((5, 18)..=(6, 3)).contains(&(major, minor))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::measure::latch::{Shown, Text};

    #[test]
    fn about_as_many_statements_are_read_on_every_machine() {
        assert_eq!(
            [(1, 99.0), (2, 99.0), (64, 99.0), (64, 19.5), (2, 10.0)].map(|(cpus, hz)| samples_per_statement(cpus, hz)),
            [1, 2, 64, 13, 1]
        );
    }

    #[test]
    fn samples_at_instructions_that_order_memory_are_a_part_of_all() {
        let text = Arc::new(Text { hash: "d1".to_owned(), shown: "COMMIT".to_owned(), account: Account::default() });
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

    #[test]
    fn some_kernels_read_nothing_of_threads_in_the_kernel() {
        let kernels = [(5, 10), (5, 17), (5, 18), (6, 1), (6, 3), (6, 4), (7, 2)];
        assert_eq!(kernels.map(may_read_in_kernel), [true, true, false, false, false, true, true]);
    }
}

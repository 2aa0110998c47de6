//! Measures what hits of the probes cost the server.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::attacher::Attacher;
use crate::attach::{Budget, ProbeClass, Usage};
use crate::bpf::latch::types;
use crate::server::cpu_time_ns;

/// In addition to its own time, a hit costs the server about this multiple of it in each of two ways: the CPU's caches
/// and predictors have to recover, and while the thread holds a latch, others spin for it. Measured:
/// docs/explanation/overhead.md, "What the account does not see".
pub(in crate::measure) const SHADOW: f64 = 1.0;

/// Measures what hits cost the server.
pub(super) struct Meter<'b> {
    budget: &'b Budget,
    /// The sites, followed by the futex programs.
    rows: Vec<Row>,
    last: Instant,
    others_ns: u64,
    hits: Vec<types::hits>,
    cpu_ns: u64,
}

/// A probe of a group.
struct Row {
    /// The index of its hits.
    index: u32,
    group: usize,
    trap_ns: f64,
    /// Whether its thread holds the latch at that moment.
    is_end: bool,
}

/// What was used in a period, in CPUs.
pub(super) struct Used {
    pub server_cpu: f64,
    /// By probes that do not take turns.
    pub others: f64,
    pub groups: Vec<Usage>,
}

impl<'b> Meter<'b> {
    /// Starts measuring.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    pub fn new(attacher: &Attacher<'_>, budget: &'b Budget) -> Result<Meter<'b>> {
        let costs = &budget.costs;
        let mut rows = Vec::new();
        for (index, probe) in (0..).zip(&attacher.plan.probes) {
            let trap_ns = costs.charge(probe.class);
            rows.push(Row { index, group: attacher.plan.group_of(probe), trap_ns, is_end: !probe.is_begin });
        }
        let trap_ns = costs.charge(ProbeClass::Futex);
        let futex =
            [types::tracepoint::HIT_FUTEX_ENTER, types::tracepoint::HIT_FUTEX_EXIT, types::tracepoint::HIT_FUTEX_WAKE];
        for index in futex.map(|hit| hit.0) {
            rows.push(Row { index, group: attacher.pthread(), trap_ns, is_end: false });
        }
        let hits = counts(&rows, attacher)?;
        let cpu_ns = cpu_time_ns(attacher.target.pid).unwrap_or(0);
        Ok(Meter { budget, rows, last: Instant::now(), others_ns: (budget.others_ns)(), hits, cpu_ns })
    }

    /// Returns what was used since the last call. `attached` says for how long each group was attached; `None`: all the
    /// time.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    pub fn read(&mut self, attacher: &Attacher<'_>, attached: &[Option<Duration>]) -> Result<Used> {
        let hits = counts(&self.rows, attacher)?;
        let cpu_ns = cpu_time_ns(attacher.target.pid).unwrap_or(self.cpu_ns);
        let elapsed = self.last.elapsed();
        let period_ns = elapsed.as_nanos() as f64;
        let mut groups: Vec<Usage> = attached
            .iter()
            .map(|a| a.map_or(1.0, |a| (a.as_secs_f64() / elapsed.as_secs_f64()).min(1.0)))
            .map(|attached| Usage { attached, ..Default::default() })
            .collect();
        for (row, (now, then)) in self.rows.iter().zip(hits.iter().zip(&self.hits)) {
            let programs = now.program_ns().saturating_sub(then.program_ns());
            let cpu = (row.trap_ns * now.count.saturating_sub(then.count) as f64 + programs as f64) / period_ns;
            groups[row.group].cpu += (1.0 + SHADOW) * cpu;
            if row.is_end {
                groups[row.group].cpu += SHADOW * cpu;
                groups[row.group].held += cpu;
            }
        }
        let others_ns = (self.budget.others_ns)();
        let server_cpu = cpu_ns.saturating_sub(self.cpu_ns) as f64 / period_ns;
        let others = (1.0 + SHADOW) * others_ns.saturating_sub(self.others_ns) as f64 / period_ns;
        (self.last, self.hits, self.cpu_ns, self.others_ns) = (Instant::now(), hits, cpu_ns, others_ns);
        Ok(Used { server_cpu, others, groups })
    }
}

/// Reads the hits so far.
fn counts(rows: &[Row], attacher: &Attacher<'_>) -> Result<Vec<types::hits>> {
    rows.iter().map(|row| attacher.maps.hits_of(row.index)).collect()
}

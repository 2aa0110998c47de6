//! Waits for locks of the database: for rows, and for metadata. They last until another transaction ends, so they are
//! longer than any wait for a latch, and rarer.

mod figures;
mod metrics;
mod plan;
mod probes;
pub mod record;
pub mod report;
mod stages;

pub use figures::{Figures, LockWaits, WaitingNow, ROW_LOCK};
pub use metrics::LockMetrics;
pub use plan::{lock_plan, LockPlan, PlannedLockSite, PlannedLockWait};

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use self::probes::{Counted, LockProbes};
use self::report::LocksReport;
use self::stages::{expected, Stages};
use super::latch::Gap;
use super::{cost_ns, Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::{attach_cookies, uretprobes_are_safe, Costs};
use crate::bpf::lock::types;
use crate::host::clock::now_ns;
use crate::model::Histogram;
use crate::server::{has_shadow_stack, Target};
use crate::symbols::PerImage;

/// The least budget with which these waits are measured, as a share of the server's CPU time, 0 to 1. The probes take
/// no turns, and on a row that 16 threads update all the time they took 2.8 % of it.
const LEAST_BUDGET: f64 = 0.05;

/// Returns why these waits are not measured within a budget of `max_overhead`, 0 to 1; `None` if they are.
pub fn beyond_budget(max_overhead: f64) -> Option<String> {
    let least = 100.0 * LEAST_BUDGET;
    (max_overhead < LEAST_BUDGET)
        .then(|| format!("waits for row locks and metadata locks: measured with --max-overhead {least:.0}% or more"))
}

/// The waits of one server for locks. Dropping it detaches the probes.
pub struct Locks {
    plan: Arc<LockPlan>,
    probes: LockProbes,
    stages: Mutex<Stages>,
}

impl Locks {
    /// Attaches the probes to `target`, as far as its wait functions are known.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded.
    pub fn attach(target: &Arc<Target>) -> Result<Locks> {
        let plan = planned(target);
        let probes = LockProbes::attach(target, &plan)?;
        Ok(Locks { plan, probes, stages: Mutex::new(Stages::new(target)) })
    }

    /// Returns what was counted under the name of each lock. Locks that are measured and that every server has are
    /// among them also if no wait has ended.
    fn waits(&self, counted: &Counted) -> Vec<LockWaits> {
        let mut stages = self.stages.lock();
        let expected = self.probes.measured().into_iter().map(|kind| (expected(kind), Histogram::default()));
        let begun = counted.waiting.iter().map(|wait| &wait.key);
        let begun: Vec<_> = begun.map(|key| (stages.name(key), Histogram::default())).collect();
        let seen = counted.waits.iter().map(|(key, waits)| (stages.name(key), histogram(waits)));
        let mut rows: BTreeMap<String, Histogram> = BTreeMap::new();
        expected.chain(begun).chain(seen).for_each(|(lock, waits)| rows.entry(lock).or_default().merge(&waits));
        rows.into_iter().map(|(lock, waits)| LockWaits { lock, waits }).collect()
    }

    /// Returns who waits for which of these locks at the moment.
    fn waiting(&self, counted: &Counted, locks: &[LockWaits]) -> Vec<WaitingNow> {
        let now_ns = now_ns(libc::CLOCK_MONOTONIC);
        let mut stages = self.stages.lock();
        let nobody = |lock: &LockWaits| (lock.lock.clone(), (0, 0));
        let mut rows: BTreeMap<String, (u64, u64)> = locks.iter().map(nobody).collect();
        for wait in &counted.waiting {
            let (threads, longest_ns) = rows.entry(stages.name(&wait.key)).or_default();
            *threads += 1;
            *longest_ns = now_ns.saturating_sub(wait.begin_ns).max(*longest_ns);
        }
        rows.into_iter().map(|(lock, (threads, longest_ns))| WaitingNow { lock, threads, longest_ns }).collect()
    }
}

/// Plans for a server what may be done to it.
pub fn planned(target: &Target) -> Arc<LockPlan> {
    static PLANS: PerImage<(bool, bool), LockPlan> = PerImage::new();
    // Only the cookie says which probe a return came from.
    let uretprobes = uretprobes_are_safe(target.pid) && attach_cookies();
    let calls = !has_shadow_stack(target.pid);
    PLANS.of(&target.image, (uretprobes, calls), || lock_plan(&target.image, uretprobes, calls))
}

fn histogram(waits: &types::lock_waits) -> Histogram {
    Histogram { buckets: waits.buckets, count: waits.count, sum_ns: waits.sum_ns, max_ns: waits.max_ns }
}

impl Room for Locks {
    type Figures = Figures;
    type Metrics = LockMetrics;
    type Report = LocksReport;
    type Comparison = Nothing;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Locks>>> {
        on.more?;
        if on.latches.are_without_probes() || beyond_budget(on.max_overhead).is_some() {
            return None;
        }
        Some(Locks::attach(on.target).map(Arc::new).context("waits for row locks and metadata locks are not measured"))
    }
}

impl Measurement for Locks {
    fn refused(&self) -> Vec<String> {
        self.plan.gaps.iter().map(Gap::to_string).chain(self.probes.refused()).collect()
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.probes.status(Some(costs)).unwrap_or_default())
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        let counted = self.probes.counted()?;
        let waits = self.waits(&counted);
        let waiting = if self.probes.are_attached() { self.waiting(&counted, &waits) } else { Vec::new() };
        snapshot.locks = Figures { waits, waiting };
        snapshot.probes.extend(self.probes.status(costs)?);
        self.probes.add_lost(&mut snapshot.lost)
    }

    fn pause(&self) {
        self.probes.detach();
    }

    fn resume(&self) {
        self.probes.attach_again();
    }

    fn detach(&self) {
        self.probes.detach();
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.probes.detach();
    }
}

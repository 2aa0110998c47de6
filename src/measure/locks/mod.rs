//! Waits for locks of the database: for rows, and for metadata. They last until another transaction ends, so they are
//! longer than any wait for a latch, and rarer.

mod compare;
mod figures;
mod metrics;
mod objects;
mod plan;
mod probes;
pub mod record;
pub mod report;
mod stages;

pub use figures::{shares, Figures, LockBlocker, LockWaits, LockedObject, Rested, Sampled, WaitingNow, ROW_LOCK};
pub use metrics::LockMetrics;
pub use plan::{lock_plan, LockPlan, PlannedLockSite, PlannedLockWait};

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use self::compare::LocksComparison;
use self::objects::{ObjectSampler, Seen};
use self::probes::{Counted, LockProbes};
use self::report::LocksReport;
use self::stages::{expected, Stages};
use super::latch::{Gap, StatementDetail};
use super::rest::{Governed, Probes, Shown, INTERVAL};
use super::{cost_ns, Attaching, Measurement, Room, Snapshot};
use crate::attach::{attach_cookies, uretprobes_are_safe, Costs};
use crate::bpf::lock::types;
use crate::host::clock::now_ns;
use crate::model::Histogram;
use crate::server::{has_shadow_stack, Target};
use crate::symbols::PerImage;
use crate::worker::{Stop, Worker};

/// The waits of one server for locks. Dropping it detaches the probes.
pub struct Locks {
    plan: Arc<LockPlan>,
    stages: Arc<Mutex<Stages>>,
    seen: Arc<Seen>,
    shown: Mutex<Shown<LockWaits>>,
    governed: Arc<Governed<LockProbes>>,
    /// The thread that checks what the probes cost, and looks at what waits are for.
    worker: Mutex<Option<Worker>>,
}

impl Locks {
    /// Attaches the probes to `target`, as far as its wait functions are known, and keeps them within a budget of
    /// `max_overhead`, 0 to 1. `statements` says what is shown of statements that block others.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded.
    pub fn attach(target: &Arc<Target>, max_overhead: f64, statements: StatementDetail) -> Result<Locks> {
        let plan = planned(target);
        let governed = Governed::new(Arc::clone(target), LockProbes::attach(target, &plan)?, max_overhead)?;
        let governed = Arc::new(governed);
        let (stages, seen) = (Arc::new(Mutex::new(Stages::new(target))), Arc::new(Seen::default()));
        let checked = Arc::clone(&governed);
        let mut sampler = ObjectSampler::new(target, &plan, &stages, &seen, statements);
        let work = move |stop: &Stop| {
            while stop.wait(INTERVAL) {
                checked.check().unwrap_or_else(|why| tracing::error!("cannot read what the probes cost: {why:#}"));
                if checked.probes.are_attached() {
                    sampler.look(&checked.probes);
                }
            }
        };
        let worker = Worker::start("lock-waits", work);
        let worker = Mutex::new(Some(worker.context("cannot start a thread")?));
        Ok(Locks { plan, stages, seen, shown: Mutex::default(), governed, worker })
    }

    /// Returns what was counted under the name of each lock. Locks that are measured and that every server has are
    /// among them also if no wait has ended.
    fn waits(&self, counted: &Counted) -> Vec<LockWaits> {
        let mut stages = self.stages.lock();
        let measured = self.governed.probes.measured();
        let expected = measured.into_iter().map(|kind| (expected(kind), Histogram::default()));
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
    type Comparison = LocksComparison;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Locks>>> {
        on.more?;
        if on.latches.are_without_probes() {
            return None;
        }
        let locks = Locks::attach(on.target, on.max_overhead, on.latches.shown_statements()).map(Arc::new);
        Some(locks.context("waits for row locks and metadata locks are not measured"))
    }
}

impl Measurement for Locks {
    fn refused(&self) -> Vec<String> {
        self.plan.gaps.iter().map(Gap::to_string).chain(self.governed.probes.refused()).collect()
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.governed.status(Some(costs)).unwrap_or_default())
    }

    fn limit(&self, _share: f64, costs: &Costs) {
        self.governed.limit(costs);
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        let probes = &self.governed.probes;
        snapshot.probes.extend(self.governed.status(costs)?);
        let (rests, rested) = self.governed.rests();
        if let Some(rests) = rests {
            let counted = probes.counted()?;
            snapshot.locks.waits = self.shown.lock().of(self.waits(&counted), rests);
            if probes.are_attached() {
                snapshot.locks.waiting = self.waiting(&counted, &snapshot.locks.waits);
            }
        } else {
            snapshot.locks.waits = self.shown.lock().last();
            snapshot.locks.rests = snapshot.up;
        }
        snapshot.locks.objects = self.seen.objects.all();
        snapshot.locks.blockers = self.seen.blockers.all();
        let rested = (!rested.is_zero()).then_some(Rested { ns: rested.as_nanos() as u64 });
        snapshot.locks.rested = rested.into_iter().collect();
        probes.add_lost(&mut snapshot.lost)
    }

    fn pause(&self) {
        self.governed.pause();
    }

    fn resume(&self) {
        self.governed.resume();
    }

    fn detach(&self) {
        self.governed.end();
        // It may be about to look at them.
        let worker = self.worker.lock().take();
        worker.into_iter().for_each(Worker::end);
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.detach();
    }
}

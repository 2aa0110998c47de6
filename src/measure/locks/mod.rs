//! Waits for locks of the database: for rows, and for metadata. They last until another transaction ends, so they are
//! longer than any wait for a latch, and rarer.

mod compare;
mod figures;
mod metrics;
mod plan;
mod probes;
pub mod record;
pub mod report;
mod rest;
mod stages;

pub use figures::{Figures, LockWaits, WaitingNow, ROW_LOCK};
pub use metrics::LockMetrics;
pub use plan::{lock_plan, LockPlan, PlannedLockSite, PlannedLockWait};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use self::compare::LocksComparison;
use self::probes::{Counted, LockProbes};
use self::report::LocksReport;
use self::rest::{Phase, Rest, Used, INTERVAL, REST};
use self::stages::{expected, Stages};
use super::latch::Gap;
use super::{cost_ns, Attaching, Measurement, Room, Snapshot};
use crate::attach::{attach_cookies, uretprobes_are_safe, Costs};
use crate::bpf::lock::types;
use crate::host::clock::now_ns;
use crate::model::{Histogram, ProbeState, ProbeStatus};
use crate::server::{cpu_time_ns, has_shadow_stack, Target};
use crate::symbols::PerImage;
use crate::worker::{Stop, Worker};

/// The waits of one server for locks. Dropping it detaches the probes.
pub struct Locks {
    plan: Arc<LockPlan>,
    stages: Mutex<Stages>,
    governed: Arc<Governed>,
    /// The thread that checks what the probes cost.
    worker: Mutex<Option<Worker>>,
}

/// The probes, and whether they rest.
struct Governed {
    pid: i32,
    probes: LockProbes,
    state: Mutex<State>,
}

struct State {
    rest: Rest,
    costs: Costs,
    is_paused: bool,
    /// Whether they have rested, which was said.
    have_rested: bool,
}

impl Locks {
    /// Attaches the probes to `target`, as far as its wait functions are known, and keeps them within a budget of
    /// `max_overhead`, 0 to 1.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded.
    pub fn attach(target: &Arc<Target>, max_overhead: f64) -> Result<Locks> {
        let plan = planned(target);
        let governed = Arc::new(Governed::new(target.pid, LockProbes::attach(target, &plan)?, max_overhead)?);
        let checked = Arc::clone(&governed);
        let work = move |stop: &Stop| {
            while stop.wait(INTERVAL) {
                checked.check().unwrap_or_else(|why| tracing::error!("cannot read what the probes cost: {why:#}"));
            }
        };
        let worker = Worker::start("locks", work);
        let worker = Mutex::new(Some(worker.context("cannot start a thread")?));
        Ok(Locks { plan, stages: Mutex::new(Stages::new(target)), governed, worker })
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

impl Governed {
    fn new(pid: i32, probes: LockProbes, max_overhead: f64) -> Result<Governed> {
        let costs = Costs::default();
        let rest = Rest::new(max_overhead, used(pid, &probes, &costs)?);
        Ok(Governed { pid, probes, state: Mutex::new(State { rest, costs, is_paused: false, have_rested: false }) })
    }

    /// Lets the probes rest if they cost too much, or attaches them again.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    fn check(&self) -> Result<()> {
        let mut state = self.state.lock();
        let before = state.rest.phase();
        let now = used(self.pid, &self.probes, &state.costs)?;
        match (before, state.rest.look(now)) {
            (Phase::Measures | Phase::Tries(_), Phase::Rests(_)) => {
                self.probes.detach();
                state.note_rest();
            }
            (Phase::Rests(_), Phase::Tries(_)) if !state.is_paused => self.probes.attach_again(),
            _ => {}
        }
        Ok(())
    }

    /// Goes by these costs from now on.
    fn limit(&self, costs: &Costs) {
        let mut state = self.state.lock();
        state.costs = *costs;
        let Ok(now) = used(self.pid, &self.probes, costs) else { return };
        state.rest.begin_again(now);
        if !state.is_paused {
            self.probes.attach_again();
        }
    }

    /// Detaches the probes for a while, or attaches them again unless they rest.
    fn pause(&self, is_paused: bool) {
        let mut state = self.state.lock();
        state.is_paused = is_paused;
        if is_paused {
            self.probes.detach();
        } else if !matches!(state.rest.phase(), Phase::Rests(_)) {
            self.probes.attach_again();
        }
    }

    /// Returns whether what is counted may be shown: it is not cut into pieces by rests.
    fn is_shown(&self) -> bool {
        self.state.lock().rest.phase() == Phase::Measures
    }

    /// Returns the probes with their hits.
    fn status(&self, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let state = match self.state.lock().have_rested {
            // Also at the end, so that a recording says it.
            true => ProbeState::DutyCycle,
            false if self.probes.are_attached() => ProbeState::Attached,
            false => ProbeState::Detached,
        };
        self.probes.status(state, costs)
    }
}

impl State {
    /// Notes that the probes rest, and says it once.
    fn note_rest(&mut self) {
        let minutes = REST.as_secs() / 60;
        if !std::mem::replace(&mut self.have_rested, true) {
            tracing::warn!(
                "waits for row locks and metadata locks are so many that their probes take more than half of the budget: \
                 they are not measured for {minutes} minutes at a time. A greater --max-overhead measures them"
            );
        }
    }
}

fn used(pid: i32, probes: &LockProbes, costs: &Costs) -> Result<Used> {
    let server_ns = cpu_time_ns(pid).unwrap_or_default();
    Ok(Used { at: Instant::now(), server_ns, charged_ns: probes.charged_ns(costs)? })
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
        let locks = Locks::attach(on.target, on.max_overhead).map(Arc::new);
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
        if self.governed.is_shown() {
            let counted = probes.counted()?;
            let waits = self.waits(&counted);
            let waiting = if probes.are_attached() { self.waiting(&counted, &waits) } else { Vec::new() };
            snapshot.locks = Figures { waits, waiting, rests: false };
        } else {
            snapshot.locks.rests = true;
        }
        probes.add_lost(&mut snapshot.lost)
    }

    fn pause(&self) {
        self.governed.pause(true);
    }

    fn resume(&self) {
        self.governed.pause(false);
    }

    fn detach(&self) {
        // It must not attach them again.
        let worker = self.worker.lock().take();
        worker.into_iter().for_each(Worker::end);
        self.governed.probes.detach();
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.detach();
    }
}

//! Latch waits: which sites to probe in this server's code, and what they counted.

mod attacher;
mod call_stacks;
mod collect;
mod command;
pub mod compare;
mod duty;
mod figures;
mod files;
mod glances;
mod holders;
mod keeper;
mod keys;
mod ledger;
mod load;
mod looks;
mod maps;
mod meter;
mod metrics;
mod missed;
mod plan;
mod predict;
mod pthread;
pub mod record;
pub mod report;
mod sampler;
mod samples;
pub mod shares;
pub(crate) mod stacks;
mod statements;
mod status;
mod taken_out;
mod tally;
mod texts;
mod waiting;

pub use attacher::NoProbe;
pub(super) use call_stacks::whole;
pub use collect::LatchCollector;
pub(super) use figures::NORMAL_95;
pub use figures::{
    error_ns, Account, CallsiteWaits, Figures, Handoffs, LatchWaits, Locality, PageWaits, Reacquires, StackWaits,
    StatementWaits,
};
pub use files::FileOperation;
pub(super) use files::{FileTime, FileTimes};
pub use holders::HolderState;
pub use keys::MapKey;
pub(super) use looks::{attach as attach_to_threads, InTurn};
pub(super) use meter::SHADOW;
pub use metrics::LatchMetrics;
#[cfg(any(test, fuzzing))]
pub(crate) use plan::examine as examine_kept_plan;
pub(super) use plan::{descriptor_register, ip_offset, location, register_offset};
pub use plan::{kept_plan, plan, Allowed, Gap, Plan, PlannedFunction, PlannedProbe, PlannedSite, EVERY_ROUND};
pub use pthread::{rows_of as pthread_rows, thread_id_offset};
pub(super) use stacks::unwind::ADDRESS_BITS;
#[cfg(any(test, fuzzing))]
pub(crate) use statements::digest_text;
pub(super) use statements::{executes, tell_place, Executes, Place, StatementReader};
pub use statements::{find as find_statements, NotRead, StatementDetail, StatementOptions};
pub(super) use texts::{Sample, Texts};
#[cfg(test)]
pub(super) use texts::{Shown, Text};
pub use waiting::{Counted, WaitedFor};

use std::mem::MaybeUninit;
use std::sync::mpsc::{self, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use self::attacher::Attacher;
use self::command::Command;
use self::keeper::{SaysEnd, AFTER_ERROR};
use self::maps::Maps;
use self::statements::SeenStatements;
use self::status::Status;
use super::maps::add_skipped;
use super::{cost_ns, Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::{Budget, Costs, Refusal};
use crate::host::Topology;
use crate::names::Namer;
use crate::server::Target;

/// The latch waits of one server. Dropping it detaches the probes.
pub struct Latches {
    plan: Arc<Plan>,
    probe: LatchProbe,
    collector: Arc<LatchCollector>,
    /// What is shown of statements that are read.
    statements: StatementDetail,
    /// Why statements are not read although they are wanted.
    statements_missing: Option<NotRead>,
}

/// The programs attached to one server, held by a separate thread. Dropping it detaches them.
struct LatchProbe {
    /// What the kernel refused, by name.
    refused: Vec<Refusal<String>>,
    /// Whether sleeps are measured, that is, whether both futex programs could be attached.
    sees_sleeps: bool,
    /// Whether waits are read from the threads' stacks, and no probe is attached.
    without_probes: bool,
    /// The domains between which handoffs are counted; `None` if they are not.
    topology: Option<Topology>,
    /// The statements of waiting threads, if they are read.
    statements: Option<Arc<SeenStatements>>,
    maps: Arc<Maps>,
    status: Arc<Status>,
    commands: Sender<Command>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Latches {
    /// Attaches the programs to `target` at the sites of `plan`. Handoffs between the domains of `topology` are
    /// counted, and what `namer` returns, which is called meanwhile, names what is waited for. `statements` says which
    /// of those that wait are shown.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded, or with [`NoProbe`] when no site at all could be attached.
    pub fn attach(
        target: &Arc<Target>,
        plan: &Arc<Plan>,
        namer: impl FnOnce() -> Namer,
        topology: Option<Topology>,
        without_probes: bool,
        statements: StatementOptions,
    ) -> Result<Latches> {
        // What is not read for waits is not read for other reasons.
        let detail = if statements.only_asked { StatementDetail::Off } else { statements.detail };
        let seen = SeenStatements::new(target, statements).transpose();
        let statements_missing = seen.as_ref().err().copied();
        let seen = seen.ok().flatten().map(Arc::new);
        let topology = topology.filter(|_| !without_probes);
        let (probe, namer) = LatchProbe::attach(target, plan, topology, without_probes, seen, namer)?;
        let collector = Arc::new(LatchCollector::new(Arc::clone(target), namer, plan, &probe));
        Ok(Latches { plan: Arc::clone(plan), probe, collector, statements: detail, statements_missing })
    }

    /// Returns what names the waits, and which latches threads wait for at a moment.
    pub fn collector(&self) -> Arc<LatchCollector> {
        Arc::clone(&self.collector)
    }

    /// Returns whether waits are read from the threads' stacks, so that nothing in the server changes.
    pub(super) fn are_without_probes(&self) -> bool {
        self.probe.without_probes
    }

    /// Keeps the probes within a budget from now on.
    pub fn keep_within(&self, budget: Budget) {
        self.probe.send(Command::Govern(budget));
    }

    /// Returns what is shown of statements that are read from the server's memory.
    pub(super) fn shown_statements(&self) -> StatementDetail {
        self.statements
    }

    /// Returns the statements of waiting threads; `None` if none are read.
    pub(super) fn seen_statements(&self) -> Option<&SeenStatements> {
        self.probe.statements.as_deref()
    }

    pub(super) fn maps(&self) -> Arc<Maps> {
        self.probe.maps()
    }
}

impl Room for Latches {
    type Figures = Figures;
    type Metrics = LatchMetrics;
    // Reports and comparisons are about these.
    type Report = Nothing;
    type Comparison = Nothing;

    /// Returns those that are measured already, because other measurements need them.
    fn begin(on: &mut Attaching) -> Option<Result<Arc<Latches>>> {
        Some(Ok(Arc::clone(on.latches)))
    }
}

/// What stacks do not show in some builds.
const ONLY_ASLEEP: &str =
    "mutexes whose code is inlined into its callers: without probes, waiters are only seen while they \
                           sleep, so the wait time is too low where they spin";

const NO_FUNCTIONS: &str = "InnoDB's latches: armtrace knows no function in which threads of this build wait for them";

impl Measurement for Latches {
    fn refused(&self) -> Vec<String> {
        let gaps = self.plan.gaps.iter().map(Gap::to_string);
        let refused = self.probe.refused.iter().map(Refusal::to_string);
        let statements = self.statements_missing.map(|why| format!("the statements that wait: {}", why.advice()));
        if self.probe.without_probes {
            // What else the plan lacks is about probes.
            let gaps = [(self.plan.has_inlined, ONLY_ASLEEP), (self.plan.functions.is_empty(), NO_FUNCTIONS)];
            let gaps = gaps.into_iter().filter(|(is_so, _)| *is_so).map(|(_, gap)| gap.to_owned());
            return gaps.chain(statements).collect();
        }
        gaps.chain(self.plan.limits.iter().cloned()).chain(refused).chain(statements).collect()
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.collector.probes(Some(costs)).unwrap_or_default())
    }

    fn is_governed(&self) -> bool {
        true
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.latch = self.collector.collect()?;
        snapshot.probes.extend(self.collector.probes(costs)?);
        snapshot.lost.extend(self.collector.lost()?);
        add_skipped(&mut snapshot.lost, &self.probe.maps.skipped)?;
        snapshot.limited = self.probe.status().limited();
        Ok(())
    }

    fn pause(&self) {
        let (off, are_off) = mpsc::channel();
        self.probe.send(Command::Pause(off));
        _ = are_off.recv();
    }

    fn resume(&self) {
        self.probe.send(Command::Resume);
    }

    fn detach(&self) {
        self.probe.detach();
    }
}

impl LatchProbe {
    /// Loads the programs and attaches them to `target` at the sites of `plan`. Handoffs between the domains of
    /// `topology` are counted. The kernel checks the programs for a tenth of a second; `meanwhile` is done beside it.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded, or when no site at all could be attached.
    fn attach<T>(
        target: &Arc<Target>,
        plan: &Arc<Plan>,
        topology: Option<Topology>,
        without_probes: bool,
        statements: Option<Arc<SeenStatements>>,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(LatchProbe, T)> {
        let status = Arc::new(Status::default());
        let (commands, orders) = mpsc::channel();
        let (done, attached) = mpsc::channel();
        let (target, plan, shared) = (Arc::clone(target), Arc::clone(plan), Arc::clone(&status));
        let (wanted, seen) = (topology.clone(), statements.clone());
        let keeper = std::thread::Builder::new().name("probes".to_owned()).spawn(move || {
            let _says_end = SaysEnd(Arc::clone(&shared));
            let mut storage = MaybeUninit::uninit();
            let attempt = Attacher::attach(&mut storage, target, plan, wanted.as_ref(), without_probes, seen, shared);
            match attempt {
                Ok((attacher, attached)) => {
                    _ = done.send(Ok(attached));
                    keeper::keep(attacher, &orders, AFTER_ERROR);
                }
                Err(error) => _ = done.send(Err(error)),
            }
        })?;
        let done_meanwhile = meanwhile();
        let attached = attached.recv().context("the thread that attaches probes has ended")??;
        let probe = LatchProbe {
            refused: attached.refused,
            sees_sleeps: attached.sees_sleeps,
            without_probes,
            topology: topology.filter(|_| attached.sees_wakes),
            statements,
            maps: attached.maps,
            status,
            commands,
            keeper: Mutex::new(Some(keeper)),
        };
        Ok((probe, done_meanwhile))
    }

    fn send(&self, command: Command) {
        // If the thread has ended, nothing is attached.
        _ = self.commands.send(command);
    }

    fn maps(&self) -> Arc<Maps> {
        Arc::clone(&self.maps)
    }

    fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Detaches all probes from the server, and returns when they are detached.
    fn detach(&self) {
        self.send(Command::Detach);
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            _ = keeper.join();
        }
    }
}

impl Drop for LatchProbe {
    fn drop(&mut self) {
        self.detach();
    }
}

//! The agent on one server: its measurements, attached, and the snapshot of what they counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::attach::{self, Budget, Costs, MissingPrivilege};
use crate::export::SnapshotSource;
use crate::host::clock::now_ns;
use crate::host::{Domains, Machine};
use crate::kept::Cache;
use crate::measure::latch::{self, Allowed, LatchCollector, Latches, NoProbe, Plan, StatementOptions};
use crate::measure::statements::StatementCounter;
use crate::measure::watchpoint::WatchpointAccount;
use crate::measure::{Attached, Attaching, Later, Measurement, More, Snapshot};
use crate::memory;
use crate::model::{ProbeStatus, TargetInfo};
use crate::names::Namer;
use crate::recording::{Pace, Recent, Start, SECOND};
use crate::server::{cpu_time_ns, has_shadow_stack, is_another_armtrace, SettingsAt, Target};
use crate::symbols::PerImage;
use crate::worker::{side_by_side, Stop, Worker};

/// The interval at which the cost of hits is measured again. It differs after a migration of a virtual machine, or once
/// the CPU's clock runs slower.
const MEASURE_COSTS: Duration = Duration::from_secs(600);

/// For how long what is known of the server and its host is taken to be true.
const KNOWN: Duration = Duration::from_secs(10);

/// The measurements to make, and their overhead budget.
pub struct Options {
    /// The share of the server's CPU time that probes may take, 0 to 1.
    pub max_overhead: f64,
    /// Whether to attach no probe, and read waits from the threads' stacks instead.
    pub without_probes: bool,
    /// The statements that wait.
    pub statements: StatementOptions,
    /// The parts of this machine between which handoffs of latches are counted.
    pub domains: Domains,
    /// How much of the past is kept; zero for none.
    pub keep: Duration,
    /// Where what is found in a program is kept for the next attachment, if anywhere.
    pub cache: Option<Cache>,
    /// The measurements in addition to waits for latches, if any.
    pub more: Option<More>,
}

/// The reason why nothing was attached to a server.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum AttachError {
    /// This process may not load and attach programs.
    #[error(transparent)]
    Privilege(#[from] MissingPrivilege),
    /// This program offers no site to probe.
    #[error("no latch function of process {pid} ({server}) can be probed; `armtrace doctor --pid {pid}` says why")]
    NoSites {
        /// The process ID.
        pid: i32,
        /// Its maintainer, version and source of symbols, in words.
        server: String,
    },
    /// The process with this ID has ended meanwhile.
    #[error("process {0} has ended")]
    Ended(i32),
    /// The kernel does not permit it.
    #[error("{0:#}. Run armtrace as root, and not in a container without CAP_BPF")]
    NotPermitted(anyhow::Error),
    /// The kernel attaches no probe at all, although it loads the programs.
    #[error("{0:#}. `armtrace doctor` shows what this kernel can do; --no-probes works without")]
    NoProbe(anyhow::Error),
    /// The kernel does not show what threads do that wait.
    #[error(
        "this kernel does not show the registers of other threads, which --no-probes needs: that takes Linux 5.15"
    )]
    NoStacks,
    /// Something else failed.
    #[error("{0:#}. `armtrace doctor` shows what this kernel can do")]
    Failed(anyhow::Error),
}

impl AttachError {
    /// Returns the reason why attaching to `target` failed with `error`.
    fn new(target: &Target, error: anyhow::Error) -> AttachError {
        let kind = error.chain().find_map(|e| e.downcast_ref::<libbpf_rs::Error>()).map(libbpf_rs::Error::kind);
        if target.ended() {
            AttachError::Ended(target.pid)
        } else if kind == Some(libbpf_rs::ErrorKind::PermissionDenied) {
            AttachError::NotPermitted(error)
        } else if error.is::<NoProbe>() {
            AttachError::NoProbe(error)
        } else {
            AttachError::Failed(error)
        }
    }
}

/// Probes attached to one server. Dropping it detaches them.
pub struct Agent {
    /// The server.
    pub target: Arc<Target>,
    source: Arc<Source>,
    /// The threads that do slow work and keep the past.
    workers: Vec<Worker>,
}

/// What hits cost, and what those cost that came before the cost changed.
#[derive(Default)]
struct Prices {
    /// `None` until they are measured.
    costs: Option<Costs>,
    /// The probes as they were at the last change.
    before: Vec<ProbeStatus>,
}

/// The source of snapshots, shared by the code that serves them and the code that shows them.
pub struct Source {
    target: Arc<Target>,
    latches: Arc<Latches>,
    watchpoints: Arc<WatchpointAccount>,
    /// Everything measured, in the order in which it is read.
    measurements: Vec<Arc<dyn Measurement>>,
    attached_at: Instant,
    cpu_at_attach: Option<u64>,
    max_overhead: f64,
    /// What could not be attached, one line each.
    not_measured: Vec<String>,
    /// What was measured lately, if that is kept.
    recent: Option<Arc<Recent>>,
    /// What asks the server, if anything does.
    statements: Option<Arc<StatementCounter>>,
    prices: Mutex<Prices>,
    /// What is known of the server and its host, and when that was read.
    info: Mutex<Option<(Instant, TargetInfo)>>,
    paused: AtomicBool,
    /// Disconnected once everything that takes long is done.
    preparing: Mutex<Receiver<()>>,
}

impl Agent {
    /// Plans for `target` and attaches. Once the cost of hits on this machine is measured, which takes some hundred
    /// milliseconds, the probes are kept within the budget.
    ///
    /// # Errors
    /// Fails if this program offers no site to probe, or if the kernel refuses.
    pub fn attach(mut target: Target, mut options: Options) -> Result<Agent, AttachError> {
        target.cache = options.cache.take();
        attach::require_privilege()?;
        if options.without_probes && !attach::stacks_are_shown() {
            return Err(AttachError::NoStacks);
        }
        take_out_leftovers(target.pid);
        let plan = plan(&target, &options)?;
        let recent = (!options.keep.is_zero()).then(|| Arc::new(recent(&target, &options)));
        let target = Arc::new(target);
        let topology = Machine::this().topology(options.domains);
        let Options { without_probes, statements, .. } = options;
        let latches = Latches::attach(&target, &plan, || Namer::new(&target), topology, without_probes, statements)
            .map_err(|e| AttachError::new(&target, e))?;
        let (latches, watchpoints) = (Arc::new(latches), Arc::new(WatchpointAccount::default()));
        let attached = Attaching::begin(&target, &plan, &latches, options.more.as_ref(), options.max_overhead);
        let Attached { mut measurements, degraded, later } = attached;
        measurements.insert(0, watchpoints.clone());
        let refused = measurements.iter().rev().flat_map(|measurement| measurement.refused());
        let not_measured = degraded.into_iter().chain(refused).collect();
        let (prepared, preparing) = mpsc::channel();
        let cpu_at_attach = cpu_time_ns(target.pid);
        measurements.iter().for_each(|measurement| measurement.all_attached(cpu_at_attach));
        let source = Arc::new(Source {
            latches,
            watchpoints,
            measurements,
            attached_at: Instant::now(),
            cpu_at_attach,
            max_overhead: options.max_overhead,
            not_measured,
            recent,
            statements: options.more.and_then(|more| more.statements),
            prices: Mutex::default(),
            info: Mutex::default(),
            paused: AtomicBool::new(false),
            preparing: Mutex::new(preparing),
            target: Arc::clone(&target),
        });
        target.image.release_memory();
        let prepares = prepare(&source, options.max_overhead, later, prepared);
        let workers = prepares.into_iter().chain(keep(&source)).collect();
        Ok(Agent { target, source, workers })
    }

    /// Returns the source of snapshots, which can outlive the agent.
    pub fn source(&self) -> Arc<Source> {
        Arc::clone(&self.source)
    }

    /// Returns what is not measured, and which probes the kernel refused: one line each.
    pub fn degradations(&self) -> &[String] {
        &self.source.not_measured
    }

    /// Detaches the probes until [`Agent::resume`]; figures do not change meanwhile. Counters of hardware events, and
    /// the program that sees threads end, stay.
    pub fn pause(&self) {
        if !self.source.paused.swap(true, Ordering::Relaxed) {
            self.source.side_by_side(|measurement| measurement.pause());
        }
    }

    /// Attaches the probes again.
    pub fn resume(&self) {
        if self.source.paused.swap(false, Ordering::Relaxed) {
            self.source.measurements.iter().rev().for_each(|measurement| measurement.resume());
        }
    }

    /// Detaches the probes, as dropping it does; figures stay readable from the [`Agent::source`].
    pub fn detach(self) {}
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.workers.clear();
        self.source.side_by_side(|measurement| measurement.detach());
        if let Some(recent) = &self.source.recent {
            recent.end(&self.source.snapshot());
        }
    }
}

impl Source {
    /// Returns the time since attach.
    pub fn age(&self) -> Duration {
        self.attached_at.elapsed()
    }

    /// Returns the collector of latch waits, which names latches and knows those that threads are waiting for.
    pub fn latches(&self) -> Arc<LatchCollector> {
        self.latches.collector()
    }

    /// Returns the account of watchpoints, to which code that sets some adds their cost.
    pub fn watchpoints(&self) -> &WatchpointAccount {
        &self.watchpoints
    }

    /// Returns once the figures that take long to find are in snapshots, or are known to stay absent.
    pub fn wait_until_prepared(&self) {
        _ = self.preparing.lock().recv();
    }

    /// Returns what is known of the server and its host, which seldom changes.
    fn info(&self) -> TargetInfo {
        let mut info = self.info.lock();
        match &*info {
            Some((read_at, known)) if read_at.elapsed() < KNOWN => known.clone(),
            _ => info.insert((Instant::now(), self.target.info())).1.clone(),
        }
    }

    /// Calls `act` on all measurements in parallel, because each call waits for the kernel.
    fn side_by_side(&self, act: impl Fn(&dyn Measurement) + Sync) {
        side_by_side(&self.measurements, |measurement| act(measurement.as_ref()));
    }

    /// Returns the CPU time that everything but latch probes has taken from the server, in nanoseconds.
    fn others_ns(&self, costs: &Costs) -> u64 {
        ungoverned_ns(&self.measurements, costs)
    }
}

/// Returns the CPU time that those of these measurements have taken which do not keep to the budget themselves, in
/// nanoseconds.
fn ungoverned_ns(measurements: &[Arc<dyn Measurement>], costs: &Costs) -> u64 {
    let ungoverned = measurements.iter().filter(|measurement| !measurement.is_governed());
    ungoverned.map(|measurement| measurement.cost_ns(costs)).sum()
}

impl SnapshotSource for Source {
    /// Returns everything measured so far. Reads the kernel's maps.
    fn snapshot(&self) -> Snapshot {
        let costs = self.prices.lock().costs;
        let mut snapshot = Snapshot {
            elapsed: self.attached_at.elapsed(),
            target: self.info(),
            up: !self.target.ended(),
            paused: self.paused.load(Ordering::Relaxed),
            costs: costs.as_ref().map(Costs::by_class).unwrap_or_default(),
            max_overhead: Some(self.max_overhead),
            not_measured: self.not_measured.clone(),
            ..Snapshot::default()
        };
        for measurement in &self.measurements {
            if let Err(error) = measurement.collect(costs.as_ref(), &mut snapshot) {
                tracing::error!("cannot read what was measured: {error:#}");
            }
        }
        self.prices.lock().apply(&mut snapshot.probes);
        let cpu_now = cpu_time_ns(self.target.pid);
        snapshot.server_cpu_ns = cpu_now.zip(self.cpu_at_attach).map(|(now, then)| now.saturating_sub(then));
        snapshot
    }

    fn recent(&self) -> Option<Arc<Recent>> {
        self.recent.clone()
    }

    fn longest_statement(&self) -> Option<Duration> {
        self.statements.as_ref()?.longest()
    }
}

impl Prices {
    /// Changes the costs. `probes` have the hits so far, which keep the cost that they had.
    fn change(&mut self, costs: Costs, probes: Vec<ProbeStatus>) {
        *self = Prices { costs: Some(costs), before: probes };
    }

    /// Gives hits from before the last change the cost that they had. The probes have the present one.
    fn apply(&self, probes: &mut [ProbeStatus]) {
        for (probe, before) in probes.iter_mut().zip(&self.before).filter(|(probe, before)| probe.probe == before.probe)
        {
            let (Some(now), Some(then)) = (probe.trap_ns, before.trap_ns) else { continue };
            let earlier = before.hits.min(probe.hits) as f64;
            if earlier > 0.0 {
                probe.trap_ns = Some((earlier * then + (probe.hits as f64 - earlier) * now) / probe.hits as f64);
            }
        }
    }
}

/// Keeps the probes within the budget, at first by prices that are too high. Starts a thread for slow work, which
/// measures the cost of hits, now and at intervals, and does what measurements have left for later.
fn prepare(source: &Arc<Source>, budget: f64, later: Vec<Later>, prepared: Sender<()>) -> Option<Worker> {
    keep_within(source, budget, Costs::default());
    let source = Arc::clone(source);
    let work = move |stop: &Stop| {
        measure_costs(&source, budget);
        later.into_iter().for_each(|work| work());
        memory::give_back();
        drop(prepared);
        let still_used = Arc::downgrade(&source);
        drop(source);
        while stop.wait(MEASURE_COSTS) {
            let Some(source) = still_used.upgrade() else { return };
            measure_costs(&source, budget);
        }
    };
    let started = Worker::start("prepare", work);
    started.inspect_err(|why| tracing::warn!("probe costs are not known, and some figures are missing: {why}")).ok()
}

/// Starts a thread that keeps the past, if it is to be kept.
fn keep(source: &Arc<Source>) -> Option<Worker> {
    let recent = source.recent()?;
    let kept = Arc::downgrade(source);
    let mut pace = Pace::new(source.max_overhead);
    let work = move |stop: &Stop| {
        let mut next = Instant::now();
        while stop.wait(SECOND) {
            if Instant::now() < next && !recent.is_watched() {
                continue;
            }
            let begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
            let Some(now) = kept.upgrade().map(|source| source.snapshot()) else { return };
            if !now.up {
                return recent.end(&now);
            }
            recent.add(&now);
            let took = Duration::from_nanos(now_ns(libc::CLOCK_THREAD_CPUTIME_ID) - begin);
            // It is looked at once a second whether that time has come.
            next = Instant::now() + pace.next(&now, took) - SECOND / 2;
        }
    };
    let started = Worker::start("hindsight", work);
    started.inspect_err(|why| tracing::warn!("the past is not kept: {why}")).ok()
}

/// Measures what hits cost. The budget goes by that from now on if it was not known, or has changed.
fn measure_costs(source: &Arc<Source>, budget: f64) {
    let costs = match attach::calibrate() {
        Ok(costs) => costs,
        Err(error) => {
            tracing::warn!("the cost of probes cannot be measured: {error:#}");
            return;
        }
    };
    let known = source.prices.lock().costs;
    if known.is_some_and(|known| !known.have_drifted(&costs)) {
        return;
    }
    if known.is_some() {
        tracing::info!("a hit of a probe does not cost what it did: {:?} ns", costs.by_class());
    }
    let probes = source.snapshot().probes;
    source.prices.lock().change(costs, probes);
    source.measurements.iter().for_each(|measurement| measurement.limit(budget, &costs));
    keep_within(source, budget, costs);
}

fn keep_within(source: &Arc<Source>, budget: f64, costs: Costs) {
    // The latches must not keep alive what contains them.
    let others = Arc::downgrade(source);
    let others_ns = move || others.upgrade().map_or(0, |source| source.others_ns(&costs));
    source.latches.keep_within(Budget { share: budget, costs, others_ns: Box::new(others_ns) });
}

/// Takes out what another tracer has left in the server's code, before this one's breakpoints are there.
fn take_out_leftovers(pid: i32) {
    match attach::take_out_leftovers(pid) {
        Ok(0) => {}
        // It may have detached meanwhile.
        Ok(n) if is_another_armtrace() => tracing::debug!("breakpoints that were there and are not any more: {n}"),
        Ok(n) => tracing::warn!("breakpoints that a killed tracer had left in the server's code, now taken out: {n}"),
        Err(error) => tracing::warn!("cannot see whether killed tracers left breakpoints: {error:#}"),
    }
}

/// Returns where to keep what is measured on this server.
fn recent(target: &Target, options: &Options) -> Recent {
    let settings = SettingsAt::of(target);
    let start = Start::here(target, settings.read(), options.without_probes);
    Recent::new(start, options.keep).with_settings(move || settings.read())
}

/// Plans the sites of latch waits.
fn plan(target: &Target, options: &Options) -> Result<Arc<Plan>, AttachError> {
    static PLANS: PerImage<Allowed, Plan> = PerImage::new();
    let allowed = allowed(target.pid, options.max_overhead);
    let plan = PLANS.of(&target.image, allowed, || match &target.cache {
        Some(cache) => latch::kept_plan(cache, &target.image, target.family, allowed),
        None => latch::plan(&target.image, target.family, allowed),
    });
    if plan.sites.is_empty() && !options.without_probes && !target.family.wait_functions.is_empty() {
        let (flavor, symbols) = (target.flavor.as_str(), target.image.symbol_source().as_str());
        let server = format!("{flavor} {}, symbols: {symbols}", target.version);
        return Err(AttachError::NoSites { pid: target.pid, server });
    }
    Ok(plan)
}

/// Returns what may be used on process `pid`, on this kernel, within this share of its CPU time (0 to 1).
pub fn allowed(pid: i32, max_overhead: f64) -> Allowed {
    Allowed {
        // Only the cookie says which function a return came from.
        uretprobes: attach::uretprobes_are_safe(pid) && attach::attach_cookies(),
        calls: !has_shadow_stack(pid),
        many_sites: attach::uprobe_multi_works(),
        every_round: 100.0 * max_overhead >= latch::EVERY_ROUND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProbeState;

    fn probe(hits: u64, costs: &Costs) -> ProbeStatus {
        ProbeStatus {
            probe: "begin".to_owned(),
            state: ProbeState::Attached,
            hits,
            trap_ns: costs.emulated,
            program_ns: 0,
        }
    }

    /// What was paid stays paid: the cost of a probe is a counter.
    #[test]
    fn hits_keep_the_cost_that_they_had() {
        let [high, low] = [3000.0, 1000.0].map(|ns| Costs { emulated: Some(ns), ..Costs::default() });
        let mut prices = Prices::default();
        let cost = |prices: &Prices, hits, costs: &Costs| {
            let mut probes = [probe(hits, costs)];
            prices.apply(&mut probes);
            probes[0].total_cost_ns().unwrap()
        };
        prices.change(high, vec![probe(10, &Costs::default())]);
        assert_eq!(cost(&prices, 20, &high), 60_000.0, "those before the first cost have that one");
        prices.change(low, vec![probe(20, &high)]);
        assert_eq!(cost(&prices, 20, &low), 60_000.0);
        assert_eq!(cost(&prices, 30, &low), 70_000.0);
    }

    struct Costing {
        is_governed: bool,
        ns: u64,
    }

    impl Measurement for Costing {
        fn cost_ns(&self, _costs: &Costs) -> u64 {
            self.ns
        }

        fn is_governed(&self) -> bool {
            self.is_governed
        }

        fn collect(&self, _costs: Option<&Costs>, _snapshot: &mut Snapshot) -> anyhow::Result<()> {
            Ok(())
        }
    }

    /// Were they charged for what they cost themselves, latch probes would have half of the budget.
    #[test]
    fn what_is_governed_is_not_charged_twice_wherever_it_is_in_the_list() {
        let costing = |is_governed, ns| Arc::new(Costing { is_governed, ns }) as Arc<dyn Measurement>;
        for order in [[(false, 1), (true, 100), (false, 10)], [(true, 100), (false, 1), (false, 10)]] {
            let measurements = order.map(|(is_governed, ns)| costing(is_governed, ns));
            assert_eq!(ungoverned_ns(&measurements, &Costs::default()), 11);
        }
    }

    #[test]
    fn small_differences_are_no_drift() {
        let costs = |ns: f64| Costs { emulated: Some(ns), ..Costs::default() };
        assert!(!costs(1000.0).have_drifted(&costs(1300.0)));
        assert!(costs(1000.0).have_drifted(&costs(1600.0)) && costs(1600.0).have_drifted(&costs(1000.0)));
        assert!(!costs(1000.0).have_drifted(&Costs::default()), "it could not be measured this time");
        assert!(Costs::default().have_drifted(&costs(1000.0)));
    }
}

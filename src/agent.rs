//! The agent on one server: attached probes, and the snapshot of what they measured.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::attach::{self, Budget, Costs, Division, Places, SYSTEM};
use crate::audit;
use crate::export::SnapshotSource;
use crate::failure::Failure;
use crate::model::{Checksum, ProbeState, ProbeStatus, Snapshot};
use crate::names::Namer;
use crate::probe::cpu::{self, CpuCollector, CpuFigures, CpuProbe, SpinReader};
use crate::probe::hardware::HardwareProbe;
use crate::probe::latch::{self, Allowed, LatchCollector, LatchFigures, LatchProbe, Plan};
use crate::target::{cpu_time_ns, StatementCounter, Target};

/// Probes attached to one server. Dropping it takes them off.
pub struct Agent {
    pub target: Arc<Target>,
    pub plan: Arc<Plan>,
    probe: LatchProbe,
    cpu: Option<CpuProbe>,
    cpu_refused: Option<String>,
    source: Arc<Source>,
}

/// What snapshots are made of; shared with whoever serves or shows them.
pub struct Source {
    target: Arc<Target>,
    latches: Arc<LatchCollector>,
    cpu: Option<Arc<CpuCollector>>,
    hardware: HardwareProbe,
    plan: Arc<Plan>,
    checksums: OnceLock<Vec<Checksum>>,
    spin: OnceLock<Option<SpinReader>>,
    attached_at: Instant,
    cpu_at_attach: Option<u64>,
    costs: OnceLock<Costs>,
    static_barriers: OnceLock<Vec<(String, u64)>>,
    statements: OnceLock<StatementCounter>,
    watchpoints: Mutex<Option<ProbeStatus>>,
    paused: AtomicBool,
}

impl Agent {
    /// Plans for `target` and attaches. Each CPU is sampled `sample_hz` times a second; 0: CPU time is not sampled. Handoffs
    /// are told apart by the parts that `division` makes of this machine. `max_overhead` is the share of its CPU time that probes
    /// are to be kept within.
    ///
    /// # Errors
    /// Status 3 when this binary offers no site to probe, 4 when the kernel refuses, 1 otherwise.
    pub fn attach(target: Target, sample_hz: u32, division: Division, max_overhead: f64) -> Result<Agent, Failure> {
        attach::require_privilege()?;
        let plan = Arc::new(latch::plan(&target.image, target.family, allowed(target.pid, max_overhead)));
        if plan.sites.is_empty() && !target.family.wait_functions.is_empty() {
            return Err(Failure::target(format!(
                "no latch function of process {} ({} {}, symbols: {}) can be probed; `armtrace doctor --pid {0}` says why",
                target.pid,
                target.flavor.as_str(),
                target.version,
                target.image.symbol_source().as_str()
            )));
        }
        let target = Arc::new(target);
        let namer = Namer::new(&target)?;
        let probe = LatchProbe::attach(&target, &plan, Places::of(division, Path::new(SYSTEM)))
            .map_err(|e| attach_failure(&target, &e))?;
        // Latches are what this is for: they are measured without it too.
        let sampling = (sample_hz > 0).then(|| CpuProbe::attach(&target, sample_hz, &plan, &probe)).transpose();
        let (cpu, cpu_refused) = sampling.map_or_else(|e| (None, Some(format!("{e:#}"))), |cpu| (cpu, None));
        let source = Arc::new(Source {
            latches: Arc::new(LatchCollector::new(Arc::clone(&target), namer, &plan, &probe)),
            cpu: cpu.as_ref().map(CpuProbe::collector),
            hardware: HardwareProbe::new(target.pid),
            plan: Arc::clone(&plan),
            checksums: OnceLock::new(),
            spin: OnceLock::new(),
            attached_at: Instant::now(),
            cpu_at_attach: cpu_time_ns(target.pid),
            costs: OnceLock::new(),
            static_barriers: OnceLock::new(),
            statements: OnceLock::new(),
            watchpoints: Mutex::default(),
            paused: AtomicBool::new(false),
            target: Arc::clone(&target),
        });
        target.image.release_memory();
        Ok(Agent { target, plan, probe, cpu, cpu_refused, source })
    }

    pub fn source(&self) -> Arc<Source> {
        Arc::clone(&self.source)
    }

    /// What is not measured, and which probes the kernel refused: one line each.
    pub fn degradations(&self) -> Vec<String> {
        let gaps = self.plan.gaps.iter().map(|(name, why)| format!("{name} is not measured: {why}"));
        let sampling = self.cpu_refused.iter().map(|why| format!("CPU time is not sampled: {why}"));
        let refused = self.probe.refused.iter().chain(self.cpu.iter().flat_map(|cpu| &cpu.refused));
        let limits = self.plan.limits.iter().cloned();
        gaps.chain(limits)
            .chain(sampling)
            .chain(refused.map(|(site, why)| format!("probe {site} was refused: {why}")))
            .collect()
    }

    /// To be called once, by any thread: finds out what hits cost here, which takes some hundred milliseconds, and keeps
    /// the probes within this share of the server's CPU time (0 to 1) from then on.
    pub fn keep_within(&self, budget: f64) -> impl FnOnce() + Send + 'static {
        let source = Arc::clone(&self.source);
        let keep = self.probe.keep_within();
        move || match attach::calibrate() {
            Ok(costs) => {
                _ = source.costs.set(costs);
                let others_ns =
                    move || source.cpu.as_ref().map_or(0, |cpu| cpu.taken_ns(&costs)) + source.further_ns(&costs);
                keep(Budget { share: budget, costs, others_ns: Box::new(others_ns) });
            }
            Err(error) => tracing::warn!("probe costs are not known, so no budget is kept: {error:#}"),
        }
    }

    /// Takes the probes off the server until [`Agent::resume`]: what is counted stands still meanwhile. Counters of hardware events and what
    /// sees threads end stay.
    pub fn pause(&mut self) {
        if self.source.paused.swap(true, Ordering::Relaxed) {
            return;
        }
        self.source.hardware.pause();
        // Side by side: each waits for the kernel.
        let (cpu, probe) = (&mut self.cpu, &self.probe);
        std::thread::scope(|scope| {
            scope.spawn(|| cpu.iter_mut().for_each(CpuProbe::pause));
            probe.pause();
        });
    }

    /// Puts the probes back.
    pub fn resume(&mut self) {
        if !self.source.paused.swap(false, Ordering::Relaxed) {
            return;
        }
        self.probe.resume();
        self.source.hardware.resume();
        if let Some(Err(error)) = self.cpu.as_mut().map(CpuProbe::resume) {
            tracing::warn!("CPU time is not sampled any more: {error:#}");
        }
    }

    /// Takes the probes off the server; counted figures stay readable.
    pub fn detach(&mut self) {
        self.source.hardware.detach();
        // Side by side: each waits for the kernel.
        let (cpu, probe) = (&mut self.cpu, &mut self.probe);
        std::thread::scope(|scope| {
            scope.spawn(|| cpu.iter_mut().for_each(CpuProbe::detach));
            probe.detach();
        });
    }
}

impl Source {
    /// Time since attach.
    pub fn age(&self) -> Duration {
        self.attached_at.elapsed()
    }

    /// What latch waits are read from, and which latches threads wait for at a moment.
    pub fn latches(&self) -> Arc<LatchCollector> {
        Arc::clone(&self.latches)
    }

    /// From now on snapshots and the budget know of watchpoints on the server's memory: so many more accesses were reported, at
    /// this price each.
    pub fn count_watchpoints(&self, state: ProbeState, hits: u64, hit_ns: f64) {
        let mut watchpoints = self.watchpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let hits = hits + watchpoints.as_ref().map_or(0, |before| before.hits);
        let probe = "watchpoint".to_owned();
        *watchpoints = Some(ProbeStatus { probe, state, hits, trap_ns: Some(hit_ns), program_ns: 0 });
    }

    fn watchpoints(&self) -> Option<ProbeStatus> {
        self.watchpoints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// CPU time that watchpoints and samples of hardware events have taken from the server, nanoseconds.
    fn further_ns(&self, costs: &Costs) -> u64 {
        let further = self.watchpoints().into_iter().chain(self.hardware.probe(Some(costs)));
        further.filter_map(|probe| probe.total_cost_ns()).sum::<f64>() as u64
    }

    /// Finds out how the server computes its checksums and how it spins; until then snapshots say nothing of that. Takes some
    /// tenths of a second.
    pub fn look_into_code(&self) {
        let read = || cpu::checksums(&self.target);
        self.checksums.get_or_init(|| self.cpu.as_ref().map_or_else(read, |cpu| cpu.checksums().to_vec()));
        self.spin.get_or_init(|| SpinReader::new(&self.target, &self.plan));
        self.target.image.release_memory();
    }

    /// Finds out which hardware events this host truly counts, and counts them from then on; until then snapshots have none. Takes some
    /// tenths of a second.
    pub fn count_hardware_events(&self) {
        self.hardware.start(self.target.image.arch(), self.cpu.as_ref());
    }

    /// Has snapshots say what this counts.
    pub fn count_statements(&self, statements: StatementCounter) {
        drop(self.statements.set(statements));
    }

    /// Counts the barriers in the server's code; until then snapshots have none. Takes some tenths of a second of CPU time.
    pub fn count_barriers(&self) {
        let image = &self.target.image;
        match audit::count(image) {
            Ok(counted) => {
                let named =
                    |(class, n): (u8, u32)| (audit::classes(image.arch())[usize::from(class)].name, u64::from(n));
                let counts = counted.totals.iter().map(named).map(|(name, n)| (name.to_owned(), n));
                drop(self.static_barriers.set(counts.collect()));
            }
            Err(error) => tracing::warn!("the server's barriers are not counted: {error}"),
        }
        image.release_memory();
    }
}

impl SnapshotSource for Source {
    /// Everything measured so far. Reads the kernel's maps.
    fn snapshot(&self) -> Snapshot {
        let cpu = self.cpu.as_ref().map_or_else(|| Ok(CpuFigures::default()), |cpu| cpu.collect(self.costs.get()));
        let cpu = cpu.unwrap_or_else(|error| {
            tracing::error!("cannot read what was sampled: {error:#}");
            CpuFigures::default()
        });
        let figures = self.latches.collect(self.costs.get(), &cpu.spins).unwrap_or_else(|error| {
            tracing::error!("cannot read what was measured: {error:#}");
            LatchFigures::default()
        });
        let cpu_now = cpu_time_ns(self.target.pid);
        let further = self.watchpoints().into_iter().chain(self.hardware.probe(self.costs.get()));
        Snapshot {
            elapsed: self.attached_at.elapsed(),
            target: self.target.info(),
            up: !self.target.ended(),
            paused: self.paused.load(Ordering::Relaxed),
            latches: figures.latches,
            sleeps_seen: self.latches.sleeps_seen(),
            reacquires: figures.reacquires,
            callsites: figures.callsites,
            pages: figures.pages,
            places: self.latches.places().to_vec(),
            handoffs: figures.handoffs,
            cpu: cpu.cpu,
            ordering: cpu.ordering,
            checksums: self.checksums.get().cloned().unwrap_or_default(),
            checksum_calls: cpu.checksum_calls,
            spin: self.spin.get().and_then(Option::as_ref).and_then(SpinReader::read),
            getcpu_calls: cpu.getcpu_calls,
            events: self.hardware.collect(),
            event_functions: self.hardware.functions(),
            probes: [figures.probes, cpu.probes].into_iter().flatten().chain(further).collect(),
            costs: self.costs.get().map(Costs::by_class).unwrap_or_default(),
            lost: [figures.lost, cpu.lost].into_iter().flatten().chain(self.hardware.lost()).collect(),
            static_barriers: self.static_barriers.get().cloned().unwrap_or_default(),
            statements: self.statements.get().and_then(StatementCounter::latest),
            server_cpu_ns: cpu_now.zip(self.cpu_at_attach).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// What may be used on process `pid`, on this kernel, within this share of its CPU time (0 to 1).
pub fn allowed(pid: i32, max_overhead: f64) -> Allowed {
    Allowed {
        // Where a return came from is told by the cookie alone.
        uretprobes: attach::uretprobes_are_safe(pid) && attach::attach_cookies(),
        calls: !attach::has_shadow_stack(pid),
        many_sites: attach::uprobe_multi_works(),
        every_round: 100.0 * max_overhead >= latch::EVERY_ROUND,
    }
}

/// The kernel's refusal as the user needs to hear it.
fn attach_failure(target: &Target, error: &anyhow::Error) -> Failure {
    if target.ended() {
        return Failure::target(format!("process {} has ended", target.pid));
    }
    let kind = error.chain().find_map(|e| e.downcast_ref::<libbpf_rs::Error>()).map(libbpf_rs::Error::kind);
    match kind {
        Some(libbpf_rs::ErrorKind::PermissionDenied) => {
            Failure::privilege(format!("{error:#}. Run armtrace as root, outside of containers without CAP_BPF"))
        }
        _ => Failure::running(format!("{error:#}. `armtrace doctor` shows what this kernel can do")),
    }
}

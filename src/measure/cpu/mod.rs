//! CPU time: samples of where the server's threads run, by function and by the function's class.

pub(super) mod code_map;
pub mod compare;
mod figures;
mod getcpu;
pub(super) mod kernel;
mod known;
mod metrics;
pub mod record;
pub mod report;
mod shares;
mod statements;
mod table;

pub use code_map::{CodeMap, Named};
pub use figures::{CpuTime, Figures, OrderingTime, StatementCpu};
pub use getcpu::{getcpu, Getcpu, GetcpuPath};
pub use metrics::CpuMetrics;
pub use shares::Shares;
pub use table::Table;

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapHandle, TracepointCategory};
use parking_lot::{Mutex, MutexGuard};

use self::kernel::KernelSymbols;
use self::statements::{samples_per_statement, CpuStatements};
use super::address_space::AddressSpace;
use super::checksum::{Checksums, Chosen};
use super::maps::{add_skipped, entries, of_cpus, sum_over_cpus, take_entries};
use super::{cost_ns, Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::{attach_clock, detach_all, open_clock, Costs, Link, ProbeClass, Refusal, Skipped};
use crate::bpf::bytes_of;
use crate::bpf::sample::{types, SampleSkel, SampleSkelBuilder};
use crate::host::Machine;
use crate::measure::latch::{self, tell_place, LatchCollector, Latches, MapKey, Plan};
use crate::memory;
use crate::model::{CpuClass, ProbeState, ProbeStatus};
use crate::server::{cpu_time_ns, Target};
use crate::worker::Worker;

/// The names of the causes in `enum sample_lost`, in its order.
const LOST: [&str; types::sample_lost::SAMPLE_LOST_CAUSES.0 as usize] = ["samples_full", "spins_full", "samples_busy"];

/// The probe that samples a CPU.
const CLOCK: &str = "cpu_sample";
/// The probe that counts `getcpu` system calls.
const GETCPU: &str = "getcpu_enter";

/// The interval at which samples are taken out of the kernel.
const DRAIN: Duration = Duration::from_secs(1);

/// Longer than it takes to add up samples if no file has to be read.
const SHORT_WAIT: Duration = Duration::from_millis(200);
/// Longer than it takes if files have to be read, on a slow machine.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// The sampling frequency unless the user gives one, in hertz. It is not a multiple of the frequencies of usual timers.
const USUAL_HZ: u32 = 99;

/// The part of the budget that samples may take. They have no turns, and what they take is missing for the latches.
/// Where an interrupt is expensive, as in some virtual machines, the frequency is lower than usual for that, but not
/// lower than this, in hertz.
const BUDGET_PART: f64 = 0.25;
const LEAST_HZ: f64 = 19.0;

/// How long the program of a sample runs with cold caches, in nanoseconds. With the interrupt, it counts twice against
/// the budget.
const PROGRAM_NS: f64 = 5_000.0;

/// The kernel has room for this many times the number of addresses that are sampled in that time, within the bounds
/// below.
const ROOM: u64 = 4;
const LEAST_ROOM: u64 = 4096;
const MOST_ROOM: u64 = 1 << 18;

/// The CPU time of one server: a clock on each CPU that samples its threads. Dropping it detaches the clocks.
pub struct CpuSampler {
    clocks: Arc<Mutex<Clocks>>,
    collector: Arc<CpuCollector>,
    /// Drains samples, and follows the CPUs.
    drainer: Mutex<Option<Worker>>,
    /// Whether the user gave the frequency, so that it is kept.
    is_given: bool,
}

/// The clocks on all CPUs, with the program that they run.
struct Clocks {
    // The links of its programs.
    links: Vec<Link>,
    /// The CPUs that were online when they were attached.
    cpus: Vec<i32>,
    skel: SampleSkel<'static>,
    period_ns: u64,
    counts_getcpu: bool,
    /// The CPUs that are not sampled, and the system call that is not counted.
    refused: Vec<Refusal<Sampling>>,
}

/// What was sampled so far.
pub struct CpuCollector {
    samples: MapHandle,
    spins: MapHandle,
    hits: MapHandle,
    lost: MapHandle,
    skipped: Skipped,
    /// What threads executed that ran, if statements are read.
    statements: Option<CpuStatements>,
    /// The map of counters.
    getcpu_calls: Option<MapHandle>,
    /// The latches that learn how long their waiters spin.
    latches: Arc<LatchCollector>,
    pid: i32,
    hz: u32,
    paused: AtomicBool,
    /// Whether everything is attached, so that samples count. Changes only while the state is locked.
    counts: AtomicBool,
    /// Whether the clocks are detached for good, so that the next figures are the last ones.
    ended: AtomicBool,
    shares: Mutex<Shares>,
    state: Mutex<State>,
    /// The table's contents when samples were last added to it.
    last: Mutex<Last>,
}

/// CPU time by function, and the part of it in instructions that order memory.
#[derive(Clone, Default)]
struct Last {
    time: Vec<CpuTime>,
    ordering: Vec<OrderingTime>,
    statements: Vec<StatementCpu>,
}

struct State {
    code: CodeMap,
    table: Table<CpuClass>,
    /// CPU time by instruction.
    ordering: Table<&'static str>,
    spins: HashMap<MapKey, Spun>,
}

/// The samples of a latch's waiters so far, and the CPU time that they stand for.
#[derive(Default)]
struct Spun {
    samples: u64,
    ns: u64,
}

impl CpuSampler {
    /// Samples the threads of `target` on every CPU, at `given` hertz if the user gave a frequency. `plan` has its wait
    /// functions, `checksums` the implementations that it has chosen, and `latches` knows which thread waits for what.
    ///
    /// # Errors
    /// Fails when the program cannot be loaded, or when no CPU has a clock for it.
    pub(crate) fn attach(
        target: &Arc<Target>,
        given: Option<u32>,
        plan: &Plan,
        checksums: &[Chosen],
        latches: &Latches,
    ) -> Result<CpuSampler> {
        let hz = given.unwrap_or(USUAL_HZ);
        let period_ns = 1_000_000_000 / u64::from(hz.max(1));
        // This leaks a few bytes once per server, so that clocks can be reattached after a pause.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SampleSkelBuilder::default().open(storage).context("opening the sampling program")?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("the program has no constants")?;
        rodata.target_tgid = target.pid as u32;
        rodata.ip_register = u32::from(latch::ip_offset(target.image.arch()));
        rodata.futex_number = libc::SYS_futex;
        rodata.getcpu_number = libc::SYS_getcpu;
        open.maps.samples.set_max_entries(room(Machine::this().online_cpus().len(), hz))?;
        open.maps.threads.reuse_fd(latches.maps().threads.as_fd())?;
        open.maps.at_clock.reuse_fd(latches.maps().at_clock.as_fd())?;
        open.maps.attachments.reuse_fd(latches.maps().attachments.as_fd())?;
        // While any system call has a tracepoint, the kernel takes the slow path for all system calls on the host.
        let may_be_call = || getcpu(target).is_some_and(|found| found.path.may_be_system_call());
        let counts_getcpu = !latches.are_without_probes() && may_be_call();
        open.progs.getcpu_enter.set_autoload(counts_getcpu);
        let seen = latches.seen_statements().and_then(|seen| Some((seen, seen.place(target)?)));
        if let Some((_, place)) = seen {
            tell_place!(rodata, place);
            rodata.reads_in_kernel = Machine::this().kernel_version().is_some_and(statements::may_read_in_kernel);
            open.maps.statements.set_max_entries(statements::ROOM)?;
        }
        let mut skel = open.load().context("loading the sampling program into the kernel")?;
        let cpus = Machine::this().online_cpus();
        if seen.is_some() {
            read_statements(&mut skel, samples_per_statement(cpus.len(), f64::from(hz)));
        }
        let (links, refused) = attach_all(&skel, &cpus, period_ns, counts_getcpu)?;
        let sees_getcpu = counts_getcpu && !refused.iter().any(|refusal| refusal.probe == Sampling::Getcpu);
        let queue = MapHandle::try_from(&skel.maps.statements)?;
        let collector = Arc::new(CpuCollector {
            samples: MapHandle::try_from(&skel.maps.samples)?,
            spins: MapHandle::try_from(&skel.maps.spins)?,
            hits: MapHandle::try_from(&skel.maps.sample_hits)?,
            lost: MapHandle::try_from(&skel.maps.lost_samples)?,
            skipped: Skipped::of(skel.object().progs().filter(|program| program.autoload()))?,
            statements: seen.map(|(seen, _)| CpuStatements::new(queue, seen.of_running())),
            latches: latches.collector(),
            getcpu_calls: sees_getcpu.then(|| MapHandle::try_from(&skel.maps.getcpu_calls)).transpose()?,
            pid: target.pid,
            hz,
            paused: AtomicBool::new(false),
            counts: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            shares: Mutex::new(Shares::new(period_ns, cpu_time_ns(target.pid))),
            state: Mutex::new(State {
                code: CodeMap::new(AddressSpace::new(Arc::clone(target)), plan, checksums),
                table: Table::default(),
                ordering: Table::default(),
                spins: HashMap::new(),
            }),
            last: Mutex::default(),
        });
        let clocks = Arc::new(Mutex::new(Clocks { links, cpus, skel, period_ns, counts_getcpu, refused }));
        let drainer = Mutex::new(Some(drain_regularly(&collector, &clocks)?));
        Ok(CpuSampler { clocks, collector, drainer, is_given: given.is_some() })
    }

    /// Returns what attributes addresses of the server to its functions.
    pub(crate) fn collector(&self) -> Arc<CpuCollector> {
        Arc::clone(&self.collector)
    }
}

impl Room for CpuSampler {
    type Figures = Figures;
    type Metrics = CpuMetrics;
    // Every report and comparison relates waits to CPU time, and has it in a field of its own.
    type Report = Nothing;
    type Comparison = Nothing;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<CpuSampler>>> {
        let given = on.more?.sample_hz;
        if given == Some(0) {
            return None;
        }
        let chosen = on.begun.checksum.as_deref().map_or(&[][..], Checksums::chosen);
        let sampler = CpuSampler::attach(on.target, given, on.plan, chosen, on.latches);
        if let Ok(sampler) = &sampler {
            // The thread that takes samples has begun with it; a recording's end waits for what is done later.
            let collector = sampler.collector();
            on.later(move || collector.prepare());
        }
        Some(sampler.map(Arc::new).context("CPU time is not sampled"))
    }
}

impl Measurement for CpuSampler {
    fn refused(&self) -> Vec<String> {
        self.clocks.lock().refused.iter().map(Refusal::to_string).collect()
    }

    fn all_attached(&self, server_cpu_ns: Option<u64>) {
        if let Err(error) = self.collector.begin_to_count(server_cpu_ns) {
            tracing::error!("cannot read the samples of CPU time: {error:#}");
        }
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.collector.probes(Some(costs)).unwrap_or_default())
    }

    fn limit(&self, share: f64, costs: &Costs) {
        let Some(affordable) = costs.of(ProbeClass::Clock).map(|ns| affordable_hz(share, ns)) else { return };
        let hz = affordable.min(f64::from(self.collector.hz));
        let period_ns = (1e9 / hz) as u64;
        let mut clocks = self.clocks.lock();
        if self.is_given || period_ns == clocks.period_ns {
            return;
        }
        tracing::info!("CPU time is sampled at {hz:.0} Hz, by the price of an interrupt here");
        clocks.period_ns = period_ns;
        if self.collector.statements.is_some() {
            let one_of = samples_per_statement(clocks.cpus.len(), hz);
            read_statements(&mut clocks.skel, one_of);
        }
        self.collector.shares.lock().set_period(period_ns);
        clocks.attach_anew();
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.cpu = self.collector.collect()?;
        snapshot.probes.extend(self.collector.probes(costs)?);
        snapshot.lost.extend(self.collector.lost()?);
        add_skipped(&mut snapshot.lost, &self.collector.skipped)
    }

    fn pause(&self) {
        detach_all(std::mem::take(&mut self.clocks.lock().links));
        self.collector.set_paused(true);
    }

    fn resume(&self) {
        self.collector.set_paused(false);
        self.clocks.lock().attach_or_warn();
    }

    fn detach(&self) {
        // Do not wait for it: it may be reading a library at the moment. Only the last figures wait for that.
        self.drainer.lock().take();
        detach_all(std::mem::take(&mut self.clocks.lock().links));
        self.collector.ended.store(true, Ordering::Relaxed);
    }
}

impl Drop for CpuSampler {
    fn drop(&mut self) {
        self.detach();
    }
}

impl Clocks {
    /// Gives clocks to CPUs that have come online since they were attached: to ones that were offline then, and to ones
    /// that have lost theirs by going offline, unless they came back before anybody looked.
    fn follow_cpus(&mut self) {
        let cpus = Machine::this().online_cpus();
        if cpus != self.cpus {
            tracing::info!("{} CPUs are online, and were {}", cpus.len(), self.cpus.len());
            self.attach_anew();
        }
    }

    /// Attaches the clocks in place of those that there are. While they are paused, there are none.
    fn attach_anew(&mut self) {
        if !self.links.is_empty() {
            detach_all(std::mem::take(&mut self.links));
            self.attach_or_warn();
        }
    }

    /// Attaches the clocks again, or warns that no CPU has a clock any more.
    fn attach_or_warn(&mut self) {
        self.cpus = Machine::this().online_cpus();
        match attach_all(&self.skel, &self.cpus, self.period_ns, self.counts_getcpu) {
            Ok(attached) => (self.links, self.refused) = attached,
            Err(error) => tracing::warn!("CPU time is not sampled any more: {error:#}"),
        }
    }
}

/// Returns the frequency, in hertz, at which the interrupts of one CPU, of `clock_ns` nanoseconds each, take no more
/// than their part of the budget.
fn affordable_hz(share: f64, clock_ns: f64) -> f64 {
    let each_ns = 2.0 * (clock_ns + PROGRAM_NS);
    (BUDGET_PART * share * 1e9 / each_ns).max(LEAST_HZ)
}

/// Returns the number of addresses that the kernel has room for.
pub(super) fn room(cpus: usize, hz: u32) -> u32 {
    let sampled = cpus as u64 * u64::from(hz) * DRAIN.as_secs();
    (ROOM * sampled).clamp(LEAST_ROOM, MOST_ROOM) as u32
}

/// One of the probes that are attached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sampling {
    /// The clock of this CPU.
    Cpu(i32),
    /// The counter of the system call `getcpu`.
    Getcpu,
}

impl Display for Sampling {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Sampling::Cpu(cpu) => write!(f, "{CLOCK} on CPU {cpu}"),
            Sampling::Getcpu => f.write_str(GETCPU),
        }
    }
}

/// What is attached, and what the kernel refused.
type Attached = (Vec<Link>, Vec<Refusal<Sampling>>);

/// Attaches the sampling program, and the one that counts system calls if wanted.
///
/// # Errors
/// Fails when no CPU has a clock.
fn attach_all(skel: &SampleSkel<'_>, cpus: &[i32], period_ns: u64, counts_getcpu: bool) -> Result<Attached> {
    let (mut links, mut refused) = attach_clocks(skel, cpus, period_ns)?;
    if counts_getcpu {
        match skel.progs.getcpu_enter.attach_tracepoint(TracepointCategory::Syscalls, "sys_enter_getcpu") {
            Ok(link) => links.push(link.into()),
            Err(error) => refused.push(Refusal { probe: Sampling::Getcpu, why: error.to_string() }),
        }
    }
    Ok((links, refused))
}

/// Lets the program read statements in one of so many samples.
fn read_statements(skel: &mut SampleSkel<'_>, one_of: u32) {
    if let Some(bss) = &mut skel.maps.bss_data {
        bss.samples_per_statement = one_of;
    }
}

/// Returns a link for each CPU that has a clock, and the CPUs that have none.
fn attach_clocks(skel: &SampleSkel<'_>, cpus: &[i32], period_ns: u64) -> Result<Attached> {
    let (mut links, mut refused) = (Vec::new(), Vec::new());
    for &cpu in cpus {
        let clock = open_clock(cpu, period_ns).map_err(anyhow::Error::from);
        match clock.and_then(|clock| Ok(attach_clock(&skel.progs.cpu_sample, clock)?)) {
            Ok(link) => links.push(link),
            Err(error) => refused.push(Refusal { probe: Sampling::Cpu(cpu), why: format!("{error:#}") }),
        }
    }
    if links.is_empty() {
        let why = refused.first().map_or("the online CPUs are not known", |refusal| &refusal.why);
        anyhow::bail!("no CPU can be sampled: {why}");
    }
    Ok((links, refused))
}

/// Keeps the kernel's map from filling up while nothing collects, and gives clocks to CPUs that come online.
fn drain_regularly(collector: &Arc<CpuCollector>, clocks: &Arc<Mutex<Clocks>>) -> io::Result<Worker> {
    let (collector, clocks) = (Arc::clone(collector), Arc::downgrade(clocks));
    Worker::start("samples", move |stop| {
        collector.prepare();
        memory::give_back();
        while stop.wait(DRAIN) {
            if let Err(error) = collector.drain() {
                tracing::error!("cannot read the samples of CPU time: {error:#}");
            }
            let Some(clocks) = clocks.upgrade() else { return };
            clocks.lock().follow_cpus();
        }
    })
}

impl CpuCollector {
    /// Returns all samples so far.
    ///
    /// # Errors
    /// Fails when a map cannot be read.
    fn collect(&self) -> Result<Figures> {
        // A caller must not wait until files are read, unless these are the last figures. But the samples of its last
        // second must not be missing because they are being added up at the same moment.
        let is_last = self.ended.load(Ordering::Relaxed);
        if is_last {
            self.prepare();
        }
        let wait = if is_last { LAST_WAIT } else { SHORT_WAIT };
        if let Some(state) = self.state.try_lock_for(wait).filter(|state| state.code.knows_kernel()) {
            self.drain_into(state)?;
        }
        let Last { time, ordering, statements } = self.last.lock().clone();
        Ok(Figures { time, ordering, statements, getcpu_calls: self.getcpu_calls()? })
    }

    fn getcpu_calls(&self) -> Result<Option<u64>> {
        self.getcpu_calls.as_ref().map(|map| sum_over_cpus(map, 0)).transpose()
    }

    fn lost(&self) -> Result<Vec<(String, u64)>> {
        let lost = LOST.iter().zip(0..);
        lost.map(|(cause, i)| Ok(((*cause).to_owned(), sum_over_cpus(&self.lost, i)?))).collect()
    }

    /// Returns the sampling frequency per CPU, in hertz.
    pub fn hz(&self) -> u32 {
        self.hz
    }

    /// Returns the names of the server's functions that contain these addresses.
    pub fn functions(&self, addresses: impl Iterator<Item = u64> + Clone) -> Vec<String> {
        let code = &mut self.state.lock().code;
        code.look_for(addresses.clone());
        let function = |address| code.function(address, types::sampled_call::CALL_OTHER.0).name.to_owned();
        let functions = addresses.map(function).collect();
        code.release_memory();
        functions
    }

    /// CPU time before a pause belongs to the samples until then; CPU time during a pause belongs to no sample.
    fn set_paused(&self, paused: bool) {
        self.prepare();
        if let Err(error) = self.drain() {
            tracing::error!("cannot read the samples of CPU time: {error:#}");
        }
        if !paused {
            let now = cpu_time_ns(self.pid);
            self.shares.lock().pass_over(now);
        }
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Returns the probes. `costs` gives the cost of their hits, once it is known.
    fn probes(&self, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let hits = of_cpus::<types::hits>(&self.hits, 0)?;
        let is_paused = self.paused.load(Ordering::Relaxed);
        let state = if is_paused { ProbeState::Detached } else { ProbeState::Attached };
        let getcpu = self.getcpu_calls()?.map(|calls| ProbeStatus {
            probe: GETCPU.to_owned(),
            state,
            hits: calls,
            trap_ns: costs.and_then(|c| c.of(ProbeClass::Futex)),
            program_ns: 0,
        });
        let clock = ProbeStatus {
            probe: CLOCK.to_owned(),
            state,
            hits: hits.iter().map(|h| h.count).sum(),
            trap_ns: costs.and_then(|c| c.of(ProbeClass::Clock)),
            program_ns: hits.iter().map(|h| h.timed_ns).sum(),
        };
        Ok(std::iter::once(clock).chain(getcpu).collect())
    }

    /// Returns once the slowest source is read. Samples are added up after that.
    fn prepare(&self) {
        let kernel = KernelSymbols::read();
        self.state.lock().code.set_kernel(kernel);
    }

    /// Begins to count when everything is attached, which may take seconds; the server has used `cpu_ns` by then.
    fn begin_to_count(&self, cpu_ns: Option<u64>) -> Result<()> {
        let mut state = self.state.lock();
        self.shares.lock().pass_over(cpu_ns);
        self.counts.store(true, Ordering::Relaxed);
        self.forget(&mut state)
    }

    /// Takes the samples out of the kernel that belong to no figure.
    fn forget(&self, state: &mut State) -> Result<()> {
        take_entries::<types::sample_key, u64>(&self.samples)?;
        for (key, samples) in entries::<types::latch_key, u64>(&self.spins)? {
            state.spins.insert(key_of(&key), Spun { samples, ns: 0 });
        }
        self.statements.as_ref().map_or(Ok(()), CpuStatements::forget)
    }

    fn drain(&self) -> Result<()> {
        let mut state = self.state.lock();
        if self.counts.load(Ordering::Relaxed) {
            self.drain_into(state)
        } else {
            self.forget(&mut state)
        }
    }

    /// Takes the samples out of the kernel and sums them by function.
    fn drain_into(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        let state = &mut *state;
        let samples = take_entries::<types::sample_key, u64>(&self.samples)?;
        state.code.look_for(samples.iter().map(|(key, _)| key.address));
        let all = samples.iter().map(|(_, count)| count).sum();
        let each = self.shares.lock().per_sample(all, cpu_time_ns(self.pid));
        for (key, count) in samples {
            let function = state.code.function(key.address, key.call);
            let ns = (each * count as f64) as u64;
            state.table.add(function.class, function.name, ns, is_known_cost(function.purpose));
            if let Some(instruction) = function.ordering {
                state.ordering.add(instruction.name, function.name, ns, false);
            }
        }
        self.statements.as_ref().map_or(Ok(()), |statements| statements.take(&mut state.code))?;
        state.code.release_memory();
        for (key, samples) in entries::<types::latch_key, u64>(&self.spins)? {
            let spun = state.spins.entry(key_of(&key)).or_default();
            spun.ns += (each * samples.saturating_sub(spun.samples) as f64) as u64;
            spun.samples = samples;
        }
        self.latches.set_spin_times(state.spins.iter().map(|(latch, spun)| (*latch, spun.ns)).collect());
        let cpu = state.table.rows().into_iter();
        let ordering = state.ordering.rows().into_iter();
        *self.last.lock() = Last {
            time: cpu.map(|(class, function, ns)| CpuTime { class, function: function.to_owned(), ns }).collect(),
            ordering: ordering
                .map(|(instruction, function, ns)| OrderingTime {
                    instruction: instruction.to_owned(),
                    function: function.to_owned(),
                    ns,
                })
                .collect(),
            statements: self.statements.as_ref().map(CpuStatements::rows).unwrap_or_default(),
        };
        Ok(())
    }
}

/// Returns whether a function of this class deserves a row however little it takes.
fn is_known_cost(class: CpuClass) -> bool {
    !matches!(class, CpuClass::Other | CpuClass::Kernel | CpuClass::Futex)
}

/// Converts the key to that of the programs that measure waits: the same structure, for which each object has its own
/// type.
fn key_of(key: &types::latch_key) -> MapKey {
    bytes_of(key).try_into().expect("both have the same key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_take_a_part_of_the_budget() {
        // A quarter of 1 % of a CPU, for interrupts and programs that count twice.
        assert_eq!(affordable_hz(0.01, 20_000.0), 50.0);
        assert!(affordable_hz(0.01, 1_000.0) > f64::from(USUAL_HZ));
        assert_eq!(affordable_hz(0.001, 20_000.0), LEAST_HZ);
    }

    #[test]
    fn there_is_room_for_all_that_can_be_sampled() {
        assert_eq!(room(2, 99), 4096);
        assert_eq!(room(256, 99), 101_376);
        assert_eq!(room(8192, 1000), 1 << 18);
    }
}

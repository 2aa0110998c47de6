//! Hardware events of the server's threads and of the host's devices, limited to those that are proven to count.
//!
//! ```text
//! Pmus ──▶ plan: the CPU's events ──▶ prove: a known number of each, done here ──┐
//!     ┌──────────────────────────────────────────────────────────────────────────┘
//!     ├─▶ Counter: of the server's threads ──▶ EventCount
//!     └─▶ EventSampler: on each CPU ──▶ EventFunction
//! ```

mod exercise;
mod figures;
mod functions;
mod memory;
mod metrics;
mod pmus;
mod proof;

pub use figures::{EventCount, EventFunction, Figures, Scope};
pub use functions::{EventSampler, Sample, Sampled};
pub use metrics::HardwareMetrics;
pub use pmus::{Asked, Planned, Pmus, Unavailable};
pub use proof::Uncounted;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use serde::{Serialize, Serializer};

use crate::attach::{Costs, Counter, Reading, Whose};
use crate::catalog::{hardware_cpu, Cpu, Proof};
use crate::host::Machine;
use crate::measure::cpu::{CpuCollector, CpuSampler, Table};
use crate::measure::{cost_ns, Attaching, Measurement, Nothing, Room, Snapshot};
use crate::model::ProbeStatus;
use crate::server::threads;
use crate::symbols::Arch;
use crate::worker::{Stop, Worker};

/// The most descriptors for counting: one per event and thread that the server has when counting begins.
const MOST_COUNTERS: usize = 8192;
/// The number of descriptors that are left for everything else.
const RESERVED: usize = 256;
/// The number of events with which a function gets a row of its own.
const LEAST_EVENTS: u64 = 10_000;
/// The interval at which samples are taken out of the kernel.
const DRAIN: Duration = Duration::from_secs(1);

/// The result of an event's trial.
#[derive(Debug)]
pub struct Examined {
    /// The event.
    pub planned: Planned,
    /// Whether it counts what its name says. The error says why it does not, or cannot be trusted.
    pub proven: Result<(), Uncounted>,
}

impl Examined {
    /// Returns whether the event failed for lack of counters, so that another host would have it. Memory events may
    /// fail for other reasons, but instructions can be counted anywhere.
    pub fn is_for_lack_of_counters(&self) -> bool {
        let is_far = matches!(self.planned.event.proof, Proof::Memory(..) | Proof::DirtyLines(..));
        self.proven.is_err() && !is_far
    }
}

/// An examined event, as it is printed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ExaminedEvent {
    /// The vendor's name for it.
    event: &'static str,
    /// Whose events are counted.
    scope: &'static str,
    meaning: &'static str,
    counts: bool,
    /// Why it does not count here; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Serialize for Examined {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let why = self.proven.as_ref().err().map(ToString::to_string);
        let (event, scope) = (self.planned.event, self.planned.scope().as_str());
        let printed = ExaminedEvent { event: event.name, scope, meaning: event.meaning, counts: why.is_none(), why };
        printed.serialize(serializer)
    }
}

/// Tries all events of a CPU. This takes some tenths of a second.
pub fn examine(machine: &Machine, cpu: &Cpu) -> Vec<Examined> {
    let examined = |planned| Examined { proven: proof::prove(machine, &planned), planned };
    Pmus::of(machine).plan(cpu).into_iter().map(examined).collect()
}

/// The hardware events of one server. Dropping it stops the counting.
pub struct HardwareEvents {
    pid: i32,
    arch: Arch,
    /// The server's code; without it, events are not attributed to functions.
    code: Option<Arc<CpuCollector>>,
    state: Arc<Mutex<State>>,
    /// Drains samples.
    drainer: Mutex<Option<Worker>>,
}

#[derive(Default)]
struct State {
    is_detached: bool,
    is_paused: bool,
    counted: Vec<Counted>,
    functions: Option<Functions>,
}

/// The functions that have the events for which functions matter.
struct Functions {
    sampler: EventSampler,
    table: Table<&'static str>,
}

/// An event and its counters.
struct Counted {
    name: &'static str,
    scope: Scope,
    counters: Vec<Counter>,
    total: Total,
}

impl HardwareEvents {
    /// Creates a measurement that counts nothing until it is started. `code` belongs to process `pid`, a program for
    /// `arch`; without it, events are not attributed to functions.
    pub(crate) fn new(pid: i32, arch: Arch, code: Option<Arc<CpuCollector>>) -> HardwareEvents {
        HardwareEvents { pid, arch, code, state: Arc::default(), drainer: Mutex::default() }
    }

    /// Tries the events of this host's CPU, and then counts those that passed.
    fn start(&self) {
        let machine = Machine::this();
        let Some(cpu) = machine.cpu_id().map(hardware_cpu) else { return };
        let proven = examine(&machine, &cpu).into_iter().filter(|examined| match &examined.proven {
            Ok(()) => true,
            Err(why) => {
                tracing::info!("hardware event {} is not counted: {why}", examined.planned.event.name);
                false
            }
        });
        let proven: Vec<Planned> = proven.map(|examined| examined.planned).collect();
        self.count(&proven);
        let sampled: Vec<Sampled> = proven.iter().filter_map(sampled).collect();
        if let Some(code) = self.code.as_ref().filter(|_| !sampled.is_empty()) {
            let sampler = EventSampler::start(self.pid, self.arch, sampled, code.hz());
            match sampler.and_then(|sampler| self.sample(sampler, code)) {
                Ok(()) => {}
                Err(error) => tracing::warn!("hardware events are not attributed to functions: {error:#}"),
            }
        }
    }

    /// Starts summing samples by function.
    fn sample(&self, mut sampler: EventSampler, code: &Arc<CpuCollector>) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_detached {
            return Ok(());
        }
        if state.is_paused {
            sampler.pause();
        }
        state.functions = Some(Functions { sampler, table: Table::with_least(LEAST_EVENTS) });
        let (of, code) = (Arc::clone(&self.state), Arc::clone(code));
        *self.drainer.lock() = Some(Worker::start("events", move |stop| drain_regularly(&of, &code, stop))?);
        Ok(())
    }

    /// Starts counting these events.
    fn count(&self, events: &[Planned]) {
        // Threads that others start while counters are being opened are counted with those.
        let threads = threads(self.pid);
        let mut room = descriptors().min(MOST_COUNTERS);
        let mut state = self.state.lock();
        if state.is_detached {
            return;
        }
        for planned in events {
            let name = planned.event.name;
            match open(planned, &threads, &mut room) {
                Ok(counters) => {
                    state.counted.push(Counted { name, scope: planned.scope(), counters, total: Total::default() });
                }
                Err(why) => tracing::warn!("hardware event {name} is not counted: {why}"),
            }
        }
    }

    /// Returns what was counted so far.
    fn events(&self) -> Vec<EventCount> {
        self.state.lock().counted.iter_mut().map(Counted::collect).collect()
    }

    /// Returns the functions that have the events for which functions matter, largest count first.
    fn functions(&self) -> Vec<EventFunction> {
        let state = self.state.lock();
        let rows = state.functions.iter().flat_map(|functions| functions.table.rows());
        let row = |(event, function, count): (&str, &str, u64)| EventFunction {
            event: event.to_owned(),
            function: function.to_owned(),
            count,
        };
        rows.map(row).collect()
    }

    /// Returns what sampling them has cost so far; `None` if nothing is sampled.
    fn probe(&self, costs: Option<&Costs>) -> Option<ProbeStatus> {
        self.state.lock().functions.as_ref()?.sampler.probe(costs).ok()
    }
}

impl Room for HardwareEvents {
    type Figures = Figures;
    type Metrics = HardwareMetrics;
    type Report = Nothing;
    type Comparison = Nothing;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<HardwareEvents>>> {
        on.more.filter(|more| more.hardware_events)?;
        let code = on.begun.cpu.as_deref().map(CpuSampler::collector);
        let events = Arc::new(HardwareEvents::new(on.target.pid, on.target.image.arch(), code));
        let later = Arc::clone(&events);
        on.later(move || later.start());
        Some(Ok(events))
    }
}

impl Measurement for HardwareEvents {
    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.probe(Some(costs)))
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.hardware = Figures { events: self.events(), functions: self.functions() };
        snapshot.probes.extend(self.probe(costs));
        let state = self.state.lock();
        state.functions.as_ref().map_or(Ok(()), |functions| functions.sampler.add_lost(&mut snapshot.lost))
    }

    /// Stops sampling. Counters keep running, because they interrupt nothing.
    fn pause(&self) {
        let mut state = self.state.lock();
        state.is_paused = true;
        state.functions.iter_mut().for_each(|functions| functions.sampler.pause());
    }

    fn resume(&self) {
        let mut state = self.state.lock();
        state.is_paused = false;
        for functions in state.functions.iter_mut() {
            if let Err(error) = functions.sampler.resume() {
                tracing::warn!("hardware events are no longer attributed to functions: {error:#}");
            }
        }
    }

    fn detach(&self) {
        let mut state = self.state.lock();
        state.is_detached = true;
        state.functions.iter_mut().for_each(|functions| functions.sampler.pause());
        for counted in &mut state.counted {
            counted.collect();
            counted.counters.clear();
        }
        // Do not wait for its last turn: it may have to read a library.
        self.drainer.lock().take();
    }
}

/// Drains samples at intervals, and those that are left when told to stop.
fn drain_regularly(state: &Mutex<State>, code: &CpuCollector, stop: &Stop) {
    loop {
        let goes_on = stop.wait(DRAIN);
        if let Err(error) = drain(state, code) {
            tracing::error!("cannot read the samples of hardware events: {error:#}");
        }
        if !goes_on {
            return;
        }
    }
}

/// Takes the samples out of the kernel and sums them by function. Concurrent callers do not wait until files are read.
fn drain(state: &Mutex<State>, code: &CpuCollector) -> Result<()> {
    let taken = state.lock().functions.as_ref().map(|functions| functions.sampler.take()).transpose()?;
    let samples = taken.unwrap_or_default();
    let functions = code.functions(samples.iter().map(|sample| sample.address));
    for known in state.lock().functions.iter_mut() {
        for (sample, function) in samples.iter().zip(&functions) {
            known.table.add(sample.event, function, sample.count, false);
        }
    }
    Ok(())
}

/// Returns the event as it is sampled, if functions matter for it.
fn sampled(planned: &Planned) -> Option<Sampled> {
    let Ok(Asked::OfThreads(what)) = planned.asked else { return None };
    planned.event.has_culprits().then_some(Sampled { name: planned.event.name, what })
}

impl Counted {
    fn collect(&mut self) -> EventCount {
        let reading: io::Result<Reading> = self.counters.iter().map(Counter::read).sum();
        if let Some(reading) = reading.ok().filter(|_| !self.counters.is_empty()) {
            self.total.advance(reading);
        }
        EventCount {
            event: self.name.to_owned(),
            scope: self.scope,
            count: self.total.count,
            running_ratio: self.total.all.running_ratio(),
        }
    }
}

/// A count that is scaled up for the time in which it did not run, and never decreases: each reading scales only the
/// increase since the previous one.
#[derive(Default)]
struct Total {
    count: f64,
    /// The last reading.
    all: Reading,
    /// The reading that `count` corresponds to.
    scaled: Reading,
}

impl Total {
    fn advance(&mut self, reading: Reading) {
        self.all = reading;
        // If it has not run at all since then, the scaling waits until it has.
        if let Some(more) = (reading - self.scaled).scaled() {
            self.count += more;
            self.scaled = reading;
        }
    }
}

/// Opens counters of an event in all threads, or on the devices that have it. `room` is the number of descriptors left.
fn open(planned: &Planned, threads: &[i32], room: &mut usize) -> Result<Vec<Counter>, Uncounted> {
    let asked = planned.asked.as_ref().map_err(Unavailable::clone)?;
    let places: Vec<_> = match planned.scope() {
        Scope::Process => threads.iter().flat_map(|thread| asked.of(Whose::Thread(*thread))).collect(),
        Scope::Host => asked.of(Whose::Own),
    };
    *room = room.checked_sub(places.len()).ok_or(Uncounted::TooManyThreads(threads.len()))?;
    let mut counters = Vec::new();
    for (what, whose) in places {
        match Counter::open(what, whose) {
            Ok(counter) => counters.push(counter),
            // The thread has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(Uncounted::refused(error)),
        }
    }
    if counters.is_empty() {
        return Err(Uncounted::Ended);
    }
    Ok(counters)
}

/// Returns how many descriptors this process may still open, at least.
fn descriptors() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if raised != limit && setrlimit(Resource::Nofile, raised).is_ok() {
        limit = raised;
    }
    let current = limit.current.and_then(|limit| usize::try_from(limit).ok());
    current.unwrap_or(usize::MAX).saturating_sub(RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::counter_tests::{permitted, touch_pages, PAGE_FAULTS};
    use crate::catalog::{EventCode, HardwareEvent, Uncore};

    static EVENT: HardwareEvent =
        HardwareEvent { name: "page-faults", meaning: "", code: EventCode::Generic(0), proof: Proof::Cycles };

    fn page_faults() -> Planned {
        Planned { event: &EVENT, asked: Ok(Asked::OfThreads(PAGE_FAULTS)) }
    }

    fn reading(count: u64, enabled_ns: u64, running_ns: u64) -> Reading {
        Reading { count, enabled_ns, running_ns }
    }

    #[test]
    fn a_total_is_scaled_and_never_steps_back() {
        let mut total = Total::default();
        let mut after = |count, enabled, running| {
            total.advance(reading(count, enabled, running));
            total.count
        };
        assert_eq!(after(100, 100, 10), 1000.0);
        // Only the time since then counts; the whole ratio so far does not apply to it.
        assert_eq!(after(110, 150, 60), 1010.0);
        assert_eq!(after(110, 250, 60), 1010.0, "not counted at all");
        assert_eq!(after(130, 350, 110), 1010.0 + 20.0 * 200.0 / 50.0, "what it missed comes with what came next");
        assert_eq!(total.all.running_ratio(), Some(110.0 / 350.0));
    }

    #[test]
    fn a_process_is_counted_until_it_is_left() {
        if !permitted() {
            return;
        }
        let probe = HardwareEvents::new(std::process::id() as i32, Arch::HOST, None);
        assert_eq!(probe.events(), []);
        probe.count(&[page_faults()]);
        std::thread::spawn(|| touch_pages(1000)).join().unwrap();
        let before = probe.events();
        assert_eq!((before[0].event.as_str(), before[0].scope), ("page-faults", Scope::Process));
        assert!(before[0].count >= 1000.0 && before[0].running_ratio == Some(1.0), "{before:?}");
        probe.detach();
        let left = probe.events();
        touch_pages(1000);
        assert_eq!(probe.events(), left);
        assert!(left[0].count >= before[0].count, "{left:?}");
        // A trial that ends late starts nothing.
        probe.count(&[page_faults()]);
        assert_eq!(probe.events(), left);
    }

    /// A host event that is read through each CPU, as if it came from devices.
    #[test]
    fn devices_count_for_the_whole_host() {
        static OF_DEVICES: HardwareEvent = HardwareEvent {
            name: "host-page-faults",
            meaning: "",
            code: EventCode::Uncore(Uncore { unit: "", event: "", field: None }),
            proof: Proof::Cycles,
        };
        let cpus = Machine::this().online_cpus();
        if Counter::open(PAGE_FAULTS, Whose::Device(cpus[0])).is_err() {
            return;
        }
        let devices = cpus.iter().map(|cpu| (PAGE_FAULTS, *cpu)).collect();
        let probe = HardwareEvents::new(i32::MAX, Arch::HOST, None);
        probe.count(&[Planned { event: &OF_DEVICES, asked: Ok(Asked::OfDevices(devices)) }]);
        touch_pages(1000);
        let counted = probe.events();
        assert_eq!((counted[0].event.as_str(), counted[0].scope), ("host-page-faults", Scope::Host));
        assert!(counted[0].count >= 1000.0, "{counted:?}");
    }

    #[test]
    fn too_many_threads_are_an_explanation() {
        if !permitted() {
            return;
        }
        let own = std::process::id() as i32;
        let why = open(&page_faults(), &[own, own], &mut 1).unwrap_err();
        assert!(matches!(why, Uncounted::TooManyThreads(2)), "{why}");
        let why = open(&page_faults(), &[i32::MAX], &mut 1).unwrap_err();
        assert!(matches!(why, Uncounted::Ended), "{why}");
    }

    #[test]
    fn the_first_thread_comes_first() {
        let own = std::process::id() as i32;
        let threads = std::thread::spawn(move || threads(own)).join().unwrap();
        assert!(threads.len() > 1 && threads[0] == own, "{threads:?}");
        assert_eq!(self::threads(i32::MAX), [0; 0]);
    }
}

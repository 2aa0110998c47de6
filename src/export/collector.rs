//! Turns snapshots into metric families.
//!
//! Figures that a snapshot does not have are absent from the scrape, never zero.

use super::cap::Cap;
use super::families::*;
use super::SnapshotSource;
use crate::clock;
use crate::measure::latch::{LatchWaits, Locality, PageWaits};
use crate::measure::Snapshot;
use crate::model::{Histogram, Kind, Mode, ProbeState, BUCKET_BOUNDS_NS};
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{self, Metric, MetricFamily};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most (latch, kind, mode) combinations with series of their own. The rest are summed in `latch="other"`.
const LATCH_SERIES: usize = 200;
/// The most condition variables with series of their own, and the most mutexes that their woken threads reacquire.
const COND_SERIES: usize = 50;
/// The most (latch, call site) pairs with series of their own.
const CALLSITE_SERIES: usize = 200;
/// The most (table, index, level) combinations with series of their own.
const PAGE_SERIES: usize = 100;
/// The most latches with handoff series of their own. Each has a series for every pair of nodes.
const HANDOFF_LATCHES: usize = 20;
/// The label value that sums everything beyond these limits.
const OTHER: &str = "other";
/// The label value for a node or a locality that is not known.
const UNKNOWN: &str = "unknown";

const PROBE_STATES: [ProbeState; 4] =
    [ProbeState::Attached, ProbeState::DutyCycle, ProbeState::Detached, ProbeState::Failed];

/// Collects the metrics of `docs/metrics.md` from a source of snapshots.
pub struct LatchCollector {
    source: Arc<dyn SnapshotSource>,
    descs: Vec<Desc>,
    state: Mutex<State>,
}

/// The state kept from scrape to scrape.
struct State {
    latches: Cap<LatchKey>,
    conds: Cap<LatchKey>,
    reacquires: Cap<String>,
    callsites: Cap<(String, String)>,
    pages: Cap<PagePlace>,
    /// Latches with handoffs.
    handoffs: Cap<String>,
    spin: SpinFloor,
}

/// A table, an index and a level, as label values.
type PagePlace = [String; 3];

type LatchKey = (String, Kind, Mode);

impl LatchCollector {
    pub fn new(source: Arc<dyn SnapshotSource>) -> LatchCollector {
        let state = State {
            latches: Cap::new(LATCH_SERIES),
            conds: Cap::new(COND_SERIES),
            reacquires: Cap::new(COND_SERIES),
            callsites: Cap::new(CALLSITE_SERIES),
            pages: Cap::new(PAGE_SERIES),
            handoffs: Cap::new(HANDOFF_LATCHES),
            spin: SpinFloor::default(),
        };
        LatchCollector { source, descs: FAMILIES.iter().map(Family::desc).collect(), state: Mutex::new(state) }
    }
}

impl Collector for LatchCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Locked before the snapshot is taken, so that concurrent scrapes process snapshots in order.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.source.snapshot();
        let mut families = latch_families(&snapshot, &mut state);
        families.push(cond_family(&snapshot, &mut state.conds));
        families.extend(reacquire_families(&snapshot, &mut state.reacquires));
        families.push(callsite_family(&snapshot, &mut state.callsites));
        families.push(page_family(&snapshot, &mut state.pages));
        families.extend(handoff_families(&snapshot, &mut state.handoffs));
        families.extend(cpu_families(&snapshot));
        families.push(barrier_family(&snapshot));
        families.extend(event_families(&snapshot));
        families.extend(target_families(&snapshot));
        families.extend(probe_families(&snapshot));
        families.push(lost_family(&snapshot));
        families.push(build_family());
        families
    }
}

fn latch_families(snapshot: &Snapshot, state: &mut State) -> Vec<MetricFamily> {
    let latches = capped(snapshot.latch.waits.iter().filter(|l| l.kind != Kind::Cond), &mut state.latches);
    state.spin.start(snapshot.elapsed);
    let waits = latches.iter().map(|latch| histogram(&LATCH_WAIT, &latch_labels(latch), &latch.waits));
    let estimated: Vec<_> = latches.iter().filter(|latch| latch.estimated_ns > 0).cloned().collect();
    let split = if snapshot.latch.sleeps_seen { &latches[..] } else { &[] };
    let sampled = if snapshot.cpu.time.is_empty() { &[] } else { &latches[..] };
    vec![
        LATCH_WAIT.with(waits.collect()),
        per_latch(&LATCH_WAIT_MAX, &latches, |latch| seconds(latch.waits.max_ns)),
        per_latch(&LATCH_SPIN, split, |latch| seconds(state.spin.of(latch))),
        per_latch(&LATCH_SLEEP, split, |latch| seconds(latch.sleep_ns)),
        per_latch(&LATCH_SLEEPS, split, |latch| latch.sleeps as f64),
        per_latch(&LATCH_SPIN_CPU, sampled, |latch| seconds(latch.spin_cpu_ns)),
        spin_family(split),
        per_latch(&LATCH_ESTIMATED, &estimated, |latch| seconds(latch.estimated_ns)),
    ]
}

/// Returns the spins of latches whose waiters spin, by outcome.
fn spin_family(latches: &[LatchWaits]) -> MetricFamily {
    let spun = latches.iter().filter(|latch| latch.spins() > 0);
    let samples = spun.flat_map(|latch| {
        [("won", latch.spins_won), ("wasted", latch.spins_wasted)].map(|(outcome, waits)| {
            let [name, kind, mode] = latch_labels(latch);
            LATCH_SPINS.sample(&[name, kind, mode, outcome], waits as f64)
        })
    });
    LATCH_SPINS.with(samples.collect())
}

fn per_latch(family: &Family, latches: &[LatchWaits], mut value: impl FnMut(&LatchWaits) -> f64) -> MetricFamily {
    family.with(latches.iter().map(|latch| family.sample(&latch_labels(latch), value(latch))).collect())
}

/// Keeps the spin counters from stepping back.
///
/// Spin time is the whole wait minus its sleep. A snapshot that is read while waits are in progress may contain a sleep
/// whose wait is not counted yet. Without a floor the counter would dip, and Prometheus would take the dip for a
/// restart and count everything again.
#[derive(Default)]
struct SpinFloor {
    elapsed: Duration,
    floors: HashMap<LatchKey, u64>,
}

impl SpinFloor {
    /// Begins a scrape. If the time since attach has gone back, armtrace has attached anew, and counters start at zero.
    fn start(&mut self, elapsed: Duration) {
        if elapsed < self.elapsed {
            self.floors.clear();
        }
        self.elapsed = elapsed;
    }

    /// Returns the spin time in nanoseconds, never less than at the scrape before.
    fn of(&mut self, latch: &LatchWaits) -> u64 {
        let floor = self.floors.entry(latch_key(latch)).or_default();
        *floor = latch.spin_ns().max(*floor);
        *floor
    }
}

fn latch_key(latch: &LatchWaits) -> LatchKey {
    (latch.latch.clone(), latch.kind, latch.mode)
}

fn latch_labels(latch: &LatchWaits) -> [&str; 3] {
    [&latch.latch, latch.kind.as_str(), latch.mode.as_str()]
}

fn cond_family(snapshot: &Snapshot, cap: &mut Cap<LatchKey>) -> MetricFamily {
    let conds = snapshot.latch.waits.iter().filter(|l| l.kind == Kind::Cond);
    let modeless: Vec<_> = conds.map(|cond| LatchWaits { mode: Mode::None, ..cond.clone() }).collect();
    let waits = capped(modeless.iter(), cap);
    COND_WAIT.with(waits.iter().map(|cond| histogram(&COND_WAIT, &[&cond.latch], &cond.waits)).collect())
}

/// Returns reacquires by mutex, with the mutexes beyond the limit summed.
fn reacquire_families(snapshot: &Snapshot, cap: &mut Cap<String>) -> [MetricFamily; 2] {
    cap.admit(snapshot.latch.reacquires.iter().map(|row| (row.latch.clone(), row.wait_ns)));
    let mut sums = BTreeMap::<&str, (u64, u64)>::new();
    for row in &snapshot.latch.reacquires {
        let sum = sums.entry(if cap.is_named(&row.latch) { &row.latch } else { OTHER }).or_default();
        *sum = (sum.0 + row.wait_ns, sum.1 + row.waits);
    }
    let times = sums.iter().map(|(latch, sum)| REACQUIRE.sample(&[latch], seconds(sum.0)));
    let counts = sums.iter().map(|(latch, sum)| REACQUIRES.sample(&[latch], sum.1 as f64));
    [REACQUIRE.with(times.collect()), REACQUIRES.with(counts.collect())]
}

/// Returns the latches that have series of their own, and the sums of the others by kind and mode.
fn capped<'a>(latches: impl Iterator<Item = &'a LatchWaits> + Clone, cap: &mut Cap<LatchKey>) -> Vec<LatchWaits> {
    cap.admit(latches.clone().map(|latch| (latch_key(latch), latch.waits.sum_ns)));
    let mut sums = BTreeMap::<LatchKey, LatchWaits>::new();
    for latch in latches {
        let mut key = latch_key(latch);
        if !cap.is_named(&key) {
            key.0 = OTHER.to_string();
        }
        match sums.get_mut(&key) {
            Some(sum) => add(sum, latch),
            None => _ = sums.insert(key.clone(), LatchWaits { latch: key.0, ..latch.clone() }),
        }
    }
    sums.into_values().collect()
}

fn add(sum: &mut LatchWaits, latch: &LatchWaits) {
    sum.waits.merge(&latch.waits);
    sum.sleep_ns += latch.sleep_ns;
    sum.sleeps += latch.sleeps;
    sum.spin_cpu_ns += latch.spin_cpu_ns;
    sum.spins_won += latch.spins_won;
    sum.spins_wasted += latch.spins_wasted;
    sum.estimated_ns += latch.estimated_ns;
}

/// Returns wait time by call site, with the call sites beyond the limit summed.
fn callsite_family(snapshot: &Snapshot, cap: &mut Cap<(String, String)>) -> MetricFamily {
    // The metric has no `mode` label.
    let mut sites = BTreeMap::<(String, String), u64>::new();
    for site in &snapshot.latch.callsites {
        *sites.entry((site.latch.clone(), site.callsite.clone())).or_default() += site.wait_ns;
    }
    cap.admit(sites.iter().map(|(pair, wait_ns)| (pair.clone(), *wait_ns)));
    let mut sums = BTreeMap::<(String, String), u64>::new();
    for (pair, wait_ns) in sites {
        let pair = if cap.is_named(&pair) { pair } else { (OTHER.to_string(), OTHER.to_string()) };
        *sums.entry(pair).or_default() += wait_ns;
    }
    let samples = sums.iter().map(|((latch, site), &ns)| LATCH_CALLSITE.sample(&[latch, site], seconds(ns)));
    LATCH_CALLSITE.with(samples.collect())
}

/// Returns wait time by page, with the pages beyond the limit summed.
fn page_family(snapshot: &Snapshot, cap: &mut Cap<PagePlace>) -> MetricFamily {
    let place = |page: &PageWaits| {
        let level = page.level.map_or_else(String::new, |level| level.to_string());
        [page.table.clone(), page.index.clone(), level]
    };
    let other = place(&PageWaits::other());
    let pages = snapshot.latch.pages.iter().map(|page| (place(page), page.wait_ns));
    cap.admit(pages.clone().filter(|(place, _)| *place != other));
    let mut sums = BTreeMap::<PagePlace, u64>::new();
    for (place, wait_ns) in pages {
        let place = if cap.is_named(&place) { place } else { other.clone() };
        *sums.entry(place).or_default() += wait_ns;
    }
    let samples = sums.iter().map(|(place, &ns)| {
        let labels = place.each_ref().map(String::as_str);
        LATCH_PAGE.sample(&labels, seconds(ns))
    });
    LATCH_PAGE.with(samples.collect())
}

/// Returns handoffs of the latches with the longest waits, with those of the others summed.
fn handoff_families(snapshot: &Snapshot, cap: &mut Cap<String>) -> Vec<MetricFamily> {
    let mut waits = BTreeMap::<&str, u64>::new();
    for handoffs in &snapshot.latch.handoffs {
        *waits.entry(&handoffs.latch).or_default() += handoffs.wait_ns;
    }
    cap.admit(waits.into_iter().map(|(latch, ns)| (latch.to_owned(), ns)));
    let (mut counts, mut times) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
    let mut migrations = BTreeMap::<_, u64>::new();
    for handoffs in &snapshot.latch.handoffs {
        let latch = if cap.is_named(&handoffs.latch) { &*handoffs.latch } else { OTHER };
        let place = |place: &'_ Option<String>| place.clone().unwrap_or_else(|| UNKNOWN.to_owned());
        *counts.entry((latch, place(&handoffs.from), place(&handoffs.to))).or_default() += handoffs.count;
        *times.entry((latch, handoffs.locality())).or_default() += handoffs.wait_ns;
        *migrations.entry(latch).or_default() += handoffs.migrations;
    }
    let counts = counts.iter().map(|((latch, from, to), &n)| LATCH_HANDOFFS.sample(&[latch, from, to], n as f64));
    let times = times.iter().map(|((latch, locality), &ns)| {
        LATCH_HANDOFF_WAIT.sample(&[latch, locality.map_or(UNKNOWN, Locality::as_str)], seconds(ns))
    });
    let migrations = migrations.iter().map(|(latch, &n)| LATCH_MIGRATIONS.sample(&[latch], n as f64));
    vec![
        LATCH_HANDOFFS.with(counts.collect()),
        LATCH_HANDOFF_WAIT.with(times.collect()),
        LATCH_MIGRATIONS.with(migrations.collect()),
    ]
}

/// Returns CPU time, checksums and `getcpu` calls. They need no cap: their rows are few and never step back.
fn cpu_families(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let rows = snapshot.cpu.time.iter();
    let rows = rows.map(|row| CPU.sample(&[row.class.as_str(), &row.function], seconds(row.ns))).collect();
    let ordering = snapshot.cpu.ordering.iter();
    let ordering = ordering.map(|row| ORDERING.sample(&[&row.instruction, &row.function], seconds(row.ns))).collect();
    // Without samples the time is unknown, not zero.
    let sampled = if snapshot.cpu.time.is_empty() { &[][..] } else { &snapshot.checksum.chosen };
    // The map merges rows: one function may be chosen for two checksums.
    let times: BTreeMap<_, _> =
        sampled.iter().map(|c| ((&*c.function, c.implementation.as_str()), c.cpu_ns(&snapshot.cpu.time))).collect();
    let times = times.into_iter().map(|((function, how), ns)| CHECKSUM.sample(&[function, how], seconds(ns)));
    let counted = snapshot.checksum.calls.iter();
    let (checksum_calls, bytes) = counted
        .map(|c| {
            let labels = [&*c.function, c.implementation.as_str()];
            (CHECKSUM_CALLS.sample(&labels, c.calls as f64), CHECKSUM_BYTES.sample(&labels, c.bytes as f64))
        })
        .unzip();
    let calls = snapshot.cpu.getcpu_calls.map(|calls| GETCPU.sample(&["syscall"], calls as f64));
    vec![
        CPU.with(rows),
        ORDERING.with(ordering),
        CHECKSUM.with(times.collect()),
        CHECKSUM_CALLS.with(checksum_calls),
        CHECKSUM_BYTES.with(bytes),
        GETCPU.with(calls.into_iter().collect()),
    ]
}

fn barrier_family(snapshot: &Snapshot) -> MetricFamily {
    let counts = snapshot.barriers.iter();
    BARRIERS.with(counts.map(|(instruction, n)| BARRIERS.sample(&[instruction], *n as f64)).collect())
}

fn event_families(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let counts = snapshot.hardware.events.iter().map(|e| PERF_EVENTS.sample(&[&e.event, e.scope.as_str()], e.count));
    let running = snapshot.hardware.events.iter().filter_map(|e| {
        let labels = [&*e.event, e.scope.as_str()];
        e.running_ratio.map(|ratio| PERF_EVENT_RUNNING.sample(&labels, ratio))
    });
    let functions = snapshot.hardware.functions.iter();
    let functions = functions.map(|f| PERF_EVENTS_BY_FUNCTION.sample(&[&f.event, &f.function], f.count as f64));
    vec![
        PERF_EVENTS.with(counts.collect()),
        PERF_EVENT_RUNNING.with(running.collect()),
        PERF_EVENTS_BY_FUNCTION.with(functions.collect()),
    ]
}

fn target_families(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let t = &snapshot.target;
    let info = [&t.flavor, &t.version, &t.arch, &t.cpu_model, &t.build_id, &t.symbol_source].map(String::as_str);
    vec![
        TARGET_INFO.with(vec![TARGET_INFO.sample(&info, 1.0)]),
        TARGET_UP.with(vec![TARGET_UP.sample(&[], f64::from(u8::from(snapshot.up)))]),
        STATEMENTS.with(snapshot.statements.map(|count| STATEMENTS.sample(&[], count as f64)).into_iter().collect()),
    ]
}

/// The sum over the sites that share one probe name.
#[derive(Default)]
struct ProbeSum {
    hits: u64,
    /// `None` if the cost of any site is unknown.
    cost_ns: Option<f64>,
    states: Vec<ProbeState>,
}

fn probe_families(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let (mut hits, mut costs, mut states) = (Vec::new(), Vec::new(), Vec::new());
    for (probe, sum) in probe_sums(snapshot) {
        hits.push(PROBE_HITS.sample(&[probe], sum.hits as f64));
        costs.extend(sum.cost_ns.map(|ns| PROBE_COST.sample(&[probe], ns / 1e9)));
        for state in PROBE_STATES {
            let is = f64::from(u8::from(sum.states.contains(&state)));
            states.push(PROBE_STATE.sample(&[probe, state.as_str()], is));
        }
    }
    let overhead = snapshot.overhead_ratio().map(|ratio| OVERHEAD.sample(&[], ratio));
    vec![
        PROBE_HITS.with(hits),
        PROBE_COST.with(costs),
        PROBE_STATE.with(states),
        HIT_COST.with(snapshot.costs.iter().map(|(class, ns)| HIT_COST.sample(&[class], ns / 1e9)).collect()),
        OVERHEAD.with(overhead.into_iter().collect()),
    ]
}

fn probe_sums(snapshot: &Snapshot) -> BTreeMap<&str, ProbeSum> {
    let mut sums = BTreeMap::<&str, ProbeSum>::new();
    for site in &snapshot.probes {
        let none_yet = || ProbeSum { cost_ns: Some(0.0), ..ProbeSum::default() };
        let sum = sums.entry(&site.probe).or_insert_with(none_yet);
        sum.hits += site.hits;
        sum.cost_ns = sum.cost_ns.zip(site.total_cost_ns()).map(|(sum, cost)| sum + cost);
        sum.states.push(site.state);
    }
    sums
}

fn lost_family(snapshot: &Snapshot) -> MetricFamily {
    let mut sums = BTreeMap::<&str, u64>::new();
    for (reason, events) in &snapshot.lost {
        *sums.entry(reason).or_default() += events;
    }
    LOST_EVENTS.with(sums.into_iter().map(|(reason, n)| LOST_EVENTS.sample(&[reason], n as f64)).collect())
}

fn build_family() -> MetricFamily {
    let revision = option_env!("ARMTRACE_REVISION").unwrap_or_default();
    let rustc = option_env!("ARMTRACE_RUSTC").unwrap_or_default();
    let build = [env!("CARGO_PKG_VERSION"), revision, rustc, std::env::consts::ARCH];
    BUILD_INFO.with(vec![BUILD_INFO.sample(&build, 1.0)])
}

/// Returns one series of a histogram, with the bounds of [`BUCKET_BOUNDS_NS`] in seconds.
fn histogram(family: &Family, labels: &[&str], waits: &Histogram) -> Metric {
    let mut cumulative = 0;
    let buckets = BUCKET_BOUNDS_NS.iter().zip(waits.buckets).map(|(&bound, n)| {
        cumulative += n;
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(seconds(bound));
        bucket.set_cumulative_count(cumulative);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    // A snapshot read while waits end may have a bucket ahead of the count, but Prometheus needs a count that is not
    // below the last bucket.
    histogram.set_sample_count(waits.count.max(waits.buckets.iter().sum()));
    histogram.set_sample_sum(seconds(waits.sum_ns));
    let mut metric = family.labelled(labels);
    metric.set_histogram(histogram);
    metric
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The `process_*` metrics of armtrace itself.
///
/// The prometheus crate counts CPU time in whole seconds, so a process that uses a thousandth of a CPU would show
/// nothing for a quarter of an hour. It also reports 0 for a limit that does not exist.
pub struct ProcessSelf(ProcessCollector);

impl ProcessSelf {
    pub fn new() -> ProcessSelf {
        ProcessSelf(ProcessCollector::for_self())
    }
}

impl Default for ProcessSelf {
    fn default() -> Self {
        ProcessSelf::new()
    }
}

impl Collector for ProcessSelf {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        families.retain(|family| family.name() != "process_max_fds" || gauge_of(family) > 0.0);
        if let Some(cpu) = families.iter_mut().find(|family| family.name() == "process_cpu_seconds_total") {
            let mut counter = proto::Counter::default();
            counter.set_value(own_cpu_seconds());
            cpu.mut_metric()[0].set_counter(counter);
        }
        families
    }
}

fn gauge_of(family: &MetricFamily) -> f64 {
    family.get_metric().iter().map(|metric| metric.get_gauge().get_value()).sum()
}

/// Returns the CPU time of this process in seconds, user and system, including its child processes that attached and
/// detached probes.
fn own_cpu_seconds() -> f64 {
    clock::now_ns(libc::CLOCK_PROCESS_CPUTIME_ID) as f64 / 1e9 + clock::children_seconds()
}

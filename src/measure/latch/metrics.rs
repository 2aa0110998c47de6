//! Latch waits: the metric families.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use prometheus::proto::MetricFamily;

use super::{CallsiteWaits, Handoffs, LatchWaits, Locality, PageWaits, Reacquires};
use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};
use crate::model::{merged, Bounded, Kind, Mode, Rotating, OTHER};

/// The most (latch, kind, mode) combinations with series of their own. The rest are summed in `latch="other"`.
const LATCH_SERIES: usize = 50;
/// The most condition variables with series of their own, and the most mutexes that threads woken by them reacquire.
const COND_SERIES: usize = 20;
/// The most (latch, call site) pairs with series of their own.
const CALLSITE_SERIES: usize = 100;
/// The most (table, index, level) combinations with series of their own.
const PAGE_SERIES: usize = 50;
/// The share of the wait time of late with which call sites and pages get series. Each latch gets them, because a latch
/// that was looked for and has no series would seem not to be waited for.
const NOTABLE: f64 = 1e-3;
/// How much wait time of late, in nanoseconds, what is hot must have to take the place of something cold.
const HOT_NS: u64 = 10_000_000;
/// The most latches whose handoffs have series of their own, and the most series that they have: each latch has one for
/// every two nodes.
const HANDOFF_LATCHES: usize = 20;
const HANDOFF_SERIES: usize = 240;

/// The label value of a node that is not known.
const UNKNOWN: &str = "unknown";

const LATCH: &[&str] = &["latch", "kind", "mode"];

families! {
    WAIT = histogram(
        "armtrace_latch_wait_seconds",
        LATCH,
        "Contended waits for a latch, from finding it taken to acquiring it."
    );
    WAIT_MAX = gauge("armtrace_latch_wait_max_seconds", LATCH, "Longest wait for a latch since armtrace attached.");
    SPIN = counter(
        "armtrace_latch_spin_seconds_total",
        LATCH,
        "Part of the wait time that waiters spent awake, mostly spinning."
    );
    SLEEP = counter(
        "armtrace_latch_sleep_seconds_total",
        LATCH,
        "Part of the wait time that waiters spent asleep in the kernel."
    );
    SLEEPS = counter(
        "armtrace_latch_sleeps_total",
        LATCH,
        "Times that waiters for a latch went to sleep in the kernel."
    );
    SPIN_CPU = counter(
        "armtrace_latch_spin_cpu_seconds_total",
        LATCH,
        "Sampled CPU time that threads spent in the server's code while waiting for a latch: the cost of \
         spinning."
    );
    SPINS = counter(
        "armtrace_latch_spins_total",
        &["latch", "kind", "mode", "outcome"],
        "Waits that began with spinning, by outcome: won (got the latch without a sleep) or wasted (slept after \
         all)."
    );
    ESTIMATED = counter(
        "armtrace_latch_wait_estimated_seconds_total",
        LATCH,
        "Estimated part of the wait time: scaled up for periods when probes were off to stay within the budget."
    );
    VARIANCE = counter(
        "armtrace_latch_wait_variance_seconds_squared_total",
        LATCH,
        "Square of the standard error of the wait time where it is estimated. 1.96 times the square root of its increase \
         is half the 95 % interval."
    );
    SAMPLED = counter(
        "armtrace_latch_sampled_wait_seconds_total",
        &["latch", "kind", "mode", "state"],
        "Wait time with --no-probes, from looks at the threads, by what waiters did: asleep in the kernel, or awake \
         (spinning, or waiting for a CPU)."
    );
    CALLSITE = counter(
        "armtrace_latch_callsite_wait_seconds_total",
        &["latch", "callsite"],
        "Wait time by call site in the server's code; call sites beyond the limit are summed in latch=\"other\"."
    );
    PAGE = counter(
        "armtrace_latch_page_wait_seconds_total",
        &["table", "index", "level"],
        "Wait time for page latches by table, index and level; the coldest pages beyond the limit are summed in \
         table=\"other\"."
    );
    HANDOFFS = counter(
        "armtrace_latch_handoffs_total",
        &["latch", "from_node", "to_node"],
        "Contended waits by the node of the thread that woke the waiter and the node where the waiter got the \
         latch; from_node=\"unknown\" if nothing woke it."
    );
    HANDOFF_WAIT = counter(
        "armtrace_latch_handoff_wait_seconds_total",
        &["latch", "locality"],
        "Wait time for latches by handoff: within a node (local), between nodes (remote), or unknown."
    );
    MIGRATIONS = counter(
        "armtrace_latch_waiter_migrations_total",
        &["latch"],
        "Contended waits that ended on a different node than they began on."
    );
    REACQUIRE = counter(
        "armtrace_latch_reacquire_seconds_total",
        &["latch"],
        "Time that threads woken by a condition variable waited to reacquire its mutex; not part of any latch \
         wait time."
    );
    REACQUIRES = counter(
        "armtrace_latch_reacquires_total",
        &["latch"],
        "Waits of threads woken by a condition variable to reacquire its mutex."
    );
    COND_WAIT = histogram(
        "armtrace_cond_wait_seconds",
        &["latch"],
        "Waits on condition variables, mostly idle threads waiting for work; not contention."
    );
}

/// Serves the waits for latches and on condition variables.
pub struct LatchMetrics {
    latches: Rotating<LatchId, LatchWaits>,
    conds: Rotating<String, LatchWaits>,
    reacquires: Rotating<String, Reacquires>,
    callsites: Rotating<(String, String), CallsiteWaits>,
    pages: Rotating<PageId, PageWaits>,
    handoffs: Bounded<String>,
    spin: SpinFloor,
}

/// What identifies a row of latch waits.
type LatchId = (String, Kind, Mode);

/// Table, index and level, as label values.
type PageId = [String; 3];

impl Default for LatchMetrics {
    fn default() -> LatchMetrics {
        LatchMetrics {
            latches: Rotating::new(LATCH_SERIES, HOT_NS, 0.0),
            conds: Rotating::new(COND_SERIES, HOT_NS, 0.0),
            reacquires: Rotating::new(COND_SERIES, HOT_NS, 0.0),
            callsites: Rotating::new(CALLSITE_SERIES, HOT_NS, NOTABLE),
            pages: Rotating::new(PAGE_SERIES, HOT_NS, NOTABLE),
            handoffs: Bounded::new(HANDOFF_LATCHES),
            spin: SpinFloor::default(),
        }
    }
}

impl Metrics for LatchMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let mut families = self.waits(snapshot);
        families.push(self.callsites(snapshot.elapsed, &snapshot.latch.callsites));
        families.push(self.pages(snapshot.elapsed, &snapshot.latch.pages));
        families.extend(self.handoffs(&snapshot.latch.handoffs));
        if snapshot.latch.counted() {
            families.extend(self.reacquires(snapshot.elapsed, &snapshot.latch.reacquires));
            families.push(self.conds(snapshot.elapsed, &snapshot.latch.waits));
        }
        families
    }
}

impl LatchMetrics {
    fn waits(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let rows = snapshot.latch.waits.iter().filter(|row| row.kind != Kind::Cond);
        let rows = merged(rows.map(|row| (latch_id(row), row.clone())));
        self.spin.start(snapshot.elapsed);
        let rows = rows.into_iter().map(|(id, row)| self.spin.kept(id, row));
        let other = |id: &LatchId| (OTHER.to_owned(), id.1, id.2);
        let latches = self.latches.rows(snapshot.elapsed, rows, |row| row.waits.sum_ns, other);
        if snapshot.latch.sampled {
            return vec![sampled_waits(&latches), per_latch(&VARIANCE, &latches, variance)];
        }
        // Without sleeps, what a waiter did is not known; without samples, neither is its CPU time.
        let split = || latches.iter().filter(|_| snapshot.latch.sleeps_seen);
        let sampled = latches.iter().filter(|_| !snapshot.cpu.time.is_empty());
        let estimated = || latches.iter().filter(|(_, row)| row.estimated_ns > 0);
        vec![
            WAIT.with(latches.iter().map(|(id, row)| WAIT.distribution(&labels(id), &row.waits))),
            per_latch(&WAIT_MAX, &latches, |row| seconds(row.waits.max_ns)),
            per_latch(&SPIN, split(), |row| seconds(row.spin_ns())),
            per_latch(&SLEEP, split(), |row| seconds(row.sleep_ns)),
            per_latch(&SLEEPS, split(), |row| row.sleeps as f64),
            per_latch(&SPIN_CPU, sampled, |row| seconds(row.spin_cpu_ns)),
            spins(split()),
            per_latch(&ESTIMATED, estimated(), |row| seconds(row.estimated_ns)),
            per_latch(&VARIANCE, estimated(), variance),
        ]
    }

    fn conds(&mut self, elapsed: Duration, waits: &[LatchWaits]) -> MetricFamily {
        let rows = waits.iter().filter(|row| row.kind == Kind::Cond);
        let rows = rows.map(|row| (row.latch.clone(), row.clone()));
        let conds = self.conds.rows(elapsed, rows, |row| row.waits.sum_ns, |_| OTHER.to_owned());
        COND_WAIT.with(conds.iter().map(|(cond, row)| COND_WAIT.distribution(&[cond], &row.waits)))
    }

    fn reacquires(&mut self, elapsed: Duration, rows: &[Reacquires]) -> [MetricFamily; 2] {
        let rows = rows.iter().map(|row| (row.latch.clone(), row.clone()));
        let mutexes = self.reacquires.rows(elapsed, rows, |row| row.wait_ns, |_| OTHER.to_owned());
        [
            REACQUIRE.with(mutexes.iter().map(|(mutex, row)| REACQUIRE.sample(&[mutex], seconds(row.wait_ns)))),
            REACQUIRES.with(mutexes.iter().map(|(mutex, row)| REACQUIRES.sample(&[mutex], row.waits as f64))),
        ]
    }

    /// Merges the rows of all modes, which this metric does not have.
    fn callsites(&mut self, elapsed: Duration, rows: &[CallsiteWaits]) -> MetricFamily {
        let rows = rows.iter().map(|row| ((row.latch.clone(), row.callsite.clone()), row.clone()));
        let other = |_: &_| (OTHER.to_owned(), OTHER.to_owned());
        let sites = self.callsites.rows(elapsed, rows, |row| row.wait_ns, other);
        CALLSITE.with(sites.iter().map(|((latch, site), row)| CALLSITE.sample(&[latch, site], seconds(row.wait_ns))))
    }

    fn pages(&mut self, elapsed: Duration, rows: &[PageWaits]) -> MetricFamily {
        let other = page_id(&PageWaits::other());
        let rows = rows.iter().map(|row| (page_id(row), row.clone()));
        let pages = self.pages.rows(elapsed, rows, |row| row.wait_ns, |_| other.clone());
        PAGE.with(pages.iter().map(|(id, row)| PAGE.sample(&id.each_ref().map(String::as_str), seconds(row.wait_ns))))
    }

    fn handoffs(&mut self, rows: &[Handoffs]) -> [MetricFamily; 3] {
        self.handoffs.limit(HANDOFF_LATCHES.min(HANDOFF_SERIES / pairs_of_nodes(rows).max(1)));
        let by_latch = rows.iter().map(|row| (row.latch.clone(), row.clone()));
        let latches = self.handoffs.rows(by_latch, |row| row.wait_ns, |_| OTHER.to_owned());
        let (mut counts, mut times) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
        for row in rows {
            let latch = if self.handoffs.is_named(&row.latch) { &*row.latch } else { OTHER };
            let count = counts.entry((latch, node(&row.from), node(&row.to))).or_default();
            *count = count.saturating_add(row.count);
            let time = times.entry((latch, row.locality)).or_default();
            *time = time.saturating_add(row.wait_ns);
        }
        let times = times.iter().map(|((latch, locality), &ns)| {
            HANDOFF_WAIT.sample(&[latch, locality.map_or(UNKNOWN, Locality::as_str)], seconds(ns))
        });
        [
            HANDOFFS.with(counts.iter().map(|((latch, from, to), &n)| HANDOFFS.sample(&[latch, from, to], n as f64))),
            HANDOFF_WAIT.with(times),
            MIGRATIONS.with(latches.iter().map(|(latch, row)| MIGRATIONS.sample(&[latch], row.migrations as f64))),
        ]
    }
}

fn per_latch<'a>(
    family: &Family,
    rows: impl IntoIterator<Item = (&'a LatchId, &'a LatchWaits)>,
    value: impl Fn(&LatchWaits) -> f64,
) -> MetricFamily {
    family.with(rows.into_iter().map(|(id, row)| family.sample(&labels(id), value(row))))
}

fn sampled_waits<'a>(rows: impl IntoIterator<Item = (&'a LatchId, &'a LatchWaits)>) -> MetricFamily {
    SAMPLED.with(rows.into_iter().flat_map(|(id, row)| {
        let [latch, kind, mode] = labels(id);
        let states = [("asleep", row.sleep_ns), ("awake", row.spin_ns())];
        // Of some waiters only the sleep can be seen.
        let seen = states.into_iter().filter(|(_, ns)| *ns > 0);
        seen.map(move |(state, ns)| SAMPLED.sample(&[latch, kind, mode, state], seconds(ns)))
    }))
}

/// Returns the number of pairs of nodes between which a latch can be handed over.
fn pairs_of_nodes(rows: &[Handoffs]) -> usize {
    let to: BTreeSet<&str> = rows.iter().map(|row| node(&row.to)).collect();
    to.len() * (to.len() + 1)
}

/// Returns the square of the standard error of the wait time, in square seconds.
fn variance(row: &LatchWaits) -> f64 {
    row.variance_us2 as f64 / 1e12
}

/// Returns the spins by outcome, of latches whose waiters spin.
fn spins<'a>(rows: impl Iterator<Item = (&'a LatchId, &'a LatchWaits)>) -> MetricFamily {
    let spun = rows.filter(|(_, row)| row.spins() > 0);
    SPINS.with(spun.flat_map(|(id, row)| {
        let [latch, kind, mode] = labels(id);
        let outcomes = [("won", row.spins_won), ("wasted", row.spins_wasted)];
        outcomes.map(|(outcome, waits)| SPINS.sample(&[latch, kind, mode, outcome], waits as f64))
    }))
}

/// Keeps the spin counters from decreasing.
///
/// Spin time is what is left of a wait's time after its sleep. A snapshot that is read while waits go on may have
/// counted a sleep whose wait has not ended. Without this floor, the counter would decrease, and Prometheus would take
/// that for a restart and count everything again.
#[derive(Default)]
struct SpinFloor {
    elapsed: Duration,
    floors: HashMap<LatchId, u64>,
}

impl SpinFloor {
    /// Begins a scrape, at this time since attach. Time that runs backwards means that armtrace has attached anew, so
    /// all counters start again.
    fn start(&mut self, elapsed: Duration) {
        if elapsed < self.elapsed {
            self.floors.clear();
        }
        self.elapsed = elapsed;
    }

    /// Returns the row with no less spin time than at the scrape before; so much less is then its sleep.
    fn kept(&mut self, id: LatchId, mut row: LatchWaits) -> (LatchId, LatchWaits) {
        let floor = self.floors.entry(id.clone()).or_default();
        *floor = row.spin_ns().max(*floor);
        row.sleep_ns = row.sleep_ns.min(row.waits.sum_ns.saturating_sub(*floor));
        (id, row)
    }
}

fn latch_id(row: &LatchWaits) -> LatchId {
    (row.latch.clone(), row.kind, row.mode)
}

fn labels((latch, kind, mode): &LatchId) -> [&str; 3] {
    [latch, kind.as_str(), mode.as_str()]
}

fn page_id(row: &PageWaits) -> PageId {
    let level = row.level.map_or_else(String::new, |level| level.to_string());
    [row.table.clone(), row.index.clone(), level]
}

fn node(place: &Option<String>) -> &str {
    place.as_deref().unwrap_or(UNKNOWN)
}

//! What belongs to no single measurement: the server, the probes and their cost, and this build of armtrace.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use prometheus::proto::MetricFamily;
use strum::IntoEnumIterator;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};
use crate::model::ProbeState;

families! {
    TARGET_INFO = gauge(
        "armtrace_target_info",
        &[
            "flavor", "version", "arch", "cpu_model", "build_id", "symbol_source", "kernel", "numa_nodes", "page_size"
        ],
        "The server being measured and its host; always 1."
    );
    TARGET_CPUS = gauge("armtrace_target_cpus", &[], "CPUs that the server being measured may use.");
    TARGET_CLOCK = gauge("armtrace_target_cpu_max_hertz", &[], "Highest clock of the host's CPUs.");
    TARGET_UP = gauge("armtrace_target_up", &[], "1 while the server being measured runs, 0 once it has ended.");
    TARGET_CPU_TIME = counter(
        "armtrace_target_cpu_seconds_total",
        &[],
        "CPU time of the server since attach, user and system, by the kernel's account."
    );
    PROBE_HITS = counter("armtrace_probe_hits_total", &["probe"], "Times that the server hit a probe.");
    PROBE_COST = counter(
        "armtrace_probe_cost_seconds_total",
        &["probe"],
        "Estimated CPU time that a probe took from the server: hits times the cost of a trap measured on \
         this host, plus the time that its program ran."
    );
    PROBE_STATE = gauge(
        "armtrace_probe_state",
        &["probe", "state"],
        "1 for the state that a probe is in, 0 for the others."
    );
    LIMITED = counter(
        "armtrace_probe_turns_seconds_total",
        &["reason"],
        "Time in which some probes took turns, by what they would exceed otherwise."
    );
    HIT_COST = gauge(
        "armtrace_probe_hit_cost_seconds",
        &["class"],
        "Cost of one probe hit to the server on this host, by class of probe, as last measured."
    );
    OVERHEAD = gauge(
        "armtrace_overhead_ratio",
        &[],
        "Estimated share of the server's CPU time since attach that probes took, 0 to 1."
    );
    BUDGET = gauge(
        "armtrace_overhead_budget_ratio",
        &[],
        "Share of the server's CPU time that probes may take, 0 to 1: --max-overhead."
    );
    LOST_EVENTS = counter("armtrace_lost_events_total", &["reason"], "Events that are in no other figure, by cause.");
    BUILD_INFO = gauge(
        "armtrace_build_info",
        &["version", "revision", "rustc", "arch"],
        "The running build of armtrace; always 1."
    );
}

/// Serves what belongs to no single measurement.
pub struct AgentMetrics;

impl Metrics for AgentMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let mut families = target(snapshot).to_vec();
        families.push(cpu(snapshot));
        families.extend(probes(snapshot));
        families.push(limited(snapshot));
        families.extend(costs(snapshot));
        families.push(lost(snapshot));
        families.push(build());
        families
    }
}

fn target(snapshot: &Snapshot) -> [MetricFamily; 4] {
    let (t, host) = (&snapshot.target, &snapshot.target.host);
    let nodes = host.numa_nodes.map_or_else(String::new, |nodes| nodes.to_string());
    let page = host.page_bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let labels =
        [&t.flavor, &t.version, &t.arch, &t.cpu_model, &t.build_id, &t.symbol_source, &host.kernel, &nodes, &page];
    [
        TARGET_INFO.with([TARGET_INFO.sample(&labels.map(String::as_str), 1.0)]),
        TARGET_CPUS.with(host.server_cpus.map(|cpus| TARGET_CPUS.sample(&[], f64::from(cpus)))),
        TARGET_CLOCK.with(host.ghz.map(|ghz| TARGET_CLOCK.sample(&[], (ghz * 1e9).round()))),
        TARGET_UP.with([TARGET_UP.sample(&[], f64::from(snapshot.up))]),
    ]
}

fn cpu(snapshot: &Snapshot) -> MetricFamily {
    TARGET_CPU_TIME.with(snapshot.server_cpu_ns.map(|ns| TARGET_CPU_TIME.sample(&[], seconds(ns))))
}

/// The sites that share a probe's name, summed.
#[derive(Default)]
struct ProbeSum {
    hits: u64,
    /// `None` as soon as the cost of one site is unknown.
    cost_ns: Option<f64>,
    states: Vec<ProbeState>,
}

fn probes(snapshot: &Snapshot) -> [MetricFamily; 3] {
    let sums = probe_sums(snapshot);
    let costs = sums.iter().filter_map(|(probe, sum)| Some(PROBE_COST.sample(&[probe], sum.cost_ns? / 1e9)));
    let states = sums.iter().flat_map(|(probe, sum)| {
        let is_in = |state| f64::from(sum.states.contains(&state));
        ProbeState::iter().map(move |state| PROBE_STATE.sample(&[probe, state.as_str()], is_in(state)))
    });
    [
        PROBE_HITS.with(sums.iter().map(|(probe, sum)| PROBE_HITS.sample(&[probe], sum.hits as f64))),
        PROBE_COST.with(costs),
        PROBE_STATE.with(states),
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

fn costs(snapshot: &Snapshot) -> [MetricFamily; 3] {
    [
        HIT_COST.with(snapshot.costs.iter().map(|(class, ns)| HIT_COST.sample(&[class], ns / 1e9))),
        OVERHEAD.with(snapshot.overhead_ratio().map(|ratio| OVERHEAD.sample(&[], ratio))),
        BUDGET.with(snapshot.max_overhead.map(|share| BUDGET.sample(&[], share))),
    ]
}

fn limited(snapshot: &Snapshot) -> MetricFamily {
    LIMITED.with(snapshot.limited.iter().map(|(limit, time)| LIMITED.sample(&[limit.as_str()], time.as_secs_f64())))
}

fn lost(snapshot: &Snapshot) -> MetricFamily {
    let mut sums = BTreeMap::<&str, u64>::new();
    for (reason, events) in &snapshot.lost {
        *sums.entry(reason).or_default() += events;
    }
    LOST_EVENTS.with(sums.into_iter().map(|(reason, n)| LOST_EVENTS.sample(&[reason], n as f64)))
}

/// Returns what a scrape says of a server that is not measured.
pub(super) fn not_measured() -> MetricFamily {
    TARGET_UP.with([TARGET_UP.sample(&[], 0.0)])
}

/// Returns what a scrape says of this program.
pub(super) fn build() -> MetricFamily {
    let labels = [env!("CARGO_PKG_VERSION"), env!("ARMTRACE_REVISION"), env!("ARMTRACE_RUSTC"), ARCH];
    BUILD_INFO.with([BUILD_INFO.sample(&labels, 1.0)])
}

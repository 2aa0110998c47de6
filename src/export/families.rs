//! Every metric family that the collector can emit, described once.

use prometheus::core::Desc;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::HashMap;

/// One metric family: what `# HELP`, `# TYPE` and `docs/metrics.md` say of it.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: MetricType,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

const LATCH: &[&str] = &["latch", "kind", "mode"];

pub const LATCH_WAIT: Family = Family {
    name: "armtrace_latch_wait_seconds",
    kind: MetricType::HISTOGRAM,
    labels: LATCH,
    help: "Contended waits for a latch, from finding it taken to having it.",
};
pub const LATCH_WAIT_MAX: Family = Family {
    name: "armtrace_latch_wait_max_seconds",
    kind: MetricType::GAUGE,
    labels: LATCH,
    help: "Longest wait for a latch since armtrace attached.",
};
pub const LATCH_SPIN: Family = Family {
    name: "armtrace_latch_spin_seconds_total",
    kind: MetricType::COUNTER,
    labels: LATCH,
    help: "Part of the wait time that waiters spent awake, mostly spinning.",
};
pub const LATCH_SLEEP: Family = Family {
    name: "armtrace_latch_sleep_seconds_total",
    kind: MetricType::COUNTER,
    labels: LATCH,
    help: "Part of the wait time that waiters spent asleep in the kernel.",
};
pub const LATCH_SLEEPS: Family = Family {
    name: "armtrace_latch_sleeps_total",
    kind: MetricType::COUNTER,
    labels: LATCH,
    help: "Times that waiters for a latch went to sleep in the kernel.",
};
pub const LATCH_SPIN_CPU: Family = Family {
    name: "armtrace_latch_spin_cpu_seconds_total",
    kind: MetricType::COUNTER,
    labels: LATCH,
    help: "CPU time, sampled, of threads that waited for a latch and ran the server's code meanwhile: spinning.",
};
pub const LATCH_SPINS: Family = Family {
    name: "armtrace_latch_spins_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "kind", "mode", "outcome"],
    help:
        "Waits that began with spinning, by outcome: won (got the latch without sleeping) or wasted (slept after all).",
};
pub const LATCH_ESTIMATED: Family = Family {
    name: "armtrace_latch_wait_estimated_seconds_total",
    kind: MetricType::COUNTER,
    labels: LATCH,
    help:
        "Part of the wait time that was not seen, because probes were off to keep the overhead budget, but scaled up.",
};
pub const LATCH_CALLSITE: Family = Family {
    name: "armtrace_latch_callsite_wait_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "callsite"],
    help: "Wait time by the place in the server's code that waits; the smallest add up in latch=\"other\".",
};
pub const LATCH_PAGE: Family = Family {
    name: "armtrace_latch_page_wait_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["table", "index", "level"],
    help: "Wait time for the latches of pages, by what the pages are part of; the smallest add up in table=\"other\".",
};
pub const LATCH_HANDOFFS: Family = Family {
    name: "armtrace_latch_handoffs_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "from_node", "to_node"],
    help: "Contended waits by the node where the thread ran that woke the waiter, and where the waiter had the latch; \
           from_node=\"unknown\": it was not woken.",
};
pub const LATCH_HANDOFF_WAIT: Family = Family {
    name: "armtrace_latch_handoff_wait_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "locality"],
    help:
        "Wait time for latches that were handed over within a node (local), between nodes (remote), or by nobody known.",
};
pub const LATCH_MIGRATIONS: Family = Family {
    name: "armtrace_latch_waiter_migrations_total",
    kind: MetricType::COUNTER,
    labels: &["latch"],
    help: "Contended waits that ended on another node than they began on.",
};
pub const REACQUIRE: Family = Family {
    name: "armtrace_latch_reacquire_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["latch"],
    help: "Time that threads woken by a condition variable waited to get its mutex back: wake-ups, and in no other wait time.",
};
pub const REACQUIRES: Family = Family {
    name: "armtrace_latch_reacquires_total",
    kind: MetricType::COUNTER,
    labels: &["latch"],
    help: "Waits of threads woken by a condition variable to get its mutex back.",
};
pub const COND_WAIT: Family = Family {
    name: "armtrace_cond_wait_seconds",
    kind: MetricType::HISTOGRAM,
    labels: &["latch"],
    help: "Waits on condition variables, mostly idle threads waiting for work; not contention.",
};
pub const CPU: Family = Family {
    name: "armtrace_cpu_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["class", "function"],
    help: "CPU time of the server's threads, sampled, by what the function is there for; small ones add up in function=\"other\".",
};
pub const ORDERING: Family = Family {
    name: "armtrace_barrier_cpu_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["instruction", "function"],
    help: "CPU time of the server's threads, sampled, in barriers, atomics, and loads and stores that order.",
};
pub const CHECKSUM: Family = Family {
    name: "armtrace_checksum_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["function", "implementation"],
    help: "CPU time of the server's threads, sampled, in the checksum implementations that it has chosen.",
};
pub const CHECKSUM_CALLS: Family = Family {
    name: "armtrace_checksum_calls_total",
    kind: MetricType::COUNTER,
    labels: &["function", "implementation"],
    help: "Calls of the checksum implementations that the server has chosen, scaled up from short bursts in which each is counted.",
};
pub const CHECKSUM_BYTES: Family = Family {
    name: "armtrace_checksum_bytes_total",
    kind: MetricType::COUNTER,
    labels: &["function", "implementation"],
    help: "Bytes of which the server computed checksums, scaled up from short bursts in which each call is counted.",
};
pub const GETCPU: Family = Family {
    name: "armtrace_getcpu_calls_total",
    kind: MetricType::COUNTER,
    labels: &["path"],
    help: "Times that the server asked which CPU a thread runs on, by how: counted for the system call only.",
};
pub const BARRIERS: Family = Family {
    name: "armtrace_barriers_static",
    kind: MetricType::GAUGE,
    labels: &["instruction"],
    help: "Barrier, atomic, spin-hint and checksum instructions in the server's code.",
};
pub const PERF_EVENTS: Family = Family {
    name: "armtrace_perf_events_total",
    kind: MetricType::COUNTER,
    labels: &["event", "scope"],
    help: "Hardware events that this CPU was seen to count: the server's outside of the kernel, or the whole host's.",
};
pub const PERF_EVENT_RUNNING: Family = Family {
    name: "armtrace_perf_event_running_ratio",
    kind: MetricType::GAUGE,
    labels: &["event", "scope"],
    help: "Part of the time that the CPU had a counter for the event, 0 to 1; its count is scaled up for the rest.",
};
pub const PERF_EVENTS_BY_FUNCTION: Family = Family {
    name: "armtrace_perf_events_by_function_total",
    kind: MetricType::COUNTER,
    labels: &["event", "function"],
    help: "Hardware events by the server's function that had them, sampled; small ones add up in function=\"other\".",
};
pub const STATEMENTS: Family = Family {
    name: "armtrace_statements_total",
    kind: MetricType::COUNTER,
    labels: &[],
    help: "Statements that clients have sent the server since shortly before attach, by its own count.",
};
pub const TARGET_INFO: Family = Family {
    name: "armtrace_target_info",
    kind: MetricType::GAUGE,
    labels: &["flavor", "version", "arch", "cpu_model", "build_id", "symbol_source"],
    help: "The server being watched and the host's CPU; always 1.",
};
pub const TARGET_UP: Family = Family {
    name: "armtrace_target_up",
    kind: MetricType::GAUGE,
    labels: &[],
    help: "1 while the server being watched runs, 0 once it has ended.",
};
pub const PROBE_HITS: Family = Family {
    name: "armtrace_probe_hits_total",
    kind: MetricType::COUNTER,
    labels: &["probe"],
    help: "Times that the server ran into a probe.",
};
pub const PROBE_COST: Family = Family {
    name: "armtrace_probe_cost_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["probe"],
    help: "Estimated CPU time that a probe took from the server: hits times the cost per hit measured on this host.",
};
pub const PROBE_STATE: Family = Family {
    name: "armtrace_probe_state",
    kind: MetricType::GAUGE,
    labels: &["probe", "state"],
    help: "1 for the state that a probe is in, 0 for the others.",
};
pub const HIT_COST: Family = Family {
    name: "armtrace_probe_hit_cost_seconds",
    kind: MetricType::GAUGE,
    labels: &["class"],
    help: "What one hit of a probe costs the server on this host, by class of probe, as measured at the start.",
};
pub const OVERHEAD: Family = Family {
    name: "armtrace_overhead_ratio",
    kind: MetricType::GAUGE,
    labels: &[],
    help: "Estimated share of the server's CPU time since attach that probes took, 0 to 1.",
};
pub const LOST_EVENTS: Family = Family {
    name: "armtrace_lost_events_total",
    kind: MetricType::COUNTER,
    labels: &["reason"],
    help: "Events that are in no other figure, by cause.",
};
pub const BUILD_INFO: Family = Family {
    name: "armtrace_build_info",
    kind: MetricType::GAUGE,
    labels: &["version", "revision", "rustc", "arch"],
    help: "The running build of armtrace; always 1.",
};

/// All families above, in the order of the metrics reference.
pub const FAMILIES: &[Family] = &[
    LATCH_WAIT,
    LATCH_WAIT_MAX,
    LATCH_SPIN,
    LATCH_SLEEP,
    LATCH_SLEEPS,
    LATCH_SPIN_CPU,
    LATCH_SPINS,
    LATCH_ESTIMATED,
    LATCH_CALLSITE,
    LATCH_PAGE,
    LATCH_HANDOFFS,
    LATCH_HANDOFF_WAIT,
    LATCH_MIGRATIONS,
    REACQUIRE,
    REACQUIRES,
    COND_WAIT,
    CPU,
    ORDERING,
    CHECKSUM,
    CHECKSUM_CALLS,
    CHECKSUM_BYTES,
    GETCPU,
    BARRIERS,
    PERF_EVENTS,
    PERF_EVENT_RUNNING,
    PERF_EVENTS_BY_FUNCTION,
    STATEMENTS,
    TARGET_INFO,
    TARGET_UP,
    PROBE_HITS,
    PROBE_COST,
    PROBE_STATE,
    HIT_COST,
    OVERHEAD,
    LOST_EVENTS,
    BUILD_INFO,
];

impl Family {
    /// The description that the registry wants.
    pub fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|label| label.to_string()).collect();
        Desc::new(self.name.to_string(), self.help.to_string(), labels, HashMap::new())
            .expect("family names and labels are valid")
    }

    /// The family with its samples.
    pub fn with(&self, samples: Vec<Metric>) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_string());
        family.set_help(self.help.to_string());
        family.set_field_type(self.kind);
        family.set_metric(samples);
        family
    }

    /// One sample of a counter or a gauge; `values` are its labels' values, in the order of `labels`.
    pub fn sample(&self, values: &[&str], value: f64) -> Metric {
        let mut metric = self.labelled(values);
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    }

    /// A sample without a value yet. A label with an empty value is left out: to Prometheus it is the same.
    pub fn labelled(&self, values: &[&str]) -> Metric {
        assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let pairs = self.labels.iter().zip(values).filter(|(_, value)| !value.is_empty());
        Metric::from_label(pairs.map(|(name, value)| label(name, value)).collect())
    }
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_string());
    pair.set_value(value.to_string());
    pair
}

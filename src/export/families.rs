//! Describes every metric family that the collector can emit.

use prometheus::core::Desc;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::HashMap;

/// One metric family, as described in `# HELP`, `# TYPE` and `docs/metrics.md`.
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
    help: "Contended waits for a latch, from finding it taken to acquiring it.",
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
    help: "Sampled CPU time that threads spent in the server's code while waiting for a latch: the cost of spinning.",
};
pub const LATCH_SPINS: Family = Family {
    name: "armtrace_latch_spins_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "kind", "mode", "outcome"],
    help:
        "Waits that began with spinning, by outcome: won (got the latch without a sleep) or wasted (slept after all).",
};
pub const LATCH_ESTIMATED: Family = Family {
    name: "armtrace_latch_wait_estimated_seconds_total",
    kind: MetricType::COUNTER,
    labels: LATCH,
    help: "Estimated part of the wait time: scaled up for periods when probes were off to stay within the budget.",
};
pub const LATCH_CALLSITE: Family = Family {
    name: "armtrace_latch_callsite_wait_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "callsite"],
    help: "Wait time by call site in the server's code; call sites beyond the limit are summed in latch=\"other\".",
};
pub const LATCH_PAGE: Family = Family {
    name: "armtrace_latch_page_wait_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["table", "index", "level"],
    help: "Wait time for page latches by table, index and level; pages beyond the limit are summed in table=\"other\".",
};
pub const LATCH_HANDOFFS: Family = Family {
    name: "armtrace_latch_handoffs_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "from_node", "to_node"],
    help:
        "Contended waits by the node of the thread that woke the waiter and the node where the waiter got the latch; \
           from_node=\"unknown\" if nothing woke it.",
};
pub const LATCH_HANDOFF_WAIT: Family = Family {
    name: "armtrace_latch_handoff_wait_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["latch", "locality"],
    help: "Wait time for latches by handoff: within a node (local), between nodes (remote), or unknown.",
};
pub const LATCH_MIGRATIONS: Family = Family {
    name: "armtrace_latch_waiter_migrations_total",
    kind: MetricType::COUNTER,
    labels: &["latch"],
    help: "Contended waits that ended on a different node than they began on.",
};
pub const REACQUIRE: Family = Family {
    name: "armtrace_latch_reacquire_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["latch"],
    help: "Time that threads woken by a condition variable waited to reacquire its mutex; not part of any latch wait time.",
};
pub const REACQUIRES: Family = Family {
    name: "armtrace_latch_reacquires_total",
    kind: MetricType::COUNTER,
    labels: &["latch"],
    help: "Waits of threads woken by a condition variable to reacquire its mutex.",
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
    help: "Sampled CPU time of the server's threads by the purpose of the function; small ones are summed in function=\"other\".",
};
pub const ORDERING: Family = Family {
    name: "armtrace_barrier_cpu_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["instruction", "function"],
    help: "Sampled CPU time of the server's threads on barriers, atomics, and ordered loads and stores.",
};
pub const CHECKSUM: Family = Family {
    name: "armtrace_checksum_seconds_total",
    kind: MetricType::COUNTER,
    labels: &["function", "implementation"],
    help: "Sampled CPU time of the server's threads in the checksum implementations that the server has chosen.",
};
pub const CHECKSUM_CALLS: Family = Family {
    name: "armtrace_checksum_calls_total",
    kind: MetricType::COUNTER,
    labels: &["function", "implementation"],
    help: "Calls of the checksum implementations that the server has chosen, scaled up from short bursts of counting.",
};
pub const CHECKSUM_BYTES: Family = Family {
    name: "armtrace_checksum_bytes_total",
    kind: MetricType::COUNTER,
    labels: &["function", "implementation"],
    help: "Bytes that the server computed checksums of, scaled up from short bursts of counting.",
};
pub const GETCPU: Family = Family {
    name: "armtrace_getcpu_calls_total",
    kind: MetricType::COUNTER,
    labels: &["path"],
    help: "Times that a server thread asked which CPU it runs on, by path; only system calls are counted.",
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
    help: "Hardware events that this CPU was proven to count: the server's outside the kernel, or the whole host's.",
};
pub const PERF_EVENT_RUNNING: Family = Family {
    name: "armtrace_perf_event_running_ratio",
    kind: MetricType::GAUGE,
    labels: &["event", "scope"],
    help: "Part of the time that the CPU had a counter for the event, 0 to 1; the count is scaled up for the rest.",
};
pub const PERF_EVENTS_BY_FUNCTION: Family = Family {
    name: "armtrace_perf_events_by_function_total",
    kind: MetricType::COUNTER,
    labels: &["event", "function"],
    help:
        "Sampled hardware events by the server's function that had them; small ones are summed in function=\"other\".",
};
pub const STATEMENTS: Family = Family {
    name: "armtrace_statements_total",
    kind: MetricType::COUNTER,
    labels: &[],
    help: "Statements that clients have sent since shortly before attach, as counted by the server.",
};
pub const TARGET_INFO: Family = Family {
    name: "armtrace_target_info",
    kind: MetricType::GAUGE,
    labels: &["flavor", "version", "arch", "cpu_model", "build_id", "symbol_source"],
    help: "The server being measured and the host's CPU; always 1.",
};
pub const TARGET_UP: Family = Family {
    name: "armtrace_target_up",
    kind: MetricType::GAUGE,
    labels: &[],
    help: "1 while the server being measured runs, 0 once it has ended.",
};
pub const PROBE_HITS: Family = Family {
    name: "armtrace_probe_hits_total",
    kind: MetricType::COUNTER,
    labels: &["probe"],
    help: "Times that the server hit a probe.",
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
    help: "Cost of one probe hit to the server on this host, by class of probe, measured at start.",
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
    /// Returns the family's description for the registry.
    ///
    /// # Panics
    /// Panics if a name or a label is not valid in Prometheus.
    pub fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|label| label.to_string()).collect();
        Desc::new(self.name.to_string(), self.help.to_string(), labels, HashMap::new())
            .expect("family names and labels are valid")
    }

    /// Returns the family with these samples.
    pub fn with(&self, samples: Vec<Metric>) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_string());
        family.set_help(self.help.to_string());
        family.set_field_type(self.kind);
        family.set_metric(samples);
        family
    }

    /// Returns one sample of a counter or a gauge. `values` are the labels' values, in the order of `labels`.
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

    /// Returns a sample that has no value yet. Labels with an empty value are left out: to Prometheus it is the same.
    ///
    /// # Panics
    /// Panics if the number of values is not the number of labels.
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

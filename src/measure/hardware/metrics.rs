//! Hardware events: the metric families.

use prometheus::proto::MetricFamily;

use super::EventCount;
use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, Family};

families! {
    EVENTS = counter(
        "armtrace_perf_events_total",
        &["event", "scope"],
        "Hardware events that this CPU was proven to count: the server's outside the kernel, or the whole \
         host's."
    );
    RUNNING = gauge(
        "armtrace_perf_event_running_ratio",
        &["event", "scope"],
        "Part of the time that the CPU had a counter for the event, 0 to 1; the count is scaled up for the rest."
    );
    BY_FUNCTION = counter(
        "armtrace_perf_events_by_function_total",
        &["event", "function"],
        "Sampled hardware events by the server's function that had them; small ones are summed in \
         function=\"other\"."
    );
}

/// Serves the hardware events.
#[derive(Default)]
pub struct HardwareMetrics;

impl Metrics for HardwareMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let hardware = &snapshot.hardware;
        let running = hardware.events.iter();
        let running = running.filter_map(|row| Some(RUNNING.sample(&labels(row), row.running_ratio?)));
        let functions = hardware.functions.iter();
        let functions = functions.map(|row| BY_FUNCTION.sample(&[&row.event, &row.function], row.count as f64));
        vec![
            EVENTS.with(hardware.events.iter().map(|row| EVENTS.sample(&labels(row), row.count))),
            RUNNING.with(running),
            BY_FUNCTION.with(functions),
        ]
    }
}

fn labels(row: &EventCount) -> [&str; 2] {
    [&row.event, row.scope.as_str()]
}

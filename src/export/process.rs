//! The metrics of armtrace's own process.

use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, MetricFamily};

use crate::attach::helper_pid;
use crate::host::clock;
use crate::server::cpu_time_ns;

/// The `process_*` metrics of armtrace itself.
///
/// The prometheus crate counts CPU time in whole seconds, so a process that uses a thousandth of a CPU would show
/// nothing for a quarter of an hour. It also reports 0 for a limit that does not exist.
pub struct ProcessSelf(ProcessCollector);

impl ProcessSelf {
    /// Creates the collector for the running process.
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
            let mut counter = Counter::default();
            counter.set_value(own_cpu_seconds());
            cpu.mut_metric()[0].set_counter(counter);
        }
        families
    }
}

fn gauge_of(family: &MetricFamily) -> f64 {
    family.get_metric().iter().map(|metric| metric.get_gauge().get_value()).sum()
}

/// Returns the CPU time that this process has used, user and system, in seconds, including the process that attaches
/// and detaches probes for it, and those before that one.
fn own_cpu_seconds() -> f64 {
    let helper_ns = helper_pid().and_then(cpu_time_ns).unwrap_or(0);
    let own_ns = clock::now_ns(libc::CLOCK_PROCESS_CPUTIME_ID);
    (own_ns + helper_ns) as f64 / 1e9 + clock::children_seconds()
}

//! Asks for the counters that are compared.

use std::collections::BTreeMap;

use strum::{EnumIter, IntoEnumIterator};

use super::client::{Client, Series};
use super::error::FleetError;
use super::grid::Grid;
use super::labels::{identity, Labels};
use super::Selection;

/// Declares the counters that are compared: for each its metric, the labels by which it is summed, and those that are
/// summed over.
macro_rules! counters {
    ($($name:ident = $metric:literal, $by:expr, $over:expr;)+) => {
        /// What is asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter)]
        pub enum Counter {
            $($name,)+
        }

        impl Counter {
            fn metric(self) -> &'static str {
                match self {
                    $(Counter::$name => $metric,)+
                }
            }

            /// Returns the labels by which it is summed, in the order of their values in a [`Key`].
            fn by(self) -> &'static [&'static str] {
                match self {
                    $(Counter::$name => $by,)+
                }
            }

            /// Returns whether it is a gauge, which may fall.
            pub fn is_gauge(self) -> bool {
                matches!(self, Counter::Cpus | Counter::Clock | Counter::Up)
            }

            /// Returns whether its series end while the server runs, because what they count has become rare.
            pub fn can_end(self) -> bool {
                self.by().contains(&"latch")
            }

            fn over(self) -> &'static [&'static str] {
                match self {
                    $(Counter::$name => $over,)+
                }
            }
        }
    };
}

/// The labels of a latch. Its modes are not summed there: a series can end, and the sum would fall.
const LATCH: &[&str] = &["latch", "kind", "mode"];

counters! {
    Statements = "armtrace_statements_total", &[], &[];
    Wait = "armtrace_latch_wait_seconds_sum", LATCH, &[];
    Waits = "armtrace_latch_wait_seconds_count", LATCH, &[];
    Sleep = "armtrace_latch_sleep_seconds_total", LATCH, &[];
    SpinCpu = "armtrace_latch_spin_cpu_seconds_total", LATCH, &[];
    Spins = "armtrace_latch_spins_total", &["latch", "kind", "mode", "outcome"], &[];
    Estimated = "armtrace_latch_wait_estimated_seconds_total", LATCH, &[];
    Sampled = "armtrace_latch_sampled_wait_seconds_total", &["latch", "kind", "mode", "state"], &[];
    Reacquire = "armtrace_latch_reacquire_seconds_total", &["latch"], &[];
    Reacquires = "armtrace_latch_reacquires_total", &["latch"], &[];
    Cpu = "armtrace_cpu_seconds_total", &["class"], &["function"];
    Ordering = "armtrace_barrier_cpu_seconds_total", &["instruction"], &["function"];
    ServerCpu = "armtrace_target_cpu_seconds_total", &[], &[];
    Cpus = "armtrace_target_cpus", &[], &[];
    Clock = "armtrace_target_cpu_max_hertz", &[], &[];
    // Not compared. It is there whenever a server was scraped, and so tells a counter that is 0 from a missing scrape.
    Up = "armtrace_target_up", &[], &[];
}

/// A counter, and the values of the labels by which it is summed.
pub type Key = (Counter, Vec<String>);

/// The counters of one server at the ends of windows; `None` where there is no value.
pub type OfServer = BTreeMap<Key, Vec<Option<f64>>>;

/// The counters of all servers.
pub type Counters = BTreeMap<Labels, OfServer>;

/// Returns whether a server has this counter at all.
pub fn has(counters: &OfServer, counter: Counter) -> bool {
    counters.keys().any(|(of, _)| *of == counter)
}

/// Asks for all counters of a selection.
pub fn fetch(client: &Client, selection: &Selection, grid: &Grid) -> Result<Counters, FleetError> {
    let mut counters = Counters::new();
    for counter in Counter::iter() {
        let series = client.at_ends(&query(counter, selection), grid)?;
        series.iter().for_each(|series| add(&mut counters, counter, series, grid));
    }
    Ok(counters)
}

/// Returns the query for a counter of servers whose labels match.
fn query(counter: Counter, selection: &Selection) -> String {
    let selected = format!("{} and on (job, instance, target) {}", counter.metric(), selection.servers.info());
    match counter.over() {
        [] => selected,
        over => format!("sum without ({}) ({selected})", over.join(", ")),
    }
}

fn add(counters: &mut Counters, counter: Counter, series: &Series, grid: &Grid) {
    let value = |label: &&str| series.labels.get(*label).cloned().unwrap_or_default();
    let key = (counter, counter.by().iter().map(value).collect());
    let of_server = counters.entry(identity(&series.labels, counter.by())).or_default();
    let ends = of_server.entry(key).or_insert_with(|| vec![None; grid.ends()]);
    for (ms, value) in series.points() {
        if let Some(end) = grid.end_at(ms) {
            ends[end] = Some(value);
        }
    }
}

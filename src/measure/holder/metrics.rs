//! Who holds latches: the metric families.

use prometheus::proto::MetricFamily;

use super::{BlockedBy, HolderState};
use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};
use crate::model::{Mode, Rotating, OTHER};

/// The most combinations of latch, mode, place and state with series of their own, and the share of the time of late
/// with which they get them.
const SERIES: usize = 60;
const NOTABLE: f64 = 1e-3;
/// How much time of late, in nanoseconds, what is hot must have to take the place of something cold.
const HOT_NS: u64 = 10_000_000;

/// The label value of a place that is not known.
const UNKNOWN: &str = "unknown";

families! {
    BLOCKED_BY = counter(
        "armtrace_latch_blocked_by_seconds_total",
        &["latch", "mode", "holder_site", "holder_state"],
        "Sampled wait time for latches by what the thread did that held the latch, and where; \
         holder_state=\"unknown\" if it is not known who held it."
    );
}

/// Latch, mode, place and state.
type Id = (String, Mode, String, HolderState);

/// Serves the time waited by what the latch's holder did.
pub struct HolderMetrics {
    rows: Rotating<Id, BlockedBy>,
}

impl Default for HolderMetrics {
    fn default() -> HolderMetrics {
        HolderMetrics { rows: Rotating::new(SERIES, HOT_NS, NOTABLE) }
    }
}

impl Metrics for HolderMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        let id = |row: &BlockedBy| {
            let holding = &row.holding;
            let site = holding.site.clone().unwrap_or_else(|| UNKNOWN.to_owned());
            (holding.latch.clone(), holding.mode, site, holding.state)
        };
        let rows = snapshot.holder.blocked.iter().map(|row| (id(row), row.clone()));
        // What holders do is known also of what has no series of its own.
        let other = |id: &Id| (OTHER.to_owned(), Mode::None, OTHER.to_owned(), id.3);
        let rows = self.rows.rows(snapshot.elapsed, rows, |row| row.wait_ns, other);
        vec![BLOCKED_BY.with(rows.iter().map(|((latch, mode, site, state), row)| {
            BLOCKED_BY.sample(&[latch, mode.as_str(), site, state.as_str()], seconds(row.wait_ns))
        }))]
    }
}

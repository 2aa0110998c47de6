//! Statements that the server receives: the metric family.

use prometheus::proto::MetricFamily;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, Family};

families! {
    STATEMENTS = counter(
        "armtrace_statements_total",
        &[],
        "Statements that clients have sent since shortly before attach, as counted by the server."
    );
}

/// Serves the number of statements.
#[derive(Default)]
pub struct StatementMetrics;

impl Metrics for StatementMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        vec![STATEMENTS.with(snapshot.statements.map(|count| STATEMENTS.sample(&[], count as f64)))]
    }
}

//! The exporter's metrics and the dashboard, with hand-built snapshots and a real Prometheus.

use std::sync::Arc;
use std::time::Instant;

use armtrace::export::Exporter;
use armtrace::measure::Snapshot;
use lab::dashboard::{run, Query};
use lab::exporter::ServedExporter;
use lab::prometheus::{promtool_complaints, Prometheus};
use lab::repository;
use lab::snapshots::{busy, empty};

/// Returns one scrape.
fn metrics(snapshot: Snapshot) -> String {
    Exporter::new(Arc::new(move || snapshot.clone())).unwrap().metrics().unwrap()
}

#[test]
fn promtool_has_no_complaints() {
    assert_eq!(promtool_complaints(&metrics(busy(5))), "");
    assert_eq!(promtool_complaints(&metrics(empty())), "");
}

#[test]
fn promtool_complains_about_bad_metrics() {
    assert_ne!(promtool_complaints("# TYPE x_total gauge\nx_total 1\n"), "");
}

/// Serves a busy server of this architecture, whose counters grow with time.
fn server(arch: &'static str) -> ServedExporter {
    let began = Instant::now();
    ServedExporter::of(move || {
        let mut snapshot: Snapshot = busy(began.elapsed().as_millis() as u64 / 100);
        snapshot.target.arch = arch.to_string();
        snapshot
    })
}

#[test]
fn a_real_prometheus_answers_every_query() {
    let servers = [server("aarch64"), server("x86_64")];
    let prometheus = Prometheus::scraping(&servers.each_ref().map(|server| server.address.clone()));
    prometheus.wait_for_rates(servers.len());
    let has_both = |query: &Query, series: usize| series.is_multiple_of(2) || !query.promql.contains("by (arch");
    for (query, series) in
        run(&prometheus, &repository("dashboards/armtrace.json"), |query, series| series > 0 && has_both(query, series))
    {
        let series = series.unwrap_or_else(|error| panic!("{}: {error}", query.owner));
        assert!(series > 0, "{} returns nothing: {}", query.owner, query.promql);
        assert!(
            has_both(&query, series),
            "{} has {series} series, which is not as many for each architecture",
            query.owner
        );
    }
}

//! The Grafana dashboard, checked against the metrics that the collector emits.

use armtrace::export::{families, Exporter};
use lab::dashboard::{load, panels, queries, variables};
use lab::exporter::of_many;
use lab::snapshots::{busy, sampled};
use prometheus::proto::MetricType;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("dashboards/armtrace.json")
}

/// Returns the names of all samples in scrapes of a busy server, with probes and without.
fn emitted() -> BTreeSet<String> {
    let text = |snapshot: fn(u64) -> _| Exporter::new(Arc::new(move || snapshot(5))).unwrap().metrics().unwrap();
    let text = text(busy) + &text(sampled) + &of_many(Vec::new()).metrics().unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_string).collect()
}

#[test]
fn every_query_selects_existing_metrics() {
    let emitted = emitted();
    let queries = queries(&file());
    assert!(queries.len() > 20);
    for query in queries {
        assert!(!query.metrics().is_empty(), "{query:?} selects no metric by name");
        for metric in query.metrics() {
            assert!(emitted.contains(&metric), "{}: {metric} is not emitted", query.owner);
        }
    }
}

#[test]
fn every_family_is_shown_somewhere() {
    let selected: BTreeSet<_> = queries(&file()).iter().flat_map(|query| query.metrics()).collect();
    for family in families() {
        let shown = match family.kind {
            MetricType::HISTOGRAM => selected.iter().any(|name| name.starts_with(family.name)),
            _ => selected.contains(family.name),
        };
        assert!(shown, "{} is in no panel", family.name);
    }
}

#[test]
fn panels_have_titles_and_descriptions_and_do_not_overlap() {
    let dashboard = load(&file());
    let (mut ids, mut titles, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    panels(&dashboard, &mut |panel| {
        let title = panel["title"].as_str().unwrap_or_default();
        assert!(!title.is_empty() && titles.insert(title.to_string()), "{title:?} is empty or not unique");
        assert!(ids.insert(panel["id"].as_u64()), "{title} has the id of another panel");
        assert!(panel["type"] == "row" || panel["description"].is_string(), "{title} has no description");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(x < 24 && cells.insert((x, y)), "{title} overlaps another panel at {x},{y}");
        }
    });
}

#[test]
fn every_query_uses_the_selected_data_source_and_instances() {
    let dashboard = load(&file());
    let names: Vec<_> = variables(&dashboard).map(|v| v["name"].as_str().unwrap().to_string()).collect();
    assert_eq!(names, ["datasource", "job", "arch", "instance", "target", "latch"]);
    panels(&dashboard, &mut |panel| {
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            let query = target["expr"].as_str().unwrap();
            let selectors = query.matches('{').count();
            // armtrace's own process is not part of a server.
            let of_server = !query.contains("process_") && !query.contains("armtrace_build_info");
            let server = if of_server { ",target=~\"$target\"" } else { "" };
            let selected = format!("job=~\"$job\",instance=~\"$instance\"{server}");
            assert_eq!(selectors, query.matches(&selected).count(), "{query}");
        }
    });
}

//! `docs/reference/metrics.md`, checked against the families that the collector describes.

use armtrace::export::{families, ProcessSelf};
use prometheus::core::Collector;
use std::collections::BTreeMap;
use std::fs;

/// Returns the type and labels of each metric, from the rows of the reference's tables.
fn documented() -> BTreeMap<String, (String, String)> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/metrics.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `armtrace_") || line.starts_with("| `process_"));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect());
    let entries = cells.map(|cells: Vec<String>| {
        assert_eq!(cells.len(), 7, "name, type, labels, meaning, unit, measured, absent: {cells:?}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{cells:?}");
        (cells[0].clone(), (cells[1].clone(), cells[2].clone()))
    });
    let all: Vec<_> = entries.collect();
    let names = all.len();
    let map: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(map.len(), names, "a metric has two rows");
    map
}

#[test]
fn the_reference_lists_exactly_the_existing_families() {
    let described = families().map(|family| {
        let labels = if family.labels.is_empty() { "-".to_string() } else { family.labels.join(", ") };
        (family.name.to_string(), (format!("{:?}", family.kind).to_lowercase(), labels))
    });
    let described: BTreeMap<_, _> = described.collect();
    let mut documented = documented();
    documented.retain(|name, _| name.starts_with("armtrace_"));
    assert_eq!(documented, described);
}

#[test]
fn the_reference_lists_exactly_the_existing_process_metrics() {
    let collector = ProcessSelf::new();
    let described: Vec<_> = collector.desc().iter().map(|desc| desc.fq_name.clone()).collect();
    let documented = documented();
    let documented: Vec<_> = documented.keys().filter(|name| name.starts_with("process_")).cloned().collect();
    let mut sorted = described.clone();
    sorted.sort();
    assert_eq!(documented, sorted);
}

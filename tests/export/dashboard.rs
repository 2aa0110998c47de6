//! The Grafana dashboards and the rules for Prometheus, checked against the metrics that the collector emits.

use armtrace::export::{families, Exporter};
use lab::dashboard::{load, panels, queries, variables, Query, FILES};
use lab::exporter::of_many;
use lab::prometheus::QUICK;
use lab::promql::{self, examine, Unit};
use lab::snapshots::{busy, sampled};
use lab::{repository, rules};
use prometheus::proto::MetricType;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

fn file(name: &str) -> PathBuf {
    repository(&format!("dashboards/{name}"))
}

/// Returns the queries of all dashboards.
fn all_queries() -> Vec<Query> {
    FILES.iter().flat_map(|name| queries(&file(name))).collect()
}

/// Returns the names of all samples in scrapes of a busy server, with probes and without.
fn emitted() -> BTreeSet<String> {
    let text = |snapshot: fn(u64) -> _| Exporter::new(Arc::new(move || snapshot(5))).unwrap().metrics().unwrap();
    let text = text(busy) + &text(sampled) + &of_many(Vec::new()).metrics().unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_string).collect()
}

/// Returns the names of all samples, and what rules and Prometheus itself add to them.
fn known() -> BTreeSet<String> {
    let recorded = rules::all().into_iter().filter(|rule| !rule.is_alert).map(|rule| rule.name);
    emitted().into_iter().chain(recorded).chain(["up", "ALERTS"].map(str::to_owned)).collect()
}

#[test]
fn every_query_selects_existing_metrics() {
    let known = known();
    for name in FILES {
        let queries = queries(&file(name));
        assert!(queries.len() > 20, "{name}");
        for query in queries {
            assert!(!query.metrics().is_empty(), "{query:?} selects no metric by name");
            for metric in query.metrics() {
                assert!(known.contains(&metric), "{name}: {}: {metric} is not emitted", query.owner);
            }
        }
    }
}

#[test]
fn every_rule_selects_existing_metrics() {
    let known = known();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    for rule in rules::all() {
        let words = rule.promql.split(|c| !is_name(c));
        let metrics: Vec<_> = words.filter(|word| word.starts_with("armtrace_") || word.contains(':')).collect();
        assert!(!metrics.is_empty() || rule.promql.starts_with("up{"), "{rule:?}");
        for metric in metrics {
            assert!(known.contains(metric), "{}: {metric} is not emitted", rule.name);
        }
    }
}

/// A rule that nothing uses costs every Prometheus something.
#[test]
fn every_recording_rule_is_used() {
    let mut used: BTreeSet<String> = all_queries().iter().flat_map(Query::metrics).collect();
    let rules = rules::all();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    used.extend(rules.iter().flat_map(|rule| rule.promql.split(|c| !is_name(c)).map(str::to_owned)));
    for rule in rules.iter().filter(|rule| !rule.is_alert) {
        assert!(used.contains(&rule.name), "{} is used nowhere", rule.name);
    }
}

#[test]
fn every_family_is_shown_somewhere() {
    let selected: BTreeSet<_> = all_queries().iter().flat_map(Query::metrics).collect();
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
    for name in FILES {
        let dashboard = load(&file(name));
        let (mut ids, mut titles, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        panels(&dashboard, &mut |panel| {
            let title = panel["title"].as_str().unwrap_or_default();
            assert!(!title.is_empty() && titles.insert(title.to_string()), "{name}: {title:?} is empty or not unique");
            assert!(ids.insert(panel["id"].as_u64()), "{name}: {title} has the id of another panel");
            assert!(panel["type"] == "row" || panel["description"].is_string(), "{name}: {title} has no description");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
                assert!(x < 24 && cells.insert((x, y)), "{name}: {title} overlaps another panel at {x},{y}");
            }
        });
    }
}

#[test]
fn dashboards_are_told_apart_and_lead_to_each_other() {
    let mut identities = BTreeSet::new();
    for name in FILES {
        let dashboard = load(&file(name));
        assert_eq!(dashboard["uid"], format!("armtrace-{}", name.trim_end_matches(".json")));
        assert!(identities.insert(dashboard["title"].to_string()), "{name}");
        assert_eq!(dashboard["links"][0]["tags"][0], "armtrace", "{name}");
        assert_eq!(dashboard["tags"][0], "armtrace", "{name}");
    }
}

#[test]
fn every_query_uses_the_selected_data_source_and_instances() {
    let expected: [(&str, &[&str]); 3] = [
        ("fleet.json", &["datasource", "job", "instance", "target", "filters"]),
        ("host.json", &["datasource", "job", "arch", "instance", "target", "latch"]),
        ("arm-and-x86.json", &["datasource", "job", "instance", "target"]),
    ];
    for (name, expected) in expected {
        let dashboard = load(&file(name));
        let names: Vec<_> = variables(&dashboard).map(|v| v["name"].as_str().unwrap().to_string()).collect();
        assert_eq!(names, expected);
        panels(&dashboard, &mut |panel| {
            for target in panel["targets"].as_array().into_iter().flatten() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
                let query = target["expr"].as_str().unwrap();
                let selectors = query.matches('{').count();
                // armtrace's own process is not part of a server.
                let of_agent = ["process_", "armtrace_build_info", "up{"].iter().any(|start| query.contains(start));
                let server = if of_agent { "" } else { ",target=~\"$target\"" };
                let selected = format!("job=~\"$job\",instance=~\"$instance\"{server}");
                assert!(selectors > 0, "{query}");
                assert_eq!(selectors, query.matches(&selected).count(), "{query}");
            }
        });
    }
}

/// Calls `visit` with each panel, and what is known of each of its queries.
fn examine_all(mut visit: impl FnMut(&str, &Value, &promql::Examined)) {
    for name in FILES {
        let dashboard = load(&file(name));
        panels(&dashboard, &mut |panel| {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query =
                    Query { owner: String::new(), promql: target["expr"].as_str().expect("a query").to_owned() };
                let examined = examine(&query.substituted(&dashboard, QUICK));
                let title = format!("{name}: {}", panel["title"]);
                visit(&title, panel, &examined.unwrap_or_else(|why| panic!("{title}: {why}")));
            }
        });
    }
}

/// Seconds of waiting in a second are threads, not seconds; seconds are no share of anything.
#[test]
fn a_panel_has_the_unit_of_its_queries() {
    examine_all(|title, panel, examined| {
        let units: &[Unit] = match panel["fieldConfig"]["defaults"]["unit"].as_str() {
            Some("s") => &[promql::SECONDS, promql::SECONDS_PER_BYTE],
            Some("ops" | "hertz") => &[promql::PER_SECOND],
            Some("bytes") => &[promql::BYTES],
            Some("short" | "none" | "percentunit") => &[promql::NUMBER],
            Some(other) => panic!("{title}: what is {other}?"),
            None if ["table", "heatmap"].iter().any(|kind| panel["type"] == *kind) => return,
            None => panic!("{title} has no unit"),
        };
        assert!(units.contains(&examined.unit), "{title}: {:?}, but the panel shows {units:?}", examined.unit);
    });
}

#[test]
fn a_recording_rule_has_the_unit_of_its_name() {
    for rule in rules::all().iter().filter(|rule| !rule.is_alert) {
        let examined = examine(&rule.promql).unwrap_or_else(|why| panic!("{}: {why}", rule.name));
        assert_eq!(examined.unit, Unit::of_metric(&rule.name), "{}", rule.name);
        let [level, _, operation] = rule.name.split(':').collect::<Vec<_>>()[..] else { panic!("{}", rule.name) };
        assert!(level.starts_with("target") && !operation.is_empty(), "{}", rule.name);
    }
}

/// The same program on ten hosts has its instructions once, and ten overheads of 1 % are none of 10 %.
#[test]
fn what_does_not_add_up_is_not_summed_over_servers() {
    const ADDS_UP: [&str; 3] = ["armtrace_target_up", "armtrace_target_cpus", "armtrace_lock_waiting_threads"];
    let gauges: BTreeSet<&str> =
        families().filter(|family| family.kind == MetricType::GAUGE).map(|family| family.name).collect();
    examine_all(|title, _, examined| {
        let wrong = examined.summed.iter().find(|name| gauges.contains(&***name) && !ADDS_UP.contains(&&***name));
        assert!(wrong.is_none(), "{title}: {wrong:?} is summed over servers");
    });
}

#[test]
fn units_are_found() {
    let unit = |promql: &str| examine(promql).map(|examined| examined.unit);
    assert_eq!(unit("sum by (latch) (rate(a_seconds_sum{x=\"}\"}[5m]))"), Ok(promql::NUMBER));
    assert_eq!(unit("topk(10, rate(a_seconds_sum[5m]) / (rate(a_seconds_count[5m]) > 0))"), Ok(promql::SECONDS));
    assert_eq!(unit("histogram_quantile(0.9, sum by (le) (rate(a_seconds_bucket[5m])))"), Ok(promql::SECONDS));
    assert_eq!(unit("1.96 * sqrt(increase(a_seconds_squared_total[1h]))"), Ok(promql::SECONDS));
    assert_eq!(unit("rate(a_calls_total[5m]) or vector(0)"), Ok(promql::PER_SECOND));
    assert_eq!(unit("target:a_seconds_sum:rate5m / on (a) group_left (b) sum(a_cpus)"), Ok(promql::NUMBER));
    assert_eq!(unit("label_replace(a_bytes, \"a\", \"b c\", \"d\", \"\")"), Ok(promql::BYTES));
    assert!(unit("a_seconds_sum or a_calls_total").is_err());
    assert!(unit("unheard_of(a_seconds_sum)").is_err());
    assert!(unit("(a_bytes").is_err());
    let summed = |promql: &str| examine(promql).unwrap().summed.into_iter().collect::<Vec<_>>();
    assert_eq!(summed("sum by (arch) (a * b)"), ["a", "b"]);
    assert_eq!(summed("sum(a) / max(b)"), ["a"]);
    assert_eq!(summed("sum by (instance, target, state) (a)"), [""; 0]);
}

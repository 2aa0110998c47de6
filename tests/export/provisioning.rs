//! The examples of configuration in `dashboards/provisioning/`, as far as that can be checked without their programs.
//! `tests/prometheus.rs` checks Prometheus's.

use armtrace::export::parse_yaml;
use lab::repository;
use serde_json::Value;
use std::fs;

fn text(file: &str) -> String {
    fs::read_to_string(repository(&format!("dashboards/provisioning/{file}"))).unwrap()
}

fn yaml(file: &str) -> Value {
    parse_yaml(&text(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn grafana_gets_what_the_dashboards_need() {
    assert_eq!(yaml("grafana/datasources/prometheus.yml")["datasources"][0]["type"], "prometheus");
    let provider = &yaml("grafana/dashboards/armtrace.yml")["providers"][0];
    assert_eq!(
        (&provider["type"], &provider["options"]["path"]),
        (&"file".into(), &"/var/lib/grafana/dashboards/armtrace".into())
    );
}

/// All three go by the name of the job, and call a host by its name.
#[test]
fn every_scrape_names_its_job_and_instance() {
    let prometheus = yaml("prometheus/prometheus.yml");
    let collector = yaml("otel-collector/config.yml");
    let scrapes =
        [&prometheus["scrape_configs"][0], &collector["receivers"]["prometheus"]["config"]["scrape_configs"][0]];
    for scrape in scrapes {
        assert_eq!(scrape["job_name"], "armtrace");
        assert_eq!(scrape["relabel_configs"][1]["target_label"], "instance");
    }
    let alloy = text("alloy/config.alloy");
    assert!(alloy.contains("job_name        = \"armtrace\"") && alloy.contains("target_label  = \"instance\""));
}

#[test]
fn the_collectors_pipeline_has_its_parts() {
    let config = yaml("otel-collector/config.yml");
    for kind in ["receivers", "processors", "exporters"] {
        for name in config["service"]["pipelines"]["metrics"][kind].as_array().unwrap() {
            assert!(!config[kind][name.as_str().unwrap()].is_null(), "{kind}: {name} is not configured");
        }
    }
    let single = text("otel-collector/config.yml").replace("$$", "").contains('$');
    assert!(!single, "the collector takes a single dollar sign for a variable");
}

#[test]
fn alloys_components_refer_to_each_other() {
    let text = text("alloy/config.alloy");
    for (component, field) in [
        ("discovery.file", "armtrace.targets"),
        ("discovery.relabel", "armtrace.output"),
        ("prometheus.remote_write", "metrics.receiver"),
    ] {
        let (name, _) = field.split_once('.').unwrap();
        assert!(text.contains(&format!("{component} \"{name}\" {{")), "{component} {name} is not there");
        assert!(text.contains(&format!("{component}.{field}")), "{component} {name} is not used");
    }
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}

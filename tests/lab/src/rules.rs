//! The rules for Prometheus in `dashboards/rules/`.

use super::prometheus::Pace;
use super::repository;
use armtrace::export::parse_yaml;
use serde_json::Value;
use std::fs;

/// The files with rules, without their extension.
pub const FILES: [&str; 2] = ["recording", "alerts"];

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// What it records or raises.
    pub name: String,
    /// Whether it raises an alert.
    pub is_alert: bool,
    /// The query.
    pub promql: String,
    /// Everything that the file says of it.
    pub whole: Value,
}

/// Returns the text of each file.
fn texts() -> [(&'static str, String); 2] {
    FILES.map(|name| {
        let file = repository(&format!("dashboards/rules/{name}.yml"));
        (name, fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
    })
}

/// Returns each file for a test that cannot wait for minutes: rates are over the pace's interval.
pub fn at(pace: Pace) -> [(&'static str, String); 2] {
    texts().map(|(name, text)| (name, text.replace("[5m]", &format!("[{}]", pace.rate_interval))))
}

/// Returns all rules, in their order.
pub fn all() -> Vec<Rule> {
    let files = texts().map(|(name, text)| parse_yaml(&text).unwrap_or_else(|error| panic!("{name}: {error}")));
    let groups = files.iter().flat_map(|file| file["groups"].as_array().expect("groups"));
    let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
    rules.map(rule).collect()
}

fn rule(whole: &Value) -> Rule {
    let name = whole["record"].as_str().or(whole["alert"].as_str()).expect("a name");
    Rule {
        name: name.to_owned(),
        is_alert: whole["alert"].is_string(),
        promql: whole["expr"].as_str().expect("a query").to_owned(),
        whole: whole.clone(),
    }
}

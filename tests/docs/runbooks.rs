//! Each alert has a page that says what to do, and each such page an alert.

use std::collections::BTreeSet;

use lab::rules;

use super::{files_below, read};

const FOLDER: &str = "docs/runbooks";
/// What the address of a page begins with, until somebody replaces it by that of their copy of the book.
const PLACEHOLDER: &str = "https://armtrace.example/";
const SECTIONS: [&str; 5] =
    ["## What it means", "## Look closer", "## What usually causes it", "## What to do", "## Silence it"];

/// Returns the page of an alert: `threads-waiting` for `ArmtraceThreadsWaiting`.
fn page_of(alert: &str) -> String {
    let words = alert.strip_prefix("Armtrace").expect("alerts begin with armtrace's name");
    let dashed: String = words.chars().flat_map(|c| [c.is_uppercase().then_some('-'), Some(c)]).flatten().collect();
    dashed.trim_start_matches('-').to_lowercase()
}

#[test]
fn each_alert_has_a_page_and_each_page_an_alert() {
    let mut pages = BTreeSet::new();
    for alert in rules::all().iter().filter(|rule| rule.is_alert) {
        let page = page_of(&alert.name);
        let annotations = &alert.whole["annotations"];
        assert_eq!(annotations["runbook_url"], format!("{PLACEHOLDER}runbooks/{page}.html"), "{}", alert.name);
        assert!(annotations["summary"].is_string(), "{} has no summary", alert.name);
        let description = annotations["description"].as_str().unwrap_or_default();
        assert!(description.contains("$labels.instance"), "{} does not say where", alert.name);
        let severity = alert.whole["labels"]["severity"].as_str();
        assert!(severity.is_some_and(|severity| ["info", "warning"].contains(&severity)), "{}", alert.name);
        assert!(alert.whole["for"].is_string(), "{} fires at once", alert.name);
        let file = format!("{FOLDER}/{page}.md");
        let text = read(&file);
        assert!(text.starts_with(&format!("# {}\n", alert.name)), "{file}");
        let sections: Vec<_> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(sections, SECTIONS, "{file}");
        assert!(text.contains(&format!("alertname={}", alert.name)), "{file} silences another");
        pages.insert(file);
    }
    assert_eq!(pages, files_below(FOLDER).into_iter().collect(), "every page has an alert");
}

#[test]
fn pages_are_named_after_alerts() {
    assert_eq!(page_of("ArmtraceThreadsWaiting"), "threads-waiting");
}

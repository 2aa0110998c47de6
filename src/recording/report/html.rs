//! Writes a report as one self-contained web page: findings, a heat map over time, histograms, call sites.

use std::fmt::{self, Display, Formatter};

use maud::{html, Markup};

use super::text::{circumstances, heading};
use super::Report;
use crate::advice::{self, Advised};
use crate::html::{page, table};
use crate::present::format::{self, NOTHING};

/// A report as a page.
pub struct Html<'a>(pub &'a Report);

impl Display for Html<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        let title = heading(&report.server, &report.host);
        let sections = report.sections();
        let body = html! {
            h1 { (title) }
            p { (recorded(&report.host.name, report.began_ms, report.duration)) }
            p.soft { (circumstances(report)) }
            ul {
                @for finding in &report.findings { li class=[finding.is_problem.then_some("cost")] { (finding.text) } }
            }
            (what_to_do(report.what_to_do.iter().map(|advised| (String::new(), advised))))
            @for section in &sections { (section.html(report)) }
            @for section in &sections { (section.html_details(report)) }
            (facts(report))
        };
        f.write_str(&page(&format!("report: {title}"), &body))
    }
}

/// Returns where and when something was recorded: `Recorded on db1, 2026-11-24 20:30:05 to 20:31:05 UTC`.
pub(crate) fn recorded(host: &str, began_ms: u64, seconds: f64) -> String {
    let on = if host.is_empty() { String::new() } else { format!(" on {host}") };
    format!("Recorded{on}, {}", format::period(began_ms, began_ms.saturating_add((seconds * 1e3) as u64)))
}

/// Returns a list of what to do, each with words before it; nothing if there is nothing.
pub(crate) fn what_to_do<'a>(advised: impl Iterator<Item = (String, &'a Advised)>) -> Markup {
    let mut advised = advised.peekable();
    html! {
        @if advised.peek().is_some() {
            h2 { "What to do, one thing at a time" }
            @for (before, advised) in advised {
                p { (before) b { (advised.title) } ": " (advised.evidence.join(", ")) br; (advised.cause) "." }
                ul { @for remedy in &advised.remedies { li { (advice::plain(&remedy.to_string())) } } }
                p.soft { (advised.link()) }
            }
        }
    }
}

/// Returns a table of facts, settings and losses, and one of the probes.
fn facts(report: &Report) -> Markup {
    let server = &report.server;
    let known = [
        ("build id", &server.build_id),
        ("symbols", &server.symbol_source),
        ("recorded by armtrace", &report.armtrace),
    ];
    let facts = known.map(|(name, value)| (name.to_owned(), value.clone()));
    let code = report.sections().into_iter().flat_map(|section| section.facts(report));
    let settings = server.settings.iter().map(|(name, value)| (name.clone(), value.clone()));
    let lost = report.lost.iter().map(|(cause, n)| (format!("not counted: {cause}"), n.to_string()));
    let rows = facts.into_iter().chain(code).chain(settings).chain(lost).map(|(name, value)| (name, vec![value]));
    html! {
        h2 { "Server and tool" }
        (table(&["", ""], rows))
        @if !report.probes.is_empty() {
            details {
                summary { "probes and their cost to the server" }
                (probes(report))
            }
        }
    }
}

fn probes(report: &Report) -> Markup {
    let rows = report.probes.iter().map(|probe| {
        let cost = probe.cost_ns.map_or(NOTHING.to_owned(), |ns| format::nanoseconds(ns as f64));
        (probe.probe.clone(), vec![probe.state.clone(), format::count(probe.hits as f64), cost])
    });
    table(&["probe", "state", "hits", "CPU time"], rows)
}

//! Findings: what a recording says, in sentences with the figures that they rest on.

use serde::Serialize;

use super::{Ending, Report};
use crate::present::format;

/// The least number of lost events, as a share of the waits, that is worth a sentence.
const MUCH_LOST: f64 = 0.01;

/// One sentence that a report begins with.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Finding {
    /// The sentence, with its full stop.
    pub text: String,
    /// Whether there is something to look into, rather than something to know.
    pub is_problem: bool,
}

/// A list of findings, the most important first.
#[derive(Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Adds something to know, if there is anything.
    pub fn fact(&mut self, text: Option<String>) {
        self.0.extend(text.map(|text| Finding { text, is_problem: false }));
    }

    /// Adds something to look into, if there is anything.
    pub fn problem(&mut self, text: Option<String>) {
        self.0.extend(text.map(|text| Finding { text, is_problem: true }));
    }
}

/// Returns all findings. `advice` is what the live table advises to change.
pub(super) fn findings(report: &Report, advice: &[String]) -> Vec<Finding> {
    let mut findings = Findings::default();
    findings.fact(Some(overall(report)));
    report.sections().iter().for_each(|section| section.findings(report, &mut findings));
    advice.iter().for_each(|advice| findings.problem(Some(sentence(advice))));
    report.sections().iter().for_each(|section| section.lesser_findings(report, &mut findings));
    findings.problem(lost(report));
    findings.problem(cut_short(report));
    findings.0
}

fn overall(report: &Report) -> String {
    if report.latch.latches.is_empty() {
        return "No thread waited for a latch.".to_owned();
    }
    let threads = count_of(report.threads_waiting(), "thread waits", "threads wait");
    let cpu = report.totals.server_cpu.map_or_else(String::new, |cpu| {
        format!(", while the server keeps {:.2} of {} CPUs busy", cpu / report.duration, report.host.cpus)
    });
    let queries = report.totals.queries.map_or_else(String::new, |queries| {
        let (rate, queries) = (queries as f64 / report.duration, queries.max(1) as f64);
        let per_thousand = format::nanoseconds(report.totals.wait / queries * 1e12);
        format!(
            " It serves {} statements per second, and a thousand of them wait {per_thousand} in all.",
            format::count(rate)
        )
    });
    format!("On average {threads} for a latch{cpu}.{queries}")
}

/// Returns advice as a sentence: `Advice on something.`
fn sentence(advice: &str) -> String {
    let (first, rest) = advice.split_at(advice.chars().next().map_or(0, char::len_utf8));
    format!("{}{rest}.", first.to_uppercase())
}

fn lost(report: &Report) -> Option<String> {
    let events: u64 = report.lost.values().sum();
    // Where waits are not counted, each event is worth a sentence.
    let waits = report.totals.waits.unwrap_or(0);
    let share = events as f64 / waits.max(1) as f64;
    let causes: Vec<String> =
        report.lost.iter().map(|(cause, n)| format!("{cause} {}", format::count(*n as f64))).collect();
    (share >= MUCH_LOST).then(|| {
        let all = format::count(events as f64);
        let besides = report
            .totals
            .waits
            .map_or_else(String::new, |waits| format!(", in addition to {} waits", format::count(waits as f64)));
        format!("{all} events were not counted{besides}: {}.", causes.join(", "))
    })
}

fn cut_short(report: &Report) -> Option<String> {
    match report.ending {
        None => Some(
            "The recording is incomplete, because armtrace was killed. It is valid up to its last second.".to_owned(),
        ),
        Some(Ending::ServerEnded) => Some("The server ended while it was recorded.".to_owned()),
        Some(Ending::Complete | Ending::Interrupted) => None,
    }
}

/// Returns a number of things: `1.00 thread`, `0.29 threads`.
pub(crate) fn count_of(n: f64, one: &str, many: &str) -> String {
    let text = format!("{n:.2}");
    let noun = if text == "1.00" { one } else { many };
    format!("{text} {noun}")
}

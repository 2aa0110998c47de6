//! Writes a report as one self-contained web page: findings, a heat map over time, histograms, call sites.

use std::fmt::{self, Display, Formatter};

use maud::{html, Markup};

use super::text::{circumstances, heading};
use super::Report;
use crate::advice::{self, Advised};
use crate::html::{page, table};
use crate::present::format::{self, NOTHING};
use crate::present::names::cut_middle;

/// The most columns of a heat map. In a longer recording, each column covers several seconds.
const MOST_COLUMNS: usize = 120;

/// A report as a page.
pub struct Html<'a>(pub &'a Report);

impl Display for Html<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        let title = heading(&report.server, &report.host);
        let sections = report.sections();
        let body = html! {
            h1 { (title) }
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

/// Returns a heat map with a line for each row and a column for each second of the recording, or for several. `rows`
/// have seconds in each second; the more there are, the stronger the color. `at` is when each second ended, and
/// `counted` says what a value counts.
pub(crate) fn heat_map(rows: &[(String, Vec<f64>)], at: &[f64], counted: &str) -> Markup {
    const HEIGHT: usize = 18;
    const NAMES: usize = 260;
    const COLUMNS: usize = 960;
    let step = at.len().div_ceil(MOST_COLUMNS).max(1);
    let columns = at.len().div_ceil(step);
    let most = rows.iter().flat_map(|(_, seconds)| columns_of(seconds, at, step)).fold(0.0, f64::max);
    let cell = (COLUMNS / columns.max(1)).min(24);
    let (width, height) = (NAMES + columns * cell + 40, rows.len() * HEIGHT + 20);
    // A square root, so that little is distinguishable from nothing.
    let shade = |value: f64| if most > 0.0 { (value / most).max(0.0).sqrt() } else { 0.0 };
    let ended = |column: usize| at[((column + 1) * step).min(at.len()) - 1];
    let began = |column: usize| if column == 0 { 0.0 } else { at[column * step - 1] };
    html! {
        div {
            svg width=(width) height=(height) role="img" {
                @for (y, (name, seconds)) in rows.iter().enumerate() {
                    text x="0" y=(y * HEIGHT + 13) { (cut_middle(name, 40)) }
                    @for (x, value) in columns_of(seconds, at, step).into_iter().enumerate() {
                        @if shade(value) >= 0.01 {
                            rect.bar x=(NAMES + x * cell) y=(y * HEIGHT) width=(cell) height=(HEIGHT - 2)
                                fill-opacity=(format!("{:.2}", shade(value))) {
                                title { (format!("{name} · second {:.0}: {value:.2} {counted}", ended(x))) }
                            }
                        }
                    }
                }
                @for column in (0..columns).step_by(10) {
                    text x=(NAMES + column * cell) y=(height - 6) { (format!("{:.0}s", began(column))) }
                }
            }
        }
        p.soft { (format!("The strongest color stands for {most:.2} {counted}.")) }
    }
}

/// Returns each column's seconds, divided by the time that passed.
fn columns_of(seconds: &[f64], at: &[f64], step: usize) -> Vec<f64> {
    let mut began = 0.0;
    let column = |(seconds, at): (&[f64], &[f64])| {
        let ended = at.last().copied().unwrap_or(began);
        let value = seconds.iter().sum::<f64>() / (ended - std::mem::replace(&mut began, ended));
        if value.is_finite() {
            value
        } else {
            0.0
        }
    };
    seconds.chunks(step).zip(at.chunks(step)).map(column).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_a_long_recording_covers_several_seconds() {
        let at: Vec<f64> = (1..=241).map(f64::from).collect();
        // One second in each, but for none in the first column, and four times as many in the last.
        let seconds = [vec![0.0; 3], vec![1.0; 237], vec![4.0]].concat();
        let map = heat_map(&[("trx_mutex".to_owned(), seconds)], &at, "threads").into_string();
        let has = |words: &str| assert!(map.contains(words), "{words}: {map}");
        assert_eq!(map.matches("<rect").count(), 80, "81 columns of three seconds, the first without a wait");
        has(r#"<rect class="bar" x="271" y="0" width="11" height="16" fill-opacity="0.50">"#);
        has("<title>trx_mutex · second 6: 1.00 threads</title>");
        has("<title>trx_mutex · second 241: 4.00 threads</title>");
        has(r#"<text x="260" y="32">0s</text><text x="370" y="32">30s</text>"#);
        has(r#"<svg width="1191" height="38" role="img">"#);
        has("The strongest color stands for 4.00 threads.");
    }
}

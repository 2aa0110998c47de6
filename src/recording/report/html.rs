//! A report as one self-contained web page: findings, a heat map over time, histograms, call sites.

use std::fmt::{self, Display, Formatter};

use super::text::{circumstances, heading};
use super::Report;
use crate::html::{begin, end, table, Escaped};
use crate::present::format::{self, NOTHING};
use crate::present::names::cut_middle;

/// The greatest number of columns of a heat map. In a longer recording, each column is several seconds.
const MOST_COLUMNS: usize = 120;

/// A report as a page.
pub struct Html<'a>(pub &'a Report);

impl Display for Html<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        let title = heading(&report.server, &report.host);
        begin(f, &format!("report: {title}"))?;
        writeln!(f, "<h1>{}</h1>\n<p class=\"soft\">{}</p>", Escaped(&title), Escaped(&circumstances(report)))?;
        writeln!(f, "<ul>")?;
        for finding in &report.findings {
            let class = if finding.is_problem { " class=\"cost\"" } else { "" };
            writeln!(f, "<li{class}>{}</li>", Escaped(&finding.text))?;
        }
        writeln!(f, "</ul>")?;
        report.sections().iter().try_for_each(|section| section.html(report, f))?;
        report.sections().iter().try_for_each(|section| section.html_details(report, f))?;
        facts(f, report)?;
        end(f)
    }
}

/// Writes rows by seconds. The stronger the colour, the more of what is counted: seconds in each second of the recording.
pub(crate) fn heat_map(f: &mut Formatter, rows: &[(String, Vec<f64>)], at: &[f64], counted: &str) -> fmt::Result {
    const HEIGHT: usize = 18;
    const NAMES: usize = 260;
    const COLUMNS: usize = 960;
    let step = at.len().div_ceil(MOST_COLUMNS).max(1);
    let columns = at.len().div_ceil(step);
    let most = rows.iter().flat_map(|(_, seconds)| columns_of(seconds, at, step)).fold(0.0, f64::max);
    let cell = (COLUMNS / columns.max(1)).min(24);
    let (width, height) = (NAMES + columns * cell + 40, rows.len() * HEIGHT + 20);
    writeln!(f, "<div><svg width=\"{width}\" height=\"{height}\" role=\"img\">")?;
    for (y, (name, seconds)) in rows.iter().enumerate() {
        let top = y * HEIGHT;
        let short = cut_middle(name, 40);
        writeln!(f, "<text x=\"0\" y=\"{}\">{}</text>", top + 13, Escaped(&short))?;
        for (x, value) in columns_of(seconds, at, step).into_iter().enumerate() {
            // A square root, so that little is distinguishable from nothing.
            let shade = if most > 0.0 { (value / most).max(0.0).sqrt() } else { 0.0 };
            if shade >= 0.01 {
                let ended = at[((x + 1) * step).min(at.len()) - 1];
                writeln!(
                    f,
                    "<rect class=\"bar\" x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill-opacity=\"{shade:.2}\">\
                     <title>{} · second {ended:.0}: {value:.2} {counted}</title></rect>",
                    NAMES + x * cell,
                    cell,
                    HEIGHT - 2,
                    Escaped(name),
                )?;
            }
        }
    }
    for column in (0..columns).step_by(10) {
        let began = if column == 0 { 0.0 } else { at[column * step - 1] };
        writeln!(f, "<text x=\"{}\" y=\"{}\">{began:.0}s</text>", NAMES + column * cell, height - 6)?;
    }
    writeln!(f, "</svg></div>\n<p class=\"soft\">The strongest colour stands for {most:.2} {counted}.</p>")
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

/// Writes facts, settings, losses and probes.
fn facts(f: &mut Formatter, report: &Report) -> fmt::Result {
    let server = &report.server;
    writeln!(f, "<h2>Server and tool</h2>")?;
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
    table(f, &["", ""], rows)?;
    if report.probes.is_empty() {
        return Ok(());
    }
    writeln!(f, "<details><summary>probes and what they cost the server</summary>")?;
    let rows = report.probes.iter().map(|probe| {
        let cost = probe.cost_ns.map_or(NOTHING.to_owned(), |ns| format::nanoseconds(ns as f64));
        (probe.probe.clone(), vec![probe.state.clone(), format::count(probe.hits as f64), cost])
    });
    table(f, &["probe", "state", "hits", "CPU time"], rows)?;
    writeln!(f, "</details>")
}

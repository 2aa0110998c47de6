//! Audits as a self-contained web page.

use std::fmt::{self, Display, Formatter};

use maud::{html, Markup};

use super::compare::{Comparison, Difference, StructureDifference};
use super::report::{Binary, FunctionRow, Report};
use super::structures::{Evidence, Structure};
use super::text::{thousands, COLUMNS};
use super::verdict::Verdict;
use crate::html::{more, page, table};

/// The most rows per table. JSON has them all.
const ROWS: usize = 500;

/// An audit, or a comparison, as a page.
pub struct Html<'a, T>(pub &'a T);

impl Display for Html<'_, Report> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        let body = html! {
            (heading("", &report.binary))
            (verdicts(&report.verdicts))
            h2 { "Instructions" }
            (instructions(report))
            @if !report.helpers.is_empty() {
                h2 { "Outline-atomics helpers" }
                (helpers(report))
            }
            (structures(report.structures.as_deref().unwrap_or_default()))
            h2 { "Functions" }
            (functions(&report.functions))
        };
        f.write_str(&page(&format!("audit: {}", report.binary.path), &body))
    }
}

impl Display for Html<'_, Comparison> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let comparison = self.0;
        let pair = |[a, b]: [u64; 2]| vec![thousands(a), thousands(b), format!("{:+}", b as i64 - a as i64)];
        let groups = comparison.groups.iter().map(|(group, counts)| (group.title().to_owned(), pair(*counts)));
        let instructions = comparison.instructions.iter().map(|(name, counts)| ((*name).to_owned(), pair(*counts)));
        let body = html! {
            @for (letter, side) in [("A: ", &comparison.a), ("B: ", &comparison.b)] {
                (heading(letter, &side.binary))
                (verdicts(&side.verdicts))
            }
            h2 { "Instructions" }
            (table(&["group", "A", "B", "B - A"], groups))
            (table(&["instruction", "A", "B", "B - A"], instructions))
            (structures_that_differ(comparison.structures.as_deref().unwrap_or_default()))
            h2 { "Functions that differ: A → B" }
            (functions_that_differ(&comparison.functions))
        };
        f.write_str(&page("audit: two builds", &body))
    }
}

fn heading(letter: &str, binary: &Binary) -> Markup {
    html! {
        h1 { (letter) (binary.path) }
        p.soft {
            (binary.arch) " · " (thousands(binary.instructions)) " instructions · symbols: " (binary.symbol_source)
            " · build id " (binary.build_id)
        }
    }
}

fn verdicts(verdicts: &[Verdict]) -> Markup {
    html! {
        @for verdict in verdicts {
            details class=[verdict.is_finding.then_some("cost")] {
                summary { (verdict.text) }
                ul { @for line in &verdict.evidence { li { (line) } } }
            }
        }
    }
}

fn instructions(report: &Report) -> Markup {
    let rows = report.totals.iter().map(|t| {
        let ordering = t.ordering.map_or("", |o| o.as_str());
        let cells = [t.group.title().to_owned(), ordering.to_owned(), thousands(t.count), t.functions.to_string()];
        (t.instruction.to_owned(), cells.to_vec())
    });
    table(&["instruction", "group", "ordering", "count", "functions"], rows)
}

fn helpers(report: &Report) -> Markup {
    let rows = report.helpers.iter().map(|h| (h.helper.clone(), vec![thousands(h.calls), h.address.clone()]));
    table(&["helper", "calls", "address"], rows)
}

fn structures(structures: &[Structure]) -> Markup {
    let rows = structures.iter().take(ROWS).map(|structure| {
        let evidence: Vec<String> = structure.evidence.iter().map(Evidence::to_string).collect();
        let source = structure.source.clone().unwrap_or_default();
        (structure.name.clone(), vec![thousands(structure.size), evidence.join("; "), source])
    });
    html! {
        @if !structures.is_empty() {
            h2 { "Structures laid out for 64-byte cache lines" }
            (table(&["structure", "bytes", "evidence", "source"], rows))
            (more(structures.len().saturating_sub(ROWS)))
        }
    }
}

fn structures_that_differ(differing: &[StructureDifference]) -> Markup {
    let rows = differing.iter().take(ROWS).map(|d| (d.name.clone(), d.layouts().to_vec()));
    html! {
        @if !differing.is_empty() {
            h2 { "Structures laid out for 64-byte cache lines that differ" }
            (table(&["structure", "A", "B"], rows))
            (more(differing.len().saturating_sub(ROWS)))
        }
    }
}

fn column_titles() -> Vec<&'static str> {
    std::iter::once("function").chain(COLUMNS.iter().map(|group| group.title())).collect()
}

fn functions(functions: &[FunctionRow]) -> Markup {
    let titles: Vec<&str> = column_titles().into_iter().chain(["source"]).collect();
    let rows = functions.iter().take(ROWS).map(|row| {
        let count = |group| row.groups.get(group).map_or(String::new(), |n| thousands(*n));
        let source = [&row.module, &row.source].into_iter().flatten().cloned().collect::<Vec<_>>().join("/");
        (row.name.clone(), COLUMNS.iter().map(count).chain([source]).collect())
    });
    html! {
        (table(&titles, rows))
        (more(functions.len().saturating_sub(ROWS)))
    }
}

fn functions_that_differ(differing: &[Difference]) -> Markup {
    let rows = differing.iter().take(ROWS).map(|difference| {
        let cell = |group| difference.groups.get(group).map_or(String::new(), |[a, b]| format!("{a} → {b}"));
        (difference.name.clone(), COLUMNS.iter().map(cell).collect())
    });
    html! {
        (table(&column_titles(), rows))
        (more(differing.len().saturating_sub(ROWS)))
    }
}

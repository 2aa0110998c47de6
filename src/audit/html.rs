//! Audits as a self-contained web page.

use std::fmt::{self, Display, Formatter};

use super::compare::{Comparison, StructureDifference};
use super::report::{Binary, FunctionRow, Report};
use super::structures::{Evidence, Structure};
use super::text::{thousands, COLUMNS};
use super::verdict::Verdict;
use crate::html::{begin, end, table, Escaped};

/// The most rows per table. JSON has them all.
const ROWS: usize = 500;

/// An audit, or a comparison, as a page.
pub struct Html<'a, T>(pub &'a T);

impl Display for Html<'_, Report> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        begin(f, &format!("audit: {}", report.binary.path))?;
        heading(f, "", &report.binary)?;
        verdicts(f, &report.verdicts)?;
        writeln!(f, "<h2>Instructions</h2>")?;
        let rows = report.totals.iter().map(|t| {
            let ordering = t.ordering.map_or("", |o| o.as_str());
            let cells = [t.group.title().to_owned(), ordering.to_owned(), thousands(t.count), t.functions.to_string()];
            (t.instruction.to_owned(), cells.to_vec())
        });
        table(f, &["instruction", "group", "ordering", "count", "functions"], rows)?;
        if !report.helpers.is_empty() {
            writeln!(f, "<h2>Outline-atomics helpers</h2>")?;
            let rows = report.helpers.iter().map(|h| (h.helper.clone(), vec![thousands(h.calls), h.address.clone()]));
            table(f, &["helper", "calls", "address"], rows)?;
        }
        structures(f, report.structures.as_deref().unwrap_or_default())?;
        functions(f, &report.functions)?;
        end(f)
    }
}

impl Display for Html<'_, Comparison> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let comparison = self.0;
        begin(f, "audit: two builds")?;
        for (letter, side) in [("A: ", &comparison.a), ("B: ", &comparison.b)] {
            heading(f, letter, &side.binary)?;
            verdicts(f, &side.verdicts)?;
        }
        let pair = |[a, b]: [u64; 2]| vec![thousands(a), thousands(b), format!("{:+}", b as i64 - a as i64)];
        writeln!(f, "<h2>Instructions</h2>")?;
        let groups = comparison.groups.iter().map(|(group, counts)| (group.title().to_owned(), pair(*counts)));
        table(f, &["group", "A", "B", "B - A"], groups)?;
        let instructions = comparison.instructions.iter().map(|(name, counts)| ((*name).to_owned(), pair(*counts)));
        table(f, &["instruction", "A", "B", "B - A"], instructions)?;
        structures_that_differ(f, comparison.structures.as_deref().unwrap_or_default())?;
        writeln!(f, "<h2>Functions that differ: A → B</h2>")?;
        let rows = comparison.functions.iter().take(ROWS).map(|difference| {
            let cell = |group| difference.groups.get(group).map_or(String::new(), |[a, b]| format!("{a} → {b}"));
            (difference.name.clone(), COLUMNS.iter().map(cell).collect())
        });
        table(f, &column_titles(), rows)?;
        more(f, comparison.functions.len())?;
        end(f)
    }
}

fn heading(f: &mut Formatter, letter: &str, binary: &Binary) -> fmt::Result {
    writeln!(
        f,
        "<h1>{letter}{}</h1>\n<p class=\"soft\">{} · {} instructions · symbols: {} · build id {}</p>",
        Escaped(&binary.path),
        binary.arch,
        thousands(binary.instructions),
        binary.symbol_source,
        Escaped(&binary.build_id)
    )
}

fn verdicts(f: &mut Formatter, verdicts: &[Verdict]) -> fmt::Result {
    for verdict in verdicts {
        let class = if verdict.is_finding { " class=\"cost\"" } else { "" };
        writeln!(f, "<details{class}><summary>{}</summary><ul>", Escaped(&verdict.text))?;
        verdict.evidence.iter().try_for_each(|line| writeln!(f, "<li>{}</li>", Escaped(line)))?;
        writeln!(f, "</ul></details>")?;
    }
    Ok(())
}

fn structures(f: &mut Formatter, structures: &[Structure]) -> fmt::Result {
    if structures.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Structures laid out for 64-byte cache lines</h2>")?;
    let rows = structures.iter().take(ROWS).map(|structure| {
        let evidence: Vec<String> = structure.evidence.iter().map(Evidence::to_string).collect();
        let source = structure.source.clone().unwrap_or_default();
        (structure.name.clone(), vec![thousands(structure.size), evidence.join("; "), source])
    });
    table(f, &["structure", "bytes", "evidence", "source"], rows)?;
    more(f, structures.len())
}

fn structures_that_differ(f: &mut Formatter, differing: &[StructureDifference]) -> fmt::Result {
    if differing.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Structures laid out for 64-byte cache lines that differ</h2>")?;
    let rows = differing.iter().take(ROWS).map(|d| (d.name.clone(), d.layouts().to_vec()));
    table(f, &["structure", "A", "B"], rows)?;
    more(f, differing.len())
}

fn column_titles() -> Vec<&'static str> {
    std::iter::once("function").chain(COLUMNS.iter().map(|group| group.title())).collect()
}

fn functions(f: &mut Formatter, functions: &[FunctionRow]) -> fmt::Result {
    writeln!(f, "<h2>Functions</h2>")?;
    let titles: Vec<&str> = column_titles().into_iter().chain(["source"]).collect();
    let rows = functions.iter().take(ROWS).map(|row| {
        let count = |group| row.groups.get(group).map_or(String::new(), |n| thousands(*n));
        let source = [&row.module, &row.source].into_iter().flatten().cloned().collect::<Vec<_>>().join("/");
        (row.name.clone(), COLUMNS.iter().map(count).chain([source]).collect())
    });
    table(f, &titles, rows)?;
    more(f, functions.len())
}

fn more(f: &mut Formatter, all: usize) -> fmt::Result {
    match all.saturating_sub(ROWS) {
        0 => Ok(()),
        rest => writeln!(f, "<p class=\"soft\">and {rest} more; <code>--format json</code> lists all</p>"),
    }
}

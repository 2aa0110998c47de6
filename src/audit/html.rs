//! Audits as one self-contained web page.

use std::fmt::{self, Display, Formatter};

use super::compare::Comparison;
use super::report::{Binary, FunctionRow, Report};
use super::text::{thousands, COLUMNS};
use super::verdict::Verdict;
use crate::ui::html::{begin, end, table, Escaped};

/// Functions that are listed. JSON has all.
const FUNCTIONS: usize = 500;

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
        writeln!(f, "<h2>Functions that differ: A → B</h2>")?;
        let rows = comparison.functions.iter().take(FUNCTIONS).map(|difference| {
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

fn column_titles() -> Vec<&'static str> {
    std::iter::once("function").chain(COLUMNS.iter().map(|group| group.title())).collect()
}

fn functions(f: &mut Formatter, functions: &[FunctionRow]) -> fmt::Result {
    writeln!(f, "<h2>Functions</h2>")?;
    let titles: Vec<&str> = column_titles().into_iter().chain(["source"]).collect();
    let rows = functions.iter().take(FUNCTIONS).map(|row| {
        let count = |group| row.groups.get(group).map_or(String::new(), |n| thousands(*n));
        let source = [&row.module, &row.source].into_iter().flatten().cloned().collect::<Vec<_>>().join("/");
        (row.name.clone(), COLUMNS.iter().map(count).chain([source]).collect())
    });
    table(f, &titles, rows)?;
    more(f, functions.len())
}

fn more(f: &mut Formatter, all: usize) -> fmt::Result {
    match all.saturating_sub(FUNCTIONS) {
        0 => Ok(()),
        rest => writeln!(f, "<p class=\"soft\">and {rest} more, which <code>--format json</code> lists</p>"),
    }
}

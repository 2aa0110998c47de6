//! Audits as one self-contained web page: nothing is fetched, no script.

use std::fmt::{self, Display, Formatter};

use super::compare::Comparison;
use super::report::{Binary, FunctionRow, Report};
use super::text::{thousands, COLUMNS};
use super::verdict::Verdict;
use crate::ui::html::Escaped;

/// Functions that are listed. JSON has all.
const FUNCTIONS: usize = 500;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #888; --cost: #c60 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { margin: .3rem 0 } .soft { color: var(--soft) }
details { border-left: 4px solid var(--line); padding: .1rem .8rem; margin: .5rem 0 } details.cost { border-color: var(--cost) }
ul { margin: .3rem 0 } div { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { font-weight: 600; color: var(--soft) } th:first-child, td:first-child { text-align: left }
code { font-size: .9em }
";

/// An audit, or a comparison, as a page.
pub struct Html<'a, T>(pub &'a T);

impl Display for Html<'_, Report> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        begin(f, &report.binary.path)?;
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
        begin(f, "two builds")?;
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

fn begin(f: &mut Formatter, title: &str) -> fmt::Result {
    writeln!(
        f,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>armtrace audit: {}</title><style>{STYLE}</style></head>\n<body>",
        Escaped(title)
    )
}

fn end(f: &mut Formatter) -> fmt::Result {
    writeln!(f, "<p class=\"soft\">armtrace {}</p></body></html>", env!("CARGO_PKG_VERSION"))
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

/// A table of which the first column is code.
fn table(f: &mut Formatter, titles: &[&str], rows: impl Iterator<Item = (String, Vec<String>)>) -> fmt::Result {
    write!(f, "<div><table><tr>")?;
    titles.iter().try_for_each(|title| write!(f, "<th>{title}</th>"))?;
    writeln!(f, "</tr>")?;
    for (name, cells) in rows {
        write!(f, "<tr><td><code>{}</code></td>", Escaped(&name))?;
        cells.iter().try_for_each(|cell| write!(f, "<td>{}</td>", Escaped(cell)))?;
        writeln!(f, "</tr>")?;
    }
    writeln!(f, "</table></div>")
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

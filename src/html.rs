//! Writes self-contained web pages, which fetch nothing and run no script.

use std::fmt::{self, Display, Formatter};

/// The style sheet of all pages.
const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #666; --cost: #c60; --bar: #36c }
@media (prefers-color-scheme: dark) { :root { --soft: #aaa; --cost: #f93; --bar: #7af } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; margin: 0 } h1, p, li, summary { overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p { margin: .3rem 0 } .soft { color: var(--soft) }
details { border-left: 4px solid var(--line); padding: .1rem .8rem; margin: .5rem 0 } details.cost { border-color: var(--cost) }
ul { margin: .3rem 0 } div { overflow-x: auto } li.cost::marker { color: var(--cost) }
table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .35rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { font-weight: 600; color: var(--soft); white-space: normal; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
code { font-size: .9em }
@media (max-width: 40rem) {
  th:first-child, td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; position: sticky; left: 0; background: Canvas }
  ul { padding-left: 1.2rem }
}
svg { display: block } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) } svg .bar { fill: var(--bar) }
svg .axis { stroke: var(--line) } svg .law { fill: none; stroke: var(--soft) }
";

/// Writes the beginning of a page.
pub fn begin(f: &mut Formatter, title: &str) -> fmt::Result {
    writeln!(
        f,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" href=\"data:,\">\n\
         <title>armtrace {}</title><style>{STYLE}</style></head>\n<body>",
        Escaped(title)
    )
}

/// Writes the end of a page.
pub fn end(f: &mut Formatter) -> fmt::Result {
    writeln!(f, "<p class=\"soft\">armtrace {}</p></body></html>", env!("CARGO_PKG_VERSION"))
}

/// Writes a table with identifiers in its first column.
pub fn table(f: &mut Formatter, titles: &[&str], rows: impl Iterator<Item = (String, Vec<String>)>) -> fmt::Result {
    table_of("code", f, titles, rows)
}

/// Writes a table with plain words in its first column.
pub fn table_of_words(
    f: &mut Formatter,
    titles: &[&str],
    rows: impl Iterator<Item = (String, Vec<String>)>,
) -> fmt::Result {
    table_of("span", f, titles, rows)
}

fn table_of(
    element: &str,
    f: &mut Formatter,
    titles: &[&str],
    rows: impl Iterator<Item = (String, Vec<String>)>,
) -> fmt::Result {
    write!(f, "<div><table><tr>")?;
    titles.iter().try_for_each(|title| write!(f, "<th>{title}</th>"))?;
    writeln!(f, "</tr>")?;
    for (name, cells) in rows {
        write!(f, "<tr><td><{element}>{}</{element}></td>", Escaped(&name))?;
        cells.iter().try_for_each(|cell| write!(f, "<td>{}</td>", Escaped(cell)))?;
        writeln!(f, "</tr>")?;
    }
    writeln!(f, "</table></div>")
}

/// Text with HTML markup escaped. Names need this because they come from the server's binary.
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

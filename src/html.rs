//! Self-contained web pages, which fetch nothing; only the landing page runs a script. Names come from the server's
//! binary, so all text is escaped.

use maud::{html, Markup, PreEscaped, DOCTYPE};

/// The style sheet of reports, comparisons and audits.
const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #666; --cost: #c60; --bar: #36c; --ink: #222; --flame: #f6d5a8; --root: #cfdcf5 }
@media (prefers-color-scheme: dark) { :root { --soft: #aaa; --cost: #f93; --bar: #7af; --ink: #eee; --flame: #6b4a1e; --root: #2c4674 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; margin: 0 } h1, p, li, summary { overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p { margin: .3rem 0 } .soft { color: var(--soft) }
details { border-left: 4px solid var(--line); padding: .1rem .8rem; margin: .5rem 0 } details.cost { border-color: var(--cost) }
ul { margin: .3rem 0 } div { overflow-x: auto } li.cost::marker { color: var(--cost) }
table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .3rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { font-weight: 600; color: var(--soft); white-space: normal; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
code { font-size: .9em }
@media (max-width: 40rem) {
  th:first-child, td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; position: sticky; left: 0; background: Canvas }
  ul { padding-left: 1.2rem }
}
svg { display: block } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) } svg .bar { fill: var(--bar) }
svg .more { stroke: var(--cost); fill: var(--cost); stroke-width: 2 }
svg .less { stroke: var(--bar); fill: var(--bar); stroke-width: 2 }
svg .axis { stroke: var(--line) } svg .law { fill: none; stroke: var(--soft) }
.flame rect { fill: var(--flame); stroke: Canvas } .flame .root rect { fill: var(--root) } .flame text { fill: var(--ink) }
svg .cells { stroke: var(--bar); stroke-width: 16 }
svg .a { stroke: var(--bar); stroke-width: 2; fill: var(--bar); fill-opacity: .15 }
svg .b { stroke: var(--cost); stroke-width: 2; fill: none; stroke-dasharray: 5 3 }
.charts { display: flex; flex-wrap: wrap; gap: 1.2rem 2rem } figure { margin: 0; width: 21rem; max-width: 100% }
figcaption { font-size: .85em; overflow-wrap: anywhere } .key { display: inline-block; vertical-align: middle }
nav { display: flex } nav a { flex: none; box-sizing: border-box; padding: .3rem; border: 1px solid var(--line); font-size: 11px; overflow: hidden }
a { color: var(--bar) } .part { display: none; scroll-margin-top: 26rem } .part:target { display: block } .part a { margin-left: 1rem }
";

/// What a page may load: nothing. Its style is within it.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// Returns the page of a report, a comparison or an audit.
pub fn page(title: &str, body: &Markup) -> String {
    let policy = html! { meta http-equiv="Content-Security-Policy" content=(POLICY); };
    document_with(title, STYLE, &policy, body)
}

/// Returns a page with a style sheet of its own.
pub fn document(title: &str, style: &str, body: &Markup) -> String {
    document_with(title, style, &Markup::default(), body)
}

/// Returns a page with a style sheet of its own, and more in its head.
pub fn document_with(title: &str, style: &str, head: &Markup, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                // Without it, browsers ask the server for one.
                link rel="icon" href="data:,";
                title { "armtrace " (title) }
                style { (PreEscaped(style)) }
                (head)
            }
            body {
                (body)
                p.soft { "armtrace " (env!("CARGO_PKG_VERSION")) }
            }
        }
    };
    page.into_string() + "\n"
}

/// Returns a table with identifiers in its first column.
pub fn table(titles: &[&str], rows: impl Iterator<Item = (String, Vec<String>)>) -> Markup {
    table_of(titles, rows.map(|(name, cells)| (html! { code { (name) } }, cells)))
}

/// Returns a table with plain words in its first column.
pub fn table_of_words(titles: &[&str], rows: impl Iterator<Item = (String, Vec<String>)>) -> Markup {
    table_of(titles, rows.map(|(name, cells)| (html! { span { (name) } }, cells)))
}

fn table_of(titles: &[&str], rows: impl Iterator<Item = (Markup, Vec<String>)>) -> Markup {
    html! {
        div {
            table {
                tr { @for title in titles { th { (title) } } }
                @for (name, cells) in rows {
                    tr {
                        td { (name) }
                        @for cell in &cells { td { (cell) } }
                    }
                }
            }
        }
    }
}

/// Returns a line for the rows that a table leaves out, if it does.
pub fn more(rows: usize) -> Markup {
    html! {
        @if rows > 0 { p.soft { "and " (rows) " more, which " code { "--format json" } " lists" } }
    }
}

/// Returns a list of sentences, unless there are none.
pub fn list(lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() { ul { @for line in lines { li { (line) } } } }
    }
}

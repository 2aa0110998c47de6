//! The landing page.

use crate::html::Escaped;
use crate::measure::Snapshot;
use crate::present::format::{self, NOTHING};
use crate::ui::top::{Interval, TopLatch};

/// The most latches that the page lists.
const LATCHES: usize = 10;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #888 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { margin: .3rem 0 } .soft { color: var(--soft) }
nav a { display: inline-block; margin: 1rem 1rem 0 0; padding: .3rem .9rem; border: 1px solid var(--line);
  border-radius: .4rem; text-decoration: none }
div { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { font-weight: 600; color: var(--soft) } th:first-child, td:first-child { text-align: left }
code { font-size: .9em }
";

/// Returns the page at `/`: the server being measured, links to the metrics, and the top latches since attach.
pub fn landing(snapshot: &Snapshot) -> String {
    let target = &snapshot.target;
    let server = format!("{} {}", format::flavor(&target.flavor), target.version);
    let state = if snapshot.up { "attached for" } else { "server has ended; was attached for" };
    let overhead = snapshot.overhead_ratio().map_or("not known".to_string(), format::percent);
    let figures = format!("{state} {} · estimated overhead {overhead}", format::span(snapshot.elapsed));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>armtrace: {server}</title><style>{STYLE}</style></head>\n\
         <body><h1>{server}</h1>\n<p>pid {pid} · {arch} {cpu}</p>\n<p class=\"soft\">{figures}</p>\n\
         <nav><a href=\"/metrics\">Metrics</a><a href=\"/healthz\">Health</a></nav>\n\
         <h2>Latches waited for longest</h2>\n{latches}\n\
         <p class=\"soft\">armtrace {version}</p></body></html>\n",
        server = Escaped(&server),
        pid = target.pid,
        arch = Escaped(&target.arch),
        cpu = Escaped(&target.cpu_model),
        latches = latches(&Interval::new(snapshot, None).top_latches()),
        version = env!("CARGO_PKG_VERSION"),
    )
}

fn latches(top: &[TopLatch]) -> String {
    if top.is_empty() {
        return "<p>No contended waits so far.</p>".to_string();
    }
    let head = ["latch", "mode", "wait", "waits/s", "mean", "p99", "asleep", "top call site"];
    let head: String = head.iter().map(|title| format!("<th>{title}</th>")).collect();
    let rows: String = top.iter().take(LATCHES).map(row).collect();
    format!("<div><table><tr>{head}</tr>\n{rows}</table></div>")
}

fn row(latch: &TopLatch) -> String {
    let time = |ns: Option<f64>| ns.map_or(NOTHING.to_string(), format::nanoseconds);
    let callsite = latch.callsite.as_ref().map_or(NOTHING, |site| &site.callsite);
    format!(
        "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td><code>{}</code></td></tr>\n",
        Escaped(&latch.latch),
        latch.mode.as_str(),
        format::nanoseconds(latch.total_ns as f64),
        format::count(latch.waits_per_second),
        time(latch.mean_ns),
        time(latch.p99_ns),
        latch.sleep_share.map_or(NOTHING.to_string(), format::percent),
        Escaped(callsite),
    )
}

//! The landing page.

use maud::{html, Markup};

use crate::html::document;
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
    let state = match (&snapshot.replayed, snapshot.up) {
        (Some(_), _) => "played for",
        (None, true) => "attached for",
        (None, false) => "server has ended; was attached for",
    };
    let overhead = snapshot.overhead_ratio().map_or("not known".to_string(), format::percent);
    let body = html! {
        h1 { (server) }
        @if let Some(replayed) = &snapshot.replayed {
            p { strong { (replayed) } }
        }
        p { "pid " (target.pid) " · " (target.arch) " " (target.cpu_model) }
        p.soft { (state) " " (format::span(snapshot.elapsed)) " · estimated overhead " (overhead) }
        nav {
            a href="/metrics" { "Metrics" }
            a href="/healthz" { "Health" }
        }
        h2 { "Latches waited for longest" }
        (latches(&Interval::new(snapshot, None).top_latches()))
    };
    document(&server, STYLE, &body)
}

fn latches(top: &[TopLatch]) -> Markup {
    let titles = ["latch", "mode", "wait", "waits/s", "mean", "p99", "asleep", "top call site"];
    html! {
        @if top.is_empty() {
            p { "No contended waits so far." }
        } @else {
            div {
                table {
                    tr { @for title in titles { th { (title) } } }
                    @for latch in top.iter().take(LATCHES) { (row(latch)) }
                }
            }
        }
    }
}

fn row(latch: &TopLatch) -> Markup {
    let time = |ns: Option<f64>| ns.map_or(NOTHING.to_string(), format::nanoseconds);
    let callsite = latch.callsite.as_ref().map_or(NOTHING, |site| &site.callsite);
    html! {
        tr {
            td { code { (latch.latch) } }
            td { (latch.mode.as_str()) }
            td { (format::nanoseconds(latch.total_ns as f64)) }
            td { (format::count(latch.waits_per_second)) }
            td { (time(latch.mean_ns)) }
            td { (time(latch.p99_ns)) }
            td { (latch.sleep_share.map_or(NOTHING.to_string(), format::percent)) }
            td { code { (callsite) } }
        }
    }
}

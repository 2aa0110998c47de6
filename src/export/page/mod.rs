//! The landing page: what the server is, what its threads wait for, and where its CPU time goes.
//!
//! The page is complete without its script, which replaces the figures by those of `/events`. The server writes both
//! with the same code, so the script knows nothing of figures.

mod activity;
mod latches;
mod list;

pub use list::list;

use std::sync::LazyLock;
use std::time::Duration;

use base64::prelude::{Engine, BASE64_STANDARD};
use maud::{html, Markup, PreEscaped};
use sha2::{Digest, Sha256};

use crate::html::document;
use crate::measure::advice::advice;
use crate::measure::Snapshot;
use crate::model::ProbeState;
use crate::present::format;
use crate::ui::lines::{blocking_connections, files, locked_objects, waits_for_locks};
use crate::ui::top::{Interval, TopLatch};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The least part of a CPU that a server uses unless it is idle.
const IDLE_CPUS: f64 = 0.01;

const LOCKS_REST: &str =
    "Waits for row locks and metadata locks are not measured for some minutes: measuring so many would exceed the budget.";

/// The page's Content-Security-Policy: nothing runs, loads or styles it but what is part of it, and its events.
pub static CONTENT_POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Returns the page of one server. Figures are of the time since `earlier`, or since attach. `is_one_of_many` says
/// whether there is a list that it belongs to.
pub fn landing(now: &Snapshot, earlier: Option<&Snapshot>, is_one_of_many: bool) -> String {
    let body = html! {
        script { (PreEscaped(SCRIPT)) }
        header {
            h1 { (server(now)) }
            nav aria-label="Pages" {
                @if is_one_of_many { a href="/" { "Servers" } }
                a href="/metrics" { "Metrics" }
                a href="/healthz" { "Health" }
                button id="theme" type="button" hidden { "Dark" }
            }
        }
        p id="link" role="status" { "These figures are not live: that needs JavaScript. Reload the page for newer ones." }
        (figures(now, earlier))
    };
    document(&server(now), STYLE, &body)
}

/// Returns the part of the page that changes. Figures are of the time since `earlier`, or since attach.
pub fn figures(now: &Snapshot, earlier: Option<&Snapshot>) -> Markup {
    // Once the server has ended, nothing happens in the last seconds.
    let interval = Interval::new(now, earlier.filter(|_| now.up));
    let top = interval.top_latches();
    html! {
        main id="figures" {
            (identity(now))
            (sums(now, &interval, &top))
            (notes(now, &interval))
            (latches::section(now, &interval, &top))
            div.columns {
                (activity::pages(now, &interval))
                (activity::cpu(now, &interval))
            }
        }
    }
}

fn server(now: &Snapshot) -> String {
    format!("{} {}", format::flavor(&now.target.flavor), now.target.version)
}

fn identity(now: &Snapshot) -> Markup {
    let target = &now.target;
    let state = match (&now.replayed, now.up) {
        (Some(_), _) => "played for",
        (None, true) => "attached for",
        (None, false) => "server has ended; was attached for",
    };
    html! {
        @if let Some(replayed) = &now.replayed {
            p { strong { (replayed) } }
        }
        p.soft {
            "pid " (target.pid) " · " (target.arch) " " (target.cpu_model) " · "
            (state) " " (format::span(now.elapsed))
            @if let Some(probes) = probes(now) { " · " (probes) }
        }
    }
}

/// Returns how many probes are in which state; `None` if that is not known, as in a recording.
fn probes(now: &Snapshot) -> Option<String> {
    let count = |state| now.probes.iter().filter(|probe| probe.state == state).count();
    let states = [
        (count(ProbeState::Attached), "attached"),
        (count(ProbeState::DutyCycle), "part of the time"),
        (count(ProbeState::Detached), "detached"),
        (count(ProbeState::Failed), "failed"),
    ];
    let states: Vec<String> = states.iter().filter(|(n, _)| *n > 0).map(|(n, state)| format!("{n} {state}")).collect();
    (!states.is_empty()).then(|| format!("probes: {}", states.join(", ")))
}

/// Returns the figures over all latches.
fn sums(now: &Snapshot, interval: &Interval, top: &[TopLatch]) -> Markup {
    let waiting = top.iter().map(|latch| latch.wait_ns_per_second).fold(0.0, |sum, ns| sum + ns) / 1e9;
    let waits = now.latch.counted().then(|| top.iter().filter_map(|latch| latch.waits_per_second).sum());
    let estimated = interval.estimated_share();
    let mark = if estimated.is_some() { "~" } else { "" };
    let overhead = now.overhead_ratio().map_or("not known".to_owned(), format::percent);
    let figures = [
        (format!("threads waiting, {}", period(interval)), Some(format!("{mark}{waiting:.2}"))),
        ("waits/s".to_owned(), waits.map(format::count)),
        ("statements/s".to_owned(), interval.per_statement().map(|each| format::count(each.rate))),
        ("CPUs used by the server".to_owned(), interval.server_cpus().map(|cpus| format!("{cpus:.2}"))),
        ("of the wait time is estimated".to_owned(), estimated.map(|share| format!("~{}", format::percent(share)))),
        ("overhead of armtrace, of the server's CPU time".to_owned(), Some(overhead)),
    ];
    html! {
        dl.sums {
            @for (what, figure) in figures {
                @if let Some(figure) = figure {
                    div { dt { (what) } dd { (figure) } }
                }
            }
        }
    }
}

/// Returns what the reader of the figures must know: what they lack, and what they suggest.
fn notes(now: &Snapshot, interval: &Interval) -> Markup {
    let lost = now.lost.iter().filter(|(_, events)| *events > 0);
    let lost: Vec<String> = lost.map(|(cause, events)| format!("{} {cause}", format::count(*events as f64))).collect();
    let mut notes = Vec::new();
    notes.extend(idle(now, interval));
    notes.extend(now.paused.then(|| "Paused: the probes are detached, and nothing is counted.".to_owned()));
    notes.extend(waits_for_locks(interval).map(|waits| format!("Waits for other transactions: {waits}.")));
    notes.extend(
        locked_objects(interval).map(|objects| format!("Most threads that wait for locks wait for {objects}.")),
    );
    notes.extend(blocking_connections(interval).map(|who| format!("Most of them are blocked by {who}.")));
    notes.extend(files(interval).map(|files| format!("Waits for files: {files}.")));
    notes.extend(now.locks.rests.then(|| LOCKS_REST.to_owned()));
    notes.extend(advice(&now.into()));
    notes.extend((!lost.is_empty()).then(|| format!("Events not counted: {}.", lost.join(", "))));
    notes.extend(now.not_measured.iter().map(|line| format!("Not measured: {line}")));
    html! {
        @if !notes.is_empty() {
            ul.notes { @for note in &notes { li { (note) } } }
        }
    }
}

fn idle(now: &Snapshot, interval: &Interval) -> Option<String> {
    let cpus = interval.server_cpus().filter(|cpus| now.up && *cpus < IDLE_CPUS)?;
    Some(format!("The server is idle: it used {} of a CPU {}.", format::percent(cpus), period(interval)))
}

/// Returns the time that figures are of: `in the last 4s`, `since attach`.
fn period(interval: &Interval) -> String {
    match interval.began() {
        None => "since attach".to_owned(),
        Some(_) => {
            format!("in the last {}", format::span(Duration::from_secs_f64(interval.seconds().round().max(1.0))))
        }
    }
}

/// Returns a name that may be broken between its words.
fn breakable(name: &str) -> Markup {
    html! { @for word in name.split_inclusive(['/', '_', '.', ':']) { (word) wbr; } }
}

/// Returns a bar of this length, 0 to 1. The figure that it shows is beside it.
fn bar(length: f64) -> Markup {
    html! {
        svg.bar aria-hidden="true" { rect width=(format!("{:.1}%", 100.0 * length.clamp(0.0, 1.0))) {} }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTENT_POLICY, SCRIPT, STYLE};

    #[test]
    fn nothing_is_fetched_and_no_style_is_set_in_the_markup() {
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
        assert!(!CONTENT_POLICY.contains("unsafe") && !CONTENT_POLICY.contains('*'), "{}", *CONTENT_POLICY);
    }
}

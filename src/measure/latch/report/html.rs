//! Waits for latches, on a page.

use maud::{html, Markup};

use super::call_stacks;
use super::text::{rate, share_of, split, won};
use super::{Bucket, ClientReport, LatchReport, LatchesReport, PageReport, ReacquireReport, StatementReport};
use crate::html::{more, table};
use crate::model::BUCKET_BOUNDS_NS;
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};
use crate::recording::report::{timeline, Report};

/// Rows of the heat map, latches, those with details, their call sites, and rows of the tables that follow. JSON has
/// all.
const HOT: usize = 15;
const LATCHES: usize = 40;
const DETAILS: usize = 30;
const CALLSITES: usize = 10;
const STATEMENTS: usize = 10;
const ROWS: usize = 30;

/// Returns latches over time, the latches, and the histogram and call sites of each.
pub(super) fn latches(waits: &LatchesReport, report: &Report) -> Markup {
    html! {
        @if !waits.latches.is_empty() {
            h2 { "Threads waiting, over time" }
            (timeline("waits", &by_latch(&waits.latches), report, "threads waiting"))
            h2 { "Latches" }
            (table_of_latches(&waits.latches, report.duration))
            @for (i, latch) in waits.latches.iter().take(DETAILS).enumerate() { (one_latch(latch, i == 0)) }
        }
    }
}

/// Returns statements, call stacks, pages, idle waits and wake-ups.
pub(super) fn details(waits: &LatchesReport, duration: f64) -> Markup {
    html! {
        @if !waits.statements.is_empty() {
            h2 { "Statements that wait" }
            p.soft { "From samples of the threads that wait, with values replaced. Errors are those of 95 % confidence." }
            (statements(&waits.statements, ROWS))
        }
        (clients("Users whose statements wait", "wait", &waits.clients))
        @if !waits.call_stacks.is_empty() { (call_stacks::html(&waits.call_stacks)) }
        @if !waits.pages.is_empty() {
            h2 { "Pages waited for" }
            (pages(&waits.pages, duration))
        }
        @if !waits.conditions.is_empty() {
            h2 { "Idle waits" }
            p.soft { "Condition variables: threads that wait here are idle." }
            (conditions(&waits.conditions, duration))
        }
        @if !waits.reacquires.is_empty() {
            h2 { "Wake-ups" }
            p.soft {
                "Threads that a condition variable woke wait to reacquire its mutex. This is not contention, and no sum \
                 includes it. The last column shows how many other threads wait for the mutex."
            }
            (reacquires(&waits.reacquires, duration))
        }
    }
}

/// Returns the heat map's rows, each with all modes of a latch.
fn by_latch(latches: &[LatchReport]) -> Vec<(String, Vec<f64>)> {
    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
    for latch in latches {
        match rows.iter_mut().find(|(name, _)| *name == latch.latch) {
            Some((_, sum)) => sum.iter_mut().zip(&latch.wait_by_second).for_each(|(sum, wait)| *sum += wait),
            None => rows.push((&latch.latch, latch.wait_by_second.clone())),
        }
    }
    rows.sort_by(|a, b| b.1.iter().sum::<f64>().total_cmp(&a.1.iter().sum()));
    rows.truncate(HOT);
    let names = short_names(rows.iter().map(|(name, _)| *name), usize::MAX);
    rows.into_iter().map(|(name, waits)| (names[name].clone(), waits)).collect()
}

fn table_of_latches(all: &[LatchReport], duration: f64) -> Markup {
    let titles = [
        "latch",
        "mode",
        "share",
        "threads",
        "waits/s",
        "mean",
        "p50",
        "p99",
        "longest",
        "awake/asleep",
        "spin CPUs",
        "spins won",
        "top call site",
    ];
    let names = short_names(all.iter().map(|latch| latch.latch.as_str()), usize::MAX);
    let row = |latch: &LatchReport| (names[latch.latch.as_str()].clone(), cells(latch, duration));
    html! {
        (table(&titles, all.iter().take(LATCHES).map(row)))
        (more(all.len().saturating_sub(LATCHES)))
    }
}

/// Returns a latch's histogram and call sites.
fn one_latch(latch: &LatchReport, is_open: bool) -> Markup {
    let sites = latch.callsites.iter().take(CALLSITES).map(|site| {
        let time = format::nanoseconds(site.wait * 1e9);
        (site.callsite.clone(), vec![format::percent(site.share), time, rate(site.waits, 1.0)])
    });
    html! {
        details open[is_open] {
            summary { code { (latch.latch) } " " (latch.mode.to_uppercase()) }
            @if !latch.histogram.is_empty() { (histogram(latch)) }
            (table(&["call site", "share", "wait", "waits"], sites))
            @if !latch.statements.is_empty() { (statements(&latch.statements, STATEMENTS)) }
        }
    }
}

fn cells(latch: &LatchReport, duration: f64) -> Vec<String> {
    let time = |s: Option<f64>| s.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
    let site = latch
        .callsites
        .first()
        .map(|site| format!("{} {}", cut_middle(&site.callsite, 24), format::percent(site.share)));
    vec![
        if latch.mode.is_empty() { NOTHING.to_owned() } else { latch.mode.to_uppercase() },
        format::percent(latch.share),
        format::estimate(format!("{:.2}", latch.wait / duration), latch.estimated > 0.0, latch.error_ratio()),
        rate(latch.waits, duration),
        time(latch.mean),
        time(latch.p50),
        time(latch.p99),
        time(latch.max),
        split(latch),
        latch.spin_cpu.map_or(NOTHING.to_owned(), |cpu| format!("{:.2}", cpu / duration)),
        won(latch.spins),
        site.unwrap_or_default(),
    ]
}

/// Returns waits by their duration.
fn histogram(latch: &LatchReport) -> Markup {
    const BAR: (usize, usize) = (26, 90);
    let buckets = &latch.histogram;
    let time = |seconds: Option<f64>| seconds.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
    let (p50, p99) = (time(latch.p50), time(latch.p99));
    let spoken = format!("Waits for {}{} by their length: median {p50}, p99 {p99}", latch.latch, latch.in_mode());
    let most = buckets.iter().map(|bucket| bucket.waits).max().unwrap_or(0).max(1);
    let bounds: Vec<Option<f64>> = BUCKET_BOUNDS_NS.iter().map(|&ns| Some(ns as f64 / 1e9)).chain([None]).collect();
    let height = |bucket: &Bucket| (bucket.waits as f64 / most as f64 * BAR.1 as f64).max(1.0);
    let label = |le: &Option<f64>| le.map_or("more".to_owned(), format::bound);
    let of_bound = |le: &Option<f64>| -> Option<&Bucket> { buckets.iter().find(|bucket| bucket.le == *le) };
    html! {
        div {
            svg width=(bounds.len() * BAR.0 + 20) height=(BAR.1 + 22) role="img" aria-label=(spoken) {
                line.axis x1="0" x2=(bounds.len() * BAR.0) y1=(BAR.1) y2=(BAR.1) {}
                @for (i, le) in bounds.iter().enumerate() {
                    @if let Some(bucket) = of_bound(le) {
                        rect.bar x=(i * BAR.0 + 2) y=(format!("{:.1}", BAR.1 as f64 - height(bucket))) width=(BAR.0 - 4)
                            height=(format!("{:.1}", height(bucket))) {
                            title { "up to " (label(le)) ": " (bucket.waits) " waits" }
                        }
                    }
                    @if i % 3 == 0 || le.is_none() {
                        text x=(i * BAR.0 + 2) y=(BAR.1 + 15) { (label(le)) }
                    }
                }
            }
        }
    }
}

fn statements(all: &[StatementReport], most: usize) -> Markup {
    let rows = all.iter().take(most).map(|part| {
        let time = format::nanoseconds(part.wait * 1e9);
        (part.statement.clone(), vec![part.digest.clone(), share_of(part), time, part.samples.to_string()])
    });
    html! {
        (table(&["statement", "digest", "share", "wait", "seen"], rows))
        (more(all.len().saturating_sub(most)))
    }
}

/// Returns users and schemas, if any are known. `time` is the heading of their time.
pub(in crate::measure) fn clients(title: &str, time: &str, clients: &[ClientReport]) -> Markup {
    let rows = clients.iter().take(ROWS).map(|client| {
        let (share, time) = (format::share(client.share, client.share_error), format::nanoseconds(client.time * 1e9));
        let user = if client.user.is_empty() && client.schema.is_empty() { client.name() } else { client.user.clone() };
        (user, vec![client.schema.clone(), share, time, client.samples.to_string()])
    });
    html! {
        @if !clients.is_empty() {
            h2 { (title) }
            p.soft { "From samples, with the schema that was chosen. Errors are those of 95 % confidence." }
            (table(&["user", "schema", "share", time, "seen"], rows))
            (more(clients.len().saturating_sub(ROWS)))
        }
    }
}

fn pages(pages: &[PageReport], duration: f64) -> Markup {
    let rows = pages.iter().take(ROWS).map(|page| {
        let threads = format!("{:.2}", page.wait / duration);
        (page.location(), vec![threads, format::count(page.waits as f64 / duration)])
    });
    table(&["table, index, level", "threads", "waits/s"], rows)
}

fn conditions(conditions: &[LatchReport], duration: f64) -> Markup {
    let rows = conditions.iter().take(ROWS).map(|latch| {
        let mean = latch.mean.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
        let threads = format!("{:.2}", latch.wait / duration);
        (latch.latch.clone(), vec![threads, rate(latch.waits, duration), mean])
    });
    table(&["condition", "threads", "waits/s", "mean"], rows)
}

fn reacquires(rows: &[ReacquireReport], duration: f64) -> Markup {
    let rows = rows.iter().take(ROWS).map(|row| {
        let threads = |wait: f64| format!("{:.2}", wait / duration);
        let waits = rate(row.waits, duration);
        (row.latch.clone(), vec![threads(row.wait), waits, threads(row.other_wait)])
    });
    table(&["mutex", "threads", "waits/s", "other threads"], rows)
}

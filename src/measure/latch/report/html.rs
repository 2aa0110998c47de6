//! Waits for latches, on a page.

use std::fmt::{self, Formatter};

use super::text::{split, won};
use super::{Bucket, LatchReport, LatchesReport, PageReport, ReacquireReport};
use crate::html::{table, Escaped};
use crate::model::BUCKET_BOUNDS_NS;
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};
use crate::recording::report::{heat_map, Report};

/// Rows of the heat map, latches with details, their call sites, and rows of the tables that follow. JSON has all.
const HOT: usize = 15;
const LATCHES: usize = 40;
const CALLSITES: usize = 10;
const ROWS: usize = 30;

pub(super) fn write(waits: &LatchesReport, report: &Report, f: &mut Formatter) -> fmt::Result {
    if waits.latches.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Threads waiting, over time</h2>")?;
    heat_map(f, &by_latch(&waits.latches), &report.at, "threads waiting")?;
    writeln!(f, "<h2>Latches</h2>")?;
    latches(f, &waits.latches, report.duration)
}

pub(super) fn write_details(waits: &LatchesReport, report: &Report, f: &mut Formatter) -> fmt::Result {
    pages(f, &waits.pages, report.duration)?;
    conditions(f, &waits.conditions, report.duration)?;
    reacquires(f, &waits.reacquires, report.duration)
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

fn latches(f: &mut Formatter, all: &[LatchReport], duration: f64) -> fmt::Result {
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
    let rows = all.iter().take(LATCHES).map(row);
    table(f, &titles, rows)?;
    if all.len() > LATCHES {
        let more = all.len() - LATCHES;
        writeln!(f, "<p class=\"soft\">and {more} more, which <code>--format json</code> lists</p>")?;
    }
    for (i, latch) in all.iter().take(LATCHES).enumerate() {
        let open = if i == 0 { " open" } else { "" };
        let mode = latch.mode.to_uppercase();
        writeln!(f, "<details{open}><summary><code>{}</code> {mode}</summary>", Escaped(&latch.latch))?;
        histogram(f, &latch.histogram)?;
        let sites = latch.callsites.iter().take(CALLSITES).map(|site| {
            let time = format::nanoseconds(site.wait * 1e9);
            (site.callsite.clone(), vec![format::percent(site.share), time, format::count(site.waits as f64)])
        });
        table(f, &["call site", "share", "wait", "waits"], sites)?;
        writeln!(f, "</details>")?;
    }
    Ok(())
}

fn cells(latch: &LatchReport, duration: f64) -> Vec<String> {
    let time = |s: Option<f64>| s.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
    let site = latch
        .callsites
        .first()
        .map(|site| format!("{} {}", cut_middle(&site.callsite, 24), format::percent(site.share)));
    let estimated = if latch.estimated > 0.0 { "~" } else { "" };
    vec![
        if latch.mode.is_empty() { NOTHING.to_owned() } else { latch.mode.to_uppercase() },
        format::percent(latch.share),
        format!("{estimated}{:.2}", latch.wait / duration),
        format::count(latch.waits as f64 / duration),
        time(latch.mean),
        time(latch.p50),
        time(latch.p99),
        time(Some(latch.max)),
        split(latch),
        latch.spin_cpu.map_or(NOTHING.to_owned(), |cpu| format!("{:.2}", cpu / duration)),
        won(latch.spins),
        site.unwrap_or_default(),
    ]
}

/// Writes waits by their duration.
fn histogram(f: &mut Formatter, buckets: &[Bucket]) -> fmt::Result {
    const BAR: (usize, usize) = (26, 90);
    let most = buckets.iter().map(|bucket| bucket.waits).max().unwrap_or(0).max(1);
    let bounds: Vec<Option<f64>> = BUCKET_BOUNDS_NS.iter().map(|&ns| Some(ns as f64 / 1e9)).chain([None]).collect();
    writeln!(f, "<div><svg width=\"{}\" height=\"{}\" role=\"img\">", bounds.len() * BAR.0 + 20, BAR.1 + 22)?;
    writeln!(f, "<line class=\"axis\" x1=\"0\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\"/>", bounds.len() * BAR.0, BAR.1)?;
    for (i, le) in bounds.iter().enumerate() {
        let x = i * BAR.0;
        let label = le.map_or("more".to_owned(), bound);
        if let Some(bucket) = buckets.iter().find(|bucket| bucket.le == *le) {
            let height = (bucket.waits as f64 / most as f64 * BAR.1 as f64).max(1.0);
            writeln!(
                f,
                "<rect class=\"bar\" x=\"{}\" y=\"{:.1}\" width=\"{}\" height=\"{height:.1}\"><title>up to {label}: {} waits</title></rect>",
                x + 2,
                BAR.1 as f64 - height,
                BAR.0 - 4,
                bucket.waits,
            )?;
        }
        if i % 3 == 0 || le.is_none() {
            writeln!(f, "<text x=\"{}\" y=\"{}\">{label}</text>", x + 2, BAR.1 + 15)?;
        }
    }
    writeln!(f, "</svg></div>")
}

/// Returns a bucket's bound, which is a short number: `64µs`.
fn bound(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0}µs", seconds * 1e6),
        ..1.0 => format!("{:.0}ms", seconds * 1e3),
        _ => format!("{seconds}s"),
    }
}

fn pages(f: &mut Formatter, pages: &[PageReport], duration: f64) -> fmt::Result {
    if pages.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Pages waited for</h2>")?;
    let rows = pages.iter().take(ROWS).map(|page| {
        let threads = format!("{:.2}", page.wait / duration);
        (page.location(), vec![threads, format::count(page.waits as f64 / duration)])
    });
    table(f, &["table, index, level", "threads", "waits/s"], rows)
}

fn conditions(f: &mut Formatter, conditions: &[LatchReport], duration: f64) -> fmt::Result {
    if conditions.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Idle waits</h2>\n<p class=\"soft\">Condition variables: who waits here has nothing to do.</p>")?;
    let rows = conditions.iter().take(ROWS).map(|latch| {
        let mean = latch.mean.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
        let threads = format!("{:.2}", latch.wait / duration);
        (latch.latch.clone(), vec![threads, format::count(latch.waits as f64 / duration), mean])
    });
    table(f, &["condition", "threads", "waits/s", "mean"], rows)
}

fn reacquires(f: &mut Formatter, rows: &[ReacquireReport], duration: f64) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "<h2>Wake-ups</h2>\n<p class=\"soft\">Threads that a condition variable woke, and that wait to get its mutex back: no \
         contention, and in no sum. The last column shows how many other threads wait for the mutex.</p>"
    )?;
    let rows = rows.iter().take(ROWS).map(|row| {
        let threads = |wait: f64| format!("{:.2}", wait / duration);
        let waits = format::count(row.waits as f64 / duration);
        (row.latch.clone(), vec![threads(row.wait), waits, threads(row.other_wait)])
    });
    table(f, &["mutex", "threads", "waits/s", "other threads"], rows)
}

//! A report as one self-contained web page: findings, a heat map over time, histograms, call sites.

use std::fmt::{self, Display, Formatter};

use super::text::{barriers_line, circumstances, code, handoff_cells, heading, matrix, places, split, won};
use super::{Bucket, FunctionReport, LatchReport, OrderingReport, Report};
use crate::html::{begin, end, table, table_of_words, Escaped};
use crate::measure::cpu::CpuTime;
use crate::model::BUCKET_BOUNDS_NS;
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};

/// Rows of the heat map, latches with details, pages. JSON has all.
const HOT: usize = 15;
const LATCHES: usize = 40;
const PAGES: usize = 30;
const CALLSITES: usize = 10;
const FUNCTIONS: usize = 30;
const HANDOFFS: usize = 20;
const ORDERING: usize = 20;
/// Widest name of a function.
const FUNCTION: usize = 80;
/// The heat map has no more columns: of a longer recording, each is several seconds.
const MOST_COLUMNS: usize = 120;

/// A report as a page.
pub struct Html<'a>(pub &'a Report);

impl Display for Html<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        let title = heading(&report.server, &report.host);
        begin(f, &format!("report: {title}"))?;
        writeln!(f, "<h1>{}</h1>\n<p class=\"soft\">{}</p>", Escaped(&title), Escaped(&circumstances(report)))?;
        writeln!(f, "<ul>")?;
        for finding in &report.findings {
            let class = if finding.is_problem { " class=\"cost\"" } else { "" };
            writeln!(f, "<li{class}>{}</li>", Escaped(&finding.text))?;
        }
        writeln!(f, "</ul>")?;
        if !report.latches.is_empty() {
            writeln!(f, "<h2>Threads waiting, over time</h2>")?;
            heat_map(f, &by_latch(report), &report.at, "threads waiting")?;
            writeln!(f, "<h2>Latches</h2>")?;
            latches(f, report)?;
        }
        handoffs(f, report)?;
        cpu(f, report)?;
        pages(f, report)?;
        conditions(f, report)?;
        reacquires(f, report)?;
        facts(f, report)?;
        end(f)
    }
}

/// Rows by seconds; the stronger the colour, the more of what is counted: seconds in each second of the recording.
fn heat_map(f: &mut Formatter, rows: &[(String, Vec<f64>)], at: &[f64], counted: &str) -> fmt::Result {
    const HEIGHT: usize = 18;
    const NAMES: usize = 260;
    const COLUMNS: usize = 960;
    let step = at.len().div_ceil(MOST_COLUMNS).max(1);
    let columns = at.len().div_ceil(step);
    let most = rows.iter().flat_map(|(_, seconds)| columns_of(seconds, at, step)).fold(0.0, f64::max);
    let cell = (COLUMNS / columns.max(1)).min(24);
    let (width, height) = (NAMES + columns * cell + 40, rows.len() * HEIGHT + 20);
    writeln!(f, "<div><svg width=\"{width}\" height=\"{height}\" role=\"img\">")?;
    for (y, (name, seconds)) in rows.iter().enumerate() {
        let top = y * HEIGHT;
        let short = cut_middle(name, 40);
        writeln!(f, "<text x=\"0\" y=\"{}\">{}</text>", top + 13, Escaped(&short))?;
        for (x, value) in columns_of(seconds, at, step).into_iter().enumerate() {
            // A square root, so that what is less than the most can be told from nothing.
            let shade = if most > 0.0 { (value / most).max(0.0).sqrt() } else { 0.0 };
            if shade >= 0.01 {
                let ended = at[((x + 1) * step).min(at.len()) - 1];
                writeln!(
                    f,
                    "<rect class=\"bar\" x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill-opacity=\"{shade:.2}\">\
                     <title>{} · second {ended:.0}: {value:.2} {counted}</title></rect>",
                    NAMES + x * cell,
                    cell,
                    HEIGHT - 2,
                    Escaped(name),
                )?;
            }
        }
    }
    for column in (0..columns).step_by(10) {
        let began = if column == 0 { 0.0 } else { at[column * step - 1] };
        writeln!(f, "<text x=\"{}\" y=\"{}\">{began:.0}s</text>", NAMES + column * cell, height - 6)?;
    }
    writeln!(f, "</svg></div>\n<p class=\"soft\">The strongest colour stands for {most:.2} {counted}.</p>")
}

/// The heat map's rows: a latch's modes together.
fn by_latch(report: &Report) -> Vec<(String, Vec<f64>)> {
    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
    for latch in &report.latches {
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

/// Each column's seconds by the time that passed.
fn columns_of(seconds: &[f64], at: &[f64], step: usize) -> Vec<f64> {
    let mut began = 0.0;
    let column = |(seconds, at): (&[f64], &[f64])| {
        let ended = at.last().copied().unwrap_or(began);
        let value = seconds.iter().sum::<f64>() / (ended - std::mem::replace(&mut began, ended));
        if value.is_finite() {
            value
        } else {
            0.0
        }
    };
    seconds.chunks(step).zip(at.chunks(step)).map(column).collect()
}

fn latches(f: &mut Formatter, report: &Report) -> fmt::Result {
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
    let names = short_names(report.latches.iter().map(|latch| latch.latch.as_str()), usize::MAX);
    let row = |latch: &LatchReport| (names[latch.latch.as_str()].clone(), cells(latch, report.duration));
    let rows = report.latches.iter().take(LATCHES).map(row);
    table(f, &titles, rows)?;
    if report.latches.len() > LATCHES {
        let more = report.latches.len() - LATCHES;
        writeln!(f, "<p class=\"soft\">and {more} more, which <code>--format json</code> lists</p>")?;
    }
    for (i, latch) in report.latches.iter().take(LATCHES).enumerate() {
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

/// Waits by how long they took.
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

/// `64µs`: a bucket's bound, which is a short number.
fn bound(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0}µs", seconds * 1e6),
        ..1.0 => format!("{:.0}ms", seconds * 1e3),
        _ => format!("{seconds}s"),
    }
}

/// CPU time by class over time, and the functions that it went into.
fn cpu(f: &mut Formatter, report: &Report) -> fmt::Result {
    let Some(cpu) = &report.cpu else { return Ok(()) };
    writeln!(f, "<h2>CPUs busy, over time</h2>")?;
    let rows: Vec<_> = cpu.classes.iter().map(|row| (row.class.to_owned(), row.cpu_by_second.clone())).collect();
    heat_map(f, &rows, &report.at, "CPUs busy")?;
    writeln!(f, "<h2>CPU time</h2>")?;
    let cells = |share: f64, seconds: f64| vec![format::percent(share), format!("{:.2}", seconds / report.duration)];
    let rows = cpu.classes.iter().map(|row| (row.class.to_owned(), cells(row.share, row.cpu)));
    table_of_words(f, &["class", "share", "CPUs"], rows)?;
    writeln!(f, "<details open><summary>functions</summary>")?;
    let row = |row: &FunctionReport| {
        let cells = cells(row.share, row.cpu);
        (cut_middle(&row.function, FUNCTION), [vec![row.class.to_owned()], cells].concat())
    };
    let named = cpu.functions.iter().filter(|row| row.function != CpuTime::OTHER);
    table(f, &["function", "class", "share", "CPUs"], named.take(FUNCTIONS).map(row))?;
    writeln!(f, "</details>")?;
    let Some(line) = barriers_line(cpu) else { return Ok(()) };
    writeln!(
        f,
        "<h2>Barriers and atomics</h2>\n<p class=\"soft\">Of the CPU time, sampled at the instruction or the one behind it: {}</p>",
        Escaped(&line)
    )?;
    let row = |row: &OrderingReport| {
        let function = cut_middle(&row.function, FUNCTION);
        (row.instruction.clone(), [vec![function], cells(row.share, row.cpu)].concat())
    };
    let named = cpu.ordering.iter().filter(|row| row.function != CpuTime::OTHER);
    table(f, &["instruction", "function", "share", "CPUs"], named.take(ORDERING).map(row))
}

/// Where latches came from, and between which parts of the machine.
fn handoffs(f: &mut Formatter, report: &Report) -> fmt::Result {
    let Some(handoffs) = report.handoffs.as_ref().filter(|handoffs| handoffs.all.waits() > 0) else { return Ok(()) };
    writeln!(f, "<h2>Handoffs</h2>")?;
    writeln!(
        f,
        "<p class=\"soft\">Between {}. Local, remote and not woken are shares of the time waited; moved is the share of the \
         waiters that ended up elsewhere than they began.</p>",
        Escaped(&places(handoffs))
    )?;
    let names = short_names(handoffs.latches.iter().map(|latch| latch.latch.as_str()), usize::MAX);
    let latches = handoffs.latches.iter().take(HANDOFFS).map(|latch| (&*names[latch.latch.as_str()], &latch.sums));
    let rows = [("all latches", &handoffs.all)].into_iter().chain(latches);
    let rows = rows.map(|(name, sums)| (name.to_owned(), handoff_cells(sums, report.duration).to_vec()));
    table(f, &["latch", "handoffs/s", "local", "remote", "not woken", "moved"], rows)?;
    let Some(matrix) = matrix(handoffs, &handoffs.all, report.duration) else { return Ok(()) };
    writeln!(f, "<h3>Handoffs a second, from and to</h3>")?;
    let titles: Vec<String> = matrix.titles.iter().map(|title| Escaped(title).to_string()).collect();
    let titles: Vec<&str> = ["from \\ to"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    table_of_words(f, &titles, matrix.rows.into_iter())
}

fn pages(f: &mut Formatter, report: &Report) -> fmt::Result {
    if report.pages.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Pages waited for</h2>")?;
    let rows = report.pages.iter().take(PAGES).map(|page| {
        let threads = format!("{:.2}", page.wait / report.duration);
        (page.place(), vec![threads, format::count(page.waits as f64 / report.duration)])
    });
    table(f, &["table, index, level", "threads", "waits/s"], rows)
}

fn conditions(f: &mut Formatter, report: &Report) -> fmt::Result {
    if report.conditions.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>Idle waits</h2>\n<p class=\"soft\">Condition variables: who waits here has nothing to do.</p>")?;
    let rows = report.conditions.iter().take(PAGES).map(|latch| {
        let mean = latch.mean.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
        let threads = format!("{:.2}", latch.wait / report.duration);
        (latch.latch.clone(), vec![threads, format::count(latch.waits as f64 / report.duration), mean])
    });
    table(f, &["condition", "threads", "waits/s", "mean"], rows)
}

fn reacquires(f: &mut Formatter, report: &Report) -> fmt::Result {
    if report.reacquires.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "<h2>Wake-ups</h2>\n<p class=\"soft\">Threads that a condition variable woke, and that wait to get its mutex back: no \
         contention, and in no sum. The last column shows how many other threads wait for the mutex.</p>"
    )?;
    let rows = report.reacquires.iter().take(PAGES).map(|row| {
        let threads = |wait: f64| format!("{:.2}", wait / report.duration);
        let waits = format::count(row.waits as f64 / report.duration);
        (row.latch.clone(), vec![threads(row.wait), waits, threads(row.other_wait)])
    });
    table(f, &["mutex", "threads", "waits/s", "other threads"], rows)
}

/// Settings, losses, probes.
fn facts(f: &mut Formatter, report: &Report) -> fmt::Result {
    let server = &report.server;
    writeln!(f, "<h2>Server and tool</h2>")?;
    let known = [
        ("build id", &server.build_id),
        ("symbols", &server.symbol_source),
        ("recorded by armtrace", &report.armtrace),
    ];
    let facts = known.map(|(name, value)| (name.to_owned(), value.clone()));
    let settings = server.settings.iter().map(|(name, value)| (name.clone(), value.clone()));
    let lost = report.lost.iter().map(|(cause, n)| (format!("not counted: {cause}"), n.to_string()));
    let rows =
        facts.into_iter().chain(code(report)).chain(settings).chain(lost).map(|(name, value)| (name, vec![value]));
    table(f, &["", ""], rows)?;
    if report.probes.is_empty() {
        return Ok(());
    }
    writeln!(f, "<details><summary>probes and what they cost the server</summary>")?;
    let rows = report.probes.iter().map(|probe| {
        let cost = probe.cost_ns.map_or(NOTHING.to_owned(), |ns| format::nanoseconds(ns as f64));
        (probe.probe.clone(), vec![probe.state.clone(), format::count(probe.hits as f64), cost])
    });
    table(f, &["probe", "state", "hits", "CPU time"], rows)?;
    writeln!(f, "</details>")
}

//! Waits for latches, for a terminal.

use std::fmt::{self, Formatter};

use super::{
    CallStackReport, CallsiteReport, ClientReport, LatchReport, LatchesReport, PageReport, ReacquireReport, Spins,
    StatementReport,
};
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};
use crate::recording::report::Report;

/// The number of rows listed. JSON has all.
const LATCHES: usize = 15;
const CALLSITES: usize = 3;
const REACQUIRES: usize = 5;
const PAGES: usize = 5;
const STATEMENTS: usize = 10;
const CLIENTS: usize = 10;
/// The latches whose statements are listed, and how many of each.
const STATEMENT_LATCHES: usize = 3;
const LATCH_STATEMENTS: usize = 3;
/// The call stacks listed, the least share of each, how many of their calls, and the greatest width of these.
const CALL_STACKS: usize = 8;
const LEAST_SHARE: f64 = 0.01;
const CALLS: usize = 8;
const CALLS_WIDTH: usize = 160;
/// The greatest width of a statement.
const STATEMENT: usize = 100;
/// The greatest width of a latch's name.
pub(super) const NAME: usize = 44;

pub(super) fn write(waits: &LatchesReport, report: &Report, f: &mut Formatter) -> fmt::Result {
    if !waits.latches.is_empty() {
        writeln!(f)?;
        latches(f, &waits.latches, report.duration)?;
    }
    reacquires(f, &waits.reacquires, report.duration)?;
    pages(f, &waits.pages, report.duration)?;
    statements(f, waits, report.duration)?;
    call_stacks(f, &waits.call_stacks, report.duration)
}

fn latches(f: &mut Formatter, all: &[LatchReport], duration: f64) -> fmt::Result {
    let shown = &all[..all.len().min(LATCHES)];
    let names = short_names(shown.iter().map(|latch| latch.latch.as_str()), NAME);
    let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max("latch".len());
    writeln!(
        f,
        "{:width$} mode  share  waits/s        wait/s   mean    p99    max awake/asleep   spin  won  top call sites",
        "latch"
    )?;
    for latch in shown {
        let time = |s: Option<f64>| s.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
        writeln!(
            f,
            "{:width$} {:>4} {:>6} {:>8} {:>13} {:>6} {:>6} {:>6} {:>12} {:>6} {:>4}  {}",
            names[latch.latch.as_str()],
            if latch.mode.is_empty() { NOTHING.to_owned() } else { latch.mode.to_uppercase() },
            format::percent(latch.share),
            rate(latch.waits, duration),
            format::estimate(time(Some(latch.wait / duration)), latch.estimated > 0.0, latch.error_ratio()),
            time(latch.mean),
            time(latch.p99),
            time(latch.max),
            split(latch),
            time(latch.spin_cpu.map(|cpu| cpu / duration)),
            won(latch.spins),
            callsites(latch),
        )?;
    }
    match all.len() - shown.len() {
        0 => Ok(()),
        more => writeln!(f, "and {more} more, which --format json lists"),
    }
}

/// Returns a number of waits per second, if they were counted.
pub(super) fn rate(waits: Option<u64>, duration: f64) -> String {
    waits.map_or(NOTHING.to_owned(), |waits| format::count(waits as f64 / duration))
}

/// Returns the shares of the wait time spent awake and asleep, which add up to 100: `13/87%`.
pub(super) fn split(latch: &LatchReport) -> String {
    let sleep = latch.sleep.filter(|_| latch.wait > 0.0).map(|sleep| (sleep / latch.wait * 100.0).round());
    sleep.map_or(NOTHING.to_owned(), |sleep| format!("{:.0}/{sleep:.0}%", 100.0 - sleep))
}

/// Returns the share of spins that ended without a sleep: `75%`.
pub(super) fn won(spins: Option<Spins>) -> String {
    spins.map_or(NOTHING.to_owned(), |spins| format!("{:.0}%", spins.won_share() * 100.0))
}

fn callsites(latch: &LatchReport) -> String {
    let site = |site: &CallsiteReport| format!("{} {}", site.callsite, format::percent(site.share));
    latch.callsites.iter().take(CALLSITES).map(site).collect::<Vec<_>>().join(", ")
}

fn reacquires(f: &mut Formatter, rows: &[ReacquireReport], duration: f64) -> fmt::Result {
    for (i, row) in rows.iter().take(REACQUIRES).enumerate() {
        if i == 0 {
            writeln!(
                f,
                "\nwoken by a condition variable, waiting to reacquire its mutex: not contention, and in no sum"
            )?;
        }
        let wait = format::nanoseconds(row.wait / duration * 1e9);
        let waits = rate(row.waits, duration);
        writeln!(f, "  {wait:>8}/s  {waits:>7} waits/s  {}", row.latch)?;
    }
    Ok(())
}

fn pages(f: &mut Formatter, pages: &[PageReport], duration: f64) -> fmt::Result {
    for (i, page) in pages.iter().take(PAGES).enumerate() {
        if i == 0 {
            writeln!(f, "\npages waited for")?;
        }
        let wait = format::nanoseconds(page.wait / duration * 1e9);
        writeln!(f, "  {:>8}/s  {}", wait, page.location())?;
    }
    Ok(())
}

/// Writes which statements wait, and those of the latches that are waited for longest.
fn statements(f: &mut Formatter, waits: &LatchesReport, duration: f64) -> fmt::Result {
    if waits.statements.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nstatements that wait, from samples")?;
    one_per_line(f, &waits.statements, STATEMENTS, duration)?;
    for latch in waits.latches.iter().filter(|latch| !latch.statements.is_empty()).take(STATEMENT_LATCHES) {
        writeln!(f, "for {}{}", latch.latch, latch.in_mode())?;
        one_per_line(f, &latch.statements, LATCH_STATEMENTS, duration)?;
    }
    write_clients(f, "users whose statements wait", &waits.clients, duration)
}

/// Writes users and schemas, with their part of each second, their share, and how often their threads were seen.
pub(in crate::measure) fn write_clients(
    f: &mut Formatter,
    title: &str,
    clients: &[ClientReport],
    duration: f64,
) -> fmt::Result {
    if clients.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}, and their schemas, from samples")?;
    for client in clients.iter().take(CLIENTS) {
        let share = format::share(client.share, client.share_error);
        write_statement(f, client.time / duration, &share, client.samples, ("", &client.name()))?;
    }
    Ok(())
}

/// Writes through which calls threads came to wait, the innermost first.
fn call_stacks(f: &mut Formatter, stacks: &[CallStackReport], duration: f64) -> fmt::Result {
    let is_shown = |stack: &&CallStackReport| !stack.calls.is_empty() && stack.share >= LEAST_SHARE;
    let shown: Vec<&CallStackReport> = stacks.iter().filter(is_shown).take(CALL_STACKS).collect();
    if shown.is_empty() {
        return Ok(());
    }
    let names = short_names(shown.iter().map(|stack| stack.latch.as_str()), NAME);
    writeln!(f, "\nhow threads came to wait, from samples of their call stacks, the innermost call first")?;
    for stack in shown {
        let wait = format::nanoseconds(stack.wait / duration * 1e9);
        let calls = cut_middle(&stack.innermost(CALLS), CALLS_WIDTH);
        writeln!(f, "  {wait:>8}/s  {:>6}  {}  {calls}", format::percent(stack.share), names[stack.latch.as_str()])?;
    }
    Ok(())
}

fn one_per_line(f: &mut Formatter, all: &[StatementReport], most: usize, duration: f64) -> fmt::Result {
    for part in all.iter().take(most) {
        let statement = (&*part.digest, &*part.statement);
        write_statement(f, part.wait / duration, &share_of(part), part.samples, statement)?;
    }
    Ok(())
}

/// Writes a line about a statement, given as its digest and its text: the seconds that are its part of each second, its
/// share of all, and how often it was seen.
pub(in crate::measure) fn write_statement(
    f: &mut Formatter,
    seconds: f64,
    share: &str,
    samples: u64,
    (digest, statement): (&str, &str),
) -> fmt::Result {
    let (time, statement) = (format::nanoseconds(seconds * 1e9), cut_middle(statement, STATEMENT));
    let space = if digest.is_empty() { "" } else { " " };
    writeln!(f, "  {time:>8}/s  {share:>10}  {samples:>7} seen  {digest}{space}{statement}")
}

/// Returns a share with its error in percentage points: `45±3%`.
pub(super) fn share_of(part: &StatementReport) -> String {
    format::share(part.share, part.share_error)
}

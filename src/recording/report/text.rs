//! A report for a terminal.

use std::fmt::{self, Display, Formatter};

use super::handoffs::{HandoffSums, HandoffsReport, LatchHandoffs};
use super::{CpuReport, LatchReport, Report, Spins};
use crate::measure::cpu::CpuTime;
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};
use crate::recording::{Host, Server};

/// How many latches, call sites of each, and pages are listed. JSON has all.
const LATCHES: usize = 15;
const CALLSITES: usize = 3;
const REACQUIRES: usize = 5;
const PAGES: usize = 5;
const FUNCTIONS: usize = 8;
const HANDOFFS: usize = 5;
const ORDERING: usize = 5;
const INSTRUCTIONS: usize = 6;
/// A matrix of more parts of the machine than these is no longer read: JSON has it.
pub(super) const MOST_PLACES: usize = 8;
/// Widest column of latches, and of functions.
const NAME: usize = 44;
const FUNCTION: usize = 60;

/// A report as text.
pub struct Text<'a>(pub &'a Report);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        writeln!(f, "{}", heading(&report.server, &report.host))?;
        writeln!(f, "{}", circumstances(report))?;
        if !report.server.settings.is_empty() {
            writeln!(f, "{}", settings(&report.server))?;
        }
        writeln!(f)?;
        report
            .findings
            .iter()
            .try_for_each(|finding| writeln!(f, "{} {}", if finding.is_problem { "!" } else { "·" }, finding.text))?;
        if !report.latches.is_empty() {
            writeln!(f)?;
            latches(f, report)?;
        }
        reacquires(f, report)?;
        pages(f, report)?;
        handoffs(f, report)?;
        cpu(f, report)?;
        if !report.lost.is_empty() {
            let lost: Vec<String> = report.lost.iter().map(|(cause, n)| format!("{cause} {n}")).collect();
            writeln!(f, "\nevents not counted: {}", lost.join(", "))?;
        }
        Ok(())
    }
}

/// `MySQL 9.7.4 · x86_64 Intel(R) Xeon(R) · db1`
pub(crate) fn heading(server: &Server, host: &Host) -> String {
    let name = format!("{} {}", format::flavor(&server.flavor), server.version);
    [name, format!("{} {}", server.arch, host.cpu_model), host.name.clone()].join(" · ")
}

/// `2 CPUs · 2.50 GHz · Linux 6.18 · Debian 12 · 15 GiB · 60s · threads=64`
pub(super) fn circumstances(report: &Report) -> String {
    let host = &report.host;
    let mut parts = vec![format!("{} CPUs", host.cpus)];
    parts.extend(host.server_cpus.filter(|n| *n != host.cpus).map(|n| format!("{n} of them for the server")));
    parts.extend(host.ghz.map(|ghz| format!("{ghz:.2} GHz")));
    parts.extend(host.numa_nodes.filter(|n| *n > 1).map(|n| format!("{n} NUMA nodes")));
    parts.extend(host.memory_bytes.map(|bytes| format!("{} GiB", bytes >> 30)));
    parts.push(format!("Linux {}", host.kernel));
    parts.extend(host.os.clone());
    parts.push(format!("{} recorded", format::span(std::time::Duration::from_secs_f64(report.duration.round()))));
    parts.extend(report.overhead().map(|share| format!("overhead {}", format::percent(share))));
    parts.extend(report.labels.iter().map(|(key, value)| format!("{key}={value}")));
    parts.join(" · ")
}

fn settings(server: &Server) -> String {
    let settings: Vec<String> = server.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("settings: {}", settings.join(" "))
}

fn latches(f: &mut Formatter, report: &Report) -> fmt::Result {
    let shown = &report.latches[..report.latches.len().min(LATCHES)];
    let names = short_names(shown.iter().map(|latch| latch.latch.as_str()), NAME);
    let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max("latch".len());
    writeln!(
        f,
        "{:width$} mode  share  waits/s  wait/s   mean    p99    max awake/asleep   spin  won  top call sites",
        "latch"
    )?;
    for latch in shown {
        let time = |s: Option<f64>| s.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
        writeln!(
            f,
            "{:width$} {:>4} {:>6} {:>8} {:>7} {:>6} {:>6} {:>6} {:>12} {:>6} {:>4}  {}",
            names[latch.latch.as_str()],
            if latch.mode.is_empty() { NOTHING.to_owned() } else { latch.mode.to_uppercase() },
            format::percent(latch.share),
            format::count(latch.waits as f64 / report.duration),
            time(Some(latch.wait / report.duration)),
            time(latch.mean),
            time(latch.p99),
            time(Some(latch.max)),
            split(latch),
            time(latch.spin_cpu.map(|cpu| cpu / report.duration)),
            won(latch.spins),
            callsites(latch),
        )?;
    }
    match report.latches.len() - shown.len() {
        0 => Ok(()),
        more => writeln!(f, "and {more} more, which --format json lists"),
    }
}

/// `13/87%`: the two add up to 100.
pub(super) fn split(latch: &LatchReport) -> String {
    let sleep = latch.sleep.filter(|_| latch.wait > 0.0).map(|sleep| (sleep / latch.wait * 100.0).round());
    sleep.map_or(NOTHING.to_owned(), |sleep| format!("{:.0}/{sleep:.0}%", 100.0 - sleep))
}

/// `75%`: of the waits that began with spinning, those that got the latch by it.
pub(crate) fn won(spins: Option<Spins>) -> String {
    spins.map_or(NOTHING.to_owned(), |spins| format!("{:.0}%", spins.won_share() * 100.0))
}

fn callsites(latch: &LatchReport) -> String {
    let site = |site: &super::CallsiteReport| format!("{} {}", site.callsite, format::percent(site.share));
    latch.callsites.iter().take(CALLSITES).map(site).collect::<Vec<_>>().join(", ")
}

fn cpu(f: &mut Formatter, report: &Report) -> fmt::Result {
    if let Some(cpu) = &report.cpu {
        writeln!(f, "\n{}", cpu.line().unwrap_or_default())?;
        let named = cpu.functions.iter().filter(|row| row.function != CpuTime::OTHER).take(FUNCTIONS);
        for row in named {
            writeln!(
                f,
                "  {:>6}  {:8}  {}",
                format::percent(row.share),
                row.class,
                cut_middle(&row.function, FUNCTION)
            )?;
        }
    }
    ordering(f, report)?;
    code(report).into_iter().try_for_each(|(name, value)| writeln!(f, "{name}: {value}"))
}

fn ordering(f: &mut Formatter, report: &Report) -> fmt::Result {
    let Some(cpu) = &report.cpu else { return Ok(()) };
    let Some(line) = barriers_line(cpu) else { return Ok(()) };
    writeln!(f, "{line}")?;
    let named = cpu.ordering.iter().filter(|row| row.function != CpuTime::OTHER).take(ORDERING);
    for row in named {
        let function = cut_middle(&row.function, FUNCTION);
        writeln!(f, "  {:>6}  {} in {function}", format::percent(row.share), row.instruction)?;
    }
    Ok(())
}

/// `barriers and atomics 10.4%: lock cmpxchg 3.2% · xchg 2.9%`
pub(super) fn barriers_line(cpu: &CpuReport) -> Option<String> {
    let share = format::percent(cpu.ordering_share()?);
    let instruction = |(name, share): &(&str, f64)| format!("{name} {}", format::percent(*share));
    let instructions: Vec<String> = cpu.instructions().iter().take(INSTRUCTIONS).map(instruction).collect();
    Some(format!("barriers and atomics {share}: {}", instructions.join(" · ")))
}

/// What is known of the server's code, by name.
pub(super) fn code(report: &Report) -> Vec<(String, String)> {
    let checksum = |c: &super::ChecksumReport| {
        let calls = c.calls.filter(|counted| counted.calls > 0).map(|counted| {
            let rate = format::count(counted.calls as f64 / report.duration);
            let bytes = format::count(counted.bytes as f64 / counted.calls as f64);
            let bursts = if counted.bursts == 1 { "burst" } else { "bursts" };
            format!(", {rate} calls/s of {bytes} bytes by {} {bursts}", counted.bursts)
        });
        let cost = c.cpu_per_kib.map(|cpu| format!(", {} a KiB", format::nanoseconds(cpu * 1e9)));
        let text = [Some(format::checksum(&c.checksum)), calls, cost].into_iter().flatten().collect();
        (c.checksum.purpose.clone(), text)
    };
    let checksums = report.checksums.iter().map(checksum);
    let spin = report.spin_settings.iter().map(|spin| ("spinning".to_owned(), format::spin(spin)));
    checksums.chain(spin).collect()
}

/// Latches that came from elsewhere in the machine, and between which of its parts.
fn handoffs(f: &mut Formatter, report: &Report) -> fmt::Result {
    let Some(handoffs) = report.handoffs.as_ref().filter(|handoffs| handoffs.all.waits() > 0) else { return Ok(()) };
    let shown = &handoffs.latches[..handoffs.latches.len().min(HANDOFFS)];
    let names = short_names(shown.iter().map(|latch| latch.latch.as_str()), NAME);
    let title = format!("handed over between {}", places(handoffs));
    let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max(title.chars().count());
    writeln!(f, "\n{title:width$} handoffs/s   local  remote not woken   moved")?;
    let mut line = |name: &str, sums: &HandoffSums| {
        let [count, local, remote, unknown, moved] = handoff_cells(sums, report.duration);
        writeln!(f, "{name:width$} {count:>10} {local:>7} {remote:>7} {unknown:>9} {moved:>7}")
    };
    line("all latches, by time waited", &handoffs.all)?;
    shown.iter().try_for_each(|latch: &LatchHandoffs| line(&names[latch.latch.as_str()], &latch.sums))?;
    let Some(matrix) = matrix(handoffs, &handoffs.all, report.duration) else { return Ok(()) };
    writeln!(f, "{:width$} {}", "handoffs/s from \\ to", aligned(&matrix.titles))?;
    matrix.rows.iter().try_for_each(|(from, cells)| writeln!(f, "{from:>width$} {}", aligned(cells)))
}

fn aligned(cells: &[String]) -> String {
    cells.iter().map(|cell| format!("{cell:>10}")).collect::<Vec<_>>().join(" ")
}

/// `nodes 0, 1`, `cpus 0-7, cpus 8-15`
pub(super) fn places(handoffs: &HandoffsReport) -> String {
    let names = &handoffs.places;
    let are_nodes = names.iter().all(|name| name.parse::<u32>().is_ok());
    let nodes = if are_nodes { "nodes " } else { "" };
    match names.len() {
        ..=MOST_PLACES => format!("{nodes}{}", names.join(", ")),
        many => format!("{many} {}", if are_nodes { "nodes" } else { "parts of the machine" }),
    }
}

/// Handoffs per second, shares of the time waited by locality, and of the waiters that moved.
pub(super) fn handoff_cells(sums: &HandoffSums, duration: f64) -> [String; 5] {
    let share = |wait: f64| match sums.wait() {
        0.0 => NOTHING.to_owned(),
        all => format::percent(wait / all),
    };
    let moved = sums.moved_share().map_or(NOTHING.to_owned(), format::percent);
    let count = format::count(sums.waits() as f64 / duration);
    [count, share(sums.local.wait), share(sums.remote.wait), share(sums.unknown.wait), moved]
}

/// Handoffs per second between the parts of the machine.
pub(super) struct Matrix {
    /// Where to.
    pub titles: Vec<String>,
    /// Where from, and for each title how many.
    pub rows: Vec<(String, Vec<String>)>,
}

/// `None` where there are too many parts to look at.
pub(super) fn matrix(handoffs: &HandoffsReport, sums: &HandoffSums, duration: f64) -> Option<Matrix> {
    (handoffs.places.len() <= MOST_PLACES).then_some(())?;
    let places = || handoffs.places.iter().map(String::as_str);
    let row = |from: Option<&str>| {
        let count = |to| format::count(sums.between(from, Some(to)).waits as f64 / duration);
        (from.unwrap_or("not woken").to_owned(), places().map(count).collect())
    };
    let titles = places().map(str::to_owned).collect();
    Some(Matrix { titles, rows: places().map(Some).chain([None]).map(row).collect() })
}

fn reacquires(f: &mut Formatter, report: &Report) -> fmt::Result {
    for (i, row) in report.reacquires.iter().take(REACQUIRES).enumerate() {
        if i == 0 {
            writeln!(
                f,
                "\nwoken by a condition variable, waiting to get its mutex back: no contention, and in no sum"
            )?;
        }
        let wait = format::nanoseconds(row.wait / report.duration * 1e9);
        let waits = format::count(row.waits as f64 / report.duration);
        writeln!(f, "  {wait:>8}/s  {waits:>7} waits/s  {}", row.latch)?;
    }
    Ok(())
}

fn pages(f: &mut Formatter, report: &Report) -> fmt::Result {
    for (i, page) in report.pages.iter().take(PAGES).enumerate() {
        if i == 0 {
            writeln!(f, "\npages waited for")?;
        }
        let wait = format::nanoseconds(page.wait / report.duration * 1e9);
        writeln!(f, "  {:>8}/s  {}", wait, page.place())?;
    }
    Ok(())
}

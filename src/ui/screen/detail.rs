//! The page of an opened latch: its figures, a histogram of its waits, and its call sites.

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

use super::{LatchId, Screen};
use crate::measure::holder::{BlockedBy, HolderState};
use crate::measure::latch::shares::{divide, Share, Statement};
use crate::measure::latch::{error_ns, shares, CallsiteWaits, Handoffs, LatchWaits};
use crate::measure::Snapshot;
use crate::model::{Histogram, BUCKET_BOUNDS_NS};
use crate::present::format::{self, mode, NOTHING};
use crate::present::names::{cut_middle, without_kind};
use crate::ui::top::Interval;

/// The widths of a bar's label and number, and of the gap between the page's two halves.
const BEFORE_BAR: usize = 19;
const GAP: usize = 2;
/// The fewest bars of a histogram, if modes and handoffs leave no room for more.
const LEAST_BARS: usize = 4;
/// The fewest and the most call sites shown, depending on the room that statements and holders leave.
const CALLSITES: (usize, usize) = (2, 9);
/// The most statements shown.
const STATEMENTS: usize = 4;
const CPU_STATEMENTS: usize = 3;
/// The fewest lines below a watch's result in which the histogram and call sites are worth showing.
const LEAST_BELOW: usize = 8;
/// The most parts of the machine that a matrix has room for. With more, the pairs with the most handoffs are listed.
const MOST_DOMAINS: usize = 4;
/// The widths of a matrix's columns, and the most pairs of parts that are listed instead.
const BEFORE_CELLS: usize = 10;
const CELL: usize = 7;
const MOST_CELLS: usize = 4;
/// The most lines about a latch's holders.
const MOST_HOLDERS: usize = 5;

impl Screen {
    /// Returns the page of a latch, at most `width` wide and `height` high.
    pub(super) fn detail(&self, latch: &LatchId, width: usize, height: usize) -> Vec<Line<'static>> {
        let bold = Style::from(Modifier::BOLD);
        let mut lines = vec![Line::from(format!("{} {}", latch.0, mode(latch.2).trim_matches('-'))).style(bold)];
        let Some(now) = find(&self.now, latch) else {
            lines.push(Line::from("no waits seen"));
            return lines;
        };
        let before = self.since().and_then(|earlier| find(earlier, latch));
        let waits = before.map_or_else(|| now.waits.clone(), |earlier| now.waits.since(&earlier.waits));
        lines.extend(self.figures(now, latch).into_iter().map(Line::from));
        lines.extend(self.watch_lines(width, height.saturating_sub(lines.len())));
        if self.shows_result() && height < lines.len() + LEAST_BELOW {
            return lines;
        }
        lines.push(Line::from(""));
        let (left, room) = (width / 2, height.saturating_sub(lines.len() + 1));
        let of = if before.is_some() { ", last seconds" } else { "" };
        let titles = [format!("histogram of waits{of}"), "call sites since attach".to_owned()];
        lines.push(Line::from(beside(&titles[0], &titles[1], left)).style(bold));
        let tables = [self.modes(latch), self.matrix(latch, left.saturating_sub(GAP))].concat();
        let bars = room.saturating_sub(tables.len()).max(LEAST_BARS);
        let waits = [histogram(&waits, bars, left.saturating_sub(BEFORE_BAR + GAP)), tables].concat();
        let statements = statements(&self.now, now, width - left, STATEMENTS);
        let below = [statements, holders(&self.now, latch, width - left)].concat();
        let most = room.saturating_sub(below.len()).clamp(CALLSITES.0, CALLSITES.1);
        let causes = [callsites(&self.now, latch, width - left, most), below].concat();
        let line = |texts: &[String], i: usize| texts.get(i).cloned().unwrap_or_default();
        let rows = waits.len().max(causes.len()).min(room);
        lines.extend((0..rows).map(|i| Line::from(beside(&line(&waits, i), &line(&causes, i), left))));
        lines
    }

    fn figures(&self, now: &LatchWaits, latch: &LatchId) -> Vec<String> {
        let before = self.since().and_then(|earlier| find(earlier, latch));
        let waits = before.map_or_else(|| now.waits.clone(), |earlier| now.waits.since(&earlier.waits));
        let new = |of: fn(&LatchWaits) -> u64| of(now).saturating_sub(before.map_or(0, of));
        let (sleep_ns, sleeps) = (new(|latch| latch.sleep_ns), new(|latch| latch.sleeps));
        let time = |ns: Option<f64>| ns.map_or(NOTHING.to_owned(), format::nanoseconds);
        let quantiles = [0.5, 0.9, 0.99].map(|q| time(waits.quantile_ns(q)));
        let sleep_ns = sleep_ns.min(waits.sum_ns);
        let [p50, p90, p99] = quantiles;
        let max = format::nanoseconds(now.waits.max_ns as f64);
        let mut lines = vec![format!("{} waits · p50 {p50} · p90 {p90} · p99 {p99} · max {max}", waits.count)];
        if self.now.latch.sleeps_seen {
            let [awake, asleep] = [waits.sum_ns - sleep_ns, sleep_ns].map(|ns| format::nanoseconds(ns as f64));
            lines.push(format!("awake {awake} · asleep {asleep} in {} sleeps", format::count(sleeps as f64)));
        }
        if new(|latch| latch.estimated_ns) > 0 {
            let error = error_ns(new(|latch| latch.variance_us2)).map(|ns| ns / waits.sum_ns.max(1) as f64);
            let wait = format::estimate(format::nanoseconds(waits.sum_ns as f64), true, error);
            lines.push(format!("waited {wait}, partly estimated"));
        }
        let spun = (!self.now.cpu.time.is_empty()).then(|| {
            let cpu = format::nanoseconds(new(|latch| latch.spin_cpu_ns) as f64);
            format!("spinning took {cpu} of CPU time")
        });
        let (won, wasted) = (new(|latch| latch.spins_won) as f64, new(|latch| latch.spins_wasted) as f64);
        let spins = (self.now.latch.sleeps_seen && won + wasted > 0.0).then(|| {
            format!("{} spins, {:.0}% of them won", format::count(won + wasted), 100.0 * won / (won + wasted))
        });
        lines.extend(handoffs(&Interval::new(&self.now, self.since()), latch));
        let spinning: Vec<String> = spun.into_iter().chain(spins).collect();
        lines.extend((!spinning.is_empty()).then(|| spinning.join(" · ")));
        lines
    }

    /// Returns a table of the latch's modes since attach, if it has several: time waited, waits, CPU time spent
    /// spinning, and the share of spins won.
    fn modes(&self, latch: &LatchId) -> Vec<String> {
        let of_latch: Vec<&LatchWaits> = self.now.latch.waits.iter().filter(|row| row.latch == latch.0).collect();
        if of_latch.len() < 2 {
            return Vec::new();
        }
        let line = |row: &&LatchWaits| {
            let (wait, waits) = (format::nanoseconds(row.waits.sum_ns as f64), format::count(row.waits.count as f64));
            let spun = if self.now.cpu.time.is_empty() {
                NOTHING.to_owned()
            } else {
                format::nanoseconds(row.spin_cpu_ns as f64)
            };
            let won = won(row).filter(|_| self.now.latch.sleeps_seen).unwrap_or(NOTHING.to_owned());
            format!("{:>6} {wait:>7} {waits:>7} {spun:>7} {won:>5}", mode(row.mode))
        };
        let title = ["", "modes, since attach", "          wait   waits    spin   won"].map(str::to_owned);
        title.into_iter().chain(of_latch.iter().map(line)).collect()
    }
}

impl Screen {
    /// Returns the handoffs of a latch by parts of the machine: a line for each that it came from, and a column for
    /// each that it went to.
    fn matrix(&self, latch: &LatchId, width: usize) -> Vec<String> {
        let mut cells = Interval::new(&self.now, self.since()).handoffs();
        cells.retain(|row| row.latch == latch.0 && row.count > 0);
        if cells.is_empty() {
            return Vec::new();
        }
        if self.now.latch.domains.len() > MOST_DOMAINS {
            let title = [String::new(), "most handoffs".to_owned()].into_iter();
            cells.sort_by_key(|row| std::cmp::Reverse(row.count));
            return title.chain(cells.iter().take(MOST_CELLS).map(|row| between(row, width))).collect();
        }
        let domains = || self.now.latch.domains.iter().map(String::as_str);
        let count = |from: Option<&str>, to: &str| {
            let cell = cells.iter().find(|row| (row.from.as_deref(), row.to.as_deref()) == (from, Some(to)));
            format!("{:>CELL$}", format::count(cell.map_or(0, |row| row.count) as f64))
        };
        let line = |from: Option<&str>| {
            let name = cut_middle(from.unwrap_or("not woken"), BEFORE_CELLS - 1);
            format!("{name:>BEFORE_CELLS$}{}", domains().map(|to| count(from, to)).collect::<String>())
        };
        let titles: String = domains().map(|to| format!("{:>CELL$}", cut_middle(to, CELL - 1))).collect();
        let titles = format!("{:BEFORE_CELLS$}{titles}", "from \\ to");
        let titles = [String::new(), titles].into_iter();
        titles.chain(domains().map(Some).chain([None]).map(line)).collect()
    }
}

/// Formats the handoffs between two parts of the machine: `  1.23k cpus 0-7 → cpus 8-15`.
fn between(row: &Handoffs, width: usize) -> String {
    let from = row.from.as_deref().unwrap_or("not woken");
    let to = row.to.as_deref().unwrap_or("not known");
    let domains = cut_middle(&format!("{from} → {to}"), width.saturating_sub(CELL + 3));
    format!("{:>CELL$} {domains}", format::count(row.count as f64))
}

/// Returns the remote share of the latch's known handoffs.
fn handoffs(interval: &Interval<'_>, latch: &LatchId) -> Option<String> {
    let share = interval.remote_share(Some(&latch.0))?;
    Some(format!("remote handoffs: {} of the wait time, all modes", format::percent(share)))
}

/// Returns two texts in one line, the second of which starts at this column.
fn beside(left: &str, right: &str, column: usize) -> String {
    let left: String = left.chars().take(column.saturating_sub(GAP)).collect();
    format!("{left:column$}{right}")
}

fn find<'a>(snapshot: &'a Snapshot, (latch, kind, mode): &LatchId) -> Option<&'a LatchWaits> {
    snapshot.latch.waits.iter().find(|row| row.latch == *latch && row.kind == *kind && row.mode == *mode)
}

/// Returns bars for the histogram buckets from the first to the last with waits. If there are more than `most`, several
/// buckets share a bar.
fn histogram(waits: &Histogram, most: usize, longest: usize) -> Vec<String> {
    let holds = |n: &u64| *n > 0;
    let (Some(first), Some(last)) = (waits.buckets.iter().position(holds), waits.buckets.iter().rposition(holds))
    else {
        return vec!["none".to_owned()];
    };
    let step = (last + 1 - first).div_ceil(most.max(1));
    let groups = waits.buckets[first..=last].chunks(step).map(|group| group.iter().sum::<u64>());
    let highest = groups.clone().max().unwrap_or(1).max(1) as f64;
    let bar = |(i, n): (usize, u64)| {
        let bound = BUCKET_BOUNDS_NS.get((first + (i + 1) * step - 1).min(last));
        let bound = bound.map_or("more".to_owned(), |&ns| format!("≤ {}", format::nanoseconds(ns as f64)));
        let length = (n as f64 / highest * longest as f64).ceil() as usize;
        format!("  {bound:>8} {:>7} {}", format::count(n as f64), "█".repeat(length))
    };
    groups.enumerate().map(bar).collect()
}

fn callsites(now: &Snapshot, latch: &LatchId, width: usize, most: usize) -> Vec<String> {
    let is_of = |site: &&CallsiteWaits| site.is_of(&latch.0, latch.2) && site.wait_ns > 0;
    let mut sites: Vec<_> = now.latch.callsites.iter().filter(is_of).collect();
    sites.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.callsite.cmp(&b.callsite)));
    let all: u64 = sites.iter().map(|site| site.wait_ns).sum();
    let line = |site: &&CallsiteWaits| {
        let share = format::percent(site.wait_ns as f64 / all as f64);
        let wait = format::nanoseconds(site.wait_ns as f64);
        format!("{share:>6} {wait:>7} {}", cut_middle(&site.callsite, width.saturating_sub(15)))
    };
    sites.iter().take(most).map(line).collect()
}

/// Returns what the holders of a latch did while threads waited for it in this mode, since attach, and where.
fn holders(now: &Snapshot, latch: &LatchId, width: usize) -> Vec<String> {
    let mut rows: Vec<&BlockedBy> = now.holder.blocked.iter().filter(|row| row.is_of(&latch.0, latch.2)).collect();
    rows.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.holding.cmp(&b.holding)));
    let all: u64 = rows.iter().map(|row| row.wait_ns).sum();
    if all == 0 {
        return Vec::new();
    }
    let line = |row: &&BlockedBy| {
        let holding = &row.holding;
        let share = format::percent(row.wait_ns as f64 / all as f64);
        let (state, place) = match (&holding.waits_for, &holding.site) {
            (Some(latch), _) if holding.state == HolderState::Latch => ("waited for", without_kind(latch)),
            // It queues for a latch, but does not sleep for it.
            (Some(latch), _) => (holding.state.in_words(), without_kind(latch)),
            (None, Some(site)) => (holding.state.in_words(), &**site),
            (None, None) => (holding.state.in_words(), ""),
        };
        let queues = holding.waits_for.is_some() && holding.state != HolderState::Latch;
        let line = format!("{share:>6} {state} {}", if queues { "→ " } else { "" });
        let room = width.saturating_sub(line.chars().count());
        (line + &cut_middle(place, room)).trim_end().to_owned()
    };
    let title = ["", "its holder, since attach"].map(str::to_owned);
    title.into_iter().chain(rows.iter().take(MOST_HOLDERS).map(line)).collect()
}

/// Returns the statements that waited for a latch since attach, if any were seen.
fn statements(now: &Snapshot, latch: &LatchWaits, width: usize, most: usize) -> Vec<String> {
    let parts = shares::of_latch(latch, &now.latch.statements, Statement::of);
    if parts.is_empty() {
        return Vec::new();
    }
    let title = [String::new(), "statements, since attach".to_owned()];
    title.into_iter().chain(parts.iter().take(most).map(|part| statement_line(part, width))).collect()
}

/// Returns the statements that used CPU time since attach, if any were seen.
pub(super) fn cpu_statements(now: &Snapshot, width: usize) -> Vec<String> {
    let parts = divide(now.cpu.statements.iter().map(|row| (row.statement(), row.samples)));
    if parts.is_empty() {
        return Vec::new();
    }
    let title = ["statements, since attach".to_owned()];
    title.into_iter().chain(parts.iter().take(CPU_STATEMENTS).map(|part| statement_line(part, width))).collect()
}

/// Returns a line about a statement. The digest says which it is where the text is its first word.
fn statement_line(part: &Share<Statement>, width: usize) -> String {
    let share = format::share(part.share, part.error);
    let name = if part.of.text.contains(' ') { "" } else { part.of.digest };
    let text = format!("{} {name}", part.of.text);
    format!("{share:>8} {}", cut_middle(text.trim_end(), width.saturating_sub(9)))
}

/// Formats the share of spins that ended with the latch: `75%`. Returns `None` if no wait began with spinning.
fn won(latch: &LatchWaits) -> Option<String> {
    (latch.spins() > 0).then(|| format!("{:.0}%", 100.0 * latch.spins_won as f64 / latch.spins() as f64))
}

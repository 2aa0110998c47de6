//! The table of the top latches, as a widget that needs no terminal and no clock.

use super::top::{Interval, TopCallsite, TopLatch, TopPage};
use crate::measure::advice::advice;
use crate::measure::Snapshot;
use crate::model::Mode;
use crate::present::format::{self, mode, spin_and_sleep, NOTHING};
use crate::present::names::{cut_middle, short_names};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table, Widget};
use std::collections::BTreeMap;
use std::time::Duration;

/// The most latches that the table shows.
const MAX_LATCHES: usize = 15;
/// The most call sites listed below a table that has no room for a column of them.
const MAX_CALLSITES: usize = 3;
/// The most pages in the line of hot pages, and the most characters of a page's name.
const MAX_PAGES: usize = 3;
const MAX_PAGE: usize = 40;
/// The widths of the columns between the latch and the call site. The column `WAIT` becomes wider where an estimate is
/// shown with its error.
const NUMBERS: [u16; 7] = [4, 7, 7, 6, 6, 10, 6];
const WAIT: usize = 2;
/// The narrowest useful call site column, and the narrowest latch column.
const MIN_CALLSITE: u16 = 30;
const MIN_LATCH: u16 = 12;

/// The table's contents: the interval between two snapshots, and the address of the metrics.
pub struct LatchTable<'a> {
    now: &'a Snapshot,
    interval: Interval<'a>,
    latches: Vec<TopLatch>,
    url: &'a str,
}

/// The layout of the columns at a given width.
struct Layout<'a> {
    names: BTreeMap<&'a str, String>,
    latch_width: u16,
    numbers: [u16; NUMBERS.len()],
    /// `None` if there is no room for call sites.
    callsite_width: Option<u16>,
}

impl<'a> LatchTable<'a> {
    /// Creates the table. `url` is the address of the metrics.
    pub fn new(now: &'a Snapshot, earlier: Option<&'a Snapshot>, url: &'a str) -> LatchTable<'a> {
        let interval = Interval::new(now, earlier);
        LatchTable { now, latches: interval.top_latches(), interval, url }
    }

    /// Draws the table in at most `height` lines, and no more than it needs.
    pub fn lines(&self, width: u16, height: u16) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height.min(self.height(width))));
        Widget::render(self, buffer.area, &mut buffer);
        buffer
    }

    /// Returns the number of lines of the whole table at this width.
    fn height(&self, width: u16) -> u16 {
        let body = match self.shown() {
            0 => 1,
            shown => 1 + shown,
        };
        let below = if self.layout(width).callsite_width.is_none() { self.callsite_lines().len() } else { 0 };
        (self.header(width).len() + body + below) as u16
    }

    fn shown(&self) -> usize {
        self.latches.len().min(MAX_LATCHES)
    }

    /// Returns the lines above the table: the server, the recording if it is a replay, the sums over all latches,
    /// whether the server is idle, hot pages, advice, and lost events.
    fn header(&self, width: u16) -> Vec<Line<'_>> {
        let target = &self.now.target;
        let state = match (self.now.up, self.now.paused) {
            (false, _) => "server has ended".to_string(),
            (true, true) => "paused".to_string(),
            (true, false) => format::span(self.now.elapsed),
        };
        let server = format!("{} {}", format::flavor(&target.flavor), target.version);
        let first = format!("{server} · pid {} · {state} · {}", target.pid, self.url);
        let mut lines = vec![Line::from(first).style(Modifier::BOLD)];
        lines.extend(self.now.replayed.as_ref().map(|replayed| Line::from(replayed.to_string()).style(Modifier::BOLD)));
        lines.push(Line::from(self.summary()));
        lines.extend(crate::ui::lines::idle(&self.interval).map(|idle| Line::from(idle).style(Modifier::BOLD)));
        lines.extend(self.interval.per_statement().map(|each| Line::from(crate::ui::lines::per_statement(&each))));
        lines.extend(self.cpu_line());
        lines.extend(self.handoff_line());
        lines.extend(self.page_line(width));
        lines.extend(crate::ui::lines::reacquires(&self.interval.top_reacquires(), width).map(Line::from));
        lines.extend(crate::ui::lines::locks(&self.interval).into_iter().map(Line::from));
        lines.extend(crate::ui::lines::files(&self.interval).map(|files| Line::from(format!("files: {files}"))));
        lines.extend(advice(&self.now.into()).into_iter().map(|advice| Line::from(advice).style(Modifier::BOLD)));
        lines.extend(self.lost().map(|lost| Line::from(lost).style(Modifier::BOLD)));
        lines
    }

    fn summary(&self) -> String {
        let sum = |figure: fn(&TopLatch) -> f64| self.latches.iter().map(figure).fold(0.0, |sum, n| sum + n);
        let waiting = sum(|latch| latch.wait_ns_per_second) / 1e9;
        let waits = sum(|latch| latch.waits_per_second.unwrap_or(0.0));
        let rate = crate::ui::lines::rate(self.now, waits);
        let overhead = crate::ui::lines::overhead(self.now);
        let target = &self.now.target;
        format!("{waiting:.2} threads waiting · {rate} · overhead {overhead} · {} {}", target.arch, target.cpu_model,)
    }

    /// Returns the line of CPU time by class: `cpu: other 61% · kernel 22% · spin 9% · checksum 5%`.
    fn cpu_line(&self) -> Option<Line<'static>> {
        format::cpu_classes(&self.interval.cpu_classes()).map(Line::from)
    }

    /// Returns the line of remote handoffs, of all latches and the top one:
    /// `remote handoffs: 52% of wait time · log_writer_mutex 61%`.
    fn handoff_line(&self) -> Option<Line<'static>> {
        let share = self.interval.remote_share(None)?;
        let first = self.latches.first().map(|latch| latch.latch.as_str());
        let of_first = first.and_then(|latch| Some((latch, self.interval.remote_share(Some(latch))?)));
        let of_first = of_first.map_or_else(String::new, |(latch, share)| {
            let name =
                short_names(std::iter::once(latch), usize::MAX).remove(latch).unwrap_or_else(|| latch.to_owned());
            format!(" · {name} {:.0}%", 100.0 * share)
        });
        Some(Line::from(format!("remote handoffs: {:.0}% of wait time{of_first}", 100.0 * share)))
    }

    fn lost(&self) -> Option<String> {
        let lost = self.now.lost.iter().filter(|(_, events)| *events > 0);
        let causes: Vec<_> = lost.map(|(cause, events)| format!("{} {cause}", format::count(*events as f64))).collect();
        (!causes.is_empty()).then(|| format!("events not counted: {}", causes.join(", ")))
    }

    fn layout(&self, width: u16) -> Layout<'_> {
        let names = || self.now.latch.waits.iter().map(|latch| latch.latch.as_str());
        let mut numbers = NUMBERS;
        let longest = self.latches[..self.shown()].iter().map(|latch| wait(latch).chars().count() as u16).max();
        numbers[WAIT] = numbers[WAIT].max(longest.unwrap_or(0));
        let left = width.saturating_sub(numbers.iter().map(|column| column + 1).sum());
        let longest = short_names(names(), usize::MAX).values().map(|name| name.chars().count()).max().unwrap_or(0);
        let longest = (longest as u16).max(MIN_LATCH);
        let room = left.checked_sub(MIN_CALLSITE + 1).filter(|&room| room >= longest.min(28));
        let latch_width = longest.min(room.unwrap_or(left)).max(MIN_LATCH);
        let callsite_width = room.map(|_| left - latch_width - 1);
        Layout { names: short_names(names(), usize::from(latch_width)), latch_width, numbers, callsite_width }
    }

    fn table(&self, layout: &Layout) -> Table<'static> {
        let rows = self.latches[..self.shown()].iter().map(|latch| row(latch, layout));
        let title = format!("latch (last {})", self.interval_text());
        let mut titles = vec![Text::from(title)];
        titles.extend(["mode", "waits/s", "wait/s", "mean", "p99", "spin/sleep", "total"].map(right));
        let mut widths = vec![Constraint::Length(layout.latch_width)];
        widths.extend(layout.numbers.map(Constraint::Length));
        if let Some(width) = layout.callsite_width {
            titles.push(Text::from("top call site"));
            widths.push(Constraint::Length(width));
        }
        Table::new(rows, widths).header(Row::new(titles).style(Modifier::BOLD)).column_spacing(1)
    }

    fn interval_text(&self) -> String {
        format::span(Duration::from_secs_f64(self.interval.seconds().round()))
    }

    /// Returns the line of hot pages, as many as fit: `hot pages: sbtest/sbtest1.k_1 level 0 1.20s/s`.
    fn page_line(&self, width: u16) -> Option<Line<'static>> {
        let mut text = "hot pages:".to_owned();
        let mut shown = 0;
        for top in self.interval.top_pages().iter().take(MAX_PAGES) {
            let page = page(top);
            let separator = if shown == 0 { " " } else { " · " };
            let room = usize::from(width).saturating_sub(text.chars().count() + separator.chars().count());
            if shown > 0 && page.chars().count() > room {
                break;
            }
            text = text + separator + &page;
            shown += 1;
        }
        (shown > 0).then(|| Line::from(text))
    }

    fn callsite_lines(&self) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for latch in &self.latches[..self.shown()] {
            if let Some(site) = &latch.callsite {
                let name = short_names([latch.latch.as_str()], 40).remove(latch.latch.as_str()).unwrap_or_default();
                let in_mode = if latch.mode == Mode::None { "" } else { mode(latch.mode) };
                let name = format!("{name} {in_mode}");
                lines.push(Line::from(format!("  {} ← {}", name.trim_end(), callsite(site, usize::MAX))));
            }
        }
        lines.truncate(MAX_CALLSITES);
        if !lines.is_empty() {
            lines.insert(0, Line::from("top call sites").style(Modifier::BOLD));
        }
        lines
    }
}

impl Widget for &LatchTable<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let layout = self.layout(area.width);
        let (header, rest) = split(area, self.header(area.width).len());
        Text::from(self.header(area.width)).render(header, buffer);
        if self.latches.is_empty() {
            return Line::from("no contended waits so far").render(rest, buffer);
        }
        let (table, below) = split(rest, 1 + self.shown());
        self.table(&layout).render(table, buffer);
        if layout.callsite_width.is_none() {
            Text::from(self.callsite_lines()).render(below, buffer);
        }
    }
}

fn split(area: Rect, height: usize) -> (Rect, Rect) {
    let height = (height as u16).min(area.height);
    let below = Rect { y: area.y + height, height: area.height - height, ..area };
    (Rect { height, ..area }, below)
}

fn row(latch: &TopLatch, layout: &Layout) -> Row<'static> {
    let idle = latch.wait_ns_per_second == 0.0;
    let time = |ns: Option<f64>| ns.map_or(NOTHING.to_string(), format::nanoseconds);
    let numbers = [
        mode(latch.mode).to_string(),
        format::rate(latch.waits_per_second),
        wait(latch),
        time(latch.mean_ns),
        time(latch.p99_ns),
        latch.sleep_share.map_or(NOTHING.to_string(), spin_and_sleep),
        format::nanoseconds(latch.total_ns as f64),
    ];
    let mut cells = vec![Text::from(layout.names[latch.latch.as_str()].clone())];
    cells.extend(numbers.map(right));
    cells.extend(layout.callsite_width.map(|width| {
        let site = latch.callsite.as_ref().map(|site| callsite(site, usize::from(width)));
        Text::from(site.unwrap_or_default())
    }));
    Row::new(cells).style(if idle { Style::from(Modifier::DIM) } else { Style::default() })
}

/// Formats the time waited per second: `~57.6ms ±18%`.
fn wait(latch: &TopLatch) -> String {
    format::estimate(format::nanoseconds(latch.wait_ns_per_second), latch.is_estimated, latch.error)
}

/// Formats a place of pages and its wait per second: `sbtest/sbtest1.k_1 level 0 1.20s/s`.
fn page(top: &TopPage) -> String {
    let place = cut_middle(&top.page.place(), MAX_PAGE);
    let level = top.page.level.map_or_else(String::new, |level| format!(" level {level}"));
    format!("{place}{level} {}/s", format::nanoseconds(top.wait_ns_per_second))
}

fn right(text: impl Into<String>) -> Text<'static> {
    Text::from(text.into()).right_aligned()
}

/// Formats a call site and its share, `lock0lock.cc:1234 64%`. Only the site is cut to fit, never the share.
fn callsite(site: &TopCallsite, width: usize) -> String {
    let share = format!(" {:.0}%", site.share * 100.0);
    cut_middle(&site.callsite, width.saturating_sub(share.len())) + &share
}

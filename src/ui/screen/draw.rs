//! Lays out and draws the screen.

use std::time::Duration;

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::Frame;

use super::detail::cpu_statements;
use super::views::View;
use super::Screen;
use crate::present::format;
use crate::present::names::{cut_middle, short_names};
use crate::ui::top::{HandoffTimes, Interval, TopLatch};

const KEYS: &str = "F1 help  Enter open  ? advice  w watch  Tab view  < > sort  / filter  q quit";
const KEYS_OPENED: &str = "Esc back  ? advice  w watch its cache line  t totals  Z pause  F1 help  q quit";
const KEYS_WATCHING: &str = "Esc back  w stop watching  t totals  Z pause  F1 help  q quit";
const KEYS_WATCHED: &str = "Esc back to its waits  w watch again  t totals  Z pause  F1 help  q quit";

/// The most characters of the list of parts of the machine.
const DOMAINS: usize = 24;
const NO_DOMAINS: &str = "Handoffs are not counted: this machine has only one NUMA node and one last-level\n\
cache, or --handoffs off was given, or sleeps cannot be seen (armtrace doctor).\n\
--handoffs core counts handoffs between cores.";
const NO_PROBES: &str = "A recording has probes only at its end: armtrace report --format html shows them.";

const HELP: &[&str] = &[
    "Up Down k j     select        PgUp PgDn Home End   move",
    "Enter Right     open a latch: histogram, modes, call sites",
    "Esc Left        back; in a list, Esc clears the filter",
    "1 to 6, Tab     latches, call sites, pages, CPU time, NUMA, probes and cost",
    "> . F6          sort by the next column       < ,  by the one before",
    "I               reverse the order",
    "/ \\ F3 F4       filter by part of the name; Enter keeps it, Esc drops it",
    "t               toggle between figures since attach and of the last seconds",
    "Z               pause",
    "?               what is known of the selected latch: causes, and what helps",
    "w               watch the latch's cache line for some seconds: what touches it,",
    "                on which CPUs, is a neighbour to blame; again: stop",
    "q F10 Ctrl-C    detach the probes and quit",
    "",
    "wait/s is time waited per second by all threads: 2.50s is 2.5 threads waiting.",
    "~ marks estimates, as probes were off to stay within the budget. Enter shows ±.",
    "Wake-ups: threads woken by a condition variable wait to reacquire its mutex.",
    "NUMA: shares of the wait time. local: the latch came from the same part of the",
    "machine; remote: from another; the rest: unknown. moved: waiters that migrated.",
];

impl Screen {
    /// Draws the whole screen.
    pub fn draw(&mut self, frame: &mut Frame) {
        let lines = self.head();
        let head = Constraint::Length(lines.height() as u16);
        let heights = [head, Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
        let [head, tabs, body, foot] = Layout::vertical(heights).areas(frame.area());
        frame.render_widget(Paragraph::new(lines), head);
        frame.render_widget(Paragraph::new(self.tabs()), tabs);
        if self.shows_help {
            let lines = HELP.iter().map(|line| Line::from(*line));
            frame.render_widget(Paragraph::new(Text::from_iter(lines)), body);
        } else if self.advises {
            let lines = self.advice(usize::from(body.width)).into_iter().map(Line::from);
            frame.render_widget(Paragraph::new(Text::from_iter(lines)), body);
        } else if let Some(latch) = self.opened.clone() {
            let lines = self.detail(&latch, usize::from(body.width), usize::from(body.height));
            frame.render_widget(Paragraph::new(Text::from(lines)), body);
        } else {
            self.list(frame, body);
        }
        frame.render_widget(Paragraph::new(self.foot()).style(Modifier::REVERSED), foot);
    }

    /// Returns the lines at the top: the server, the recording if it is a replay, the sums over all latches, the waits
    /// for locks and for files, and whether the server is idle.
    fn head(&self) -> Text<'static> {
        let (now, target) = (&self.now, &self.now.target);
        let state = if now.up { format::span(now.elapsed) } else { "server has ended".to_owned() };
        let first = format!(
            "{} {} · pid {} · {state} · {} {}",
            format::flavor(&target.flavor),
            target.version,
            target.pid,
            target.arch,
            target.cpu_model
        );
        let latches = Interval::new(now, self.since()).top_latches();
        // The sum of no numbers is -0.
        let sum = |figure: fn(&TopLatch) -> f64| latches.iter().map(figure).fold(0.0, |sum, n| sum + n);
        let waiting = sum(|latch| latch.wait_ns_per_second) / 1e9;
        let rate = crate::ui::lines::rate(now, sum(|latch| latch.waits_per_second.unwrap_or(0.0)));
        let overhead = crate::ui::lines::overhead(now);
        let lost: u64 = now.lost.iter().map(|(_, events)| events).sum();
        let lost =
            if lost > 0 { format!(" · {} events not counted", format::count(lost as f64)) } else { String::new() };
        let second = format!("{waiting:.2} threads waiting · {rate} · overhead {overhead}{lost}");
        let replayed = now.replayed.as_ref().map(|replayed| Line::from(replayed.to_string()).style(Modifier::BOLD));
        let first = Line::from(first).style(Modifier::BOLD);
        let idle = crate::ui::lines::idle(&Interval::new(now, self.history.before(now)));
        let idle = idle.map(|idle| Line::from(idle).style(Modifier::BOLD));
        let locks = crate::ui::lines::locks(&Interval::new(now, self.since())).into_iter().map(Line::from);
        let files = crate::ui::lines::files(&Interval::new(now, self.since()));
        let files = files.map(|files| Line::from(format!("files: {files}")));
        let before = [Some(first), replayed, Some(Line::from(second))].into_iter().flatten();
        before.chain(locks).chain(files).chain(idle).collect()
    }

    fn tabs(&self) -> Line<'static> {
        let tab = |view: View| {
            let style = if view == self.view { Style::from(Modifier::REVERSED) } else { Style::default() };
            Span::styled(format!(" {} {} ", view as usize + 1, view.title()), style)
        };
        let mut spans: Vec<Span> = View::ALL.into_iter().map(tab).collect();
        let seconds = Duration::from_secs_f64(Interval::new(&self.now, self.since()).seconds().round());
        let of =
            if self.since().is_some() { format!("last {}", format::span(seconds)) } else { "since attach".to_owned() };
        spans.push(Span::raw(format!(" {of}")));
        if self.is_paused {
            spans.push(Span::styled("  paused", Modifier::BOLD));
        }
        Line::from(spans)
    }

    fn foot(&self) -> Line<'static> {
        if self.is_typing {
            return Line::from(format!("filter: {}_", self.filter));
        }
        let keys = match (self.opened.is_some(), self.shows_progress(), self.shows_result()) {
            (false, ..) => KEYS,
            (true, false, false) => KEYS_OPENED,
            (true, true, _) => KEYS_WATCHING,
            (true, _, true) => KEYS_WATCHED,
        };
        let filter = Some(self.filter.clone()).filter(|filter| !filter.is_empty());
        let elsewhere = self.progress().filter(|_| !self.shows_progress());
        let states = elsewhere.into_iter().chain(filter).map(|state| format!("[{state}]  "));
        Line::from(states.collect::<String>() + keys)
    }

    /// Draws a summary above the list, and returns the rest of the area.
    fn summary(&self, frame: &mut Frame, area: Rect) -> Rect {
        let interval = Interval::new(&self.now, self.since());
        let per_statement = || interval.per_statement().map(|each| crate::ui::lines::per_statement(&each));
        let lines = match self.view {
            View::Cpu => [per_statement(), format::cpu_classes(&interval.cpu_classes())],
            View::Numa => [self.handed_over(&interval), None],
            View::Latches => [crate::ui::lines::reacquires(&interval.top_reacquires(), area.width), None],
            View::Callsites | View::Pages | View::Probes => [None, None],
        };
        let statements = match self.view {
            View::Cpu => cpu_statements(&self.now, area.width.into()),
            _ => Vec::new(),
        };
        let lines: Vec<Line> = lines.into_iter().flatten().chain(statements).map(Line::from).collect();
        let heights = [Constraint::Length(lines.len() as u16), Constraint::Fill(1)];
        let [lines_area, rest] = Layout::vertical(heights).areas(area);
        frame.render_widget(Paragraph::new(lines), lines_area);
        rest
    }

    /// Returns the shares of all handoffs: `between 0, 1: 25% of the wait remote, 60% local, 15% not woken`.
    fn handed_over(&self, interval: &Interval) -> Option<String> {
        let times: HandoffTimes = interval.handoffs().into_iter().collect();
        (times.ns() > 0.0).then_some(())?;
        let share = |ns: f64| format!("{:.0}%", 100.0 * ns / times.ns());
        let [remote, local, unknown] = [times.remote_ns, times.local_ns, times.unknown_ns].map(share);
        let domains = cut_middle(&self.now.latch.domains.join(", "), DOMAINS);
        Some(format!("between {domains}: {remote} of the wait remote, {local} local, {unknown} not woken"))
    }

    /// Returns the text shown in place of an empty list.
    fn nothing(&self) -> &'static str {
        match self.view {
            View::Numa if self.now.latch.domains.is_empty() => NO_DOMAINS,
            View::Probes if self.now.replayed.is_some() => NO_PROBES,
            _ if self.filter.is_empty() => "nothing seen so far",
            _ => "no name matches the filter",
        }
    }

    fn list(&mut self, frame: &mut Frame, area: Rect) {
        let area = self.summary(frame, area);
        let rows = self.rows();
        self.page = usize::from(area.height.saturating_sub(1)).max(1);
        self.selected = self.selected.min(rows.len().saturating_sub(1));
        // Scroll only as far as it takes to keep the selected row visible.
        self.first = self.first.min(self.selected).max((self.selected + 1).saturating_sub(self.page));
        let columns = self.view.columns();
        let others: u16 = columns[1..].iter().map(|(_, width)| width + 1).sum();
        let name_width = area.width.saturating_sub(others).max(8);
        let shown = &rows[self.first..rows.len().min(self.first + self.page)];
        let names = short_names(shown.iter().map(|row| row.name.as_str()), usize::from(name_width));
        let selected = self.selected - self.first;
        let lines = shown.iter().enumerate().map(|(i, row)| {
            let name = match self.view {
                View::Latches | View::Numa => names[row.name.as_str()].clone(),
                _ => cut_middle(row.name.trim_start_matches("wait/synch/"), usize::from(name_width)),
            };
            let cells = row.texts.iter().map(|text| Text::from(text.clone()).right_aligned());
            let style = if i == selected { Style::from(Modifier::REVERSED) } else { Style::default() };
            Row::new([Text::from(name)].into_iter().chain(cells)).style(style)
        });
        let (sorted_by, is_inverted) = self.sorts[self.view as usize];
        let titles = columns.iter().enumerate().map(|(i, (title, width))| {
            let mark = if i != sorted_by {
                ""
            } else if is_inverted {
                "▲"
            } else {
                "▼"
            };
            let room = if i == 0 { usize::from(name_width) } else { usize::from(*width) };
            let title: String = title.chars().take(room - mark.chars().count()).collect();
            let text = Text::from(format!("{title}{mark}"));
            if i == 0 {
                text
            } else {
                text.right_aligned()
            }
        });
        let widths =
            columns.iter().map(
                |(_, width)| if *width == 0 { Constraint::Length(name_width) } else { Constraint::Length(*width) },
            );
        let header = Row::new(titles).style(Modifier::BOLD);
        if rows.is_empty() {
            frame.render_widget(Paragraph::new(self.nothing()), area);
        } else {
            frame.render_widget(Table::new(lines, widths).header(header).column_spacing(1), area);
        }
    }
}

//! Several servers, a line each.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table, Widget};

use super::top::Interval;
use crate::measure::Snapshot;
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};

/// The widths of the columns besides the server's name and the latch.
const VERSION: u16 = 18;
const NUMBERS: [u16; 3] = [8, 6, 9];
/// The narrowest and the widest column of names, and the narrowest of latches.
const MIN_NAME: u16 = 6;
const MAX_NAME: u16 = 40;
const MIN_LATCH: u16 = 16;
/// The lines above the first server.
const HEAD: u16 = 2;

/// What a line says of a server that is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Its maintainer and version.
    pub server: String,
    /// The latch with the longest waits in the interval, by its short name.
    pub latch: Option<String>,
    /// The threads that were waiting, on average.
    waiting: f64,
    is_estimated: bool,
    /// The CPUs that it kept busy.
    cpus: Option<f64>,
    /// The share of its CPU time that probes took since attach, 0 to 1.
    overhead: Option<f64>,
}

impl Figures {
    /// Returns the figures of the time since `earlier`, or since attach.
    pub fn new(now: &Snapshot, earlier: Option<&Snapshot>) -> Figures {
        let interval = Interval::new(now, earlier);
        let top = interval.top_latches();
        let waiting = top.iter().map(|latch| latch.wait_ns_per_second).fold(0.0, |sum, ns| sum + ns) / 1e9;
        let first = top.first().filter(|latch| latch.wait_ns_per_second > 0.0).map(|latch| latch.latch.as_str());
        let latch = first
            .map(|name| short_names(std::iter::once(name), usize::MAX).remove(name).unwrap_or_else(|| name.to_owned()));
        Figures {
            server: format!("{} {}", format::flavor(&now.target.flavor), now.target.version),
            latch,
            waiting,
            is_estimated: interval.estimated_share().is_some(),
            cpus: interval.server_cpus(),
            overhead: now.overhead_ratio(),
        }
    }

    /// Formats the threads that were waiting: `~2.31` if that is in part an estimate.
    pub fn waiting(&self) -> String {
        format!("{}{:.2}", if self.is_estimated { "~" } else { "" }, self.waiting)
    }

    /// Formats the CPUs that the server kept busy.
    pub fn cpus(&self) -> String {
        self.cpus.map_or_else(|| NOTHING.to_owned(), |cpus| format!("{cpus:.2}"))
    }

    /// Formats the cost of the probes, as a share of the server's CPU time.
    pub fn overhead(&self) -> String {
        self.overhead.map_or_else(|| NOTHING.to_owned(), format::percent)
    }
}

/// A server's line in a [`ServerTable`].
#[derive(Clone, Debug, PartialEq)]
pub struct ServerRow {
    /// What it is called.
    pub name: String,
    /// Its figures, or why there are none.
    pub figures: Result<Figures, String>,
}

/// The table of all servers of a host.
pub struct ServerTable<'a> {
    /// The servers, in the order in which they are shown.
    pub servers: &'a [ServerRow],
    /// The address of the metrics.
    pub url: &'a str,
}

impl ServerTable<'_> {
    /// Draws the table in at most `height` lines, and no more than it needs.
    pub fn lines(&self, width: u16, height: u16) -> Buffer {
        let needed = HEAD + self.servers.len().max(1) as u16;
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height.min(needed)));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Line::styled(self.title(), bold).render(Rect { height: 1.min(buffer.area.height), ..buffer.area }, &mut buffer);
        let below = Rect { y: 1.min(buffer.area.height), height: buffer.area.height.saturating_sub(1), ..buffer.area };
        if self.servers.is_empty() {
            let waiting = "no server runs here; one that starts is found within seconds";
            Line::from(waiting).render(below, &mut buffer);
        } else {
            self.table(width).render(below, &mut buffer);
        }
        buffer
    }

    fn title(&self) -> String {
        let measured = self.servers.iter().filter(|server| server.figures.is_ok()).count();
        format!("{measured} of {} servers measured · {}", self.servers.len(), self.url)
    }

    fn table(&self, width: u16) -> Table<'static> {
        let longest = self.servers.iter().map(|server| server.name.chars().count()).max().unwrap_or(0) as u16;
        let beside = VERSION + NUMBERS.iter().sum::<u16>() + MIN_LATCH + 5;
        let name = longest.clamp(MIN_NAME, MAX_NAME).min(width.saturating_sub(beside).max(MIN_NAME));
        let latch = width.saturating_sub(name + beside - MIN_LATCH).max(MIN_LATCH);
        let widths: Vec<Constraint> =
            [name, VERSION].into_iter().chain(NUMBERS).chain([latch]).map(Constraint::Length).collect();
        let right = |text: &str| Text::raw(text.to_owned()).right_aligned();
        let head = [
            Text::raw("SERVER"),
            Text::raw("VERSION"),
            right("WAITING"),
            right("CPUS"),
            right("OVERHEAD"),
            Text::raw("LONGEST WAITS"),
        ];
        let dim = Style::new().add_modifier(Modifier::DIM);
        let rows = self.servers.iter().map(move |server| row(server, name.into(), latch.into()));
        Table::new(rows, widths).header(Row::new(head).style(dim))
    }
}

fn row(server: &ServerRow, name: usize, latch: usize) -> Row<'static> {
    let right = |text: String| Text::raw(text).right_aligned();
    let name = Text::raw(cut_middle(&server.name, name));
    match &server.figures {
        Ok(figures) => Row::new([
            name,
            Text::raw(cut_middle(&figures.server, VERSION.into())),
            right(figures.waiting()),
            right(figures.cpus()),
            right(figures.overhead()),
            Text::raw(cut_middle(figures.latch.as_deref().unwrap_or(NOTHING), latch)),
        ]),
        Err(why) => {
            let none = || right(NOTHING.to_owned());
            Row::new([name, Text::raw(NOTHING), none(), none(), none(), Text::raw(cut_middle(why, latch))])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(servers: &[ServerRow], width: u16, height: u16) -> Vec<String> {
        let buffer = ServerTable { servers, url: "http://localhost:9435" }.lines(width, height);
        let lines = buffer.content.chunks(usize::from(width));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    fn measured(name: &str) -> ServerRow {
        let figures = Figures {
            server: "MySQL 9.7.4".to_owned(),
            latch: Some("innodb/trx_sys_mutex".to_owned()),
            waiting: 2.314,
            is_estimated: true,
            cpus: Some(1.5),
            overhead: Some(0.0066),
        };
        ServerRow { name: name.to_owned(), figures: Ok(figures) }
    }

    #[test]
    fn each_server_has_a_line() {
        let ended = ServerRow { name: "/var/lib/mysql".to_owned(), figures: Err("has ended".to_owned()) };
        let servers = [measured("mysql.service"), ended];
        let expected = [
            "1 of 2 servers measured · http://localhost:9435",
            "SERVER         VERSION             WAITING   CPUS  OVERHEAD LONGEST WAITS",
            "mysql.service  MySQL 9.7.4           ~2.31   1.50     0.66% innodb/trx_sys_mutex",
            "/var/lib/mysql -                         -      -         - has ended",
        ];
        assert_eq!(text(&servers, 100, 24), expected);
    }

    #[test]
    fn it_fits_on_any_terminal() {
        let servers: Vec<ServerRow> = (0..50).map(|i| measured(&format!("/srv/databases/{i}/mysql"))).collect();
        for (width, height) in [(20, 5), (80, 24), (300, 100), (1, 1), (80, 0)] {
            let lines = text(&servers, width, height);
            assert!(lines.len() <= usize::from(height), "{width} {height}");
        }
        assert!(text(&[], 80, 24)[1].starts_with("no server runs here"));
    }

    #[test]
    fn a_server_without_waits_has_no_latch() {
        let figures = Figures::new(&Snapshot::default(), None);
        assert_eq!((figures.waiting(), figures.latch.as_deref()), ("0.00".to_owned(), None));
        assert_eq!((figures.cpus(), figures.overhead()), (NOTHING.to_owned(), NOTHING.to_owned()));
    }
}

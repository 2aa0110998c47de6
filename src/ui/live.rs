//! Draws the live view of `armtrace run`: a table redrawn in place on a terminal, or blocks of lines elsewhere.

use super::history::History;
use super::servers::{ServerRow, ServerTable};
use super::table::LatchTable;
use crate::measure::Snapshot;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::Modifier;
use std::io::{self, Write};
use std::time::Duration;

const TERMINAL_INTERVAL: Duration = Duration::from_secs(2);
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// The columns and lines of a block if the output is not a terminal, with room for call sites and ten latches.
const PLAIN_SIZE: (u16, u16) = (132, 15);
/// The columns and lines assumed of a terminal that does not report its size.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// Escape sequences around a redraw that make the terminal show it all at once. Terminals without them ignore them.
const BEGIN_UPDATE: &str = "\x1b[?2026h";
const END_UPDATE: &str = "\x1b[?2026l";

/// Draws snapshots as they come.
///
/// On a terminal the table stays in place. The view leaves the terminal's modes, cursor and input alone, so nothing has
/// to be restored however armtrace ends.
pub struct LiveView {
    output: Box<dyn Write + Send>,
    /// `None` if the output is not a terminal.
    terminal: Option<Terminal>,
    url: String,
    history: History,
}

struct Terminal {
    size: fn() -> (u16, u16),
    /// The size of the terminal at the last redraw, and the number of lines drawn then.
    drawn_size: (u16, u16),
    drawn_lines: usize,
}

impl LiveView {
    /// Creates a view on standard output. `url` is the address of the metrics.
    pub fn new(terminal: bool, url: &str) -> LiveView {
        let size = || ratatui::crossterm::terminal::size().unwrap_or(USUAL_SIZE);
        LiveView::with_output(Box::new(io::stdout()), terminal.then_some(size), url)
    }

    /// Creates a view on any output. `size` returns a terminal's columns and lines; it is `None` for other outputs.
    pub fn with_output(output: Box<dyn Write + Send>, size: Option<fn() -> (u16, u16)>, url: &str) -> LiveView {
        let terminal = size.map(|size| Terminal { size, drawn_size: size(), drawn_lines: 0 });
        LiveView { output, terminal, url: url.to_string(), history: History::default() }
    }

    /// Returns the time between two calls of [`LiveView::draw`].
    pub fn interval(&self) -> Duration {
        if self.terminal.is_some() {
            TERMINAL_INTERVAL
        } else {
            PLAIN_INTERVAL
        }
    }

    /// Shows what changed in the last seconds.
    ///
    /// # Errors
    /// Fails if the output cannot be written.
    pub fn draw(&mut self, now: &Snapshot) -> io::Result<()> {
        let table = LatchTable::new(now, self.history.before(now), &self.url);
        let text = match &mut self.terminal {
            Some(terminal) => terminal.redraw(|width, height| table.lines(width, height)),
            None => plain_block(&table),
        };
        self.history.push(now.clone());
        self.write(&text)
    }

    /// Shows several servers, if the output is a terminal.
    ///
    /// # Errors
    /// Fails if the output cannot be written.
    pub fn draw_servers(&mut self, servers: &[ServerRow]) -> io::Result<()> {
        let Some(terminal) = &mut self.terminal else { return Ok(()) };
        let table = ServerTable { servers, url: &self.url };
        let text = terminal.redraw(|width, height| table.lines(width, height));
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.output.write_all(text.as_bytes())?;
        self.output.flush()
    }
}

impl Terminal {
    /// Returns everything to write for a redraw. `draw` draws in this number of columns and lines.
    fn redraw(&mut self, draw: impl FnOnce(u16, u16) -> Buffer) -> String {
        let (width, height) = (self.size)();
        let buffer = draw(width, height.saturating_sub(1));
        // A change of size moves the table to an unknown position, so it starts anew on a clear screen.
        let resized = std::mem::replace(&mut self.drawn_size, (width, height)) != (width, height);
        let home = if resized && self.drawn_lines > 0 { "\x1b[2J\x1b[H".to_string() } else { self.home() };
        self.drawn_lines = usize::from(buffer.area.height);
        let drawn: String = lines(&buffer).map(|line| terminal_line(line, width)).collect();
        format!("{BEGIN_UPDATE}{home}{drawn}\x1b[J{END_UPDATE}")
    }

    /// Returns the escape sequence that moves to the beginning of the table.
    fn home(&self) -> String {
        match self.drawn_lines {
            0 => "\r".to_string(),
            lines => format!("\r\x1b[{lines}A"),
        }
    }
}

/// Returns the block for outputs other than terminals, followed by an empty line.
fn plain_block(table: &LatchTable) -> String {
    let buffer = table.lines(PLAIN_SIZE.0, PLAIN_SIZE.1);
    let lines = lines(&buffer).map(|line| line.iter().map(Cell::symbol).collect::<String>() + "\n");
    lines.chain(["\n".to_string()]).collect()
}

/// Returns the lines of a buffer without trailing blanks.
fn lines(buffer: &Buffer) -> impl Iterator<Item = &[Cell]> {
    buffer.content.chunks(usize::from(buffer.area.width.max(1))).map(|line| {
        let end = line.iter().rposition(|cell| cell.symbol() != " ").map_or(0, |last| last + 1);
        &line[..end]
    })
}

/// Returns a line with its bold and dim parts, and clears the rest of the terminal's line.
fn terminal_line(line: &[Cell], width: u16) -> String {
    let mut text = String::new();
    let mut style = Modifier::empty();
    for cell in line {
        if cell.modifier != style {
            style = cell.modifier;
            text += sgr(style);
        }
        text += cell.symbol();
    }
    text += "\x1b[0m";
    // After the last column is filled, erasing to the end of the line would erase that column.
    if line.len() < usize::from(width) {
        text += "\x1b[K";
    }
    text + "\n"
}

fn sgr(style: Modifier) -> &'static str {
    if style.contains(Modifier::BOLD) {
        "\x1b[0;1m"
    } else if style.contains(Modifier::DIM) {
        "\x1b[0;2m"
    } else {
        "\x1b[0m"
    }
}

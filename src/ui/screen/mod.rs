//! The full-screen view of `armtrace top`: its contents, and how it responds to keys. Needs no terminal and no clock.

mod advice;
mod detail;
mod draw;
mod views;
mod watch;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::History;
use crate::measure::Snapshot;
use crate::model::{Kind, Mode};
use crate::present::names::without_kind;
use views::{View, ViewRow};
use watch::Watch;
pub use watch::Watching;

/// What the program has to do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Continue,
    /// End the program.
    Quit,
    /// Watch the cache line of the latch with this event name, and report progress through [`Screen::watching`].
    Watch(String),
    /// Stop watching, and report what was seen.
    StopWatch,
}

/// A latch in one mode.
type LatchId = (String, Kind, Mode);

/// Everything that is shown, and the user's position in it.
pub struct Screen {
    now: Snapshot,
    /// Earlier snapshots, for figures of the last seconds.
    history: History,
    /// Whether figures cover all time since attach instead of the last seconds.
    totals: bool,
    is_paused: bool,
    view: View,
    /// For each view, the column that it is sorted by, and whether the order is reversed.
    sorts: [(usize, bool); View::ALL.len()],
    selected: usize,
    /// The number of rows that the last drawing had room for.
    page: usize,
    first: usize,
    filter: String,
    is_typing: bool,
    opened: Option<LatchId>,
    /// The watch in progress, or the last one until the user closes its result.
    watch: Option<Watch>,
    shows_help: bool,
    /// Whether what is known of the selected latch is shown.
    advises: bool,
    ended: bool,
}

impl Screen {
    /// Creates the screen with its first snapshot.
    pub fn new(now: Snapshot) -> Screen {
        Screen {
            now,
            history: History::default(),
            totals: false,
            is_paused: false,
            view: View::Latches,
            sorts: View::ALL.map(|view| (view.usual_sort(), false)),
            selected: 0,
            page: 1,
            first: 0,
            filter: String::new(),
            is_typing: false,
            opened: None,
            watch: None,
            shows_help: false,
            advises: false,
            ended: false,
        }
    }

    /// Takes a newer snapshot, unless the user has paused.
    pub fn update(&mut self, now: Snapshot) {
        // Once the server has ended, figures of the last seconds would be empty: show those since attach.
        self.ended = !now.up;
        if !self.is_paused {
            self.history.push(std::mem::replace(&mut self.now, now));
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Answer {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Answer::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Answer::Continue;
        }
        if self.shows_help || self.advises {
            (self.shows_help, self.advises) = (false, false);
            return Answer::Continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Answer::Quit,
            KeyCode::Char('h') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Char('?') => self.advises = true,
            KeyCode::Char('t') => self.totals = !self.totals,
            KeyCode::Char('Z') => self.is_paused = !self.is_paused,
            KeyCode::Char('w') => return self.watch_line(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.shows_result() => self.watch = None,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.opened.is_some() => self.opened = None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char(digit @ '1'..='6') => self.show(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => self.show(self.view.next()),
            _ if self.opened.is_some() => {}
            code => self.key_in_list(code),
        }
        Answer::Continue
    }

    fn key_in_list(&mut self, code: KeyCode) {
        let last = self.rows().len().saturating_sub(1);
        let sort = &mut self.sorts[self.view as usize];
        let columns = self.view.columns().len();
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(self.page),
            KeyCode::PageDown => self.selected = (self.selected + self.page).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Char('>' | '.') | KeyCode::F(6) => *sort = ((sort.0 + 1) % columns, false),
            KeyCode::Char('<' | ',') => *sort = ((sort.0 + columns - 1) % columns, false),
            KeyCode::Char('I') => sort.1 = !sort.1,
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => self.is_typing = true,
            KeyCode::Enter | KeyCode::Right => self.open(),
            _ => {}
        }
    }

    /// Opens the latch of the selected row.
    fn open(&mut self) {
        self.opened = self.pointed_at();
    }

    /// Returns the latch of the selected row, if the row is about one.
    fn pointed_at(&self) -> Option<LatchId> {
        self.rows().into_iter().nth(self.selected).and_then(|row| row.opens)
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.selected = 0;
    }

    fn show(&mut self, view: View) {
        (self.view, self.opened, self.selected) = (view, None, 0);
    }

    /// Returns the rows of the view that match the filter, sorted.
    fn rows(&self) -> Vec<ViewRow> {
        let filter = self.filter.to_lowercase();
        let mut rows = self.view.rows(&self.now, self.since());
        rows.retain(|row| row.name.to_lowercase().contains(&filter));
        let (column, is_inverted) = self.sorts[self.view as usize];
        rows.sort_by(|a, b| {
            let order = if column == 0 {
                without_kind(&a.name).cmp(without_kind(&b.name))
            } else {
                b.values[column - 1].total_cmp(&a.values[column - 1])
            };
            if is_inverted {
                order.reverse()
            } else {
                order
            }
        });
        rows
    }

    /// Returns the snapshot that figures are a difference from, or `None` if they cover all time since attach.
    fn since(&self) -> Option<&Snapshot> {
        self.history.before(&self.now).filter(|_| !self.totals && !self.ended)
    }
}

//! Watching the cache line of the latch that is selected or opened.

use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::{Answer, Screen};
use crate::measure::watch::LineWatch;
use crate::present::names::without_kind;
use crate::ui::watch;

/// How far a watch is, or what came of it.
#[derive(Clone, Debug)]
pub enum Watching {
    /// It is being found out which of the latches of this name most threads wait for.
    Looking,
    /// So many bursts are over.
    Bursts {
        done: usize,
        of: usize,
    },
    Found(Box<LineWatch>),
    /// Why it was not watched.
    Failed(String),
}

/// A watch of one latch at a time.
pub(super) struct Watch {
    /// The event name.
    latch: String,
    state: Watching,
}

impl Watch {
    fn is_over(&self) -> bool {
        matches!(self.state, Watching::Found(_) | Watching::Failed(_))
    }
}

impl Screen {
    /// Takes how far the watch is that was asked for.
    pub fn watching(&mut self, state: Watching) {
        if let Some(watch) = &mut self.watch {
            watch.state = state;
        }
    }

    /// Opens the selected latch and has its line watched; ends that where it is done already.
    pub(super) fn watch_line(&mut self) -> Answer {
        if self.opened.is_none() {
            self.open();
        }
        let Some((latch, ..)) = &self.opened else { return Answer::Continue };
        match self.watch.as_ref().filter(|watch| !watch.is_over()) {
            Some(watch) if watch.latch == *latch => Answer::StopWatch,
            // One at a time; the last line says which.
            Some(_) => Answer::Continue,
            None => {
                self.watch = Some(Watch { latch: latch.clone(), state: Watching::Looking });
                Answer::Watch(latch.clone())
            }
        }
    }

    /// Whether the page shows what came of a watch.
    pub(super) fn shows_result(&self) -> bool {
        self.watch_here().is_some_and(Watch::is_over)
    }

    /// Whether the page is of the latch that is being watched.
    pub(super) fn shows_progress(&self) -> bool {
        self.watch_here().is_some_and(|watch| !watch.is_over())
    }

    /// The watch of the opened latch.
    fn watch_here(&self) -> Option<&Watch> {
        let (opened, ..) = self.opened.as_ref()?;
        self.watch.as_ref().filter(|watch| watch.latch == *opened)
    }

    /// Of which latch a watch goes on, and how far it is.
    pub(super) fn progress(&self) -> Option<String> {
        let watch = self.watch.as_ref().filter(|watch| !watch.is_over())?;
        let latch = without_kind(&watch.latch);
        Some(match watch.state {
            Watching::Bursts { done, of } => format!("watching {latch}: {done} of {of} bursts"),
            _ => format!("watching {latch}: looking who waits for it"),
        })
    }

    /// What the opened latch's page says of a watch, at most `height` lines.
    pub(super) fn watch_lines(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let lines = match self.watch_here().map(|watch| &watch.state) {
            None => Vec::new(),
            Some(Watching::Found(found)) => {
                [vec![String::new()], watch::lines(found, width, height.saturating_sub(1))].concat()
            }
            Some(Watching::Failed(why)) => watch::wrap(&format!("NOT WATCHED: {why}"), width),
            Some(Watching::Looking | Watching::Bursts { .. }) => self.progress().into_iter().collect(),
        };
        lines.into_iter().take(height).map(emphasized).collect()
    }
}

/// What is written in capitals stands out: the verdict.
fn emphasized(line: String) -> Line<'static> {
    let is_loud = |c: char| c.is_ascii_uppercase() || c == ' ';
    let loud = line.find(|c| !is_loud(c)).filter(|end| *end > 1 && !line.starts_with(' ')).unwrap_or(0);
    let (loud, rest) = line.split_at(loud);
    Line::from(vec![Span::styled(loud.to_owned(), Modifier::BOLD), Span::raw(rest.to_owned())])
}

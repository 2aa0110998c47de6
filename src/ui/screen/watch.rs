//! Shows the watch of the selected or opened latch's cache line.

use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::{Answer, Screen};
use crate::measure::watchpoint::LineWatch;
use crate::present::format;
use crate::present::names::without_kind;
use crate::ui::watch;

/// The progress of a watch, or its result.
#[derive(Clone, Debug)]
pub enum Watching {
    /// Looking for the instance of the latch with the most waiters.
    Looking,
    /// Counting accesses to the line, in bursts.
    Bursts {
        /// The number of bursts that are over.
        done: usize,
        /// The number of all bursts.
        of: usize,
    },
    /// What was seen.
    Found(Box<LineWatch>),
    /// Why the latch could not be watched.
    Failed(String),
}

/// The watch of one latch. There is only one watch at a time.
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
    /// Takes the state of the watch that [`Answer::Watch`] requested.
    pub fn watching(&mut self, state: Watching) {
        if let Some(watch) = &mut self.watch {
            watch.state = state;
        }
    }

    /// Opens the selected latch and requests a watch of its line, or stops the watch if it is in progress.
    pub(super) fn watch_line(&mut self) -> Answer {
        if self.opened.is_none() {
            self.open();
        }
        let Some((latch, ..)) = &self.opened else { return Answer::Continue };
        match self.watch.as_ref().filter(|watch| !watch.is_over()) {
            Some(watch) if watch.latch == *latch => Answer::StopWatch,
            // Only one latch is watched at a time. The last line of the screen names it.
            Some(_) => Answer::Continue,
            None => {
                self.watch = Some(Watch { latch: latch.clone(), state: Watching::Looking });
                Answer::Watch(latch.clone())
            }
        }
    }

    /// Returns whether the page shows the result of a watch.
    pub(super) fn shows_result(&self) -> bool {
        self.watch_here().is_some_and(Watch::is_over)
    }

    /// Returns whether the opened latch is being watched.
    pub(super) fn shows_progress(&self) -> bool {
        self.watch_here().is_some_and(|watch| !watch.is_over())
    }

    /// Returns the watch of the opened latch.
    fn watch_here(&self) -> Option<&Watch> {
        let (opened, ..) = self.opened.as_ref()?;
        self.watch.as_ref().filter(|watch| watch.latch == *opened)
    }

    /// Returns the latch being watched and the progress of the watch.
    pub(super) fn progress(&self) -> Option<String> {
        let watch = self.watch.as_ref().filter(|watch| !watch.is_over())?;
        let latch = without_kind(&watch.latch);
        Some(match watch.state {
            Watching::Bursts { done, of } => format!("watching {latch}: {done} of {of} bursts"),
            _ => format!("watching {latch}: looking for waiters"),
        })
    }

    /// Returns the lines about the watch on the opened latch's page, at most `height` of them.
    pub(super) fn watch_lines(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let lines = match self.watch_here().map(|watch| &watch.state) {
            None => Vec::new(),
            Some(Watching::Found(found)) => {
                [vec![String::new()], watch::lines(found, width, height.saturating_sub(1))].concat()
            }
            Some(Watching::Failed(why)) => format::wrap(&format!("NOT WATCHED: {why}"), width),
            Some(Watching::Looking | Watching::Bursts { .. }) => self.progress().into_iter().collect(),
        };
        lines.into_iter().take(height).map(emphasized).collect()
    }
}

/// Makes the capitals at the beginning of a line bold: the verdict.
fn emphasized(line: String) -> Line<'static> {
    let is_loud = |c: char| c.is_ascii_uppercase() || c == ' ';
    let loud = line.find(|c| !is_loud(c)).filter(|end| *end > 1 && !line.starts_with(' ')).unwrap_or(0);
    let (loud, rest) = line.split_at(loud);
    Line::from(vec![Span::styled(loud.to_owned(), Modifier::BOLD), Span::raw(rest.to_owned())])
}

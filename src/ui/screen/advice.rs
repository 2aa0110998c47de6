//! What is known of a latch: the causes that the figures show, and what helps.

use super::Screen;
use crate::advice::{self, Advised, Entry};
use crate::measure::{self, Known};
use crate::present::format;
use crate::present::names::without_kind;

/// The key that leaves this.
const LEAVE: &str = "Any key: back.";

impl Screen {
    /// Returns what is known of the opened or selected latch, or without one, what to do about the server; in lines of
    /// at most `width` characters. The figures are those since attach.
    pub(super) fn advice(&self, width: usize) -> Vec<String> {
        let known = Known::from(&self.now);
        let paragraphs = match self.opened.clone().or_else(|| self.pointed_at()) {
            Some((latch, ..)) => of_latch(without_kind(&latch), &known),
            None => of_server(measure::advice::advice(&(&self.now).into()), &advice::find(&known)),
        };
        paragraphs.iter().flat_map(|paragraph| format::wrap(&advice::plain(paragraph), width)).collect()
    }
}

fn of_latch(latch: &str, known: &Known) -> Vec<String> {
    let Some(entry) = advice::entry_of(latch) else {
        return vec![format!("Nothing is known of {latch}. {} has the others.", advice::PAGE), LEAVE.to_owned()];
    };
    let advised = advice::finding(entry, known);
    let mut paragraphs = vec![latch.to_owned(), entry.protects.clone(), String::new()];
    paragraphs.extend(advised.iter().flat_map(lines));
    if advised.is_none() {
        paragraphs.extend(undecided(entry));
    }
    paragraphs.extend([String::new(), format!("{}#{}. {LEAVE}", advice::PAGE, entry.id)]);
    paragraphs
}

/// Returns the usual causes, of which the figures show none.
fn undecided(entry: &Entry) -> Vec<String> {
    let causes = entry.causes.iter().map(|cause| format!("- {}.", cause.what));
    ["The figures show none of its usual causes:".to_owned()].into_iter().chain(causes).collect()
}

/// Returns what the figures of the whole server show, and the causes of its waits.
fn of_server(shown: Vec<String>, advised: &[Advised]) -> Vec<String> {
    let mut paragraphs: Vec<String> = shown.into_iter().flat_map(|line| [line, String::new()]).collect();
    paragraphs.extend(advised.iter().flat_map(|advised| [lines(advised), vec![String::new()]].concat()));
    if paragraphs.is_empty() {
        paragraphs.push(format!("The figures show no cause that {} has.", advice::PAGE));
    }
    paragraphs.push(LEAVE.to_owned());
    paragraphs
}

fn lines(advised: &Advised) -> Vec<String> {
    let remedies = advised.remedies.iter().map(|remedy| format!("→ {remedy}"));
    [advised.heading(), format!("{}.", advised.cause)].into_iter().chain(remedies).collect()
}

//! Writes the part of the reference that is made of the data.

use super::{entries, settings, Cause, Entry, Versions};
use crate::present::format::wrap;

/// The greatest width of a line.
const WIDTH: usize = 120;

/// Returns the entries and the settings as Markdown.
pub fn reference() -> String {
    let headings = entries().iter().flat_map(|entry| {
        let latches: Vec<String> = entry.latches.iter().map(|latch| format!("`{latch}`")).collect();
        let latches = if latches.is_empty() { String::new() } else { format!(": {}", latches.join(", ")) };
        item(&format!("[{}](#{}){latches}", entry.title, entry.id))
    });
    let lines: Vec<String> = ["## Entries".to_owned(), String::new()]
        .into_iter()
        .chain(headings)
        .chain(entries().iter().flat_map(section))
        .chain(existence())
        .collect();
    lines.join("\n") + "\n"
}

fn section(entry: &Entry) -> Vec<String> {
    let mut lines = vec![String::new(), format!("## {}", entry.title), String::new()];
    let latches: Vec<String> = entry.latches.iter().map(|latch| format!("`{latch}`")).collect();
    if !latches.is_empty() {
        lines.extend(paragraph(&format!("{}.", latches.join(", "))));
        lines.push(String::new());
    }
    lines.extend(paragraph(&entry.protects));
    lines.push(String::new());
    lines.extend(paragraph(&format!("**See it**: {}", entry.shows)));
    lines.extend(entry.causes.iter().flat_map(|cause| of_cause(entry, cause)));
    if !entry.history.is_empty() {
        lines.extend([String::new(), "**Versions**:".to_owned(), String::new()]);
        lines.extend(entry.history.iter().flat_map(|change| item(change)));
    }
    lines
}

fn of_cause(entry: &Entry, cause: &Cause) -> Vec<String> {
    let bounds = [entry.when.bounds(), cause.when.bounds()].concat();
    let when = if cause.page_only {
        "No report says so: no figure of a recording shows it.".to_owned()
    } else {
        format!("Said if: {}.", bounds.join("; "))
    };
    let mut lines = vec![String::new()];
    lines.extend(paragraph(&format!("**{}.** {when}", cause.what)));
    lines.push(String::new());
    lines.extend(
        cause.remedies.iter().flat_map(|remedy| item(&format!("{}.", remedy.to_string().trim_end_matches('.')))),
    );
    lines
}

fn existence() -> Vec<String> {
    let mut lines: Vec<String> =
        ["", "## Settings", "", "| setting | MySQL | MariaDB |", "|---|---|---|"].map(str::to_owned).to_vec();
    lines.extend(settings().iter().map(|(name, setting)| {
        format!("| `{name}` | {} | {} |", versions(setting.mysql.as_ref()), versions(setting.mariadb.as_ref()))
    }));
    lines
}

/// Returns where a server has a setting: `since 8.0.22; 8 since 5.7`.
fn versions(versions: Option<&Versions>) -> String {
    let Some(versions) = versions else { return "–".to_owned() };
    let bound = |what: &str, version: &Option<_>| version.as_ref().map(|version| format!("{what} {version}"));
    let bounds = [bound("since", &versions.since), bound("ignored since", &versions.ignored)];
    let defaults = versions.default.iter().map(|(since, value)| format!("{value} since {since}"));
    let defaults: Vec<String> = defaults.collect();
    let defaults = (!defaults.is_empty()).then(|| format!("default {}", defaults.join(", ")));
    let parts = bounds.into_iter().chain([bound("not in", &versions.removed), defaults]);
    let builds = versions.some_builds.then(|| "some builds".to_owned());
    let parts: Vec<String> = parts.chain([builds]).flatten().collect();
    if parts.is_empty() {
        "yes".to_owned()
    } else {
        parts.join("; ")
    }
}

/// Returns a paragraph in lines.
fn paragraph(text: &str) -> Vec<String> {
    wrap(text, WIDTH)
}

/// Returns an item of a list in lines.
fn item(text: &str) -> Vec<String> {
    let begins = std::iter::once("- ").chain(std::iter::repeat("  "));
    wrap(text, WIDTH - 2).iter().zip(begins).map(|(line, begin)| format!("{begin}{line}")).collect()
}

//! Prints the results of commands to standard output.

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;

use super::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    Text,
    Json,
    /// One self-contained page
    Html,
}

/// Prints `text`. A reader that closes the pipe early is not an error.
///
/// # Errors
/// Fails if standard output cannot be written for another reason.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Output),
    }
}

/// Prints what was found in one of the formats; `text` and `html` write it in theirs.
pub(super) fn print_as<T: Serialize>(
    found: &T,
    format: ReportFormat,
    text: impl FnOnce(&T) -> String,
    html: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    print(&match format {
        ReportFormat::Text => text(found),
        ReportFormat::Json => json(found)?,
        ReportFormat::Html => html(found),
    })
}

/// Returns the value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

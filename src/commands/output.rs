//! Prints the results of commands to standard output, in the format that is asked for.

use std::io::{self, ErrorKind, Write};

use clap::builder::EnumValueParser;
use clap::{Args, ValueEnum};

use super::schema::{Document, Named};
use super::Failure;
use crate::present::foreign::harmless;

/// The output format, as arguments.
#[derive(Args, Clone, Debug)]
pub(super) struct Output<F: OutputFormat> {
    #[arg(long, default_value = "text", help = F::HELP, hide_possible_values = true)]
    #[arg(value_parser = EnumValueParser::<F>::new())]
    format: F,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl<F: OutputFormat> Output<F> {
    pub fn format(&self) -> F {
        if self.json {
            F::JSON
        } else {
            self.format
        }
    }
}

/// The formats that a command prints.
pub(super) trait OutputFormat: ValueEnum + Copy + Send + Sync + 'static {
    const JSON: Self;
    /// The help of the option: one line, so that a command's help fits on a screen.
    const HELP: &'static str;
}

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

impl OutputFormat for Format {
    const JSON: Format = Format::Json;
    const HELP: &'static str = "Output: text or json";
}

impl OutputFormat for ReportFormat {
    const JSON: ReportFormat = ReportFormat::Json;
    const HELP: &'static str = "Output: text, json or html, which is one self-contained page";
}

/// Prints `text` without what a terminal would obey. A reader that closes the pipe early is not an error.
///
/// # Errors
/// Fails if standard output cannot be written for another reason.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(harmless(text).as_bytes())
}

/// Prints what is no text. A reader that closes the pipe early is not an error.
///
/// # Errors
/// Fails if standard output cannot be written for another reason.
pub(super) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    match io::stdout().write_all(bytes) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Output),
    }
}

/// Prints what was found in one of the formats; `text` and `html` write it in theirs.
pub(super) fn print_as<T: Document>(
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

/// Returns the document as indented JSON.
pub(super) fn json(document: &impl Document) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(&Named::new(document))? + "\n")
}

//! `armtrace report`: prints a recording as text, JSON, a web page, or folded stacks.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::output::{self, Output, OutputFormat};
use super::Failure;
use crate::recording::{self, Folded, Html, Recording, Report, Text};

#[derive(Args, Clone, Debug)]
pub(super) struct ReportArgs {
    /// A file that `armtrace record` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    output: Output<FoldedFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FoldedFormat {
    Text,
    Json,
    /// One self-contained page
    Html,
    /// Stacks of latch and call site, weighted in microseconds, for flame graphs
    Folded,
}

impl OutputFormat for FoldedFormat {
    const JSON: FoldedFormat = FoldedFormat::Json;
    const HELP: &'static str = "Output: text, json, html (one self-contained page) or folded (stacks for flame graphs)";
}

pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    let recording = read(&args.file)?;
    let report = Report::new(&recording);
    let text = match args.output.format() {
        FoldedFormat::Text => Text(&report).to_string(),
        FoldedFormat::Json => output::json(&report)?,
        FoldedFormat::Html => Html(&report).to_string(),
        FoldedFormat::Folded => Folded(&recording).to_string(),
    };
    output::print(&text)
}

pub(super) fn read(file: &Path) -> Result<Recording, Failure> {
    recording::read(file).map_err(Failure::of_file(file))
}

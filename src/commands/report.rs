//! `armtrace report`: prints a recording as text, JSON, a web page, or folded stacks.

use std::path::Path;

use super::{output, FoldedFormat, ReportArgs};
use crate::failure::Failure;
use crate::recording::{self, Folded, Html, Recording, Report, Text};

pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    let recording = read(&args.file)?;
    let report = Report::new(&recording);
    let text = match args.format {
        FoldedFormat::Text => Text(&report).to_string(),
        FoldedFormat::Json => output::json(&report)?,
        FoldedFormat::Html => Html(&report).to_string(),
        FoldedFormat::Folded => Folded(&recording).to_string(),
    };
    output::print(&text)
}

pub(super) fn read(file: &Path) -> Result<Recording, Failure> {
    recording::read(file).map_err(|why| Failure::running(format!("{}: {why}", file.display())))
}

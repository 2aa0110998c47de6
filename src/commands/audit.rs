//! `armtrace audit`: counts barriers, atomics, spin hints and checksum instructions in a server's program, or compares
//! two.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{self, Output, ReportFormat};
use super::{Failure, FileError};
use crate::audit::{self, Html, Report, Text};
use crate::discovery;
use crate::symbols::{self, DebugRoots, Image, Settings};

#[derive(Args, Clone, Debug)]
pub(super) struct AuditArgs {
    /// A server's program, for x86_64 or aarch64
    #[arg(value_name = "BINARY")]
    binary: PathBuf,
    /// Another build to compare it with: a different version, or the other architecture
    #[arg(value_name = "OTHER", conflicts_with = "symbols")]
    other: Option<PathBuf>,
    /// Debug file or symbol file of the program, if it is stripped
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    #[command(flatten)]
    output: Output<ReportFormat>,
}

pub(super) fn audit(args: &AuditArgs) -> Result<(), Failure> {
    let report = look_at(&args.binary, &Settings::from_env(args.symbols.clone()))?;
    match &args.other {
        None => output::print_as(&report, args.output.format(), |r| Text(r).to_string(), |r| Html(r).to_string()),
        Some(other) => {
            let comparison = audit::compare(report, look_at(other, &Settings::from_env(None))?);
            output::print_as(&comparison, args.output.format(), |c| Text(c).to_string(), |c| Html(c).to_string())
        }
    }
}

fn look_at(path: &Path, settings: &Settings) -> Result<Report, Failure> {
    let program = program(path).map_err(Failure::of_file(path))?;
    let mut image = Image::open(path)?;
    let places = DebugRoots::in_folder(Path::new("/"), &program).map_err(Failure::Roots)?;
    symbols::complete(&mut image, &places, settings, discovery::misses_symbols)?;
    audit::audit(&image, path).map_err(Failure::of_file(path))
}

/// Returns the absolute path of a program.
fn program(path: &Path) -> Result<PathBuf, FileError> {
    // Opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(FileError::NotAProgram);
    }
    Ok(fs::canonicalize(path)?)
}

//! `armtrace export`: recordings in the formats of other tools.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{output, report, Failure, UsageError};
use crate::recording::table::{self, Tables};
use crate::recording::Recording;

#[derive(Args, Clone, Debug)]
pub(super) struct ExportArgs {
    /// Files that `armtrace record` wrote
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Format: parquet (a file per table, day and host), json (a line per latch and second), pprof (a profile) or
    /// perfetto (a timeline)
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    format: ExportFormat,
    /// Folder for the files of --format parquet
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long, requires = "output")]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormat {
    Parquet,
    Json,
    Pprof,
    Perfetto,
}

pub(super) fn export(args: &ExportArgs) -> Result<(), Failure> {
    match (args.format, &args.output) {
        (ExportFormat::Parquet, Some(folder)) => {
            args.files.iter().try_for_each(|file| tables(file, folder, args.force))
        }
        (ExportFormat::Parquet, None) => Err(UsageError::NoFolder.into()),
        (_, Some(_)) => Err(UsageError::NoFolderNeeded.into()),
        (ExportFormat::Json, None) => args.files.iter().try_for_each(|file| lines(file)),
        (ExportFormat::Pprof, None) => {
            let profile = table::pprof(&all(&args.files)?).map_err(Failure::Output)?;
            output::print_bytes(&profile)
        }
        (ExportFormat::Perfetto, None) => output::print(&format!("{}\n", table::trace(&all(&args.files)?))),
    }
}

fn all(files: &[PathBuf]) -> Result<Vec<Recording>, Failure> {
    files.iter().map(|file| report::read(file)).collect()
}

fn tables(file: &Path, folder: &Path, force: bool) -> Result<(), Failure> {
    let recording = report::read(file)?;
    let stem = file.file_stem().unwrap_or(OsStr::new("recording")).to_string_lossy();
    let written = Tables::write(&recording, &stem, folder, force).map_err(Failure::Tables)?;
    eprintln!("armtrace: {} written, and the same below statements, file_waits and others", written.waits.display());
    Ok(())
}

/// Prints a line for each latch and second of a recording, which says whose it is.
fn lines(file: &Path) -> Result<(), Failure> {
    let recording = report::read(file)?;
    output::print(&table::json_lines(&recording)?)
}

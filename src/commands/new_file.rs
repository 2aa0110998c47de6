//! The file that a command writes.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use super::Failure;
use crate::recording::table::beside;

/// Fails if the file exists, unless `force` is set.
pub(super) fn refuse_existing(output: &Path, force: bool) -> Result<(), Failure> {
    if !force && output.symlink_metadata().is_ok() {
        return Err(Failure::Exists(output.to_owned()));
    }
    Ok(())
}

/// Creates the file. Fails if it has appeared since the check, unless `force` is set.
pub(super) fn create(output: &Path, force: bool) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(output).map_err(|why| failure(output, why))
}

/// Writes the whole file, or none. Fails if it has appeared since the check, unless `force` is set. What is no file, as
/// a pipe, is written to as it is.
pub(super) fn write_whole(
    output: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    if force && output.exists() && !output.is_file() {
        return write(&mut create(output, force)?).map_err(|why| cannot_write(output, why));
    }
    let mut file = beside(output).map_err(|why| cannot_write(output, why))?;
    write(file.as_file_mut()).map_err(|why| cannot_write(output, why))?;
    let kept = if force { file.persist(output) } else { file.persist_noclobber(output) };
    kept.map(drop).map_err(|error| failure(output, error.error))
}

/// Returns the failure to write the file.
pub(super) fn cannot_write(output: &Path, why: io::Error) -> Failure {
    Failure::Write { path: output.to_owned(), why }
}

fn failure(output: &Path, why: io::Error) -> Failure {
    match why.kind() {
        ErrorKind::AlreadyExists => Failure::Exists(output.to_owned()),
        _ => cannot_write(output, why),
    }
}

//! `armtrace symbols export`: writes the symbols of one build of a server to a small file.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::Failure;
use crate::symbols::{self, portable, DebugFile};

#[derive(Debug, Subcommand)]
pub(super) enum SymbolsCommand {
    /// Write the symbols of a debug file, or of an unstripped server, to a small file for --symbols
    #[command(after_help = super::help::SYMBOLS)]
    Export(ExportArgs),
}

#[derive(Args, Clone, Debug)]
pub(super) struct ExportArgs {
    /// A debug file (*.debug), or a server's program that is not stripped
    #[arg(value_name = "DEBUGFILE")]
    debug_file: PathBuf,
    /// Symbol file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn symbols(command: &SymbolsCommand) -> Result<(), Failure> {
    match command {
        SymbolsCommand::Export(args) => export(args),
    }
}

/// The mode of the file. Anyone who may read the server's program may know its symbols, so all may read the file.
const MODE: u32 = 0o644;

fn export(args: &ExportArgs) -> Result<(), Failure> {
    let from = &args.debug_file;
    let found = symbols::read_any(from).map_err(Failure::of_file(from))?;
    if found.identity.build_id.is_empty() {
        return Err(Failure::NoBuildId(from.clone()));
    }
    let size = write(&found, &args.output).map_err(|why| Failure::Write { path: args.output.clone(), why })?;
    println!(
        "{}: {} symbols of build {}, {} KiB",
        args.output.display(),
        found.symbols.iter().count(),
        found.identity.build_id(),
        size.div_ceil(1024)
    );
    Ok(())
}

/// Writes the file atomically: `output` is either complete or not there. Returns its size in bytes.
fn write(found: &DebugFile, output: &Path) -> io::Result<u64> {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    let mut file = builder.permissions(std::fs::Permissions::from_mode(MODE)).tempfile_in(folder)?;
    portable::write(&found.identity, &found.symbols, &mut file)?;
    file.flush()?;
    let size = file.as_file().metadata()?.len();
    file.persist(output)?;
    Ok(size)
}

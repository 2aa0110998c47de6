//! Arguments to command, nothing else.

use std::process::ExitCode;

use armtrace::commands::{self, Cli};
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::execute(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("armtrace: {failure}");
            ExitCode::from(failure.status)
        }
    }
}

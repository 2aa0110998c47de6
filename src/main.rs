//! Arguments to command, nothing else.

use std::process::ExitCode;

use armtrace::commands::{self, Cli};
use armtrace::memory;
use clap::Parser;

fn main() -> ExitCode {
    memory::share();
    let cli = Cli::parse();
    match commands::execute(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("armtrace: {failure}");
            ExitCode::from(failure.status)
        }
    }
}

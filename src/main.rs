//! Parses the arguments, runs the command, and turns a failure into a message and an exit status.

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
            failure.status().into()
        }
    }
}

//! Parses the arguments, runs the command, and turns a failure into a message and an exit status.

use std::process::ExitCode;

use armtrace::commands::{self, Cli};
use armtrace::memory;

fn main() -> ExitCode {
    commands::ignore_early_requests();
    memory::share();
    let cli = Cli::from_arguments();
    match commands::execute(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("armtrace: {}", failure.message());
            failure.status().into()
        }
    }
}

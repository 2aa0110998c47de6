//! Parses the arguments, runs the command, and turns a failure into a message and an exit status.

use std::process::ExitCode;

use armtrace::commands::{self, Cli};
use armtrace::memory;

fn main() -> ExitCode {
    commands::ignore_early_requests();
    memory::share();
    match Cli::from_arguments().and_then(commands::execute) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            commands::tell_failure(&failure.message());
            failure.status().into()
        }
    }
}

//! The command line: one file per command, each thin.

mod doctor;
mod run;
mod symbols;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::export::Listen;
use crate::failure::Failure;

/// Shows, on a live MySQL or MariaDB server, which latches it waits on.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<RunArgs>,
    /// What to log on standard error: error, warn, info, debug or trace
    #[arg(long, global = true, default_value = "warn", value_name = "LEVEL")]
    log_level: String,
}

const EXAMPLES: &str = "\
Examples:
  sudo armtrace --pid $(pidof mysqld)            attach, show the top latches, serve :9435/metrics
  sudo armtrace doctor --pid $(pidof mariadbd)   what would be attached, at what cost
  armtrace symbols export mariadbd.debug -o mariadbd.symbols
                                                 symbols for hosts without the debug file (--symbols)

Exit status: 0 done; 1 failed while running; 2 bad usage; 3 no such process, or not a supported
server; 4 missing privilege or kernel feature.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Attach to a server, show its top latches and serve metrics, until interrupted (the default)
    Run(RunArgs),
    /// Tell what this host and a server allow, what would be attached, and what each hit costs
    Doctor(DoctorArgs),
    /// Carry symbols to hosts that have no debug file
    #[command(subcommand)]
    Symbols(SymbolsCommand),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Process id of the server
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// Where to serve metrics
    #[arg(long, default_value = ":9435", value_name = "ADDR:PORT")]
    listen: Listen,
    /// Take the server's symbols from this file, of `armtrace symbols export` or a debug file
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Most of the server's CPU time that probes may take; the dearest are off part of the time to keep it
    #[arg(long, default_value = "1%", value_name = "SHARE", value_parser = share)]
    max_overhead: f64,
}

/// `1%` or `0.01`, as a number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().map_err(|_| "not a share: write 1% or 0.01".to_owned())? / unit;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err("a share is more than 0% and at most 100%".to_owned())
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Process id of a server to look at too
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Take the server's symbols from this file, of `armtrace symbols export` or a debug file
    #[arg(long, value_name = "FILE", requires = "pid")]
    symbols: Option<PathBuf>,
    /// How to print the findings
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SymbolsCommand {
    /// Write the symbols of a server's debug file, or of a server with symbols, to a small file for --symbols
    Export(ExportArgs),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// A debug file (*.debug), or a server's program that has its symbol table
    #[arg(value_name = "DEBUGFILE")]
    debug_file: PathBuf,
    /// Where to write the symbol file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Runs the command that the arguments ask for.
///
/// # Errors
/// A [`Failure`] with the message for the user and the exit status.
pub fn execute(cli: Cli) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&cli.log_level)
        .map_err(|e| Failure::usage(format!("--log-level {}: {e}", cli.log_level)))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    crate::attach::log_libbpf();
    match (cli.command, cli.run) {
        (Some(Command::Doctor(args)), _) => doctor::doctor(&args),
        (Some(Command::Symbols(SymbolsCommand::Export(args))), _) => symbols::export(&args),
        (Some(Command::Run(args)), _) | (None, Some(args)) => run::run(&args),
        (None, None) => Err(Failure::usage("which server? sudo armtrace --pid $(pidof mysqld)")),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_have_two_forms() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5 %"), Ok(0.005));
        assert_eq!(share("0.01"), Ok(0.01));
        for bad in ["", "%", "x", "0", "-1%", "101%", "nan", "1e9", "inf%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}

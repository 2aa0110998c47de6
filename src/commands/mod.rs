//! Defines the command line. Each command has a thin file of its own, with its arguments.

mod audit;
mod compare;
mod config;
mod discover;
mod doctor;
mod dump;
mod export;
mod failure;
mod generate;
mod help;
mod hindsight;
mod line;
mod log;
mod new_file;
mod notify;
mod output;
mod port;
mod record;
mod reload;
mod replay;
mod report;
mod run;
mod schema;
mod servers;
mod session;
mod status;
mod symbols;
mod top;
mod values;
mod watch;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::{EnvFilter, ParseError};

use self::audit::AuditArgs;
use self::compare::CompareArgs;
use self::config::Surroundings;
pub use self::config::{ConfigError, Problem};
use self::doctor::DoctorArgs;
use self::dump::DumpArgs;
use self::export::ExportArgs;
pub use self::failure::{Failure, FileError, UsageError};
use self::generate::GenerateArgs;
use self::help::Overview;
pub use self::log::tell_failure;
use self::log::LogFormat;
use self::record::RecordArgs;
use self::replay::ReplayArgs;
use self::report::ReportArgs;
use self::run::RunArgs;
pub use self::session::ignore_early_requests;
pub use self::status::Status;
use self::symbols::SymbolsCommand;
use self::top::TopArgs;

/// Shows, on a live MySQL or MariaDB server, which latches it waits on.
#[derive(Debug, Parser)]
#[command(
    version = env!("ARMTRACE_VERSION"),
    args_conflicts_with_subcommands = true,
    max_term_width = 100,
    override_usage = "armtrace [COMMAND] [OPTIONS]",
    help_template = help::TEMPLATE,
    after_help = help::OVERVIEW
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<Overview<RunArgs>>,
    /// Log: error to trace, or a filter
    #[arg(long, global = true, default_value = "warn", value_name = "LEVEL", value_parser = log_filter)]
    log_level: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a server's top latches and serve metrics (the default)
    #[command(after_help = help::RUN, mut_arg("pid", |pid| pid.required_unless_present("discover")))]
    Run(RunArgs),
    /// Show on the full screen what a server waits for
    #[command(after_help = help::TOP)]
    Top(TopArgs),
    /// Record what a server waits for, second by second, in one file
    #[command(after_help = help::RECORD)]
    Record(RecordArgs),
    /// Write the last minutes of a server that an armtrace measures
    #[command(after_help = help::DUMP)]
    Dump(DumpArgs),
    /// Show and serve recordings as if their servers were live; no root
    #[command(after_help = help::REPLAY)]
    Replay(ReplayArgs),
    /// Summarize a recording: findings in words, histograms, call sites
    #[command(after_help = help::REPORT)]
    Report(ReportArgs),
    /// Compare two recordings, or one workload at several thread counts
    #[command(after_help = help::COMPARE)]
    Compare(CompareArgs),
    /// Write recordings as Parquet, JSON, for pprof or for Perfetto
    #[command(after_help = help::EXPORT)]
    Export(ExportArgs),
    /// Show what this host and a server support, and what each hit costs
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorArgs),
    /// Count a program's barriers, atomics and spin hints, or compare two
    #[command(after_help = help::AUDIT)]
    Audit(AuditArgs),
    /// Take symbols to hosts that have no debug file
    #[command(subcommand, after_help = help::SYMBOLS)]
    Symbols(SymbolsCommand),
    /// Write the manual pages and the completions of shells
    #[command(hide = true, after_help = help::GENERATE)]
    Generate(GenerateArgs),
}

impl Cli {
    /// Parses the arguments of this process, and the settings of `run` in the environment and in a file. Prints an
    /// error or help, and exits, if the arguments are wrong or ask for it.
    ///
    /// # Errors
    /// Fails if a setting is wrong.
    pub fn from_arguments() -> Result<Cli, Failure> {
        let arguments = std::env::args_os().collect();
        let (command, arguments) = config::apply(Cli::command(), arguments, &Surroundings::of_process())?;
        Ok(Cli::parse_with(command, arguments).unwrap_or_else(|error| help::with_tip(error).exit()))
    }

    /// Reads the settings of `run` again: the command line of this process stays as it is, the file may have changed.
    /// Returns them with the filter of the log, or what is wrong with them.
    fn run_again() -> Result<(RunArgs, String), String> {
        let arguments = std::env::args_os().collect();
        let read = config::apply(Cli::command(), arguments, &Surroundings::of_process());
        let (command, arguments) = read.map_err(|error| error.to_string())?;
        let cli = Cli::parse_with(command, arguments).map_err(|error| error.to_string())?;
        match (cli.command, cli.run) {
            (Some(Command::Run(args)), _) | (None, Some(Overview(args))) => Ok((args, cli.log_level)),
            _ => Err("they are those of another command".to_owned()),
        }
    }

    /// Returns the format of the log, which is a choice only where it is kept.
    fn log_format(&self) -> LogFormat {
        match (&self.command, &self.run) {
            (Some(Command::Run(args)), _) | (None, Some(Overview(args))) => args.log.log_format,
            _ => LogFormat::Text,
        }
    }

    /// Parses the words of a command line, by this definition of it.
    fn parse_with(mut command: clap::Command, words: Vec<OsString>) -> Result<Cli, clap::Error> {
        let matches = command.try_get_matches_from_mut(words)?;
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// Returns the text if it is a filter of the log.
fn log_filter(text: &str) -> Result<String, ParseError> {
    EnvFilter::try_new(text).map(|_| text.to_owned())
}

/// Runs the command in the arguments.
///
/// # Errors
/// Fails with the message for the user, and the reason from which the exit status follows.
pub fn execute(cli: Cli) -> Result<(), Failure> {
    log::start(&cli.log_level, cli.log_format());
    crate::attach::log_libbpf();
    match (cli.command, cli.run) {
        (Some(Command::Top(args)), _) => top::top(&args),
        (Some(Command::Record(args)), _) => record::record(&args),
        (Some(Command::Dump(args)), _) => dump::dump(&args),
        (Some(Command::Replay(args)), _) => replay::replay(&args),
        (Some(Command::Report(args)), _) => report::report(&args),
        (Some(Command::Compare(args)), _) => compare::compare(&args),
        (Some(Command::Export(args)), _) => export::export(&args),
        (Some(Command::Doctor(args)), _) => doctor::doctor(&args),
        (Some(Command::Audit(args)), _) => audit::audit(&args),
        (Some(Command::Symbols(command)), _) => symbols::symbols(&command),
        (Some(Command::Generate(args)), _) => generate::generate(&args),
        (Some(Command::Run(args)), _) | (None, Some(Overview(args))) => run::run(&args),
        (None, None) => servers::list(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Cli, Command, Overview};

    #[test]
    fn no_command_means_run() {
        let cli = |args: &[&str]| Cli::try_parse_from([&["armtrace"], args].concat());
        for args in [&["--pid", "1"][..], &["--pid", "1", "--listen", ":1", "--max-overhead", "2%", "--symbols", "x"]] {
            let Overview(run) = cli(args).unwrap().run.unwrap();
            assert_eq!(run.pid, Some(1), "{args:?}");
        }
        assert!(cli(&["run", "--pid", "1"]).unwrap().run.is_none());
    }

    #[test]
    fn an_option_of_run_without_a_server_is_an_error() {
        let cli = |args: &[&str]| Cli::try_parse_from([&["armtrace"], args].concat());
        for args in
            ["--listen=:1", "--symbols=x", "--max-overhead=2%", "--sample-hz=9", "--handoffs=off", "--hardware-events"]
        {
            let error = cli(&[args]).expect_err(args);
            assert!(error.to_string().contains("--pid <PID>"), "{error}");
        }
        let alone = cli(&["--log-level", "info"]).unwrap();
        assert!(alone.command.is_none() && alone.run.is_none());
    }

    #[test]
    fn doctor_looks_at_what_run_attaches() {
        let doctor = |args: &[&str]| {
            let cli = Cli::try_parse_from([&["armtrace", "doctor"], args].concat())?;
            let Some(Command::Doctor(args)) = cli.command else { panic!("another command") };
            Ok::<_, clap::Error>(args.max_overhead)
        };
        let Overview(run) = Cli::try_parse_from(["armtrace", "--pid", "1"]).unwrap().run.unwrap();
        assert_eq!(doctor(&["--pid", "1"]).unwrap(), run.attach.max_overhead);
        assert_eq!(doctor(&[]).unwrap(), run.attach.max_overhead);
        assert_eq!(doctor(&["--pid", "1", "--max-overhead", "20%"]).unwrap(), 0.2);
        assert!(doctor(&["--max-overhead", "20%"]).is_err(), "of which server?");
        assert!(doctor(&["--pid", "1", "--max-overhead", "0"]).is_err());
    }
}

//! Defines the command line. Each command has a thin file of its own, with its arguments.

mod audit;
mod compare;
mod doctor;
mod failure;
mod line;
mod output;
mod record;
mod replay;
mod report;
mod run;
mod schema;
mod session;
mod status;
mod symbols;
mod top;
mod values;
mod watch;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use self::audit::AuditArgs;
use self::compare::CompareArgs;
use self::doctor::DoctorArgs;
pub use self::failure::{Failure, FileError, UsageError};
use self::record::RecordArgs;
use self::replay::ReplayArgs;
use self::report::ReportArgs;
use self::run::RunArgs;
pub use self::status::Status;
use self::symbols::SymbolsCommand;
use self::top::TopArgs;

/// Shows, on a live MySQL or MariaDB server, which latches it waits on.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<RunArgs>,
    /// Level of the log on standard error: error, warn, info, debug or trace
    #[arg(long, global = true, default_value = "warn", value_name = "LEVEL")]
    log_level: String,
}

const EXAMPLES: &str = "\
Examples:
  sudo armtrace --pid $(pidof mysqld)            attach, show the top latches, serve :9435/metrics
  sudo armtrace top --pid $(pidof mysqld)        the same on the full screen, with histograms and call sites
  sudo armtrace record --pid $(pidof mysqld) --duration 60s -o x86.rec --label threads=64
                                                 record for one minute
  armtrace report x86.rec --format html > x86.html
                                                 turn the recording into a web page
  armtrace replay x86.rec                        show and serve the recording as if its server were live
  armtrace compare x86.rec arm.rec               compare two hosts
  sudo armtrace --pid $(pidof mysqld) --watch trx_sys_mutex
                                                 show what touches the latch's cache line, and whether by false sharing
  sudo armtrace doctor --pid $(pidof mariadbd)   show what would be attached, and at what cost
  armtrace audit /usr/sbin/mysqld                count its barriers and atomics, for either architecture; needs no root
  armtrace symbols export mariadbd.debug -o mariadbd.symbols
                                                 pack symbols for hosts without the debug file (--symbols)

Signals to `armtrace run`: USR1 detaches all probes, USR2 attaches them again; metrics are served meanwhile.

Exit status: 0 success; 1 failed while running; 2 bad usage; 3 no such process, or not a supported
server; 4 missing privilege or kernel feature.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Attach to a server, show its top latches and serve metrics until interrupted (the default)
    Run(RunArgs),
    /// Show on the full screen what a server waits for: latches, call sites, pages, probes
    Top(TopArgs),
    /// Record what a server waits for, second by second, in one file
    Record(RecordArgs),
    /// Show a recording and serve its metrics as if its server were live; needs no root
    Replay(ReplayArgs),
    /// Summarize a recording: findings in words, histograms, a heat map over time, call sites
    Report(ReportArgs),
    /// Compare two recordings by second, statement and CPU, or one workload at several thread counts
    Compare(CompareArgs),
    /// Show what this host and a server support, what would be attached, and what each hit costs
    Doctor(DoctorArgs),
    /// Count the barriers, atomics, spin hints and checksum instructions of a server's program, or compare two
    Audit(AuditArgs),
    /// Take symbols to hosts that have no debug file
    #[command(subcommand)]
    Symbols(SymbolsCommand),
}

/// Runs the command in the arguments.
///
/// # Errors
/// Fails with the message for the user, and the reason from which the exit status follows.
pub fn execute(cli: Cli) -> Result<(), Failure> {
    let filter =
        EnvFilter::try_new(&cli.log_level).map_err(|why| UsageError::LogLevel { level: cli.log_level.clone(), why })?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    crate::attach::log_libbpf();
    match (cli.command, cli.run) {
        (Some(Command::Top(args)), _) => top::top(&args),
        (Some(Command::Record(args)), _) => record::record(&args),
        (Some(Command::Replay(args)), _) => replay::replay(&args),
        (Some(Command::Report(args)), _) => report::report(&args),
        (Some(Command::Compare(args)), _) => compare::compare(&args),
        (Some(Command::Doctor(args)), _) => doctor::doctor(&args),
        (Some(Command::Audit(args)), _) => audit::audit(&args),
        (Some(Command::Symbols(command)), _) => symbols::symbols(&command),
        (Some(Command::Run(args)), _) | (None, Some(args)) => run::run(&args),
        (None, None) => Err(UsageError::NoServer.into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Cli, Command};

    #[test]
    fn no_command_means_run() {
        let cli = |args: &[&str]| Cli::try_parse_from([&["armtrace"], args].concat());
        for args in [&["--pid", "1"][..], &["--pid", "1", "--listen", ":1", "--max-overhead", "2%", "--symbols", "x"]] {
            let run = cli(args).unwrap().run.unwrap();
            assert_eq!(run.attach.pid, 1, "{args:?}");
        }
        assert!(cli(&["run", "--pid", "1"]).unwrap().run.is_none());
        assert!(cli(&["--listen", ":1"]).is_err());
    }

    #[test]
    fn doctor_looks_at_what_run_attaches() {
        let doctor = |args: &[&str]| {
            let cli = Cli::try_parse_from([&["armtrace", "doctor"], args].concat())?;
            let Some(Command::Doctor(args)) = cli.command else { panic!("another command") };
            Ok::<_, clap::Error>(args.max_overhead)
        };
        let run = Cli::try_parse_from(["armtrace", "--pid", "1"]).unwrap().run.unwrap();
        assert_eq!(doctor(&["--pid", "1"]).unwrap(), run.attach.max_overhead);
        assert_eq!(doctor(&[]).unwrap(), run.attach.max_overhead);
        assert_eq!(doctor(&["--pid", "1", "--max-overhead", "20%"]).unwrap(), 0.2);
        assert!(doctor(&["--max-overhead", "20%"]).is_err(), "of which server?");
        assert!(doctor(&["--pid", "1", "--max-overhead", "0"]).is_err());
    }
}

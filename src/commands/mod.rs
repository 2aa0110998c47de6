//! The command line: one file per command, each thin.

mod audit;
mod compare;
mod doctor;
mod line;
mod output;
mod record;
mod report;
mod run;
mod session;
mod symbols;
mod top;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::export::Listen;
use crate::failure::Failure;
use crate::host::Domains;

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
  sudo armtrace top --pid $(pidof mysqld)        the same on the whole terminal, with histograms and call sites
  sudo armtrace record --pid $(pidof mysqld) --duration 60s -o x86.rec --label threads=64
                                                 record a minute of it
  armtrace report x86.rec --format html > x86.html
                                                 what is in it
  armtrace compare x86.rec arm.rec               two hosts side by side
  sudo armtrace --pid $(pidof mysqld) --watch trx_sys_mutex
                                                 who touches that latch's cache line, and is it false sharing?
  sudo armtrace doctor --pid $(pidof mariadbd)   what would be attached, at what cost
  armtrace audit /usr/sbin/mysqld                what its program pays for ordering memory; no root, either architecture's
  armtrace symbols export mariadbd.debug -o mariadbd.symbols
                                                 symbols for hosts without the debug file (--symbols)

Signals to `armtrace run`: USR1 takes all probes off, USR2 puts them back; metrics are served meanwhile.

Exit status: 0 done; 1 failed while running; 2 bad usage; 3 no such process, or not a supported
server; 4 missing privilege or kernel feature.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Attach to a server, show its top latches and serve metrics, until interrupted (the default)
    Run(RunArgs),
    /// Show on the whole terminal what a server waits for: latches, call sites, pages, probes
    Top(TopArgs),
    /// Record what a server waits for, second by second, into one file
    Record(RecordArgs),
    /// Tell what a recording holds: findings in words, histograms, a heat map over time, call sites
    Report(ReportArgs),
    /// Compare two recordings, by second, statement and CPU, or one load at several numbers of threads
    Compare(CompareArgs),
    /// Tell what this host and a server allow, what would be attached, and what each hit costs
    Doctor(DoctorArgs),
    /// Count the barriers, atomics, spin hints and checksum instructions of a server's program, or compare two
    Audit(AuditArgs),
    /// Carry symbols to hosts that have no debug file
    #[command(subcommand)]
    Symbols(SymbolsCommand),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    attach: AttachArgs,
    /// Where to serve metrics
    #[arg(long, default_value = ":9435", value_name = "ADDR:PORT")]
    listen: Listen,
    /// Watch the cache line of this latch with hardware watchpoints, tell who touches it and whether a neighbour on the line
    /// slows it down, and end; a part of the name is enough
    #[arg(long, value_name = "LATCH", conflicts_with = "listen")]
    watch: Option<String>,
    /// How to print what --watch finds
    #[arg(long, default_value = "text", requires = "watch")]
    format: Format,
}

/// What probes may take of the server's CPU time where nothing else is said.
const MAX_OVERHEAD: &str = "1%";

/// What every command takes that attaches to a server.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    // clap knows by it that `run` is meant where no command is named: it does not look into a structure that is part of
    // another.
    /// Process id of the server
    #[arg(long, group = "RunArgs", value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// Take the server's symbols from this file, of `armtrace symbols export` or a debug file
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Most of the server's CPU time that probes may take; the dearest are off part of the time to keep it
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share)]
    max_overhead: f64,
    /// How often in a second each CPU is asked what the server does there; 0: CPU time is not sampled
    #[arg(long, default_value_t = 99, value_name = "HZ", value_parser = clap::value_parser!(u32).range(..=1000))]
    sample_hz: u32,
    /// Between which parts of the machine handoffs of latches are counted
    #[arg(long, default_value = "auto", value_name = "BETWEEN")]
    handoffs: Domains,
    /// Count hardware events too, those that prove to count: barriers, branch misses, accesses to other nodes' memory. The
    /// server's threads pay for it at each context switch, and that is in no figure
    #[arg(long)]
    hardware_events: bool,
    /// Ask the server for its count of statements each second, for figures per statement; a recording holds its settings too:
    /// mysql://USER:PASSWORD@HOST:PORT or mysql://USER@localhost?socket=/PATH
    #[arg(long, value_name = "URL", env = "ARMTRACE_MYSQL", hide_env_values = true)]
    mysql: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    attach: AttachArgs,
    /// How often figures are read. They are shown over that time, or over 4 s where that is longer
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = delay)]
    delay: Duration,
}

/// The pace of `armtrace top`.
fn delay(text: &str) -> Result<Duration, String> {
    let is_possible = |time: &Duration| (Duration::from_millis(500)..=Duration::from_secs(60)).contains(time);
    time(text).and_then(|time| Some(time).filter(is_possible).ok_or_else(|| "from 0.5s to 1m".to_owned()))
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    attach: AttachArgs,
    /// How long to record: 90s, 5m, 1h
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    duration: Duration,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
    /// What the recording is of, for whoever compares it: threads=64, os=openEuler (may be repeated)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// A file that `armtrace record` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How to print it
    #[arg(long, default_value = "text")]
    format: FoldedFormat,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// Recordings: A and B; with --by as many as there are; with --from-ps B alone
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show how throughput grows with the number in this label, and which latches grow faster
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["per", "qps_a", "qps_b", "ghz_a", "ghz_b", "usd_a", "usd_b", "from_ps"])]
    by: Option<String>,
    /// What latches are ranked by [default: query where both count statements, otherwise second]
    #[arg(long)]
    per: Option<Unit>,
    /// A's statements per second, instead of what was recorded
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_a: Option<f64>,
    /// B's statements per second, instead of what was recorded
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_b: Option<f64>,
    /// A's clock, instead of what was recorded: throughput is shown at B's clock too
    #[arg(long, value_name = "GHZ", value_parser = positive)]
    ghz_a: Option<f64>,
    /// B's clock, instead of what was recorded
    #[arg(long, value_name = "GHZ", value_parser = positive)]
    ghz_b: Option<f64>,
    /// What A costs, for any period, in any currency
    #[arg(long, value_name = "MONEY", value_parser = positive, requires = "usd_b")]
    usd_a: Option<f64>,
    /// What B costs for the same period
    #[arg(long, value_name = "MONEY", value_parser = positive, requires = "usd_a")]
    usd_b: Option<f64>,
    /// For A, instead of a recording, what performance_schema summed up: event name, sum, count, as the mysql client prints it
    #[arg(long, value_name = "FILE", requires = "ps_unit", requires = "ps_duration")]
    from_ps: Option<PathBuf>,
    /// In what unit the sums of --from-ps are
    #[arg(long, value_name = "UNIT", requires = "from_ps")]
    ps_unit: Option<compare::PsUnit>,
    /// Over how long the sums of --from-ps were counted
    #[arg(long, value_name = "TIME", requires = "from_ps", value_parser = time)]
    ps_duration: Option<Duration>,
    /// How to print it
    #[arg(long, default_value = "text")]
    format: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    Second,
    Query,
    Core,
}

/// A number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
    number.ok_or_else(|| "a number above 0".to_owned())
}

/// The longest recording: what is read back has to fit into memory.
const LONGEST_RECORDING: Duration = Duration::from_secs(3600);

/// `90s`, `5m`, `1h` or `7d`.
fn time(text: &str) -> Result<Duration, String> {
    let bad = || "not a time: write 90s, 5m or 1h".to_owned();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?);
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(bad()),
    };
    let number = number.trim().parse::<f64>().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).ok().filter(|time| !time.is_zero()).ok_or_else(bad)
}

/// The length of a recording.
fn duration(text: &str) -> Result<Duration, String> {
    let is_possible = |time: &Duration| (Duration::from_secs(1)..=LONGEST_RECORDING).contains(time);
    time(text).and_then(|time| Some(time).filter(is_possible).ok_or_else(|| "from 1s to 1h".to_owned()))
}

/// `threads=64`
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or("write KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
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
    /// Tell what would be attached with this --max-overhead: some probes need a large one
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share, requires = "pid")]
    max_overhead: f64,
    /// How to print the findings
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AuditArgs {
    /// A server's program, for x86_64 or aarch64
    #[arg(value_name = "BINARY")]
    binary: PathBuf,
    /// Another build to compare it with: another version, or for the other architecture
    #[arg(value_name = "OTHER", conflicts_with = "symbols")]
    other: Option<PathBuf>,
    /// Take the program's symbols from this file, of `armtrace symbols export` or a debug file
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// How to print the audit
    #[arg(long, default_value = "text")]
    format: ReportFormat,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Text,
    Json,
    /// One page that needs nothing else
    Html,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FoldedFormat {
    Text,
    Json,
    /// One page that needs nothing else
    Html,
    /// Stacks of latch and call site with microseconds, for flame graphs
    Folded,
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
        (Some(Command::Top(args)), _) => top::top(&args),
        (Some(Command::Record(args)), _) => record::record(&args),
        (Some(Command::Report(args)), _) => report::report(&args),
        (Some(Command::Compare(args)), _) => compare::compare(&args),
        (Some(Command::Doctor(args)), _) => doctor::doctor(&args),
        (Some(Command::Audit(args)), _) => audit::audit(&args),
        (Some(Command::Symbols(SymbolsCommand::Export(args))), _) => symbols::export(&args),
        (Some(Command::Run(args)), _) | (None, Some(args)) => run::run(&args),
        (None, None) => Err(Failure::usage("which server? sudo armtrace --pid $(pidof mysqld)")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::{duration, label, positive, share, time, Cli, Command};

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

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("60s", 60), ("5m", 300), ("1h", 3600), ("1.5 m", 90)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "60", "s", "0s", "0.5s", "-1s", "2h", "1d", "nans", "infs", "1e30h", "5 minutes", "5"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_dump_may_cover_days() {
        assert_eq!(time("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert!(time("0d").is_err());
    }

    #[test]
    fn numbers_are_above_0() {
        assert_eq!(positive("2.5"), Ok(2.5));
        assert!(["0", "-1", "nan", "inf", "", "x"].into_iter().all(|bad| positive(bad).is_err()));
    }

    #[test]
    fn labels_have_a_key() {
        assert_eq!(label("os=openEuler 24=03"), Ok(("os".to_owned(), "openEuler 24=03".to_owned())));
        assert!(label("threads").is_err() && label(" =64").is_err());
    }

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

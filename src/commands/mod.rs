//! Defines the command line. Each command has a thin file of its own.

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

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    attach: AttachArgs,
    /// Address to serve metrics on
    #[arg(long, default_value = ":9435", value_name = "ADDR:PORT")]
    listen: Listen,
    /// Watch the cache line of this latch with hardware watchpoints, report what touches it and whether a neighbour on
    /// the line slows it down, and exit; part of the name is enough
    #[arg(long, value_name = "LATCH", conflicts_with = "listen")]
    watch: Option<String>,
    /// Output format of --watch
    #[arg(long, default_value = "text", requires = "watch")]
    format: Format,
}

/// The default share of the server's CPU time that probes may take.
const MAX_OVERHEAD: &str = "1%";

/// The arguments of every command that attaches to a server.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    // The group makes clap choose `run` if no command is given: clap does not look into a flattened structure for that.
    /// Process ID of the server
    #[arg(long, group = "RunArgs", value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// Read the server's symbols from this file: a debug file, or the output of `armtrace symbols export`
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Overhead budget: the largest share of the server's CPU time that probes may take. To stay within it, the most
    /// expensive probes are attached only part of the time
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share)]
    max_overhead: f64,
    /// Sampling frequency of the server's CPU time, per CPU; 0 turns sampling off
    #[arg(long, default_value_t = 99, value_name = "HZ", value_parser = clap::value_parser!(u32).range(..=1000))]
    sample_hz: u32,
    /// Parts of the machine between which handoffs of latches are counted
    #[arg(long, default_value = "auto", value_name = "BETWEEN")]
    handoffs: Domains,
    /// Count hardware events too, if this CPU is proven to count them: barriers, branch misses, accesses to other
    /// nodes' memory. This costs the server's threads time at each context switch, which no figure includes
    #[arg(long)]
    hardware_events: bool,
    /// Connect to the server and read its statement count each second, for figures per statement; a recording then
    /// contains its settings too: mysql://USER:PASSWORD@HOST:PORT or mysql://USER@localhost?socket=/PATH
    #[arg(long, value_name = "URL", env = "ARMTRACE_MYSQL", hide_env_values = true)]
    mysql: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    attach: AttachArgs,
    /// Refresh interval. Figures cover this interval, or the last 4 s if that is longer
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = delay)]
    delay: Duration,
}

/// Parses the refresh interval of `armtrace top`.
fn delay(text: &str) -> Result<Duration, String> {
    let is_possible = |time: &Duration| (Duration::from_millis(500)..=Duration::from_secs(60)).contains(time);
    time(text).and_then(|time| Some(time).filter(is_possible).ok_or_else(|| "from 0.5s to 1m".to_owned()))
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    attach: AttachArgs,
    /// Length of the recording: 90s, 5m, 1h
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    duration: Duration,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
    /// Describe the recording for comparisons: threads=64, os=openEuler (may be repeated)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// A file that `armtrace record` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output format
    #[arg(long, default_value = "text")]
    format: FoldedFormat,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// Recordings: A and B, any number with --by, or only B with --from-ps
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show how throughput scales with the number in this label, and which latches' waits grow faster
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["per", "qps_a", "qps_b", "ghz_a", "ghz_b", "usd_a", "usd_b", "from_ps"])]
    by: Option<String>,
    /// Unit by which latches are ranked [default: query if both recordings count statements, otherwise second]
    #[arg(long)]
    per: Option<Unit>,
    /// A's statements per second, instead of the recorded rate
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_a: Option<f64>,
    /// B's statements per second, instead of the recorded rate
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_b: Option<f64>,
    /// A's clock frequency, instead of the recorded one; throughput is also shown at B's frequency
    #[arg(long, value_name = "GHZ", value_parser = positive)]
    ghz_a: Option<f64>,
    /// B's clock frequency, instead of the recorded one
    #[arg(long, value_name = "GHZ", value_parser = positive)]
    ghz_b: Option<f64>,
    /// Price of A for any period, in any currency
    #[arg(long, value_name = "MONEY", value_parser = positive, requires = "usd_b")]
    usd_a: Option<f64>,
    /// Price of B for the same period
    #[arg(long, value_name = "MONEY", value_parser = positive, requires = "usd_a")]
    usd_b: Option<f64>,
    /// Use a summary from performance_schema as A: event name, sum and count, as printed by the mysql client
    #[arg(long, value_name = "FILE", requires = "ps_unit", requires = "ps_duration")]
    from_ps: Option<PathBuf>,
    /// Unit of the sums in --from-ps
    #[arg(long, value_name = "UNIT", requires = "from_ps")]
    ps_unit: Option<compare::PsUnit>,
    /// Time over which the sums in --from-ps were counted
    #[arg(long, value_name = "TIME", requires = "from_ps", value_parser = time)]
    ps_duration: Option<Duration>,
    /// Output format
    #[arg(long, default_value = "text")]
    format: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    Second,
    Query,
    Core,
}

/// Parses a finite number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
    number.ok_or_else(|| "a number above 0".to_owned())
}

/// The longest recording. `report` and `compare` read the whole file into memory.
const LONGEST_RECORDING: Duration = Duration::from_secs(3600);

/// Parses a time such as `90s`, `5m`, `1h` or `7d`.
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

/// Parses the length of a recording.
fn duration(text: &str) -> Result<Duration, String> {
    let is_possible = |time: &Duration| (Duration::from_secs(1)..=LONGEST_RECORDING).contains(time);
    time(text).and_then(|time| Some(time).filter(is_possible).ok_or_else(|| "from 1s to 1h".to_owned()))
}

/// Parses a label such as `threads=64` into its key and value.
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or("write KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Parses a share such as `1%` or `0.01` into a number above 0 and at most 1.
fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().map_err(|_| "not a share: write 1% or 0.01".to_owned())? / unit;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err("a share must be above 0% and at most 100%".to_owned())
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Process ID of a server to examine too
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Read the server's symbols from this file: a debug file, or the output of `armtrace symbols export`
    #[arg(long, value_name = "FILE", requires = "pid")]
    symbols: Option<PathBuf>,
    /// Show what would be attached with this --max-overhead: some probes need a large budget
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share, requires = "pid")]
    max_overhead: f64,
    /// Output format
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AuditArgs {
    /// A server's program, for x86_64 or aarch64
    #[arg(value_name = "BINARY")]
    binary: PathBuf,
    /// Another build to compare it with: a different version, or the other architecture
    #[arg(value_name = "OTHER", conflicts_with = "symbols")]
    other: Option<PathBuf>,
    /// Read the program's symbols from this file: a debug file, or the output of `armtrace symbols export`
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Output format
    #[arg(long, default_value = "text")]
    format: ReportFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SymbolsCommand {
    /// Write the symbols of a debug file, or of an unstripped server, to a small file for --symbols
    Export(ExportArgs),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// A debug file (*.debug), or a server's program that is not stripped
    #[arg(value_name = "DEBUGFILE")]
    debug_file: PathBuf,
    /// Symbol file to write
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
    /// One self-contained page
    Html,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FoldedFormat {
    Text,
    Json,
    /// One self-contained page
    Html,
    /// Stacks of latch and call site, weighted in microseconds, for flame graphs
    Folded,
}

/// Runs the command in the arguments.
///
/// # Errors
/// Fails with the message for the user and the exit status.
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
        (None, None) => Err(Failure::usage("no server given: name one, as in sudo armtrace --pid $(pidof mysqld)")),
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

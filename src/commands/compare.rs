//! `armtrace compare`: compares two recordings, or one workload at several thread counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::{self, Output, ReportFormat};
use super::report;
use super::values::{moment, positive, time};
use super::{Failure, FileError, UsageError};
use crate::fleet::{HttpConfig, Limits, Matchers, Prometheus, Range, Selection};
use crate::recording::compare::Unit as PsUnit;
use crate::recording::compare::{Comparison, Dump, Html, Options, Per, Scaling, Side, Text};

#[derive(Args, Clone, Debug)]
pub(super) struct CompareArgs {
    /// Recordings: A and B, any number with --by, or B with --from-ps
    #[arg(value_name = "FILE", required_unless_present_any = ["from_ps", "prometheus"])]
    files: Vec<PathBuf>,
    /// Show how throughput scales with this label's number
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["per", "qps_a", "qps_b", "ghz_a", "ghz_b", "usd_a", "usd_b", "from_ps"])]
    by: Option<String>,
    /// Rank latches per second, query or core
    #[arg(long, value_name = "UNIT", hide_possible_values = true)]
    per: Option<Unit>,
    /// A's statements per second, if not as recorded
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_a: Option<f64>,
    /// B's statements per second, if not as recorded
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_b: Option<f64>,
    /// A's clock frequency, if not as recorded
    #[arg(long, value_name = "GHZ", value_parser = positive)]
    ghz_a: Option<f64>,
    /// B's clock frequency, if not as recorded
    #[arg(long, value_name = "GHZ", value_parser = positive)]
    ghz_b: Option<f64>,
    /// Price of A for any period, in any currency
    #[arg(long, value_name = "MONEY", value_parser = positive, requires = "usd_b")]
    usd_a: Option<f64>,
    /// Price of B for the same period
    #[arg(long, value_name = "MONEY", value_parser = positive, requires = "usd_a")]
    usd_b: Option<f64>,
    /// Summary of performance_schema as A; a second as B
    #[arg(long, value_name = "FILE")]
    from_ps: Vec<PathBuf>,
    /// Unit of its sums: ps, ns, us, ms, s
    #[arg(long, value_name = "UNIT", default_value = "ps", hide_possible_values = true, requires = "from_ps")]
    ps_unit: PsUnit,
    /// Time in which it counted, for both or for each
    #[arg(long, value_name = "TIME", requires = "from_ps", value_parser = time)]
    ps_duration: Vec<Duration>,
    /// Statements in that time, for each
    #[arg(long, value_name = "N", requires = "from_ps", value_parser = positive)]
    ps_statements: Vec<f64>,
    /// Compare servers by their metrics in Prometheus
    #[arg(long, value_name = "URL", conflicts_with_all = ["files", "by", "from_ps", "qps_a", "qps_b"])]
    prometheus: Option<String>,
    /// A's servers: 'arch="x86_64"' [default: all]
    #[arg(long, value_name = "LABELS", requires = "prometheus", hide_default_value = true, default_value = "")]
    a: Matchers,
    /// B's servers [default: A's, with --after]
    #[arg(long, value_name = "LABELS", requires = "prometheus")]
    b: Option<Matchers>,
    /// How much time of each
    #[arg(long, value_name = "TIME", requires = "prometheus", value_parser = time, default_value = "1h")]
    range: Duration,
    /// End of it: 2026-11-27T12:00Z [default: 30s ago]
    #[arg(long, value_name = "WHEN", requires = "prometheus", value_parser = moment)]
    before: Option<i64>,
    /// Where B's time begins, if it is another
    #[arg(long, value_name = "WHEN", requires = "before", value_parser = moment)]
    after: Option<i64>,
    /// TLS and passwords, as promtool has them
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    http_config: Option<PathBuf>,
    #[command(flatten)]
    output: Output<ReportFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Unit {
    Second,
    Query,
    Core,
}

/// The size in bytes of the largest dump that is read. performance_schema has only some hundred events.
const LARGEST_DUMP: u64 = 16 << 20;

pub(super) fn compare(args: &CompareArgs) -> Result<(), Failure> {
    if let Some(by) = &args.by {
        let sides = args.files.iter().map(|file| point(file, by)).collect::<Result<Vec<_>, Failure>>()?;
        let scaling = Scaling::new(by, sides)?;
        return output::print_as(&scaling, args.output.format(), |s| Text(s).to_string(), |s| Html(s).to_string());
    }
    let [a, b] = sides(args)?;
    let options =
        Options { per: args.per.map(Per::from), ghz: [args.ghz_a, args.ghz_b], price: [args.usd_a, args.usd_b] };
    let comparison = Comparison::new(&a, &b, options);
    output::print_as(&comparison, args.output.format(), |c| Text(c).to_string(), |c| Html(c).to_string())
}

/// How long ago the time in Prometheus ends, unless the user says so: it takes a while until the newest samples are
/// there.
const SETTLED: Duration = Duration::from_secs(30);

fn in_prometheus(url: &str, args: &CompareArgs) -> Result<[Side; 2], Failure> {
    let b = match (&args.b, args.after) {
        (Some(b), _) => b,
        (None, Some(_)) => &args.a,
        (None, None) => return Err(UsageError::NoServersOfB.into()),
    };
    let end = args.before.unwrap_or_else(|| Range::before(now_ms(), SETTLED).from_ms);
    let of_a = Selection { servers: args.a.clone(), range: Range::before(end, args.range) };
    let range = args.after.map_or(of_a.range, |begin| Range::after(begin, args.range));
    let of_b = Selection { servers: b.clone(), range };
    let config = args.http_config.as_deref().map(HttpConfig::read).transpose()?.unwrap_or_default();
    Ok(Prometheus::new(url, config, Limits::default())?.sides([&of_a, &of_b])?)
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn sides(args: &CompareArgs) -> Result<[Side; 2], Failure> {
    if let Some(url) = &args.prometheus {
        return in_prometheus(url, args);
    }
    match (&args.from_ps[..], &args.files[..]) {
        ([], [a, b]) => Ok([side(a, args.qps_a)?, side(b, args.qps_b)?]),
        ([a], [b]) => Ok([imported(a, 0, args)?, side(b, args.qps_b)?]),
        ([a, b], []) => Ok([imported(a, 0, args)?, imported(b, 1, args)?]),
        ([], _) => Err(UsageError::NotTwoRecordings.into()),
        _ => Err(UsageError::NotTwoWithDumps.into()),
    }
}

impl From<Unit> for Per {
    fn from(unit: Unit) -> Per {
        match unit {
            Unit::Second => Per::Second,
            Unit::Query => Per::Query,
            Unit::Core => Per::Core,
        }
    }
}

fn side(file: &Path, qps: Option<f64>) -> Result<Side, Failure> {
    Ok(Side::of_recording(&file.display().to_string(), &report::read(file)?, qps))
}

/// Reads a recording, and the number in its label `by`.
fn point(file: &Path, by: &str) -> Result<(f64, Side), Failure> {
    let recording = report::read(file)?;
    let value = recording.start.labels.get(by);
    let number = value.and_then(|value| value.parse::<f64>().ok()).filter(|n| *n > 0.0 && n.is_finite());
    let number = number.ok_or_else(|| FileError::NoLabel(by.to_owned())).map_err(Failure::of_file(file))?;
    Ok((number, Side::of_recording(&file.display().to_string(), &recording, None)))
}

/// Returns the figures of a dump: the first, A, or the second, B.
fn imported(file: &Path, which: usize, args: &CompareArgs) -> Result<Side, Failure> {
    let (dumps, qps) = (args.from_ps.len(), [args.qps_a, args.qps_b][which]);
    if args.ps_duration.len() > dumps || ![0, dumps].contains(&args.ps_statements.len()) {
        return Err(UsageError::NotForEachDump.into());
    }
    let seconds = args.ps_duration.get(which).or(args.ps_duration.last()).map(Duration::as_secs_f64);
    let statements = args.ps_statements.get(which).copied();
    let statements = match (statements, qps) {
        (Some(_), Some(_)) => return Err(UsageError::StatementsTwice.into()),
        (None, Some(_)) if seconds.is_none() => return Err(UsageError::RateWithoutTime.into()),
        _ => statements.or_else(|| Some(qps? * seconds?)),
    };
    let dump = dump(file, args.ps_unit).map_err(Failure::of_file(file))?;
    Ok(Side::of_dump(&file.display().to_string(), &dump, seconds, statements))
}

fn dump(file: &Path, unit: PsUnit) -> Result<Dump, FileError> {
    if fs::metadata(file)?.len() > LARGEST_DUMP {
        return Err(FileError::DumpTooLarge);
    }
    Ok(Dump::parse(&fs::read_to_string(file)?, unit)?)
}

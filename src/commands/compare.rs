//! `armtrace compare`: compares two recordings, or one workload at several thread counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::{self, Output, ReportFormat};
use super::report;
use super::values::{time, ValueError};
use super::{Failure, FileError, UsageError};
use crate::recording::compare::Unit as PsUnit;
use crate::recording::compare::{Comparison, Dump, Html, Options, Per, Scaling, Side, Text};

#[derive(Args, Clone, Debug)]
pub(super) struct CompareArgs {
    /// Recordings: A and B, any number with --by, or only B with --from-ps
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show how throughput scales with the number in this label
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["per", "qps_a", "qps_b", "ghz_a", "ghz_b", "usd_a", "usd_b", "from_ps"])]
    by: Option<String>,
    /// Rank latches per second, query or core [default: query if both recordings count statements]
    #[arg(long, value_name = "UNIT", hide_possible_values = true)]
    per: Option<Unit>,
    /// A's statements per second, instead of the recorded rate
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_a: Option<f64>,
    /// B's statements per second, instead of the recorded rate
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    qps_b: Option<f64>,
    /// A's clock frequency, instead of the recorded one
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
    /// Summary from performance_schema to use as A: event name, sum and count
    #[arg(long, value_name = "FILE", requires = "ps_unit", requires = "ps_duration")]
    from_ps: Option<PathBuf>,
    /// Unit of the sums in --from-ps: ps, ns, us, ms or s
    #[arg(long, value_name = "UNIT", hide_possible_values = true, requires = "from_ps")]
    ps_unit: Option<PsUnit>,
    /// Time over which the sums in --from-ps were counted
    #[arg(long, value_name = "TIME", requires = "from_ps", value_parser = time)]
    ps_duration: Option<Duration>,
    #[command(flatten)]
    output: Output<ReportFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Unit {
    Second,
    Query,
    Core,
}

/// Parses a finite number above 0.
fn positive(text: &str) -> Result<f64, ValueError> {
    let number = text.parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
    number.ok_or(ValueError::Number)
}

/// The size in bytes of the largest dump that is read. performance_schema has only some hundred events.
const LARGEST_DUMP: u64 = 16 << 20;

pub(super) fn compare(args: &CompareArgs) -> Result<(), Failure> {
    if let Some(by) = &args.by {
        let sides = args.files.iter().map(|file| point(file, by)).collect::<Result<Vec<_>, Failure>>()?;
        let scaling = Scaling::new(by, sides)?;
        return output::print_as(&scaling, args.output.format(), |s| Text(s).to_string(), |s| Html(s).to_string());
    }
    let (a, b) = match (&args.from_ps, &args.files[..]) {
        (Some(dump), [b]) => (imported(dump, args)?, b),
        (None, [a, b]) => (side(a, args.qps_a)?, b),
        (Some(_), _) => return Err(UsageError::TwoRecordingsWithDump.into()),
        (None, _) => return Err(UsageError::NotTwoRecordings.into()),
    };
    let options =
        Options { per: args.per.map(Per::from), ghz: [args.ghz_a, args.ghz_b], price: [args.usd_a, args.usd_b] };
    let comparison = Comparison::new(&a, &side(b, args.qps_b)?, options);
    output::print_as(&comparison, args.output.format(), |c| Text(c).to_string(), |c| Html(c).to_string())
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

fn imported(file: &Path, args: &CompareArgs) -> Result<Side, Failure> {
    let (Some(unit), Some(duration)) = (args.ps_unit, args.ps_duration) else {
        return Err(UsageError::DumpWithoutUnit.into());
    };
    let dump = dump(file, unit).map_err(Failure::of_file(file))?;
    Ok(Side::of_dump(&file.display().to_string(), &dump, duration.as_secs_f64(), args.qps_a))
}

fn dump(file: &Path, unit: PsUnit) -> Result<Dump, FileError> {
    if fs::metadata(file)?.len() > LARGEST_DUMP {
        return Err(FileError::DumpTooLarge);
    }
    Ok(Dump::parse(&fs::read_to_string(file)?, unit)?)
}

#[cfg(test)]
mod tests {
    use super::positive;

    #[test]
    fn numbers_are_above_0() {
        assert_eq!(positive("2.5"), Ok(2.5));
        assert!(["0", "-1", "nan", "inf", "", "x"].into_iter().all(|bad| positive(bad).is_err()));
    }
}

//! `armtrace compare`: compares two recordings, or one workload at several thread counts.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use super::{output, report, CompareArgs, Unit};
use crate::failure::Failure;
use crate::recording::compare::{Comparison, Dump, Html, Options, Per, Scaling, Side, Text};

pub(super) use crate::recording::compare::Unit as PsUnit;

/// The size in bytes of the largest dump that is read. performance_schema has only some hundred events.
const LARGEST_DUMP: u64 = 16 << 20;

pub(super) fn compare(args: &CompareArgs) -> Result<(), Failure> {
    if let Some(by) = &args.by {
        let sides = args.files.iter().map(|file| point(file, by)).collect::<Result<Vec<_>, Failure>>()?;
        let scaling = Scaling::new(by, sides).map_err(Failure::running)?;
        return output::print_as(&scaling, args.format, |s| Text(s).to_string(), |s| Html(s).to_string());
    }
    let (a, b) = match (&args.from_ps, &args.files[..]) {
        (Some(dump), [b]) => (imported(dump, args)?, b),
        (None, [a, b]) => (side(a, args.qps_a)?, b),
        (Some(_), _) => return Err(Failure::usage("--from-ps stands for A: give one recording, B")),
        (None, _) => return Err(Failure::usage("give two recordings, A and B, or any number with --by LABEL")),
    };
    let options =
        Options { per: args.per.map(Per::from), ghz: [args.ghz_a, args.ghz_b], price: [args.usd_a, args.usd_b] };
    let comparison = Comparison::new(&a, &side(b, args.qps_b)?, options);
    output::print_as(&comparison, args.format, |c| Text(c).to_string(), |c| Html(c).to_string())
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
    let number = number.ok_or_else(|| {
        Failure::running(format!(
            "{}: no label {by} with a number above 0: record with --label {by}=64",
            file.display()
        ))
    })?;
    Ok((number, Side::of_recording(&file.display().to_string(), &recording, None)))
}

fn imported(file: &Path, args: &CompareArgs) -> Result<Side, Failure> {
    let failed = |why: &dyn Display| Failure::running(format!("{}: {why}", file.display()));
    let (Some(unit), Some(duration)) = (args.ps_unit, args.ps_duration) else {
        return Err(Failure::usage("--from-ps needs --ps-unit and --ps-duration"));
    };
    if fs::metadata(file).map_err(|e| failed(&e))?.len() > LARGEST_DUMP {
        return Err(failed(&"too large to be a summary from performance_schema"));
    }
    let text = fs::read_to_string(file).map_err(|e| failed(&e))?;
    let dump = Dump::parse(&text, unit).map_err(|e| failed(&e))?;
    Ok(Side::of_dump(&file.display().to_string(), &dump, duration.as_secs_f64(), args.qps_a))
}

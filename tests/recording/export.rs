//! Recordings in the formats of other tools.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use armtrace::measure::cpu::StatementCpu;
use armtrace::measure::latch::LatchWaits;
use armtrace::recording::table::{json_lines, trace, Tables};
use armtrace::recording::{self, Recorded, Recording};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};
use serde_json::Value;

/// Waited nanoseconds by latch and mode.
type Sums = BTreeMap<(String, String), i64>;

fn fixture() -> Recording {
    recording::read(&lab::repository("tests/fixtures/mysql-8.0.31.rec")).unwrap()
}

fn add(sums: &mut Sums, latch: &str, mode: &str, seconds: f64) {
    *sums.entry((latch.to_owned(), mode.to_owned())).or_default() += (seconds * 1e9).round() as i64;
}

/// Returns what the recording itself adds up to.
fn expected(recording: &Recording) -> Sums {
    let keys = LatchWaits::keys(&recording.rows);
    let mut sums = Sums::new();
    for delta in recording.seconds.iter().flat_map(LatchWaits::deltas) {
        let key = &keys[delta.row];
        *sums.entry((key.latch.clone(), key.mode.clone())).or_default() += delta.wait_ns;
    }
    sums
}

fn from_parquet(path: &Path) -> Sums {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let columns: Vec<String> =
        reader.metadata().file_metadata().schema().get_fields().iter().map(|field| field.name().to_owned()).collect();
    let at = |name: &str| columns.iter().position(|column| column == name).unwrap();
    let (latch, mode, wait) = (at("latch"), at("mode"), at("wait_seconds"));
    let mut sums = Sums::new();
    for row in reader.get_row_iter(None).unwrap().map(Result::unwrap) {
        let text = |column| row.get_string(column).unwrap();
        add(&mut sums, text(latch), text(mode), row.get_double(wait).unwrap());
    }
    sums
}

#[test]
fn parquet_files_have_what_the_recording_has() {
    let (folder, recording) = (tempfile::tempdir().unwrap(), fixture());
    let tables = Tables::write(&recording, "x86", folder.path(), false).unwrap();
    let place = tables.waits.strip_prefix(folder.path()).unwrap().display().to_string();
    assert!(place.starts_with("waits/dt=20") && place.contains("/host=") && place.ends_with(".parquet"), "{place}");
    let sums = from_parquet(&tables.waits);
    assert!(sums.values().sum::<i64>() > 1_000_000_000, "the fixture has waits: {sums:?}");
    assert_eq!(sums, expected(&recording));
    assert!(tables.paths().iter().all(|path| path.ends_with(place.split_once('/').unwrap().1)), "{tables:?}");
    let seconds = SerializedFileReader::new(File::open(&tables.seconds).unwrap()).unwrap();
    assert_eq!(seconds.metadata().file_metadata().num_rows(), recording.seconds.len() as i64);
    // What is there is kept, unless the user wants otherwise.
    assert!(Tables::write(&recording, "x86", folder.path(), false).unwrap_err().to_string().contains("--force"));
    assert_eq!(Tables::write(&recording, "x86", folder.path(), true).unwrap(), tables);
}

/// Adds up a column of a file by another one.
fn sums_of<T: Copy + std::ops::AddAssign + Default>(
    path: &Path,
    by: &str,
    of: &str,
    number: fn(&Row, usize) -> T,
) -> BTreeMap<String, T> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let schema = reader.metadata().file_metadata().schema();
    let at = |name: &str| schema.get_fields().iter().position(|field| field.name() == name).unwrap();
    let (by, of) = (at(by), at(of));
    let mut sums = BTreeMap::new();
    for row in reader.get_row_iter(None).unwrap().map(Result::unwrap) {
        *sums.entry(row.get_string(by).unwrap().clone()).or_default() += number(&row, of);
    }
    sums
}

#[test]
fn parquet_files_have_all_that_was_sampled() {
    let folder = tempfile::tempdir().unwrap();
    let recording = crate::read(&crate::busy_file(5));
    let tables = Tables::write(&recording, "busy", folder.path(), false).unwrap();
    let samples = sums_of(&tables.statements, "statement", "samples", |row, at| row.get_long(at).unwrap());
    let mut expected = BTreeMap::new();
    for row in recording.statements() {
        *expected.entry(row.statement).or_default() += row.samples as i64;
    }
    assert!(expected.len() == 4 && samples == expected, "{samples:?}, not {expected:?}");
    for (column, of) in
        [("samples", (|row| row.samples) as fn(&StatementCpu) -> u64), ("ordering_samples", |row| row.ordering_samples)]
    {
        let samples = sums_of(&tables.cpu_statements, "statement", column, |row, at| row.get_long(at).unwrap());
        let rows = recording.cpu_statements();
        let expected = rows.iter().map(|row| (row.statement.clone(), of(row) as i64)).collect();
        assert!(samples.len() == 4 && samples == expected, "{column}: {samples:?}, not {expected:?}");
    }
    let samples = sums_of(&tables.call_stacks, "calls", "samples", |row, at| row.get_long(at).unwrap());
    let mut expected = BTreeMap::new();
    for row in recording.call_stacks() {
        *expected.entry(row.calls).or_default() += row.samples as i64;
    }
    assert!(expected.len() == 4 && samples == expected, "{samples:?}, not {expected:?}");
    let ms =
        sums_of(&tables.holders, "state", "wait_seconds", |row, at| (row.get_double(at).unwrap() * 1e3).round() as u64);
    let mut expected = BTreeMap::new();
    for row in recording.holders() {
        *expected.entry(row.holding.state.as_str().to_owned()).or_default() += row.wait_ns / 1_000_000;
    }
    assert!(expected.len() == 4 && ms == expected, "{ms:?}, not {expected:?}");
    let ms = sums_of(&tables.file_waits, "operation", "wait_seconds", |row, at| {
        (row.get_double(at).unwrap() * 1e4).round() as u64
    });
    let mut expected = BTreeMap::new();
    for row in recording.file_waits() {
        *expected.entry(row.operation.as_str().to_owned()).or_default() += row.wait_ns / 100_000;
    }
    assert!(expected.len() == 3 && ms == expected, "{ms:?}, not {expected:?}");
    let calls = sums_of(&tables.fsyncs, "event", "calls", |row, at| row.get_long(at).unwrap());
    let expected = recording.fsyncs().into_iter().map(|row| (row.event, row.calls.count as i64)).collect();
    assert!(calls.len() == 1 && calls == expected, "{calls:?}, not {expected:?}");
}

#[test]
fn json_has_a_line_for_each_latch_and_second() {
    let recording = fixture();
    let text = json_lines(&recording).unwrap();
    let mut sums = Sums::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!((row["arch"].as_str(), row["version"].as_str()), (Some("x86_64"), Some("8.0.31")), "{line}");
        let text = |key: &str| row[key].as_str().unwrap();
        add(&mut sums, text("latch"), text("mode"), row["wait_seconds"].as_f64().unwrap());
    }
    assert_eq!(sums, expected(&recording));
}

#[test]
fn a_timeline_has_a_counter_for_each_latch() {
    let recording = fixture();
    let trace = trace(&[recording.clone(), recording.clone()]);
    let events = trace["traceEvents"].as_array().unwrap();
    let processes: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert!(processes.len() == 2 && processes[0].starts_with("MySQL 8.0.31 on "), "{processes:?}");
    let lengths: Vec<f64> = recording.lengths().collect();
    let counters = events.iter().filter(|event| event["ph"] == "C" && event["pid"] == 2);
    let mut seen = Sums::new();
    let mut before: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for counter in counters {
        let latch = counter["name"].as_str().unwrap();
        let us = counter["ts"].as_i64().unwrap();
        let times = before.entry(latch.to_owned()).or_default();
        assert!(times.last().is_none_or(|before| us > *before), "{latch}: time goes backwards");
        let length = lengths[times.len()];
        times.push(us);
        for (mode, threads) in counter["args"].as_object().unwrap() {
            let mode = if mode == "threads waiting" { "" } else { mode };
            add(&mut seen, latch, mode, threads.as_f64().unwrap() * length);
        }
    }
    assert_eq!(seen, expected(&recording));
}

fn export(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.arg("export").args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn usage_is_checked() {
    let file = lab::repository("tests/fixtures/mysql-8.0.31.rec").display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new").display().to_string();
    for (args, status, words) in [
        (&[&file[..], "--format", "parquet"][..], 2, "--output"),
        (&[&file, "--format", "json", "--output", "x"], 2, "standard output"),
        (&[&file], 2, "--format"),
        (&["/nowhere/x.rec", "--format", "json"], 1, "/nowhere/x.rec"),
        (&[&file, "--format", "parquet", "--output", "/proc/x"], 1, "cannot write /proc/x"),
    ] {
        let output = export(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        assert!(error.contains(words) && output.stdout.is_empty(), "{args:?}: {error}");
    }
    for status in [0, 1] {
        let output = export(&[&file, "--format", "parquet", "--output", &folder]);
        assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let timeline = export(&[&file, "--format", "perfetto"]);
    assert!(timeline.status.success());
    serde_json::from_slice::<Value>(&timeline.stdout).unwrap();
}

//! Recordings as rows of tables, for databases that hold those of a whole fleet.

mod files;
mod pprof;
mod trace;

use std::collections::BTreeMap;

use parquet_derive::ParquetRecordWriter;
use serde::Serialize;

pub(crate) use self::files::{as_name, beside};
pub use self::files::{ExportError, Tables};
pub use self::pprof::pprof;
pub use self::trace::trace;
use super::rows::DeltaOf;
use super::{Delta, Recorded, Recording, Start};
use crate::measure::cpu::StatementCpu;
use crate::measure::files::FileWaits;
use crate::measure::fsync::Fsyncs;
use crate::measure::holder::BlockedBy;
use crate::measure::latch::{LatchWaits, StackWaits, StatementWaits};
use crate::metrics::seconds;

/// What was waited for a latch in one second of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct WaitRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The event name.
    pub latch: String,
    /// The kind, as in the label `kind` of the metrics.
    pub kind: String,
    /// The mode, as in the label `mode`; empty for a latch without modes.
    pub mode: String,
    /// The number of waits; `None` if they were not counted.
    pub waits: Option<i64>,
    /// Seconds waited, by all threads together.
    pub wait_seconds: f64,
    /// The part of it spent asleep; `None` if that is not known.
    pub sleep_seconds: Option<f64>,
    /// The part of it that is estimated.
    pub estimated_seconds: f64,
}

/// How often threads were seen in one second that waited for a latch and executed a statement.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct StatementRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The event name of the latch.
    pub latch: String,
    /// The mode, as in the label `mode`; empty for a latch without modes.
    pub mode: String,
    /// The hash of the statement; `None` for what stands in place of a statement.
    pub digest: Option<String>,
    /// The statement without its values, or what stands in place of one.
    pub statement: String,
    /// The user for whom it was executed; `None` if that is not known.
    pub user: Option<String>,
    /// The schema that was chosen; `None` if none was, or if it is not known.
    pub schema: Option<String>,
    /// The number of times that a thread was seen.
    pub samples: i64,
}

/// How often threads were seen in one second that ran and executed a statement.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct StatementCpuRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The hash of the statement; `None` for what stands in place of a statement.
    pub digest: Option<String>,
    /// The statement without its values, or what stands in place of one.
    pub statement: String,
    /// The user for whom it was executed; `None` if that is not known.
    pub user: Option<String>,
    /// The schema that was chosen; `None` if none was, or if it is not known.
    pub schema: Option<String>,
    /// The number of times that a thread was seen. Its share of all is the statement's share of the CPU time.
    pub samples: i64,
    /// The number of times that it was at an instruction that orders memory.
    pub ordering_samples: i64,
}

/// How often threads were seen in one second that came to wait for a latch through the same calls.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct CallStackRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The event name of the latch.
    pub latch: String,
    /// The mode, as in the label `mode`; empty for a latch without modes.
    pub mode: String,
    /// The functions, the outermost first, separated by `;`, or what stands in place of them.
    pub calls: String,
    /// The number of times that a thread was seen.
    pub samples: i64,
}

/// For how long threads waited for a latch in one second while its holder did something.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct HolderRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The event name of the latch.
    pub latch: String,
    /// The mode in which threads waited, as in the label `mode`; empty for a latch without modes.
    pub mode: String,
    /// What the holder did, as in the label `holder_state`.
    pub state: String,
    /// Where the holder was; `None` if that is not known.
    pub site: Option<String>,
    /// The event name of the latch for which the holder waited itself.
    pub waits_for: Option<String>,
    /// Seconds waited, from samples.
    pub wait_seconds: f64,
}

/// For how long threads waited for files in one second.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct FileRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The kind of file: performance_schema's event name, or `unknown`.
    pub event: String,
    /// What threads did, as in the label `operation`.
    pub operation: String,
    /// The file, with the folder that contains it; `None` if the kind says enough.
    pub file: Option<String>,
    /// Seconds waited, from samples.
    pub wait_seconds: f64,
}

/// The flushes of one kind of file in one second.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct FsyncRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// The kind of file: performance_schema's event name, or `unknown`.
    pub event: String,
    /// The number of calls that ended.
    pub calls: i64,
    /// What they took together, in seconds.
    pub call_seconds: f64,
}

/// One second of a recording, with what does not depend on a latch.
#[derive(Clone, Debug, PartialEq, Serialize, ParquetRecordWriter)]
pub struct SecondRow {
    /// The end of the second, in milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// Its length in seconds.
    pub length_seconds: f64,
    /// The number of statements that clients sent; `None` if they were not counted.
    pub statements: Option<i64>,
    /// The CPU time of the server, in seconds; `None` if it is not known.
    pub server_cpu_seconds: Option<f64>,
    /// The CPU time that probes took from the server, in seconds; `None` if it is not known.
    pub probe_cpu_seconds: Option<f64>,
    /// The maintainer: `mysql`, `mariadb` or `percona`.
    pub flavor: String,
    /// The server's version.
    pub version: String,
    /// The architecture: `x86_64` or `aarch64`.
    pub arch: String,
    /// The CPU's own name.
    pub cpu_model: String,
    /// The number of CPUs that the server may use.
    pub server_cpus: Option<i32>,
    /// The CPU's highest clock, in GHz.
    pub ghz: Option<f64>,
    /// The labels given with `--label`: `os=openEuler,threads=64`.
    pub labels: String,
}

/// Returns a row for each latch and second that has waits.
pub fn waits(recording: &Recording) -> Vec<WaitRow> {
    let keys = LatchWaits::keys(&recording.rows);
    each_delta::<LatchWaits, _>(recording, |at_ns, delta| {
        let key = &keys[delta.row()];
        WaitRow {
            time_ms: time_ms(&recording.start, at_ns),
            latch: key.latch.clone(),
            kind: key.kind.clone(),
            mode: key.mode.clone(),
            waits: recording.counted(delta.waits),
            wait_seconds: in_seconds(delta.wait_ns),
            sleep_seconds: recording.start.sleeps_seen.then(|| in_seconds(delta.sleep_ns)),
            estimated_seconds: in_seconds(delta.estimated_ns),
        }
    })
}

/// Returns a row for each latch, statement and second in which threads were seen.
pub fn statements(recording: &Recording) -> Vec<StatementRow> {
    let keys = StatementWaits::keys(&recording.rows);
    each_delta::<StatementWaits, _>(recording, |at_ns, delta| {
        let key = &keys[delta.row];
        StatementRow {
            time_ms: time_ms(&recording.start, at_ns),
            latch: key.latch.clone(),
            mode: key.mode.clone().unwrap_or_default(),
            digest: some(&key.digest),
            statement: key.statement.clone(),
            user: some(&key.account.user),
            schema: some(&key.account.schema),
            samples: delta.counts[0],
        }
    })
}

/// Returns a text, if it has any.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns a row for each statement and second in which threads were seen that ran.
pub fn cpu_statements(recording: &Recording) -> Vec<StatementCpuRow> {
    let keys = StatementCpu::keys(&recording.rows);
    each_delta::<StatementCpu, _>(recording, |at_ns, delta| {
        let key = &keys[delta.row];
        StatementCpuRow {
            time_ms: time_ms(&recording.start, at_ns),
            digest: some(&key.digest),
            statement: key.statement.clone(),
            user: some(&key.account.user),
            schema: some(&key.account.schema),
            samples: delta.counts[0],
            ordering_samples: delta.counts[1],
        }
    })
}

/// Returns a row for each latch, call stack and second in which threads were seen.
pub fn call_stacks(recording: &Recording) -> Vec<CallStackRow> {
    let keys = StackWaits::keys(&recording.rows);
    each_delta::<StackWaits, _>(recording, |at_ns, delta| {
        let key = &keys[delta.row];
        CallStackRow {
            time_ms: time_ms(&recording.start, at_ns),
            latch: key.latch.clone(),
            mode: key.mode.clone().unwrap_or_default(),
            calls: key.calls.clone(),
            samples: delta.counts[0],
        }
    })
}

/// Returns a row for each latch, what its holder did, and second in which threads waited.
pub fn holders(recording: &Recording) -> Vec<HolderRow> {
    let keys = BlockedBy::keys(&recording.rows);
    each_delta::<BlockedBy, _>(recording, |at_ns, delta| {
        let key = &keys[delta.row];
        HolderRow {
            time_ms: time_ms(&recording.start, at_ns),
            latch: key.latch.clone(),
            mode: key.mode.clone(),
            state: key.state.clone(),
            site: key.site.clone(),
            waits_for: key.waits_for.clone(),
            wait_seconds: in_seconds(delta.counts[0]),
        }
    })
}

/// Returns a row for each kind of file, operation, file and second in which threads waited.
pub fn file_waits(recording: &Recording) -> Vec<FileRow> {
    let keys = FileWaits::keys(&recording.rows);
    each_delta::<FileWaits, _>(recording, |at_ns, delta| {
        let key = &keys[delta.row];
        FileRow {
            time_ms: time_ms(&recording.start, at_ns),
            event: key.event.clone(),
            operation: key.operation.clone(),
            file: some(&key.file),
            wait_seconds: in_seconds(delta.counts[0]),
        }
    })
}

/// Returns a row for each kind of file and second in which files were flushed.
pub fn fsyncs(recording: &Recording) -> Vec<FsyncRow> {
    let events = Fsyncs::keys(&recording.rows);
    each_delta::<Fsyncs, _>(recording, |at_ns, delta| FsyncRow {
        time_ms: time_ms(&recording.start, at_ns),
        event: events[delta.row].clone(),
        calls: delta.waits,
        call_seconds: in_seconds(delta.wait_ns),
    })
}

/// Returns a row for each second.
pub fn each_second(recording: &Recording) -> Vec<SecondRow> {
    let Start { host, server, labels, .. } = &recording.start;
    let labels = text_of(labels);
    let rows = recording.seconds.iter().zip(recording.lengths()).map(|(second, length_seconds)| SecondRow {
        time_ms: time_ms(&recording.start, second.at_ns),
        length_seconds,
        statements: second.queries.map(clamped),
        server_cpu_seconds: second.server_cpu_ns.map(seconds),
        probe_cpu_seconds: second.probe_cost_ns.map(seconds),
        flavor: server.flavor.clone(),
        version: server.version.clone(),
        arch: server.arch.clone(),
        cpu_model: host.cpu_model.clone(),
        server_cpus: host.server_cpus.and_then(|cpus| cpus.try_into().ok()),
        ghz: host.ghz,
        labels: labels.clone(),
    });
    rows.collect()
}

/// A row of waits that says whose they are.
#[derive(Serialize)]
struct Line<'a> {
    host: &'a str,
    arch: &'a str,
    flavor: &'a str,
    version: &'a str,
    #[serde(flatten)]
    row: WaitRow,
}

/// Returns the rows of [`waits`] as JSON, one in a line, each with host, architecture and version.
///
/// # Errors
/// Fails if a row cannot be encoded.
pub fn json_lines(recording: &Recording) -> serde_json::Result<String> {
    let Start { host, server, .. } = &recording.start;
    let (host, arch) = (host.name.as_str(), server.arch.as_str());
    let (flavor, version) = (server.flavor.as_str(), server.version.as_str());
    let line = |row| serde_json::to_string(&Line { host, arch, flavor, version, row });
    waits(recording).into_iter().map(|row| Ok(line(row)? + "\n")).collect()
}

/// Returns what `row` makes of each second's time and of what it added to each row of a kind.
fn each_delta<R: Recorded, T>(recording: &Recording, row: impl Fn(u64, &DeltaOf<R>) -> T) -> Vec<T> {
    let mut rows = Vec::new();
    for second in &recording.seconds {
        rows.extend(R::deltas(second).iter().map(|delta| row(second.at_ns, delta)));
    }
    rows
}

fn time_ms(start: &Start, at_ns: u64) -> i64 {
    clamped(start.began_ms.saturating_add(at_ns / 1_000_000))
}

/// Tables have no type for larger numbers, which only damaged files have.
fn clamped(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

fn in_seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

fn text_of(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

//! Flushes of files, in a report.

use maud::{html, Markup};
use serde::Serialize;

use super::figures::Fsyncs;
use crate::html::table;
use crate::measure::files::short_name;
use crate::present::format::{self, NOTHING};
use crate::recording::report::{seconds, Part, Report, Section};
use crate::recording::Recording;

/// The most kinds of files that are shown in words. JSON has all.
const SHOWN: usize = 4;

/// How long flushes of files took.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FsyncReport {
    /// By kind of file, the longest in all first; empty if they were not measured.
    pub fsyncs: Vec<FileFsyncs>,
}

/// Calls of fsync and fdatasync for one kind of file. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileFsyncs {
    /// The kind of file: the event name of performance_schema's instrument, or `unknown`.
    pub event: String,
    /// How many there were.
    pub calls: u64,
    /// What all of them took together.
    pub time: f64,
    /// The time that half of them took at most, and 99 in 100; `null` if there were none. They are interpolated within
    /// the buckets of a histogram.
    pub p50: Option<f64>,
    /// See `p50`.
    pub p99: Option<f64>,
    /// The longest; 0 if it is not known, because there was a longer one before the recording.
    pub max: f64,
}

impl Part for FsyncReport {
    fn new(recording: &Recording) -> FsyncReport {
        FsyncReport { fsyncs: recording.fsyncs().iter().map(FileFsyncs::new).collect() }
    }
}

impl FileFsyncs {
    fn new(row: &Fsyncs) -> FileFsyncs {
        let quantile = |q| row.calls.quantile_ns(q).map(|ns| ns / 1e9);
        FileFsyncs {
            event: row.event.clone(),
            calls: row.calls.count,
            time: seconds(row.calls.sum_ns),
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: seconds(row.calls.max_ns),
        }
    }

    /// Returns all of it: `innodb_log_file 2.3k calls, p50 410µs, p99 2.10ms, 12.0ms at most`.
    fn in_words(&self) -> String {
        let calls = if self.calls == 1 { "call" } else { "calls" };
        let [p50, p99, max] = self.times();
        let longest = if self.max > 0.0 { format!(", {max} at most") } else { String::new() };
        let count = format::count(self.calls as f64);
        format!("{} {count} {calls}, p50 {p50}, p99 {p99}{longest}", short_name(&self.event))
    }

    /// Returns the median, the 99th percentile and the maximum.
    fn times(&self) -> [String; 3] {
        let known = |seconds: Option<f64>| seconds.map_or_else(|| NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
        [self.p50, self.p99, Some(self.max).filter(|max| *max > 0.0)].map(known)
    }
}

impl FsyncReport {
    fn called(&self) -> impl Iterator<Item = &FileFsyncs> {
        self.fsyncs.iter().filter(|row| row.calls > 0)
    }
}

impl Section for FsyncReport {
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        let calls: Vec<String> = self.called().take(SHOWN).map(FileFsyncs::in_words).collect();
        (!calls.is_empty()).then(|| ("flushes of files".to_owned(), calls.join("; "))).into_iter().collect()
    }

    fn html_details(&self, _report: &Report) -> Markup {
        let row = |row: &FileFsyncs| {
            let [p50, p99, max] = row.times();
            let all = [format::count(row.calls as f64), format::nanoseconds(row.time * 1e9), p50, p99, max];
            (short_name(&row.event).to_owned(), all.to_vec())
        };
        html! {
            @if self.called().next().is_some() {
                h2 { "Flushes of files" }
                p.soft { "Calls of fsync and fdatasync, from beginning to end." }
                (table(&["files", "calls", "time", "p50", "p99", "longest"], self.called().map(row)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Histogram, BUCKET_BOUNDS_NS};

    #[test]
    fn flushes_are_told_with_their_percentiles() {
        let mut calls = Histogram { count: 100, sum_ns: 50_000_000, max_ns: 1_900_000, ..Histogram::default() };
        calls.buckets[BUCKET_BOUNDS_NS.iter().position(|bound| *bound == 512_000).unwrap()] = 98;
        calls.buckets[BUCKET_BOUNDS_NS.iter().position(|bound| *bound == 2_000_000).unwrap()] = 2;
        let row = |calls| FileFsyncs::new(&Fsyncs { event: "wait/io/file/sql/binlog".to_owned(), calls });
        assert_eq!(row(calls.clone()).in_words(), "binlog 100 calls, p50 387µs, p99 1.45ms, 1.90ms at most");
        let unknown = FileFsyncs { max: 0.0, ..row(calls) };
        assert_eq!(unknown.times()[2], NOTHING);
        assert_eq!(row(Histogram::default()).p50, None);
    }
}

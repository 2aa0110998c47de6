//! Flushes of files, in a comparison.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measure::files::short_name;
use crate::present::format;
use crate::recording::compare::{Figure, Pair, Part, Per, Section, Side};
use crate::recording::Recording;

/// How long the flushes of two systems take, as far as both have made some.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FsyncComparison {
    /// By kind of file, those with the largest difference first.
    pub fsyncs: Vec<FsyncRow>,
}

/// Calls of fsync and fdatasync for one kind of file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FsyncRow {
    /// The kind: the event name of performance_schema's instrument, or `unknown`.
    pub event: String,
    /// What a call took on average, in seconds.
    pub mean: Pair,
}

/// The flushes of one kind of file in each second.
#[derive(Clone, Debug, Default)]
pub struct Seconds {
    calls: Vec<f64>,
    seconds: Vec<f64>,
}

impl Part for FsyncComparison {
    type Side = BTreeMap<String, Seconds>;

    fn side(recording: &Recording) -> BTreeMap<String, Seconds> {
        let events = &recording.rows.fsyncs;
        let none = vec![0.0; recording.seconds.len()];
        let row = |event: &String| (event.clone(), Seconds { calls: none.clone(), seconds: none.clone() });
        let mut all: BTreeMap<String, Seconds> = events.iter().map(row).collect();
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.fsyncs {
                if let Some(row) = all.get_mut(&events[delta.row]) {
                    row.calls[i] += delta.waits as f64;
                    row.seconds[i] += delta.wait_ns as f64 / 1e9;
                }
            }
        }
        all
    }

    fn new(sides: [&Side; 2], own: [&Self::Side; 2], _ranked_by: Per) -> FsyncComparison {
        let row = |event: &String| {
            let samples = |i: usize| {
                let row = own[i].get(event)?;
                Some(sides[i].samples_of(&row.seconds, &row.calls))
            };
            let mean = Pair::new(&samples(0)?, &samples(1)?)?;
            Some(FsyncRow { event: event.clone(), mean })
        };
        let mut fsyncs: Vec<FsyncRow> = own[0].keys().filter_map(row).collect();
        fsyncs.sort_by(|a, b| b.mean.difference().total_cmp(&a.mean.difference()));
        FsyncComparison { fsyncs }
    }
}

impl Section for FsyncComparison {
    fn figures(&self) -> Vec<Figure> {
        let figure = |row: &FsyncRow| {
            let [a, b] = [row.mean.a, row.mean.b].map(|seconds| format::nanoseconds(seconds * 1e9));
            Figure { name: format!("flush of {}, mean", short_name(&row.event)), a, b, ratio: row.mean.ratio }
        };
        self.fsyncs.iter().map(figure).collect()
    }
}

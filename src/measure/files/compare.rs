//! Waits for files, in a comparison.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::short_name;
use super::record::FileKey;
use super::FileOperation;
use crate::present::format;
use crate::recording::compare::{Figure, Pair, Part, Per, Section, Side};
use crate::recording::Recording;

/// The most rows that are shown. JSON has all.
const SHOWN: usize = 4;

/// The waits of two systems for files, if both have measured them; otherwise there are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesComparison {
    /// The kinds of files that either has waited for, by operation, those with the largest difference first.
    pub file_waits: Vec<FileRow>,
    #[serde(skip)]
    per: Per,
}

/// The waits for one kind of file in one operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileRow {
    /// The kind: the event name of performance_schema's instrument, or `unknown`.
    pub event: String,
    /// What threads did.
    pub operation: FileOperation,
    /// Seconds waited, by the unit that latches are ranked by.
    pub wait: Pair,
}

/// Seconds waited in each second, by kind of file and operation; none if that was not measured.
type Waits = BTreeMap<(String, FileOperation), Vec<f64>>;

impl Part for FilesComparison {
    type Side = Waits;

    fn side(recording: &Recording) -> Waits {
        let kind = |key: &FileKey| Some((key.event.clone(), FileOperation::from_name(&key.operation)?));
        let kinds: Vec<_> = recording.rows.file_waits.iter().map(kind).collect();
        let row = |kind: &(String, FileOperation)| (kind.clone(), vec![0.0; recording.seconds.len()]);
        let mut waits: Waits = kinds.iter().flatten().map(row).collect();
        for (i, second) in recording.seconds.iter().enumerate() {
            for delta in &second.file_waits {
                let row = kinds[delta.row].as_ref().and_then(|kind| waits.get_mut(kind));
                row.into_iter().for_each(|row| row[i] += delta.counts[0] as f64 / 1e9);
            }
        }
        waits
    }

    fn new(sides: [&Side; 2], own: [&Waits; 2], ranked_by: Per) -> FilesComparison {
        let [a, b] = own;
        if a.is_empty() || b.is_empty() {
            return FilesComparison { file_waits: Vec::new(), per: ranked_by };
        }
        let both = a.keys().chain(b.keys().filter(|kind| !a.contains_key(*kind)));
        let row = |kind: &(String, FileOperation)| {
            let samples = |i: usize| sides[i].samples(ranked_by, own[i].get(kind).map(Vec::as_slice));
            let wait = Pair::new(&samples(0)?, &samples(1)?)?;
            let (event, operation) = kind.clone();
            (wait.a > 0.0 || wait.b > 0.0).then_some(FileRow { event, operation, wait })
        };
        let mut file_waits: Vec<FileRow> = both.filter_map(row).collect();
        file_waits.sort_by(|a, b| b.wait.difference().total_cmp(&a.wait.difference()));
        FilesComparison { file_waits, per: ranked_by }
    }
}

impl Section for FilesComparison {
    fn figures(&self) -> Vec<Figure> {
        let figure = |row: &FileRow| {
            let [a, b] = [row.wait.a, row.wait.b].map(|seconds| format::nanoseconds(seconds * 1e9));
            let what = format!("wait for files, {} {}", short_name(&row.event), row.operation.as_str());
            Figure { name: format!("{what}, {}", self.per.as_str()), a, b, ratio: row.wait.ratio }
        };
        self.file_waits.iter().take(SHOWN).map(figure).collect()
    }
}

//! Waits for files, in a report.

use std::collections::BTreeMap;

use maud::{html, Markup};
use serde::Serialize;

use super::figures::{short_name, FileWaits};
use super::FileOperation;
use crate::html::{more, table};
use crate::present::format::{self, NOTHING};
use crate::recording::report::{seconds, Part, Report, Section};
use crate::recording::Recording;

/// The most rows, and files of each, that are shown in words, and the most rows of a page. JSON has all.
const SHOWN: usize = 4;
const FILES: usize = 2;
const ROWS: usize = 20;

/// For which files threads waited.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesReport {
    /// By kind of file and operation, longest first; empty if no thread was seen to wait, or if this was not measured.
    /// Sampled, background threads included.
    pub file_waits: Vec<FileReport>,
}

/// The time that threads were in system calls for files of a kind, without running.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileReport {
    /// The kind of file: the event name of performance_schema's instrument, or `unknown`.
    pub event: String,
    /// What threads did with it.
    pub operation: FileOperation,
    /// The sampled time of all threads together, in seconds.
    pub wait: f64,
    /// Half the width of its 95 % interval, in seconds; `null` if no thread was seen.
    pub error: Option<f64>,
    /// By file, longest first; absent if the kind says enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileTimeReport>,
}

/// The time that threads waited for one file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileTimeReport {
    /// The file, with the folder that contains it; `other` for those that are not counted by file.
    pub file: String,
    /// The sampled time, in seconds.
    pub wait: f64,
    /// The share of the time of the kind and operation, 0 to 1.
    pub share: f64,
}

impl Part for FilesReport {
    fn new(recording: &Recording) -> FilesReport {
        FilesReport { file_waits: by_kind(&recording.file_waits()) }
    }
}

/// Returns the waits by kind and operation, from rows with the longest first.
fn by_kind(rows: &[FileWaits]) -> Vec<FileReport> {
    let mut kinds: BTreeMap<(&str, FileOperation), Vec<&FileWaits>> = BTreeMap::new();
    rows.iter().for_each(|row| kinds.entry((&row.event, row.operation)).or_default().push(row));
    let mut all: Vec<FileReport> =
        kinds.into_iter().map(|((event, operation), rows)| FileReport::new(event, operation, &rows)).collect();
    all.sort_by(|a, b| b.wait.total_cmp(&a.wait));
    all
}

impl FileReport {
    fn new(event: &str, operation: FileOperation, rows: &[&FileWaits]) -> FileReport {
        let all = rows.iter().map(|row| row.wait_ns).fold(0, u64::saturating_add);
        let error_ns = FileWaits::error_ns(rows.iter().copied());
        let with_name = rows.iter().filter(|row| !row.file.is_empty() && row.wait_ns > 0);
        let files = with_name.map(|row| FileTimeReport {
            file: row.file.clone(),
            wait: seconds(row.wait_ns),
            share: row.wait_ns as f64 / all as f64,
        });
        FileReport {
            event: event.to_owned(),
            operation,
            wait: seconds(all),
            error: (error_ns > 0.0).then_some(error_ns / 1e9),
            files: files.collect(),
        }
    }

    /// Returns the time with its error: `~12.3s ±4%`.
    fn time(&self) -> String {
        let time = format::nanoseconds(self.wait * 1e9);
        format::estimate(time, true, self.error.map(|error| error / self.wait))
    }

    /// Returns the first files with their shares: `60% shop/orders.ibd, 30% shop/items.ibd`.
    fn first_files(&self) -> Option<String> {
        let file = |row: &FileTimeReport| format!("{:.0}% {}", 100.0 * row.share, row.file);
        let files: Vec<String> = self.files.iter().take(FILES).map(file).collect();
        (!files.is_empty()).then(|| files.join(", "))
    }

    /// Returns all of it: `innodb_data_file read ~3.10s ±8%: 60% shop/orders.ibd`.
    fn in_words(&self) -> String {
        let files = self.first_files().map(|files| format!(": {files}")).unwrap_or_default();
        format!("{} {} {}{files}", short_name(&self.event), self.operation.as_str(), self.time())
    }
}

impl FilesReport {
    fn waited_for(&self) -> impl Iterator<Item = &FileReport> {
        self.file_waits.iter().filter(|row| row.wait > 0.0)
    }
}

impl Section for FilesReport {
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        let waits: Vec<String> = self.waited_for().take(SHOWN).map(FileReport::in_words).collect();
        (!waits.is_empty()).then(|| ("waits for files".to_owned(), waits.join("; "))).into_iter().collect()
    }

    fn html_details(&self, _report: &Report) -> Markup {
        let rows = self.waited_for().count();
        let row = |row: &FileReport| {
            let files = row.first_files().unwrap_or_else(|| NOTHING.to_owned());
            (short_name(&row.event).to_owned(), vec![row.operation.as_str().to_owned(), row.time(), files])
        };
        html! {
            @if rows > 0 {
                h2 { "Waits for files" }
                p.soft {
                    "Time of threads in system calls for files, without running. From samples; background threads \
                     included."
                }
                (table(&["files", "operation", "wait", "of which for"], self.waited_for().take(ROWS).map(row)))
                (more(rows.saturating_sub(ROWS)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_added_up_by_kind_and_operation() {
        let row = |event: &str, operation, file: &str, ms: u64| FileWaits {
            event: event.to_owned(),
            operation,
            file: file.to_owned(),
            wait_ns: ms * 1_000_000,
            variance_ms2: ms,
        };
        let data = "wait/io/file/innodb/innodb_data_file";
        let all = by_kind(&[
            row("wait/io/file/innodb/innodb_log_file", FileOperation::Sync, "", 20_000),
            row(data, FileOperation::Read, "shop/orders.ibd", 3000),
            row(data, FileOperation::Read, "shop/items.ibd", 1000),
            row(data, FileOperation::Write, "shop/items.ibd", 0),
        ]);
        let words: Vec<String> = all.iter().map(FileReport::in_words).collect();
        assert_eq!(words[0], "innodb_log_file sync ~20.0s ±1%");
        assert_eq!(words[1], "innodb_data_file read ~4.00s ±3%: 75% shop/orders.ibd, 25% shop/items.ibd");
        assert_eq!((all.len(), all[2].wait, all[2].error, all[2].files.len()), (3, 0.0, None, 0));
    }
}

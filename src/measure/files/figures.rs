//! The figures of waits for files.

use super::{FileOperation, FileTime, Place};
use crate::measure::latch::NORMAL_95;
use crate::model::cumulative;

/// The figures of waits for files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The waits, by kind of file, operation and file. Empty if they are not measured.
    pub waits: Vec<FileWaits>,
}

/// For how long threads were in system calls for a file without running, estimated from samples of the threads.
#[derive(Clone, Debug, PartialEq)]
pub struct FileWaits {
    /// What the file is for: the event name of performance_schema's instrument, `wait/io/file/innodb/innodb_log_file`,
    /// or [`FileWaits::UNKNOWN`].
    pub event: String,
    /// What threads do with it.
    pub operation: FileOperation,
    /// The file, with the folder that contains it, where that says more: `shop/orders.ibd`; otherwise empty. `other`
    /// stands for files that have no row of their own, and `#` in a name for any number.
    pub file: String,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
    /// The square of its standard error, in square milliseconds.
    pub variance_ms2: u64,
}

impl FileWaits {
    /// The event of files whose names do not say what they are for.
    pub const UNKNOWN: &'static str = "unknown";

    pub(super) fn new(place: &Place, time: FileTime) -> FileWaits {
        let Place { event, operation, file } = place.clone();
        FileWaits { event: event.to_owned(), operation, file, wait_ns: time.ns, variance_ms2: time.variance_ms2 }
    }

    /// Returns half the width of the 95 % interval of the time of these rows together, in nanoseconds.
    pub fn error_ns<'a>(rows: impl IntoIterator<Item = &'a FileWaits>) -> f64 {
        let variance_ms2: f64 = rows.into_iter().map(|row| row.variance_ms2 as f64).sum();
        NORMAL_95 * variance_ms2.sqrt() * 1e6
    }

    /// Returns what distinguishes the row from others.
    pub fn place(&self) -> (&str, FileOperation, &str) {
        (&self.event, self.operation, &self.file)
    }
}

/// Returns the end of an event name, which says enough: `innodb_log_file`. Files of unknown kinds are `other files`.
pub fn short_name(event: &str) -> &str {
    match event {
        FileWaits::UNKNOWN => "other files",
        event => event.rsplit_once('/').map_or(event, |(_, name)| name),
    }
}

cumulative!(FileWaits { wait_ns, variance_ms2 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_say_which_files() {
        assert_eq!(short_name("wait/io/file/innodb/innodb_log_file"), "innodb_log_file");
        assert_eq!(short_name(FileWaits::UNKNOWN), "other files");
    }
}

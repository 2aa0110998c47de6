//! For which files threads wait: to read, to write, and until what was written is on the disk.
//!
//! Looks at the threads show it (`measure/latch/files`); no probe is needed.

mod compare;
mod figures;
mod metrics;
mod place;
pub mod record;
pub mod report;

pub use figures::{short_name, Figures, FileWaits};
pub use metrics::FileMetrics;
pub(super) use place::Place;

pub use super::latch::FileOperation;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;

use self::compare::FilesComparison;
use self::report::FilesReport;
use super::latch::{FileTime, FileTimes, LatchCollector};
use super::{Attaching, Measurement, Room, Snapshot};
use crate::attach::{stacks_are_shown, Costs};
use crate::catalog::INNODB_FILES;

/// The waits of one server's threads for files.
pub struct Files {
    looks: Arc<LatchCollector>,
    times: Mutex<FileTimes>,
}

impl Room for Files {
    type Figures = Figures;
    type Metrics = FileMetrics;
    type Report = FilesReport;
    type Comparison = FilesComparison;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Files>>> {
        Some(Ok(Arc::new(Files { looks: on.latches.collector(), times: Mutex::default() })))
    }
}

impl Measurement for Files {
    fn refused(&self) -> Vec<String> {
        let why = "waits for files are not measured: Linux before 5.15 does not show what threads do";
        (!stacks_are_shown()).then(|| why.to_owned()).into_iter().collect()
    }

    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        let mut times = self.times.lock();
        times.merge(self.looks.take_files());
        snapshot.files.waits = rows(&times);
        Ok(())
    }
}

/// Returns the rows of what was seen, and of what every server can wait for, so that it shows where there was nothing.
fn rows(times: &FileTimes) -> Vec<FileWaits> {
    let mut rows: BTreeMap<&Place, FileTime> = times.rows.iter().map(|(place, time)| (place, *time)).collect();
    let expected: Vec<Place> = expected().filter(|_| times.is_sampled).collect();
    expected.iter().for_each(|place| _ = rows.entry(place).or_default());
    rows.into_iter().map(|(place, time)| FileWaits::new(place, time)).collect()
}

fn expected() -> impl Iterator<Item = Place> {
    let operations = [FileOperation::Read, FileOperation::Write, FileOperation::Sync];
    let of = move |event| operations.map(|operation| Place { event, operation, file: String::new() });
    INNODB_FILES.into_iter().flat_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_server_has_is_there_once_threads_are_sampled() {
        let mut times = FileTimes::default();
        assert_eq!(rows(&times), []);
        times.is_sampled = true;
        let log = Place { event: INNODB_FILES[1], operation: FileOperation::Sync, file: String::new() };
        times.rows.insert(log, FileTime { ns: 7, variance_ms2: 1 });
        let ns: Vec<u64> = rows(&times).iter().map(|row| row.wait_ns).collect();
        assert_eq!((ns.len(), ns.iter().sum::<u64>()), (6, 7));
    }
}

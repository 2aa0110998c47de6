//! Records waits for files.

use serde::{Deserialize, Serialize};

use super::figures::FileWaits;
use super::FileOperation;
use crate::measure::Snapshot;
use crate::model::OTHER;
use crate::recording::{Bound, Counts, Recording, Row};

/// What threads wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileKey {
    /// The kind of file; see [`FileWaits::event`].
    pub event: String,
    /// The operation, as in the `operation` label.
    pub operation: String,
    /// The file; see [`FileWaits::file`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
}

impl FileKey {
    /// Returns the key of all files of this kind that have no row of their own.
    fn of_kind(&self) -> FileKey {
        FileKey { file: OTHER.to_owned(), ..self.clone() }
    }

    fn of_others(&self) -> FileKey {
        FileKey { event: FileWaits::UNKNOWN.to_owned(), ..self.of_kind() }
    }
}

/// Nanoseconds, and the square of their standard error in square milliseconds.
impl Row for FileWaits {
    type Key = FileKey;
    type Total = Counts<2>;

    const BOUNDS: &'static [Bound<FileKey>] = &[
        Bound { rows: 200, other: FileKey::of_kind },
        Bound { rows: 100, other: |key| if *key == key.of_kind() { key.of_others() } else { key.clone() } },
    ];

    fn entries(now: &Snapshot) -> Vec<&FileWaits> {
        now.files.waits.iter().collect()
    }

    fn key(&self) -> FileKey {
        FileKey { event: self.event.clone(), operation: self.operation.as_str().to_owned(), file: self.file.clone() }
    }

    fn total(&self) -> Counts<2> {
        Counts([self.wait_ns, self.variance_ms2])
    }

    /// What every server can wait for.
    fn keeps_empty(key: &FileKey) -> bool {
        key.file.is_empty()
    }

    fn fault(key: &FileKey) -> Option<&'static str> {
        FileOperation::from_name(&key.operation).is_none().then_some("an operation on files that does not exist")
    }

    fn restore(key: &FileKey, Counts([wait_ns, variance_ms2]): Counts<2>) -> FileWaits {
        let FileKey { event, operation, file } = key.clone();
        let operation = FileOperation::from_name(&operation).unwrap_or(FileOperation::Read);
        FileWaits { event, operation, file, wait_ns, variance_ms2 }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<FileWaits> {
        &mut snapshot.files.waits
    }

    fn weight(Counts([wait_ns, _]): &Counts<2>) -> u64 {
        *wait_ns
    }
}

impl Recording {
    /// Returns the waits for files, longest first.
    pub fn file_waits(&self) -> Vec<FileWaits> {
        let mut rows = self.entries::<FileWaits>();
        rows.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.place().cmp(&b.place())));
        rows
    }
}

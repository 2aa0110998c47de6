//! For which files threads wait: to read, to write, and until what was written is on the disk.
//!
//! Looks at the threads show it (`measure/latch/files`); no probe is needed. Here files get names.

mod compare;
mod figures;
mod metrics;
pub mod record;
pub mod report;

pub use figures::{short_name, Figures, FileWaits};
pub use metrics::FileMetrics;

pub use super::latch::FileOperation;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;

use self::compare::FilesComparison;
use self::figures::Place;
use self::report::FilesReport;
use super::latch::{FileTime, LatchCollector, SeenFile};
use super::{Attaching, Measurement, Room, Snapshot};
use crate::attach::{stacks_are_shown, Costs};
use crate::catalog::{file_kind, INNODB_FILES};
use crate::model::OTHER;

/// The most rows. What has none of its own lacks the name of the file; there are few such rows.
const MOST_ROWS: usize = 1024;

/// The waits of one server's threads for files.
pub struct Files {
    looks: Arc<LatchCollector>,
    waits: Mutex<BTreeMap<Place, FileTime>>,
}

impl Room for Files {
    type Figures = Figures;
    type Metrics = FileMetrics;
    type Report = FilesReport;
    type Comparison = FilesComparison;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Files>>> {
        Some(Ok(Arc::new(Files { looks: on.latches.collector(), waits: Mutex::default() })))
    }
}

impl Measurement for Files {
    fn refused(&self) -> Vec<String> {
        let why = "waits for files are not measured: Linux before 5.15 does not show what threads do";
        (!stacks_are_shown()).then(|| why.to_owned()).into_iter().collect()
    }

    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        if !stacks_are_shown() {
            return Ok(());
        }
        let mut waits = self.waits.lock();
        let seen = self.looks.take_files();
        if seen.is_sampled {
            expected().for_each(|place| _ = waits.entry(place).or_default());
        }
        seen.rows.into_iter().for_each(|(seen, time)| add(&mut waits, place(&seen), time));
        snapshot.files.waits = waits.iter().map(|(place, time)| FileWaits::new(place, *time)).collect();
        Ok(())
    }
}

/// Returns waits that every server can have, so that it shows where there were none.
fn expected() -> impl Iterator<Item = Place> {
    let operations = [FileOperation::Read, FileOperation::Write, FileOperation::Sync];
    let of = move |event: &str| {
        operations.map(|operation| Place { event: event.to_owned(), operation, file: String::new() })
    };
    INNODB_FILES.into_iter().flat_map(of)
}

/// Returns what a thread waits for that was seen with a file.
fn place(seen: &SeenFile) -> Place {
    let path = |name: &str| format!("{}/{name}", seen.folder);
    let (event, file) = match file_kind(&seen.name) {
        Some(kind) if kind.is_of_table => (kind.event, path(&lasting(&seen.name))),
        // One of several that follow each other says nothing.
        Some(kind) => (kind.event, String::new()),
        None if seen.name.is_empty() => (FileWaits::UNKNOWN, OTHER.to_owned()),
        None => (FileWaits::UNKNOWN, path(&lasting(&seen.name))),
    };
    Place { event: event.to_owned(), operation: seen.operation, file }
}

/// Returns what stays the same in the name of a file that exists for a while only, as that of a copy of a table or a
/// temporary file: `#sql-ib#-#.ibd` of `#sql-ib1067-2513.ibd`. Others keep their names. Linux names a file without a
/// name after its number: `#1234567`.
fn lasting(name: &str) -> String {
    let is_temporary = name.starts_with('#') || file_kind(name).is_none();
    if !is_temporary {
        return name.to_owned();
    }
    let is_random = ["MY", "ML", "ib"].iter().any(|begin| name.starts_with(begin)) && !name.contains('.');
    if is_random {
        return format!("{}#", &name[..2]);
    }
    let digits = |c: char| c.is_ascii_digit();
    let mut text = String::new();
    for part in name.split_inclusive(digits) {
        let letters = part.trim_end_matches(digits);
        text.push_str(letters);
        if letters.len() < part.len() && !text.ends_with('#') {
            text.push('#');
        }
    }
    text
}

/// Adds a time. If there are too many rows, the lightest makes room.
fn add(waits: &mut BTreeMap<Place, FileTime>, place: Place, more: FileTime) {
    if waits.len() >= MOST_ROWS && !waits.contains_key(&place) {
        let with_name = waits.iter().filter(|(place, _)| !place.file.is_empty() && place.file != OTHER);
        let lightest = with_name.min_by_key(|(_, time)| time.ns).map(|(place, _)| place.clone());
        if let Some((place, time)) = lightest.and_then(|place| waits.remove_entry(&place)) {
            count(waits, Place { file: OTHER.to_owned(), ..place }, time);
        }
    }
    count(waits, place, more);
}

fn count(waits: &mut BTreeMap<Place, FileTime>, place: Place, more: FileTime) {
    let time = waits.entry(place).or_default();
    time.ns = time.ns.saturating_add(more.ns);
    time.variance_ms2 = time.variance_ms2.saturating_add(more.variance_ms2);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(folder: &str, name: &str) -> SeenFile {
        SeenFile { operation: FileOperation::Read, name: name.to_owned(), folder: folder.to_owned() }
    }

    #[test]
    fn tables_have_a_name_and_files_in_a_row_have_none() {
        let of = |folder, name| {
            let place = place(&seen(folder, name));
            (place.event, place.file)
        };
        let row = |event: &str, file: &str| (event.to_owned(), file.to_owned());
        assert_eq!(of("shop", "orders.ibd"), row("wait/io/file/innodb/innodb_data_file", "shop/orders.ibd"));
        assert_eq!(of("#innodb_redo", "#ib_redo17"), row("wait/io/file/innodb/innodb_log_file", ""));
        assert_eq!(of("tmp", "slow.log"), row(FileWaits::UNKNOWN, "tmp/slow.log"));
        assert_eq!(of("", ""), row(FileWaits::UNKNOWN, OTHER));
    }

    #[test]
    fn files_that_come_and_go_share_a_name() {
        let names = [
            ("#1234567", "#"),
            ("#sql-ib1067-2513.ibd", "#sql-ib#-#.ibd"),
            ("000123.sst", "#.sst"),
            ("MLx9Yz2a", "ML#"),
            ("t2024.ibd", "t2024.ibd"),
            ("slow.log", "slow.log"),
            ("a1b", "a#b"),
        ];
        for (name, expected) in names {
            assert_eq!(lasting(name), expected);
        }
    }

    #[test]
    fn rows_are_bounded_and_no_time_is_lost() {
        let mut waits = BTreeMap::new();
        let time = |ns| FileTime { ns, variance_ms2: 2 };
        let table = |n: usize| place(&seen("shop", &format!("t{n}.ibd")));
        (0..MOST_ROWS).for_each(|n| add(&mut waits, table(n), time(1)));
        add(&mut waits, table(0), time(1));
        (0..MOST_ROWS).for_each(|n| add(&mut waits, table(MOST_ROWS + n), time(5)));
        let sum = |of: fn(&FileTime) -> u64| waits.values().map(of).sum::<u64>();
        let all = 2 * MOST_ROWS as u64;
        assert!(waits.len() <= MOST_ROWS + 1, "{}", waits.len());
        assert_eq!((sum(|time| time.ns), sum(|time| time.variance_ms2)), (3 * all + 1, 2 * (all + 1)));
        let last = waits.get(&table(2 * MOST_ROWS - 1)).map(|time| time.ns);
        assert_eq!(last, Some(5), "one that comes late has a row of its own");
    }
}

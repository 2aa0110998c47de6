//! What a file is called in figures.

use super::figures::FileWaits;
use super::FileOperation;
use crate::catalog::file_kind;
use crate::model::OTHER;

/// What threads wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::measure) struct Place {
    /// See [`FileWaits::event`].
    pub event: &'static str,
    pub operation: FileOperation,
    /// See [`FileWaits::file`].
    pub file: String,
}

impl Place {
    /// Returns what a thread waits for that does this with a file, given its name and that of its folder.
    pub fn new(operation: FileOperation, name: &str, folder: &str) -> Place {
        let path = || format!("{folder}/{}", lasting(name));
        let (event, file) = match file_kind(name) {
            Some(kind) if kind.is_of_table => (kind.event, path()),
            // One of several that follow each other says nothing.
            Some(kind) => (kind.event, String::new()),
            None => (FileWaits::UNKNOWN, path()),
        };
        Place { event, operation, file }
    }

    /// Returns what stands for all files of a kind that have no row of their own.
    pub fn of_others(self) -> Place {
        Place { file: OTHER.to_owned(), ..self }
    }
}

/// Returns what stays the same in the name of a file that exists for a while only, as that of a copy of a table or a
/// temporary file: `#sql-ib#-#.ibd` of `#sql-ib1067-2513.ibd`. Others keep their names. Linux names a file without a
/// name after its number: `#1234567`.
fn lasting(name: &str) -> String {
    let is_temporary = name.starts_with('#') || file_kind(name).is_none();
    if !is_temporary {
        return name.to_owned();
    }
    let is_random = |rest: &str| rest.len() == 6 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if let Some(begin) = ["MY", "ML"].into_iter().find(|begin| name.strip_prefix(begin).is_some_and(is_random)) {
        return format!("{begin}#");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_name_and_files_in_a_row_have_none() {
        let of = |folder, name| {
            let place = Place::new(FileOperation::Read, name, folder);
            (place.event, place.file)
        };
        let row = |event: &'static str, file: &str| (event, file.to_owned());
        assert_eq!(of("shop", "orders.ibd"), row("wait/io/file/innodb/innodb_data_file", "shop/orders.ibd"));
        assert_eq!(of("#innodb_redo", "#ib_redo17"), row("wait/io/file/innodb/innodb_log_file", ""));
        assert_eq!(of("tmp", "slow.log"), row(FileWaits::UNKNOWN, "tmp/slow.log"));
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
            ("ib_buffer_pool", "ib_buffer_pool"),
            ("a1b", "a#b"),
        ];
        for (name, expected) in names {
            assert_eq!(lasting(name), expected);
        }
    }
}

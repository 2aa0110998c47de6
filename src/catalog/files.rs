//! Files of servers: what each is for, by its name.

/// The files that one instrument of performance_schema times.
#[derive(Debug)]
pub struct FileKind {
    /// How they are named.
    pub named: Named,
    /// The instrument's event name.
    pub event: &'static str,
    /// Whether each belongs to one table, in a folder with the name of the schema.
    pub is_of_table: bool,
}

/// How files are named.
#[derive(Debug)]
pub enum Named {
    /// With this at the end.
    Ending(&'static str),
    /// This, a number, and this.
    Numbered(&'static str, &'static str),
    /// This, and as many letters and digits at random.
    Random(&'static str, usize),
    /// With this in the middle, and at the end a point and a number of six digits, or of seven after a million.
    Serial(&'static str),
    /// Just this.
    Exactly(&'static str),
}

const DATA: &str = "wait/io/file/innodb/innodb_data_file";
const TEMPORARY: &str = "wait/io/file/innodb/innodb_temp_file";
/// The event name of InnoDB's redo log.
pub const REDO_LOG: &str = "wait/io/file/innodb/innodb_log_file";
const DOUBLEWRITE: &str = "wait/io/file/innodb/innodb_dblwr_file";

/// InnoDB's files whose waits every server can have: those of tables, and its log.
pub const INNODB_FILES: [&str; 2] = [DATA, REDO_LOG];

/// The kinds of files of all families; the first whose name fits is the right one. Not among them are logs of queries,
/// whose names users choose, and temporary files of the SQL layer. Users choose those of binary and relay logs too,
/// which mostly keep the number and the usual end.
pub const FILE_KINDS: &[FileKind] = &[
    table(Named::Ending(".ibd"), DATA),
    shared(Named::Ending(".ibu"), DATA),
    shared(Named::Numbered("ibdata", ""), DATA),
    shared(Named::Numbered("ibtmp", ""), DATA),
    shared(Named::Numbered("undo_", ""), DATA),
    shared(Named::Numbered("undo", ""), DATA),
    shared(Named::Ending(".ibt"), TEMPORARY),
    shared(Named::Random("ib", 6), TEMPORARY),
    shared(Named::Numbered("ib_logfile", ""), REDO_LOG),
    shared(Named::Numbered("#ib_redo", ""), REDO_LOG),
    shared(Named::Numbered("#ib_redo", "_tmp"), REDO_LOG),
    shared(Named::Ending(".dblwr"), DOUBLEWRITE),
    shared(Named::Ending(".bdblwr"), DOUBLEWRITE),
    table(Named::Ending(".MYD"), "wait/io/file/myisam/dfile"),
    table(Named::Ending(".MYI"), "wait/io/file/myisam/kfile"),
    table(Named::Ending(".MAD"), "wait/io/file/aria/MAD"),
    table(Named::Ending(".MAI"), "wait/io/file/aria/MAI"),
    shared(Named::Numbered("aria_log.", ""), "wait/io/file/aria/translog"),
    shared(Named::Exactly("aria_log_control"), "wait/io/file/aria/control"),
    table(Named::Ending(".CSV"), "wait/io/file/csv/data"),
    table(Named::Ending(".CSM"), "wait/io/file/csv/metadata"),
    table(Named::Ending(".ARZ"), "wait/io/file/archive/data"),
    table(Named::Ending(".frm"), "wait/io/file/sql/FRM"),
    shared(Named::Serial("-relay-bin"), "wait/io/file/sql/relaylog"),
    shared(Named::Serial(""), "wait/io/file/sql/binlog"),
];

const fn table(named: Named, event: &'static str) -> FileKind {
    FileKind { named, event, is_of_table: true }
}

const fn shared(named: Named, event: &'static str) -> FileKind {
    FileKind { named, event, is_of_table: false }
}

impl Named {
    fn is_name_of(&self, name: &str) -> bool {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Named::Ending(end) => name.len() > end.len() && name.ends_with(end),
            Named::Numbered(before, after) => {
                name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).is_some_and(is_number)
            }
            Named::Random(before, length) => name
                .strip_prefix(before)
                .is_some_and(|rest| rest.len() == *length && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())),
            Named::Serial(within) => name.rsplit_once('.').is_some_and(|(base, number)| {
                let is_serial = number.len() == 6 || number.len() == 7 && !number.starts_with('0');
                !base.is_empty() && base.contains(within) && is_serial && is_number(number)
            }),
            Named::Exactly(all) => name == *all,
        }
    }
}

/// Returns what a file with this name, without its folder, is for; `None` if that is not known.
pub fn file_kind(name: &str) -> Option<&'static FileKind> {
    FILE_KINDS.iter().find(|kind| kind.named.is_name_of(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_files_are_for() {
        let cases = [
            ("sbtest1#p#p0.ibd", Some(DATA)),
            ("ibdata1", Some(DATA)),
            ("ibdata", None),
            ("undo_001", Some(DATA)),
            ("undo001", Some(DATA)),
            ("temp_10.ibt", Some(TEMPORARY)),
            ("ibXy12Zz", Some(TEMPORARY)),
            ("ib_buffer_pool", None),
            ("#ib_redo17", Some(REDO_LOG)),
            ("#ib_redo25_tmp", Some(REDO_LOG)),
            ("ib_logfile0", Some(REDO_LOG)),
            ("#ib_16384_0.dblwr", Some(DOUBLEWRITE)),
            ("aria_log.00000001", Some("wait/io/file/aria/translog")),
            ("binlog.000123", Some("wait/io/file/sql/binlog")),
            ("binlog.1000000", Some("wait/io/file/sql/binlog")),
            ("db1-relay-bin.000123", Some("wait/io/file/sql/relaylog")),
            (".000123", None),
            ("notes.123", None),
            ("copy.20240101", None),
            (".ibd", None),
            ("", None),
        ];
        for (name, event) in cases {
            assert_eq!(file_kind(name).map(|kind| kind.event), event, "{name}");
        }
        assert!(INNODB_FILES.iter().all(|event| FILE_KINDS.iter().any(|kind| kind.event == *event)));
    }
}

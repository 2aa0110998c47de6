//! The file: TOML, whose keys are the names of options.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::Spanned;

use super::error::{ConfigError, Problem};

/// The size in bytes of the largest file that is read. All settings together have less than a thousand.
const MOST_BYTES: u64 = 1 << 20;

/// A value of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A string, or a number as it is written.
    One(String),
    Switch(bool),
    Many(Vec<String>),
    /// A type that no option takes.
    Other(&'static str),
}

/// A setting of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The option's name.
    pub key: String,
    pub value: Value,
    /// The number of the key's line, from 1.
    pub line: usize,
}

/// Reads the settings of a file, in the order of its lines.
///
/// # Errors
/// Fails if the file cannot be read, or is not TOML.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, ConfigError> {
    let bytes = bytes(path).map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?;
    parse(&bytes).map_err(|(line, what)| ConfigError::Line { path: path.to_owned(), line, what })
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the settings in these bytes, or the number of the line that is wrong, and why.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Entry>, (usize, Problem)> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err((1, Problem::TooLarge(MOST_BYTES)));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| (line_at(bytes, e.valid_up_to()), Problem::NotText))?;
    let table = DeTable::parse(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        (line_at(bytes, place), Problem::Syntax(error.message().trim().replace('\n', ", ")))
    })?;
    let mut entries = Vec::new();
    collect("", table.get_ref(), text, &mut entries);
    entries.sort_by_key(|entry| entry.line);
    let mut seen = std::collections::BTreeSet::new();
    match entries.iter().find(|entry| !seen.insert(&entry.key)) {
        Some(twice) => Err((twice.line, Problem::Twice(twice.key.clone()))),
        None => Ok(entries),
    }
}

/// Adds the settings of a table. TOML takes the dots of a key that is not in quotes for tables in tables.
fn collect(prefix: &str, table: &DeTable, text: &str, entries: &mut Vec<Entry>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        if let DeValue::Table(table) = value.get_ref() {
            collect(&format!("{key}."), table, text, entries);
        } else {
            let line = line_at(text.as_bytes(), name.span().start);
            entries.push(Entry { key, value: of(value, text), line });
        }
    }
}

fn of(value: &Spanned<DeValue>, text: &str) -> Value {
    match value.get_ref() {
        DeValue::Boolean(on) => Value::Switch(*on),
        DeValue::Array(values) => {
            let single = |value| match of(value, text) {
                Value::One(text) => Some(text),
                _ => None,
            };
            let values: Option<Vec<String>> = values.iter().map(single).collect();
            values.map_or(Value::Other("an array of other things than strings"), Value::Many)
        }
        DeValue::String(text) => Value::One(text.clone().into_owned()),
        DeValue::Integer(_) | DeValue::Float(_) => Value::One(as_written(text, value.span())),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

/// Returns a number as options take it.
fn as_written(text: &str, place: Range<usize>) -> String {
    text.get(place).unwrap_or_default().replace('_', "")
}

/// Returns the number of the line, from 1, that has this byte.
fn line_at(bytes: &[u8], place: usize) -> usize {
    1 + bytes.iter().take(place).filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: Value, line: usize) -> Entry {
        Entry { key: key.to_owned(), value, line }
    }

    fn one(text: &str) -> Value {
        Value::One(text.to_owned())
    }

    #[test]
    fn values_are_strings_numbers_switches_and_arrays() {
        let text = "\u{feff}# comment\nlisten = ':1'\nsample-hz = 1_0\nmax-overhead = 0.01\n\nhardware-events = true\n\
            allowed-hosts = ['a',\n  'b']\ndate = 2026-01-01\nmixed = ['a', true]\n";
        let expected = [
            entry("listen", one(":1"), 2),
            entry("sample-hz", one("10"), 3),
            entry("max-overhead", one("0.01"), 4),
            entry("hardware-events", Value::Switch(true), 6),
            entry("allowed-hosts", Value::Many(vec!["a".to_owned(), "b".to_owned()]), 7),
            entry("date", Value::Other("a date"), 9),
            entry("mixed", Value::Other("an array of other things than strings"), 10),
        ];
        assert_eq!(parse(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn dots_may_be_keys_quotes_or_a_table() {
        for text in ["web.config.file = 'x'", "'web.config.file' = 'x'", "web = { config.file = 'x' }"] {
            assert_eq!(parse(text.as_bytes()).unwrap(), [entry("web.config.file", one("x"), 1)], "{text}");
        }
        assert_eq!(parse(b"[web.config]\nfile = 'x'").unwrap(), [entry("web.config.file", one("x"), 2)]);
    }

    #[test]
    fn the_line_that_is_wrong_is_named() {
        for (text, line) in [
            (&b"a = 1\nb = \n"[..], 2),
            (b"a = 1\n\nb", 3),
            (b"a = 1\na = 2\n", 2),
            (b"\n\n= 1\n", 3),
            (b"a = '''\n\n", 3),
            (b"a = 1\nb = '\xff'\n", 2),
            (b"web.config.file = 'x'\n\n'web.config.file' = 'y'\n", 3),
        ] {
            let (found, problem) = parse(text).expect_err("an error");
            assert_eq!(found, line, "{}: {problem}", String::from_utf8_lossy(text));
            assert!(!problem.to_string().contains('\n'), "{problem}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let text = "#".repeat(usize::try_from(MOST_BYTES).unwrap() + 1);
        assert_eq!(parse(text.as_bytes()), Err((1, Problem::TooLarge(MOST_BYTES))));
        assert_eq!(parse(&text.as_bytes()[1..]), Ok(Vec::new()));
    }
}

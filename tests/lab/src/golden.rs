//! Output as a whole, compared with files in `tests/golden/`.

use std::fs;

/// Checks that a file in `tests/golden/` has this text. With `ARMTRACE_BLESS=1` in the environment, writes the text
/// there instead.
///
/// # Panics
/// Panics with the first line that differs.
pub fn check(name: &str, text: &str) {
    let path = crate::repository("tests/golden").join(name);
    // One element of a web page a line.
    let text = if name.ends_with(".html") { text.replace("><", ">\n<") } else { text.to_owned() };
    if std::env::var_os("ARMTRACE_BLESS").is_some() {
        return fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut both = text.lines().zip(expected.lines()).zip(1..);
    if let Some(((now, before), line)) = both.find(|((now, before), _)| now != before) {
        panic!("tests/golden/{name}:{line} was\n{before}\nand is now\n{now}");
    }
    assert_eq!(text.lines().count(), expected.lines().count(), "lines of tests/golden/{name}");
}

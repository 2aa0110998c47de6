//! What unit tests find, compared with files beside the code; `tests/lab/src/golden.rs` does it for output as a whole.

use std::fs;
use std::path::Path;

/// Checks that a file in `src/` has this text. With `ARMTRACE_BLESS=1` in the environment, writes it there instead.
pub fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
    if std::env::var_os("ARMTRACE_BLESS").is_some() {
        return fs::write(&path, text).expect("it can be written");
    }
    let expected = fs::read_to_string(&path).expect("the file");
    let mut both = text.lines().zip(expected.lines()).zip(1..);
    if let Some(((now, before), line)) = both.find(|((now, before), _)| now != before) {
        panic!("{name}:{line} was\n{before}\nand is now\n{now}");
    }
    assert_eq!(text.lines().count(), expected.lines().count(), "lines of {name}");
}

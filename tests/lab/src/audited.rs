//! Programs that are audited from memory, and what is found in them.

use std::io::Write;
use std::path::Path;

use armtrace::audit::{self, classes, Counted, Report};
use armtrace::symbols::{Arch, Image};
use tempfile::NamedTempFile;

/// Returns a temporary file with these bytes.
pub fn written(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("space for it");
    file
}

/// Opens a program that has these bytes.
pub fn image(bytes: &[u8]) -> Image {
    Image::open(written(bytes).path()).expect("a program")
}

/// Returns the audit of a program that has these bytes.
pub fn report(bytes: &[u8]) -> Report {
    audit::audit(&image(bytes), Path::new("test")).expect("a program with code")
}

/// Returns the names of the classes found in a program, and their counts.
pub fn found(arch: Arch, counted: &Counted) -> Vec<(&'static str, u32)> {
    counted.totals.iter().map(|(class, n)| (classes(arch)[usize::from(class)].name, n)).collect()
}

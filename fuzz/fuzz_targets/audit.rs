//! The audit: the ELF reader, and the decoders for both architectures.
//!
//! A fuzzer rarely generates a complete program. So every input is used as a program, and as the code of a valid
//! program for each architecture.

#![no_main]

#[path = "../../tests/lab/src/elf.rs"]
mod elf;

use std::fs;
use std::path::{Path, PathBuf};

use armtrace::audit::{self, Html, Text};
use armtrace::discovery;
use armtrace::symbols::{self, Image, DebugRoots, Settings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let file = PathBuf::from(format!("/dev/shm/armtrace-fuzz-{}", std::process::id()));
    examine(&file, input);
    for machine in [elf::X86_64, elf::AARCH64] {
        examine(&file, &elf::elf(machine, input));
    }
});

/// Audits a program as `armtrace audit` does, and compares it with itself.
fn examine(file: &Path, program: &[u8]) {
    fs::write(file, program).expect("memory for a file");
    let Ok(mut image) = Image::open(file) else { return };
    // A folder without debug files, so that only the program's own symbols are used.
    let places = DebugRoots::in_folder(Path::new("/proc/self/fdinfo"), file).expect("a folder");
    let settings = Settings::from_env(None);
    _ = symbols::complete(&mut image, &places, &settings, discovery::misses_symbols);
    let Ok(report) = audit::audit(&image, Path::new("fuzz")) else { return };
    _ = (Text(&report).to_string(), Html(&report).to_string());
    let comparison = audit::compare(report.clone(), report);
    _ = (Text(&comparison).to_string(), Html(&comparison).to_string());
}

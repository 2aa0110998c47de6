//! The audit: the reader of programs, and the decoders of both architectures' code.
//!
//! A fuzzer seldom makes a whole program. So an input is tried as a program, and as the code of a right program for each architecture.

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
    look_at(&file, input);
    for machine in [elf::X86_64, elf::AARCH64] {
        look_at(&file, &elf::elf(machine, input));
    }
});

/// As `armtrace audit` does, twice: alone, and as both of a comparison.
fn look_at(file: &Path, program: &[u8]) {
    fs::write(file, program).expect("memory for a file");
    let Ok(mut image) = Image::open(file) else { return };
    // Where nothing is: the program's own symbols are all that there are.
    let places = DebugRoots::in_folder(Path::new("/proc/self/fdinfo"), file).expect("a folder");
    let settings = Settings::from_env(None);
    _ = symbols::complete(&mut image, &places, &settings, discovery::misses_symbols);
    let Ok(report) = audit::audit(&image, Path::new("fuzz")) else { return };
    _ = (Text(&report).to_string(), Html(&report).to_string());
    let comparison = audit::compare(report.clone(), report);
    _ = (Text(&comparison).to_string(), Html(&comparison).to_string());
}

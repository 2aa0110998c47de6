//! Small programs, compiled for both architectures, with the functions and data by which servers are recognised, or
//! with what an audit counts. They show what is found in a program without a server at hand; `make binaries` repeats it
//! on real ones.

mod files;
mod instructions;
mod library;
mod mariadb;
mod mysql;
mod structures;

use std::path::Path;
use std::process::Command;

use armtrace::discovery;
use armtrace::measure::latch::{plan, Allowed, Plan};
use armtrace::symbols::Image;

/// The compilers, one for each architecture.
const COMPILERS: [&str; 2] = ["gcc", "aarch64-linux-gnu-gcc"];

/// Compiles a program from files in this folder, with these options.
fn build(compiler: &str, sources: &[&str], options: &[&str], program: &Path) {
    let compiler = if cfg!(target_arch = "aarch64") && compiler == "gcc" { "x86_64-linux-gnu-gcc" } else { compiler };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let status = Command::new(compiler)
        // As between files of a server: no function is known to leave registers alone, and each variable has an address
        // of its own.
        .args([
            "-O2",
            "-fno-ipa-ra",
            "-fno-ipa-icf",
            "-fno-section-anchors",
            "-fasynchronous-unwind-tables",
            "-fPIE",
            "-pie",
            "-nostartfiles",
        ])
        .arg("-Wl,--export-dynamic,--eh-frame-hdr,-e,start")
        .args(options)
        .args(["-o".as_ref(), program.as_os_str()])
        .args(sources.iter().map(|name| folder.join(name)))
        .status();
    assert!(status.expect("cannot run the compiler (tests/lab/setup)").success(), "{compiler}");
}

/// Compiles a program, and opens it. The image stays mapped when the temporary file is deleted.
fn compiled(compiler: &str, sources: &[&str], options: &[&str]) -> Image {
    let program = tempfile::NamedTempFile::new().expect("a temporary file");
    build(compiler, sources, options, program.path());
    Image::open(program.path()).unwrap_or_else(|error| panic!("{error}"))
}

fn latch_plan(image: &Image) -> Plan {
    plan(
        image,
        discovery::family(image).expect("a known family"),
        Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true },
    )
}

fn address(image: &Image, name: &str) -> u64 {
    image.symbol(name).unwrap_or_else(|| panic!("{name}")).addr
}

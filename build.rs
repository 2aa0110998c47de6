//! Compiles `bpf/*.bpf.c` and generates a skeleton for each: `OUT_DIR/NAME.skel.rs`. `OUT_DIR/skeletons.rs` has a
//! module for each of them. Tells the compiler of which revision this is.
//!
//! The programs hold nothing that differs between architectures, so one object serves both. The CPU
//! version is pinned because newer compilers default to instructions that older kernels refuse.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, Context, Result};
use libbpf_cargo::SkeletonBuilder;

/// What the program is made of. What else is in the repository may change without a new build.
const SOURCES: [&str; 5] = ["src", "bpf", "build.rs", "Cargo.toml", "Cargo.lock"];

fn main() -> Result<()> {
    compile_programs()?;
    tell_version()
}

fn compile_programs() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let clang = find_clang()?;
    println!("cargo:rerun-if-env-changed=CLANG");
    let mut modules = String::new();
    for name in programs()? {
        let skeleton = out.join(format!("{name}.skel.rs"));
        modules += &format!(
            "#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]\n\
             pub mod {name} {{ include!({skeleton:?}); }}\n"
        );
        SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
            .clang(&clang)
            .clang_args(["-Wall", "-Werror", "-Wno-unused-function", "-mcpu=v2"])
            .build_and_generate(&skeleton)
            .with_context(|| format!("building bpf/{name}.bpf.c"))?;
    }
    fs::write(out.join("skeletons.rs"), modules).context("writing the list of skeletons")
}

/// Returns the names of all programs, in alphabetical order.
fn programs() -> Result<Vec<String>> {
    let files = fs::read_dir("bpf").context("listing bpf/")?.collect::<std::io::Result<Vec<_>>>()?;
    let names = files.iter().filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".bpf.c")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Returns `$CLANG`, or the newest clang on the path that compiles for BPF. `targets_bpf` in `tests/lab/lib.sh` looks for it
/// in the same way.
fn find_clang() -> Result<PathBuf> {
    if let Some(clang) = env::var_os("CLANG") {
        return Ok(clang.into());
    }
    let folders: Vec<PathBuf> = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let files = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let mut versions: Vec<u32> =
        files.filter_map(|file| file.file_name().to_str()?.strip_prefix("clang-")?.parse().ok()).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.dedup();
    let mut names = versions.iter().map(|version| format!("clang-{version}")).chain(["clang".to_owned()]);
    match names.find(|name| compiles_for_bpf(name)) {
        Some(name) => Ok(name.into()),
        None => bail!("no clang here compiles for BPF: install the package clang, or set CLANG to its path"),
    }
}

fn compiles_for_bpf(clang: &str) -> bool {
    let arguments = ["-target", "bpf", "-x", "c", "-c", "-o", "/dev/null", "/dev/null"];
    Command::new(clang).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Sets `ARMTRACE_VERSION`, `ARMTRACE_REVISION` and `ARMTRACE_RUSTC` for the compiler; what is not known is empty.
///
/// The revision is asked for when a source has changed, not after each commit, which would compile everything anew. So
/// the program names the revision whose sources it was built from, with a mark if they had been changed.
fn tell_version() -> Result<()> {
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    for variable in ["ARMTRACE_REVISION", "ARMTRACE_REVISION_DATE"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let (revision, date) = given_revision().or_else(git_revision).unwrap_or_default();
    let details: Vec<String> =
        [format!("rev {revision}"), date].into_iter().filter(|part| !part.is_empty() && !revision.is_empty()).collect();
    let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
    let number = env::var("CARGO_PKG_VERSION").context("cargo sets CARGO_PKG_VERSION")?;
    let compiler = env::var_os("RUSTC").context("cargo sets RUSTC")?;
    let compiler = output(Command::new(compiler).arg("--version"));
    let compiler = compiler.as_deref().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    println!("cargo:rustc-env=ARMTRACE_VERSION={number}{details}");
    println!("cargo:rustc-env=ARMTRACE_REVISION={revision}");
    println!("cargo:rustc-env=ARMTRACE_RUSTC={compiler}");
    Ok(())
}

/// Returns the revision and its date as the environment has them, for builds whose folder is no repository or another
/// one.
fn given_revision() -> Option<(String, String)> {
    let revision = env::var("ARMTRACE_REVISION").ok().filter(|revision| !revision.is_empty())?;
    Some((revision, env::var("ARMTRACE_REVISION_DATE").unwrap_or_default()))
}

/// Returns the revision and its date if this folder is a git repository, not only in one.
fn git_revision() -> Option<(String, String)> {
    let git = |arguments: &[&str]| output(Command::new("git").args(arguments));
    let top = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if top != env::current_dir().ok()? {
        return None;
    }
    let mut revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[&["status", "--porcelain", "--"][..], &SOURCES].concat())?;
    if !changed.is_empty() {
        revision += "-dirty";
    }
    Some((revision, git(&["log", "-1", "--format=%cs"])?))
}

/// Returns what a command prints, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

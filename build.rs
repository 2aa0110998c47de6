//! Compiles `bpf/*.bpf.c` and generates a skeleton for each: `OUT_DIR/NAME.skel.rs`. `OUT_DIR/skeletons.rs` has a
//! module for each of them.
//!
//! The programs hold nothing that differs between architectures, so one object serves both. The CPU
//! version is pinned because newer compilers default to instructions that older kernels refuse.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, Context, Result};
use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let clang = find_clang()?;
    println!("cargo:rerun-if-changed=bpf");
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

//! Compiles `bpf/*.bpf.c` and generates a skeleton for each: `OUT_DIR/NAME.skel.rs`. `OUT_DIR/skeletons.rs` has a
//! module for each of them.
//!
//! The programs hold nothing that differs between architectures, so one object serves both. The CPU
//! version is pinned because newer compilers default to instructions that older kernels refuse.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
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

/// Returns `$CLANG`, or the newest clang that Debian may have installed.
fn find_clang() -> Result<PathBuf> {
    if let Some(clang) = env::var_os("CLANG") {
        return Ok(clang.into());
    }
    for name in ["clang", "clang-19", "clang-16", "clang-15", "clang-14"] {
        if Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()) {
            return Ok(Path::new(name).into());
        }
    }
    bail!("no clang found: install the package clang-16, or set CLANG to its path")
}

//! Compiles `bpf/*.bpf.c` and generates a skeleton for each: `OUT_DIR/NAME.skel.rs`.
//!
//! The programs hold nothing that differs between architectures, so one object serves both. The CPU
//! version is pinned because newer compilers default to instructions that older kernels refuse.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};
use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: &[&str] = &["latch", "sample", "checksum", "event", "calibrate"];

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let clang = find_clang()?;
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    for name in PROGRAMS {
        SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
            .clang(&clang)
            .clang_args(["-Wall", "-Werror", "-Wno-unused-function", "-mcpu=v2"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .with_context(|| format!("building bpf/{name}.bpf.c"))?;
    }
    Ok(())
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

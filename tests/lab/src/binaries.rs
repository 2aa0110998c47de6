//! Real server binaries, for tests that only read them.
//!
//! A binary comes from the cache, and is fetched if it is not there; a variable of the environment can name another. A
//! binary that cannot be had fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use armtrace::symbols::{Arch, Image};

use crate::releases::Release;
use crate::repository;

/// `ARMTRACE_MYSQL_AMD64`, or MySQL 9.7 from the lab.
pub fn mysql_amd64() -> Image {
    open(&mysql_amd64_path())
}

pub fn mysql_amd64_path() -> PathBuf {
    path("ARMTRACE_MYSQL_AMD64", || lab("mysql-9.7").join("usr/sbin/mysqld"))
}

/// `ARMTRACE_MYSQL_ARM64`, or Debian's newest.
pub fn mysql_arm64() -> Image {
    open(&mysql_arm64_path())
}

pub fn mysql_arm64_path() -> PathBuf {
    path("ARMTRACE_MYSQL_ARM64", || printed_path("tests/vm/server-binary", &["arm64", "mysql"]))
}

/// `ARMTRACE_MARIADB_AMD64`, or the official 11.4 from the lab.
pub fn mariadb_amd64() -> Image {
    open(&mariadb_amd64_path())
}

pub fn mariadb_amd64_path() -> PathBuf {
    path("ARMTRACE_MARIADB_AMD64", || lab("mariadb-11.4").join("bin/mariadbd"))
}

/// The official MariaDB 10.2 from the lab.
pub fn mariadb_10_2() -> Image {
    open(&mariadb_10_2_path())
}

pub fn mariadb_10_2_path() -> PathBuf {
    lab("mariadb-10.2").join("bin/mysqld")
}

/// The official MariaDB 10.1 from the lab: InnoDB's mutexes have no class yet.
pub fn mariadb_10_1() -> Image {
    open(&mariadb_10_1_path())
}

pub fn mariadb_10_1_path() -> PathBuf {
    lab("mariadb-10.1").join("bin/mysqld")
}

/// A copy of a program, which is not position-independent, with other bytes at these addresses.
pub fn patched(binary: &Path, patches: &[(u64, &[u8])]) -> Image {
    let image = open(binary);
    let mut bytes = std::fs::read(binary).expect("cannot read the program");
    for (addr, patch) in patches {
        let at = image.file_offset(*addr).expect("an address in the file") as usize;
        bytes[at..at + patch.len()].copy_from_slice(patch);
    }
    let copy = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(copy.path(), bytes).expect("cannot write the copy");
    open(copy.path())
}

/// The program of a server of the lab that lies in its `bin/mysqld`.
pub fn lab_image(server: &str) -> Image {
    open(&lab(server).join("bin/mysqld"))
}

/// The MariaDB of a Debian release, for `amd64` or `arm64`: without a symbol table.
pub fn debian_mariadb(arch: &str, suite: &str) -> Image {
    open(&debian_mariadb_path(arch, suite))
}

pub fn debian_mariadb_path(arch: &str, suite: &str) -> PathBuf {
    printed_path("tests/vm/server-binary", &[arch, "mariadb", suite])
}

/// A copy of a binary without its symbol table and debug information, as distributions ship them.
pub fn stripped(binary: &Path) -> Image {
    let copy = tempfile::NamedTempFile::new().expect("a temporary file");
    let strip = match open(binary).arch() {
        Arch::X86_64 => "x86_64-linux-gnu-strip",
        Arch::Aarch64 => "aarch64-linux-gnu-strip",
    };
    let status = Command::new(strip).arg("--strip-all").arg("-o").arg(copy.path()).arg(binary).status();
    assert!(status.expect("cannot run strip (package binutils)").success(), "strip {}", binary.display());
    // It stays mapped when its name is gone.
    open(copy.path())
}

/// `ARMTRACE_MARIADB_ARM64`, or Debian's newest, which is stripped.
pub fn mariadb_arm64() -> Image {
    image("ARMTRACE_MARIADB_ARM64", || printed_path("tests/vm/server-binary", &["arm64", "mariadb"]))
}

/// glibc for x86_64, of the newest Debian.
pub fn glibc_amd64() -> Image {
    image("ARMTRACE_GLIBC_AMD64", || lab("mysql-9.7").join("usr/lib/x86_64-linux-gnu/libc.so.6"))
}

/// The thread library of glibc 2.31, the last Debian release's that has it apart: bullseye's.
pub fn libpthread_2_31() -> Image {
    image("ARMTRACE_LIBPTHREAD_2_31", || lab("mariadb-10.5-debian").join("usr/lib/x86_64-linux-gnu/libpthread.so.0"))
}

/// glibc for aarch64, as `tests/lab/setup` installs it for cross building.
pub fn glibc_arm64() -> Image {
    image("ARMTRACE_GLIBC_ARM64", || PathBuf::from("/usr/aarch64-linux-gnu/lib/libc.so.6"))
}

fn image(variable: &str, otherwise: impl FnOnce() -> PathBuf) -> Image {
    open(&path(variable, otherwise))
}

fn path(variable: &str, otherwise: impl FnOnce() -> PathBuf) -> PathBuf {
    std::env::var_os(variable).map_or_else(otherwise, PathBuf::from)
}

/// The programs of the releases that this run takes, and Oracle's for the other architecture, which is as big as its fellow.
pub fn programs() -> Vec<(String, PathBuf)> {
    let other = Release::chosen()
        .any(|release| release == Release::MYSQL_8_0)
        .then(|| ("mysql-8.0-arm64".to_owned(), printed_path("tests/vm/server-binary", &["arm64", "mysql-8.0"])));
    let program = |release: Release| release.program().unwrap_or_else(|error| panic!("{error:#}"));
    Release::chosen().map(|release| (release.name().to_owned(), program(release))).chain(other).collect()
}

pub fn open(path: &Path) -> Image {
    Image::open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn lab(server: &str) -> PathBuf {
    printed_path("tests/lab/fetch", &[server])
}

fn printed_path(script: &str, arguments: &[&str]) -> PathBuf {
    let output = Command::new(repository(script)).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {script}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {}: {errors}", arguments.join(" "));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

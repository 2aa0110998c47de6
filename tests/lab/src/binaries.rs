//! Real server binaries, for tests that only read them.
//!
//! Binaries come from the cache and are downloaded on first use. An environment variable can name another file. A test
//! whose binary cannot be obtained fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use armtrace::symbols::{Arch, Image};

use crate::releases::Release;
use crate::repository;

/// Opens `ARMTRACE_MYSQL_AMD64`, or MySQL 9.7 from the lab.
pub fn mysql_amd64() -> Image {
    open(&mysql_amd64_path())
}

/// Returns the path of [`mysql_amd64`].
pub fn mysql_amd64_path() -> PathBuf {
    path("ARMTRACE_MYSQL_AMD64", || lab("mysql-9.7").join("usr/sbin/mysqld"))
}

/// Opens `ARMTRACE_MYSQL_ARM64`, or Debian's newest MySQL.
pub fn mysql_arm64() -> Image {
    open(&mysql_arm64_path())
}

/// Returns the path of [`mysql_arm64`].
pub fn mysql_arm64_path() -> PathBuf {
    path("ARMTRACE_MYSQL_ARM64", || printed_path("tests/vm/server-binary", &["arm64", "mysql"]))
}

/// Opens `ARMTRACE_MARIADB_AMD64`, or the official MariaDB 11.4 from the lab.
pub fn mariadb_amd64() -> Image {
    open(&mariadb_amd64_path())
}

/// Returns the path of [`mariadb_amd64`].
pub fn mariadb_amd64_path() -> PathBuf {
    path("ARMTRACE_MARIADB_AMD64", || lab("mariadb-11.4").join("bin/mariadbd"))
}

/// Opens the official MariaDB 10.2 from the lab.
pub fn mariadb_10_2() -> Image {
    open(&mariadb_10_2_path())
}

/// Returns the path of [`mariadb_10_2`].
pub fn mariadb_10_2_path() -> PathBuf {
    lab("mariadb-10.2").join("bin/mysqld")
}

/// Opens the official MariaDB 10.1 from the lab, in which InnoDB's mutexes are not yet a class template.
pub fn mariadb_10_1() -> Image {
    open(&mariadb_10_1_path())
}

/// Returns the path of [`mariadb_10_1`].
pub fn mariadb_10_1_path() -> PathBuf {
    lab("mariadb-10.1").join("bin/mysqld")
}

/// Opens a copy of a program, which must not be position-independent, with the bytes at these addresses replaced.
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

/// Opens the program of a lab server that has it in `bin/mysqld`.
pub fn lab_image(server: &str) -> Image {
    open(&lab(server).join("bin/mysqld"))
}

/// Opens the MariaDB of a Debian release, for `amd64` or `arm64`. It has no symbol table.
pub fn debian_mariadb(arch: &str, suite: &str) -> Image {
    open(&debian_mariadb_path(arch, suite))
}

/// Returns the path of [`debian_mariadb`].
pub fn debian_mariadb_path(arch: &str, suite: &str) -> PathBuf {
    printed_path("tests/vm/server-binary", &[arch, "mariadb", suite])
}

/// Opens a copy of a binary without its symbol table and debug info, as distributions ship it.
pub fn stripped(binary: &Path) -> Image {
    let copy = tempfile::NamedTempFile::new().expect("a temporary file");
    let strip = match open(binary).arch() {
        Arch::X86_64 => "x86_64-linux-gnu-strip",
        Arch::Aarch64 => "aarch64-linux-gnu-strip",
    };
    let status = Command::new(strip).arg("--strip-all").arg("-o").arg(copy.path()).arg(binary).status();
    assert!(status.expect("cannot run strip (package binutils)").success(), "strip {}", binary.display());
    // The image stays mapped when the temporary file is deleted.
    open(copy.path())
}

/// Opens `ARMTRACE_MARIADB_ARM64`, or Debian's newest MariaDB, which is stripped.
pub fn mariadb_arm64() -> Image {
    image("ARMTRACE_MARIADB_ARM64", || printed_path("tests/vm/server-binary", &["arm64", "mariadb"]))
}

/// Opens `ARMTRACE_GLIBC_AMD64`, or the glibc for x86_64 of the newest Debian.
pub fn glibc_amd64() -> Image {
    image("ARMTRACE_GLIBC_AMD64", || lab("mysql-9.7").join("usr/lib/x86_64-linux-gnu/libc.so.6"))
}

/// Opens `ARMTRACE_LIBPTHREAD_2_31`, or the libpthread of Debian bullseye, the last release in which glibc has it as a
/// separate library.
pub fn libpthread_2_31() -> Image {
    image("ARMTRACE_LIBPTHREAD_2_31", || lab("mariadb-10.5-debian").join("usr/lib/x86_64-linux-gnu/libpthread.so.0"))
}

/// Opens `ARMTRACE_GLIBC_ARM64`, or the glibc for aarch64 that `tests/lab/setup` installs for cross compilation.
pub fn glibc_arm64() -> Image {
    image("ARMTRACE_GLIBC_ARM64", || PathBuf::from("/usr/aarch64-linux-gnu/lib/libc.so.6"))
}

fn image(variable: &str, otherwise: impl FnOnce() -> PathBuf) -> Image {
    open(&path(variable, otherwise))
}

fn path(variable: &str, otherwise: impl FnOnce() -> PathBuf) -> PathBuf {
    std::env::var_os(variable).map_or_else(otherwise, PathBuf::from)
}

/// Returns the names and programs of the releases that this run uses, and Oracle's MySQL 8.0 for arm64 if the one for
/// x86_64 is among them: both are large downloads.
pub fn programs() -> Vec<(String, PathBuf)> {
    let other = Release::chosen()
        .any(|release| release == Release::MYSQL_8_0)
        .then(|| ("mysql-8.0-arm64".to_owned(), printed_path("tests/vm/server-binary", &["arm64", "mysql-8.0"])));
    let program = |release: Release| release.program().unwrap_or_else(|error| panic!("{error:#}"));
    Release::chosen().map(|release| (release.name().to_owned(), program(release))).chain(other).collect()
}

/// Opens a binary.
///
/// # Panics
/// Panics if it is not a usable ELF file.
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

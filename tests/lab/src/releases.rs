//! The servers of the lab, from `tests/lab/servers`, which its scripts read too.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Result};

const TABLE: &str = include_str!("../servers");

/// A server release of the lab, identified by its name in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release(&'static str);

/// The releases that tests refer to by name. [`Release::all`] returns every release.
impl Release {
    /// Debian unstable's MySQL 9.7.
    pub const MYSQL_9_7: Release = Release("mysql-9.7");
    /// MySQL 8.0.33.
    pub const MYSQL_8_0: Release = Release("mysql-8.0");
    /// MySQL 8.0.31.
    pub const MYSQL_8_0_31: Release = Release("mysql-8.0.31");
    /// MySQL 8.0.12.
    pub const MYSQL_8_0_12: Release = Release("mysql-8.0.12");
    /// MySQL 5.7.22.
    pub const MYSQL_5_7: Release = Release("mysql-5.7");
    /// The official build of MariaDB 11.4.
    pub const MARIADB_11_4: Release = Release("mariadb-11.4");
    /// The official build of MariaDB 10.11.
    pub const MARIADB_10_11: Release = Release("mariadb-10.11");
    /// Debian's build of MariaDB 10.11, which has no symbol table.
    pub const MARIADB_10_11_DEBIAN: Release = Release("mariadb-10.11-debian");
    /// MariaDB 10.5 of Debian bullseye, the last with the latches used before 10.6. It has no symbol table.
    pub const MARIADB_10_5_DEBIAN: Release = Release("mariadb-10.5-debian");
    /// The official build of MariaDB 10.1, in which InnoDB's mutexes are not yet a class template.
    pub const MARIADB_10_1: Release = Release("mariadb-10.1");
    /// The official build of MariaDB 10.2.
    pub const MARIADB_10_2: Release = Release("mariadb-10.2");
}

impl Release {
    /// Returns every release in the table.
    pub fn all() -> impl Iterator<Item = Release> {
        rows().filter_map(|row| row.first().copied()).map(Release)
    }

    /// Returns the releases that this run uses: the small ones, or all with `ARMTRACE_ALL_SERVERS`.
    pub fn chosen() -> impl Iterator<Item = Release> {
        let all = std::env::var_os("ARMTRACE_ALL_SERVERS").is_some();
        Release::all().filter(move |release| all || release.is_small())
    }

    /// Returns the name in the table: `mysql-9.7`.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Returns whether this is a MySQL rather than a MariaDB.
    pub fn is_mysql(self) -> bool {
        self.column(1) == "mysql"
    }

    /// Returns the version that the server must report: a release, or only its series.
    pub fn version(self) -> &'static str {
        self.column(2)
    }

    /// Returns whether CI runs this release. The others are downloads of hundreds of megabytes.
    fn is_small(self) -> bool {
        self.column(3) == "small"
    }

    /// Returns the folder in the cache with the server's files, which are downloaded on first use.
    pub fn folder(self) -> Result<PathBuf> {
        let output = Command::new(script("fetch")).arg(self.name()).output()?;
        ensure!(
            output.status.success(),
            "tests/lab/fetch {}: {}",
            self.name(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
    }

    /// Returns the path of the server's program in that folder.
    pub fn program(self) -> Result<PathBuf> {
        Ok(self.folder()?.join(self.column(4)))
    }

    /// Returns whether the version is this one, such as `8.0.13`, or a newer one.
    pub fn at_least(self, version: &str) -> bool {
        let numbers = |version: &str| -> Vec<u32> { version.split('.').filter_map(|n| n.parse().ok()).collect() };
        numbers(self.version()) >= numbers(version)
    }

    /// Returns whether performance_schema times the waits of the purge threads. MySQL 5.7 counts none of their waits,
    /// although it claims that they are instrumented, and MariaDB 10.2 knows only one of the threads.
    pub fn times_purge(self) -> bool {
        let misses = if self.is_mysql() { "5.7" } else { "10.2" };
        !self.version().starts_with(misses)
    }

    fn column(self, index: usize) -> &'static str {
        let row = rows().find(|row| row.first() == Some(&self.0));
        row.and_then(|row| row.get(index).copied()).unwrap_or_else(|| panic!("tests/lab/servers: {}", self.0))
    }
}

fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect())
}

/// Returns the path of a lab script: in this checkout, or in `$ARMTRACE_LAB` on a machine without one.
pub fn script(name: &str) -> PathBuf {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os("ARMTRACE_LAB").map_or_else(here, PathBuf::from).join(name)
}

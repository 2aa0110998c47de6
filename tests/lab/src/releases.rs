//! The servers of the lab: `tests/lab/servers`, which its scripts read as well.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Result};

const TABLE: &str = include_str!("../servers");

/// A release of a server that the lab has, by its name in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release(&'static str);

/// Those that tests name. [`Release::all`] has the others too.
impl Release {
    pub const MYSQL_9_7: Release = Release("mysql-9.7");
    pub const MYSQL_8_0: Release = Release("mysql-8.0");
    pub const MYSQL_8_0_31: Release = Release("mysql-8.0.31");
    pub const MYSQL_8_0_12: Release = Release("mysql-8.0.12");
    pub const MYSQL_5_7: Release = Release("mysql-5.7");
    pub const MARIADB_11_4: Release = Release("mariadb-11.4");
    pub const MARIADB_10_11: Release = Release("mariadb-10.11");
    /// As Debian ships it, without a symbol table.
    pub const MARIADB_10_11_DEBIAN: Release = Release("mariadb-10.11-debian");
    /// As Debian bullseye ships it, the last with the latches of before 10.6; without a symbol table.
    pub const MARIADB_10_5_DEBIAN: Release = Release("mariadb-10.5-debian");
    /// InnoDB's mutexes have no class yet.
    pub const MARIADB_10_1: Release = Release("mariadb-10.1");
    pub const MARIADB_10_2: Release = Release("mariadb-10.2");
}

impl Release {
    pub fn all() -> impl Iterator<Item = Release> {
        rows().filter_map(|row| row.first().copied()).map(Release)
    }

    /// Those that this run takes: the small ones, or with `ARMTRACE_ALL_SERVERS` all.
    pub fn chosen() -> impl Iterator<Item = Release> {
        let all = std::env::var_os("ARMTRACE_ALL_SERVERS").is_some();
        Release::all().filter(move |release| all || release.is_small())
    }

    pub fn name(self) -> &'static str {
        self.0
    }

    pub fn is_mysql(self) -> bool {
        self.column(1) == "mysql"
    }

    /// What the server has to say of itself: a release, or only its series.
    pub fn version(self) -> &'static str {
        self.column(2)
    }

    /// Whether CI runs it. The others take hundreds of megabytes to fetch.
    fn is_small(self) -> bool {
        self.column(3) == "small"
    }

    /// The folder with its files in the cache, fetched if it is not there.
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

    /// The server's program in that folder.
    pub fn program(self) -> Result<PathBuf> {
        Ok(self.folder()?.join(self.column(4)))
    }

    pub fn at_least(self, version: &str) -> bool {
        let numbers = |version: &str| -> Vec<u32> { version.split('.').filter_map(|n| n.parse().ok()).collect() };
        numbers(self.version()) >= numbers(version)
    }

    /// Whether performance_schema has the waits of the purge threads. That of MySQL 5.7 counts none of theirs, whatever it says of
    /// their being instrumented, and that of MariaDB 10.2 does not know all but one of them.
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

/// Where a script of the lab lies: in this checkout, or where `$ARMTRACE_LAB` says on a machine that has none.
pub fn script(name: &str) -> PathBuf {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os("ARMTRACE_LAB").map_or_else(here, PathBuf::from).join(name)
}

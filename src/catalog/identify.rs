//! Which server a binary is, told from the binary alone.

use super::{mariadb, mysql, Family};
use crate::symbols::Image;

/// Who built the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    Mysql,
    Percona,
    Mariadb,
}

impl Flavor {
    /// The value of the `flavor` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Flavor::Mysql => "mysql",
            Flavor::Percona => "percona",
            Flavor::Mariadb => "mariadb",
        }
    }
}

/// What a binary turned out to be.
#[derive(Clone, Debug)]
pub struct Server {
    pub flavor: Flavor,
    /// `9.7.4`, `11.4.5`; Percona's with its own suffix: `8.0.36-28`.
    pub version: String,
    pub family: &'static Family,
}

/// Why a binary cannot be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("this is not a MySQL or MariaDB server: it contains no server version")]
    NotAServer,
    #[error(
        "{flavor} {version} is not supported: armtrace knows MySQL and Percona Server from 8.0 and MariaDB from 10.6"
    )]
    Version { flavor: &'static str, version: String },
    #[error("{flavor} {version} has no symbols for its latch functions: install its debug symbol package")]
    NoSymbols { flavor: &'static str, version: String },
}

/// Tells flavor, version and family of a server binary.
///
/// # Errors
/// [`Unsupported`], when it is no server, too old a one, or one whose latch functions cannot be found.
pub fn identify(image: &Image) -> Result<Server, Unsupported> {
    let (flavor, version) = version_of(image).ok_or(Unsupported::NotAServer)?;
    let unsupported = || Unsupported::Version { flavor: flavor.as_str(), version: version.clone() };
    let family = family_of(flavor, &version).ok_or_else(unsupported)?;
    let found = family.wait_functions.iter().any(|f| match f.find {
        super::Find::Symbols(names) => names.iter().any(|n| image.symbol(n).is_some()),
        super::Find::Caller { .. } => false,
    });
    if !found {
        return Err(Unsupported::NoSymbols { flavor: flavor.as_str(), version });
    }
    Ok(Server { flavor, version, family })
}

fn family_of(flavor: Flavor, version: &str) -> Option<&'static Family> {
    match (flavor, major_minor(version)?) {
        (Flavor::Mysql | Flavor::Percona, (8.., _)) => Some(&mysql::FAMILY),
        (Flavor::Mariadb, (11, 4)) => Some(&mariadb::FAMILY_11_4),
        (Flavor::Mariadb, (10, 11)) => Some(&mariadb::FAMILY_10_11),
        _ => None,
    }
}

/// The first two numbers of a version.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Flavor and version, from strings in the read-only data: MariaDB's own version ends in `-MariaDB`, and
/// InnoDB of MySQL and Percona Server writes `MySQL ` and its version into new redo logs.
fn version_of(image: &Image) -> Option<(Flavor, String)> {
    let range = image.section(".rodata")?;
    let data = image.bytes(range.start, usize::try_from(range.end.checked_sub(range.start)?).ok()?)?;
    if let Some(version) = strings_with(data, b"-MariaDB").find_map(|s| s.split("-MariaDB").next().and_then(as_version))
    {
        return Some((Flavor::Mariadb, version));
    }
    let version = strings_with(data, b"MySQL ").find_map(|s| as_version(s.strip_prefix("MySQL ")?))?;
    let percona = strings_with(data, b"Percona Server").next().is_some();
    Some((if percona { Flavor::Percona } else { Flavor::Mysql }, version))
}

/// `text` if all of it is a version number of at least three parts.
fn as_version(text: &str) -> Option<String> {
    let numbers = text.split(['.', '-']).filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit())).count();
    let parts = text.split(['.', '-']).count();
    (numbers >= 3 && numbers == parts && text.len() < 24).then(|| text.to_owned())
}

/// The NUL-terminated strings of `data` that contain `needle`.
fn strings_with<'a>(data: &'a [u8], needle: &'a [u8]) -> impl Iterator<Item = &'a str> {
    let mut from = 0;
    std::iter::from_fn(move || loop {
        let at = from + find(data.get(from..)?, needle)?;
        let start = data[..at].iter().rposition(|&b| b == 0).map_or(0, |p| p + 1);
        let end = at + data[at..].iter().position(|&b| b == 0)?;
        from = end;
        if let Ok(text) = std::str::from_utf8(&data[start..end]) {
            return Some(text);
        }
    })
}

/// The position of `needle` in `data`.
fn find(data: &[u8], needle: &[u8]) -> Option<usize> {
    let (&first, rest) = needle.split_first()?;
    let mut from = 0;
    loop {
        let at = from + data.get(from..)?.iter().position(|&b| b == first)?;
        if data.get(at + 1..)?.starts_with(rest) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_only() {
        assert_eq!(as_version("9.7.4").as_deref(), Some("9.7.4"));
        assert_eq!(as_version("8.0.36-28").as_deref(), Some("8.0.36-28"));
        assert_eq!(as_version("9.7"), None);
        assert_eq!(as_version("server 9.7.4"), None);
    }

    #[test]
    fn strings_are_found_whole() {
        let data = b"\0x\0 10.6\0MySQL 9.7.4\0MySQL \0";
        assert_eq!(strings_with(data, b"MySQL ").collect::<Vec<_>>(), ["MySQL 9.7.4", "MySQL "]);
        assert_eq!(strings_with(b"no end", b"no").count(), 0);
    }

    #[test]
    fn older_families_are_not_guessed() {
        assert!(family_of(Flavor::Mysql, "5.7.44").is_none());
        assert!(family_of(Flavor::Mysql, "8.0.36").is_some());
        assert!(family_of(Flavor::Mariadb, "10.2.11").is_none());
    }
}

//! Packages with debug symbols.

/// Returns the package with a server's debug symbols, given the version that the server reports. `None` for builds
/// other than Debian's and Ubuntu's.
///
/// The package names are those of bullseye, bookworm and Ubuntu 22.04; up to 10.6 they contain the version.
pub fn debug_package(version: &str) -> Option<String> {
    let (number, build) = version.split_once("-MariaDB-")?;
    if !build.contains("deb") && !build.contains("ubuntu") {
        return None;
    }
    let mut parts = number.split('.');
    let (major, minor): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let versioned = (major, minor) <= (10, 6);
    Some(if versioned {
        format!("mariadb-server-core-{major}.{minor}-dbgsym")
    } else {
        "mariadb-server-core-dbgsym".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::debug_package;

    #[test]
    fn debug_packages_are_those_of_the_distribution() {
        let package = |version| debug_package(version).unwrap_or_default();
        assert_eq!(package("10.5.29-MariaDB-0+deb11u1"), "mariadb-server-core-10.5-dbgsym");
        assert_eq!(package("10.6.22-MariaDB-0ubuntu0.22.04.1"), "mariadb-server-core-10.6-dbgsym");
        assert_eq!(package("10.11.19-MariaDB-0+deb12u1"), "mariadb-server-core-dbgsym");
        for other in ["11.4.5-MariaDB", "9.7.4", "x-MariaDB-0+deb11u1", "10-MariaDB-deb"] {
            assert_eq!(package(other), "", "{other}");
        }
    }
}

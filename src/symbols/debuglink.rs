//! `.gnu_debuglink`: a program's own record of the name of its debug file.

use std::path::{Path, PathBuf};

/// The debug file's name and checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Debuglink {
    /// The file name, without a directory.
    pub name: String,
    /// The CRC-32 of the whole file.
    pub crc: u32,
}

impl Debuglink {
    /// Reads the section: the name, a NUL, padding to four bytes, and the CRC-32 of the file.
    pub fn parse(section: &[u8]) -> Option<Debuglink> {
        let end = memchr::memchr(0, section)?;
        let name = std::str::from_utf8(&section[..end]).ok()?;
        // This must be a plain name, not a path elsewhere.
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return None;
        }
        let crc = section.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
        Some(Debuglink { name: name.to_owned(), crc: u32::from_le_bytes(*crc) })
    }

    /// Returns the possible locations of the debug file of `program`, an absolute path, in the order in which debuggers
    /// search.
    pub fn candidates(&self, program: &Path) -> Vec<PathBuf> {
        let Some(folder) = program.parent() else { return Vec::new() };
        let in_debug = Path::new("/usr/lib/debug").join(folder.strip_prefix("/").unwrap_or(folder));
        [folder, &folder.join(".debug"), &in_debug].iter().map(|f| f.join(&self.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_objcopy_writes() {
        let section = b"mariadbd.debug\0\0\x78\x56\x34\x12";
        let link = Debuglink { name: "mariadbd.debug".to_owned(), crc: 0x1234_5678 };
        assert_eq!(Debuglink::parse(section), Some(link));
        assert_eq!(Debuglink::parse(b"abc\0\x01\0\0\0").map(|l| l.crc), Some(1));
    }

    #[test]
    fn damaged_or_hostile_links_lead_nowhere() {
        for section in [
            &b""[..],
            b"\0",
            b"name",
            b"name\0",
            b"name\0\0\0\0\x01\x02\x03",
            b"/etc/shadow\0\x01\x02\x03\x04",
            b"../x\0\0\0\0\x01\x02\x03\x04",
            b"..\0\0\x01\x02\x03\x04",
            b"\xff\xff\xff\0\x01\x02\x03\x04",
        ] {
            assert_eq!(Debuglink::parse(section), None, "{section:?}");
        }
    }

    #[test]
    fn looks_where_debuggers_look() {
        let link = Debuglink { name: "d".into(), crc: 0 };
        let found = link.candidates(Path::new("/opt/mariadb/bin/mariadbd"));
        let expected = ["/opt/mariadb/bin/d", "/opt/mariadb/bin/.debug/d", "/usr/lib/debug/opt/mariadb/bin/d"];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}

//! Finds the source files and lines of functions in the program's own debug information (DWARF).

use addr2line::Context;

use crate::symbols::{DebugInfo, Slice};

/// Looks up source locations. Only what is asked for is read, because a server has 200 MB of debug information.
pub struct Lines<'a>(Option<(&'a DebugInfo<'a>, Context<Slice<'a>>)>);

/// The number of lookups after which the memory that reading took is released.
const RELEASED: usize = 256;

/// A location in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The path that the compiler was given, with its directory.
    pub file: String,
    pub line: u32,
}

impl<'a> Lines<'a> {
    pub fn of(debug: Option<&'a DebugInfo>) -> Lines<'a> {
        Lines(debug.and_then(|debug| Some((debug, Context::from_dwarf(debug.dwarf()).ok()?))))
    }

    /// Returns the source lines of the instructions at these addresses.
    pub fn of_all(&self, addresses: &[u64]) -> Vec<Option<Line>> {
        let mut lines = Vec::new();
        for addresses in addresses.chunks(RELEASED) {
            lines.extend(addresses.iter().map(|addr| self.at(*addr)));
            self.0.iter().for_each(|(debug, _)| debug.release_memory());
        }
        lines
    }

    fn at(&self, addr: u64) -> Option<Line> {
        let (_, context) = self.0.as_ref()?;
        let location = context.find_location(addr).ok()??;
        Some(Line { file: location.file?.to_owned(), line: location.line? })
    }
}

/// Returns the common directory of these files, with a trailing slash; empty if there is none. The compiler's own
/// headers are ignored.
pub fn common_folder<'f>(files: impl Iterator<Item = &'f str>) -> &'f str {
    let folders = files.filter(|f| !f.starts_with("/usr/")).map(|f| &f[..f.rfind('/').map_or(0, |i| i + 1)]);
    folders.reduce(|a, b| &a[..common_prefix(a, b)]).unwrap_or_default()
}

/// Returns the length in bytes, up to the last slash, of what two directories have in common.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    a.as_bytes()[..same].iter().rposition(|&byte| byte == b'/').map_or(0, |i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_folder_ends_with_a_slash() {
        let files = [
            "/build/server/sql/sql_class.cc",
            "/build/server/storage/innobase/buf/buf0buf.cc",
            "/usr/include/c++/mutex",
        ];
        assert_eq!(common_folder(files.into_iter()), "/build/server/");
        assert_eq!(common_folder(["/a/bc/x", "/a/bd/y"].into_iter()), "/a/");
        assert_eq!(common_folder(["/a/x.c"].into_iter()), "/a/");
        assert_eq!(common_folder(["x.c", "/a/y.c"].into_iter()), "");
        assert_eq!(common_folder([].into_iter()), "");
    }
}

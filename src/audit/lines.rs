//! Source files and lines of functions, where the program has debug information (DWARF) of its own.

use addr2line::Context;

use crate::symbols::{DebugInfo, Slice};

/// Where the functions of a program come from. Only what is asked for is read: a server has 200 MB of it.
pub struct Lines<'a>(Option<(&'a DebugInfo<'a>, Context<Slice<'a>>)>);

/// Questions after which the memory of what was read is given back.
const RELEASED: usize = 256;

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// As the compiler was given it, with its folder.
    pub file: String,
    pub line: u32,
}

impl<'a> Lines<'a> {
    pub fn of(debug: Option<&'a DebugInfo>) -> Lines<'a> {
        Lines(debug.and_then(|debug| Some((debug, Context::from_dwarf(debug.dwarf()).ok()?))))
    }

    /// The lines of the instructions at these addresses.
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

/// The folder that all of these files lie in, with the slash; empty where they have none in common. Those of the compiler's own
/// headers count as elsewhere.
pub fn common_folder<'f>(files: impl Iterator<Item = &'f str>) -> &'f str {
    let folders = files.filter(|f| !f.starts_with("/usr/")).map(|f| &f[..f.rfind('/').map_or(0, |i| i + 1)]);
    folders.reduce(|a, b| &a[..common_prefix(a, b)]).unwrap_or_default()
}

/// Bytes up to the last slash that two folders have in common.
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

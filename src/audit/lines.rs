//! Source files and lines of functions, where the program has debug information (DWARF) of its own, not compressed.

use addr2line::Context;
use gimli::{Dwarf, EndianSlice, LittleEndian};

use crate::symbols::Image;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Where the functions of a program come from. Only what is asked for is read: a server has 200 MB of it.
pub struct Lines<'a>(Option<Context<Slice<'a>>>);

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// As the compiler was given it, with its folder.
    pub file: String,
    pub line: u32,
}

impl<'a> Lines<'a> {
    pub fn of(image: &'a Image) -> Lines<'a> {
        Lines(debug_information(image).and_then(|dwarf| Context::from_dwarf(dwarf).ok()))
    }

    /// The line of the instruction at `addr`.
    pub fn at(&self, addr: u64) -> Option<Line> {
        let location = self.0.as_ref()?.find_location(addr).ok()??;
        Some(Line { file: location.file?.to_owned(), line: location.line? })
    }
}

/// The debug information that the program has of its own, as far as it is not compressed.
pub(super) fn debug_information(image: &Image) -> Option<Dwarf<Slice<'_>>> {
    image.debug_section(gimli::SectionId::DebugInfo.name())?;
    let section = |id: gimli::SectionId| image.debug_section(id.name()).unwrap_or_default();
    Dwarf::load(|id| Ok::<_, gimli::Error>(EndianSlice::new(section(id), LittleEndian))).ok()
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

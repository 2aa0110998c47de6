//! The names of MariaDB's latches.
//!
//! Since 10.6 a latch is a bare lock word that says nothing about itself. With performance_schema on, most have an
//! instrumented object beside them. With it off, a latch in static data is known by its address; one in an array that static
//! data points to, by the array; any other by the structure that it lies in, which is recognised by
//! what it and its neighbours must contain.

use std::collections::HashMap;

use super::psi::Instruments;
use super::{LatchName, Process};
use crate::catalog::mariadb::{Array, Check, Count, HeapLatch, Latch, Path, StaticLatch};
use crate::catalog::MariadbLayout;
use crate::model::Kind;
use crate::symbols::Image;

/// Table names are at most 64 + 1 + 64 characters, each escaped to at most 5 bytes; file names may be longer.
const MAX_NAME: usize = 1024;

/// Pages lie at multiples of this, in memory and in files.
const MIN_PAGE: u64 = 1024;

pub struct Rules<'a> {
    pub layout: &'static MariadbLayout,
    image: &'a Image,
    /// Which of the catalog's names are registered as instruments, and whether as an sxlock.
    registered: HashMap<&'static str, bool>,
}

impl<'a> Rules<'a> {
    pub fn new(image: &'a Image, layout: &'static MariadbLayout) -> Rules<'a> {
        let mut pointers = image.relative_relocations();
        pointers.sort_unstable();
        let instruments = Instruments::new(image, &pointers);
        let statics = layout.statics.iter().flat_map(|s| s.members).map(|m| m.latch);
        let arrays = layout.arrays.iter().map(|a| a.latch);
        let heap = layout.heap.iter().map(|h| h.latch);
        let registered = statics
            .chain(arrays)
            .chain(heap)
            .filter_map(|latch| Some((latch.name, instruments.by_name(latch.name)?.is_sxlock())))
            .collect();
        Rules { layout, image, registered }
    }

    /// The latch in static data at this link-time address.
    pub fn static_latch(&self, link: u64) -> Option<LatchName> {
        let latch = self.layout.statics.iter().find_map(|object| self.member_at(object, link))?;
        Some(self.named(latch))
    }

    fn member_at(&self, object: &StaticLatch, link: u64) -> Option<Latch> {
        let offset = link.checked_sub(self.object(object.symbol, object.size)?)?;
        let holds = |m: &&crate::catalog::mariadb::Member| {
            let Some(from) = offset.checked_sub(m.offset) else { return false };
            from == 0 || m.stride != 0 && from % m.stride == 0 && from / m.stride < m.count
        };
        object.members.iter().find(holds).map(|m| m.latch)
    }

    /// Where a static object is, if it has the size that the catalog knows.
    fn object(&self, symbol: &str, size: u64) -> Option<u64> {
        self.image.symbol(symbol).filter(|s| s.size == size).map(|s| s.addr)
    }

    /// The latch on the heap whose lock word is at `word`.
    pub fn heap_latch(&self, process: &Process, word: u64) -> Option<LatchName> {
        let in_array = self.layout.arrays.iter().find(|a| self.is_in_array(process, a, word)).map(|a| a.latch);
        let latch = in_array.or_else(|| {
            let recognised = |h: &&HeapLatch| is_in(process, h, word);
            self.layout.heap.iter().find(recognised).map(|h| h.latch)
        })?;
        Some(self.named(latch))
    }

    fn is_in_array(&self, process: &Process, array: &Array, word: u64) -> bool {
        self.array(process, array).is_some_and(|(start, bytes)| {
            let from = word.wrapping_sub(start).wrapping_sub(array.word);
            start != 0 && from < bytes && from % array.stride == 0
        })
    }

    /// Where an array begins and how long it may be, in bytes.
    fn array(&self, process: &Process, array: &Array) -> Option<(u64, u64)> {
        let at = |link: u64| process.memory.u64(link.wrapping_add(process.bias)).ok();
        let object = self.object(array.symbol, array.size)?;
        let start = at(object.wrapping_add(array.pointer))?;
        let bytes = match array.count {
            Count::Variable(symbol) => at(self.image.symbol(symbol)?.addr)?.checked_mul(array.stride)?,
            // Of the eight places in a cache line six or seven are cells; the rest is the latch.
            Count::HashCells { at: cells } => {
                at(object.wrapping_add(cells))?.checked_add(6)?.checked_div(6)?.checked_mul(64)?
            }
        };
        Some((start, bytes))
    }

    fn named(&self, latch: Latch) -> LatchName {
        let kind = match self.registered.get(latch.name) {
            Some(true) => Kind::Sxlock,
            _ => latch.kind,
        };
        LatchName::innodb(kind, latch.name)
    }
}

/// Whether the lock word lies in a structure of this kind.
fn is_in(process: &Process, heap: &HeapLatch, word: u64) -> bool {
    let Some(owner) = word.checked_sub(heap.word) else { return false };
    heap.checks.iter().all(|check| holds(process, check, owner).unwrap_or(false))
}

/// Whether `check` is true of the structure at `owner`; `None` if that cannot be read.
fn holds(process: &Process, check: &Check, owner: u64) -> Option<bool> {
    match *check {
        Check::Magic { path, at, value } => {
            let place = follow(process, owner, path)?.wrapping_add(at);
            Some(process.memory.u64(place).ok()? == value)
        }
        Check::Same(a, b) => {
            let place = follow(process, owner, a)?;
            Some(place != 0 && place == follow(process, owner, b)?)
        }
        Check::Name(path) => {
            let name = process.memory.cstr(follow(process, owner, path)?, MAX_NAME).ok()?;
            Some(is_name(&name))
        }
        Check::PageHeader { path, id } => {
            let page = follow(process, owner, path)?;
            let id = process.memory.u64(owner.wrapping_add(id)).ok()?;
            Some(page != 0 && page % MIN_PAGE == 0 && page_id(&process.memory.array(page).ok()?) == id)
        }
    }
}

fn follow(process: &Process, start: u64, path: Path) -> Option<u64> {
    path.iter().try_fold(start, |at, offset| process.memory.u64(at.wrapping_add(*offset)).ok())
}

/// Tablespace and page number in the header of a page, which is in network byte order, as in a page id: the tablespace
/// in the upper half.
fn page_id(header: &[u8; 38]) -> u64 {
    let number =
        |at: usize| u64::from(u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    number(34) << 32 | number(4)
}

/// Names of indexes being built begin with a byte that no text contains; all others are readable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Memory;

    /// This test's own executable and memory stand for a server's.
    fn with_process(test: impl FnOnce(&Process)) {
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        test(&Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 });
    }

    fn addr<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    #[test]
    fn a_page_is_recognised_by_its_header() {
        let mut page = Box::new([0_u8; 2 * MIN_PAGE as usize]);
        let skip = (addr(&page[0]).next_multiple_of(MIN_PAGE) - addr(&page[0])) as usize;
        page[skip + 4..skip + 8].copy_from_slice(&37_u32.to_be_bytes());
        page[skip + 34..skip + 38].copy_from_slice(&4_u32.to_be_bytes());
        let check = Check::PageHeader { path: &[8], id: 0 };
        with_process(|process| {
            let right = [4_u64 << 32 | 37, addr(&page[skip])];
            assert_eq!(holds(process, &check, addr(&right)), Some(true));
            let other_page = [4_u64 << 32 | 38, addr(&page[skip])];
            assert_eq!(holds(process, &check, addr(&other_page)), Some(false));
            let no_page = [4_u64 << 32 | 37, 0];
            assert_ne!(holds(process, &check, addr(&no_page)), Some(true));
        });
    }

    #[test]
    fn structures_that_know_each_other_are_recognised() {
        let mut pair = [[0_u64; 2]; 2];
        pair[0][1] = addr(&pair[1]);
        pair[1][0] = addr(&pair[0]);
        with_process(|process| {
            assert_eq!(holds(process, &Check::Same(&[], &[8, 0]), addr(&pair[0])), Some(true));
            assert_eq!(holds(process, &Check::Same(&[], &[8]), addr(&pair[0])), Some(false));
            // Two null pointers are the same, but not a place.
            assert_eq!(holds(process, &Check::Same(&[0], &[0]), addr(&pair[0])), Some(false));
        });
    }

    #[test]
    fn garbage_is_never_recognised() {
        let noise: Vec<u64> = (0..512_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let zeros = vec![0_u64; 512];
        for layout in [&crate::catalog::mariadb::LAYOUT_11_4, &crate::catalog::mariadb::LAYOUT_10_11] {
            with_process(|process| {
                for word in [0, 1, 88, u64::MAX, addr(&noise[300]), addr(&zeros[300])] {
                    for heap in layout.heap {
                        assert!(!is_in(process, heap, word), "{} at {word:#x}", heap.latch.name);
                    }
                }
            });
        }
    }

    #[test]
    fn names_are_readable_text() {
        assert!(is_name("sbtest/sbtest1"));
        assert!(is_name("PRIMARY"));
        assert!(!is_name(""));
        assert!(!is_name("\u{1}\u{2}"));
    }
}

//! The names of MariaDB's latches.
//!
//! Since 10.6 a latch is a bare lock word that says nothing about itself. With performance_schema on, most have an
//! instrumented object beside them. With it off, a latch in static data is known by its address; one in an array that static
//! data points to, by the array; any other by the structure that it lies in, which is recognised by
//! what it and its neighbours must contain.

use std::collections::HashMap;

use super::psi::Instruments;
use super::{LatchName, Process};
use crate::catalog::{ArrayLatches, Count, Evidence, HeapLatch, Latch, MariadbNames, Member, Path, StaticLatches};
use crate::model::Kind;
use crate::symbols::Image;

/// Pages lie at multiples of this, in memory and in files.
const MIN_PAGE: u64 = 1024;

pub struct Rules {
    catalog: &'static MariadbNames,
    /// Which of the catalog's names are registered as instruments, and whether as an sxlock.
    registered: HashMap<&'static str, bool>,
}

impl Rules {
    pub fn new(image: &Image, catalog: &'static MariadbNames) -> Rules {
        let mut pointers = image.relative_relocations();
        pointers.sort_unstable();
        let instruments = Instruments::new(image, &pointers);
        let statics = catalog.statics.iter().flat_map(|s| s.members).map(|m| m.latch);
        let arrays = catalog.arrays.iter().map(|a| a.latch);
        let heap = catalog.heap.iter().map(|h| h.latch);
        let registered = statics
            .chain(arrays)
            .chain(heap)
            .filter_map(|latch| Some((latch.name, instruments.by_name(latch.name)?.is_sxlock())))
            .collect();
        Rules { catalog, registered }
    }

    /// The latch whose performance_schema class is at this address in the process.
    pub(super) fn instrument(&self, process: &Process, class: u64) -> Option<LatchName> {
        let event = process.memory.string(class.wrapping_add(u64::from(self.catalog.psi.to_name)))?;
        LatchName::from_event(&event)
    }

    /// The latch in static data at this link-time address.
    pub fn static_latch(&self, image: &Image, link: u64) -> Option<LatchName> {
        let latch = self.catalog.statics.iter().find_map(|object| member_at(image, object, link))?;
        Some(self.named(latch))
    }

    /// The latch on the heap whose lock word is at `word`.
    pub(super) fn heap_latch(&self, process: &Process, word: u64) -> Option<LatchName> {
        let in_array = self.catalog.arrays.iter().find(|a| is_in_array(process, a, word)).map(|a| a.latch);
        let latch = in_array.or_else(|| {
            let recognised = |h: &&HeapLatch| is_in(process, h, word);
            self.catalog.heap.iter().find(recognised).map(|h| h.latch)
        })?;
        Some(self.named(latch))
    }

    fn named(&self, latch: Latch) -> LatchName {
        let kind = match self.registered.get(latch.name) {
            Some(true) => Kind::Sxlock,
            _ => latch.kind,
        };
        LatchName::innodb(kind, latch.name)
    }
}

fn member_at(image: &Image, object: &StaticLatches, link: u64) -> Option<Latch> {
    let offset = link.checked_sub(address(image, object.symbol, object.size)?)?;
    let holds = |m: &&Member| {
        let Some(from) = offset.checked_sub(m.offset) else { return false };
        from == 0 || m.stride != 0 && from % m.stride == 0 && from / m.stride < m.count
    };
    object.members.iter().find(holds).map(|m| m.latch)
}

/// Where a static object is, if it has the size that the catalog knows.
fn address(image: &Image, symbol: &str, size: u64) -> Option<u64> {
    image.symbol(symbol).filter(|s| s.size == size).map(|s| s.addr)
}

fn is_in_array(process: &Process, array: &ArrayLatches, word: u64) -> bool {
    extent(process, array).is_some_and(|(start, bytes)| {
        let from = word.wrapping_sub(start).wrapping_sub(array.word);
        start != 0 && from < bytes && from % array.stride == 0
    })
}

/// Where an array begins in the process and how long it may be, in bytes.
fn extent(process: &Process, array: &ArrayLatches) -> Option<(u64, u64)> {
    let at = |link: u64| process.memory.u64(link.wrapping_add(process.bias));
    let object = address(process.image, array.symbol, array.size)?;
    let start = at(object.wrapping_add(array.array_at))?;
    let bytes = match array.count {
        Count::One => array.stride,
        Count::Variable(symbol) => at(process.image.symbol(symbol)?.addr)?.checked_mul(array.stride)?,
        // Of the eight places in 64 bytes six or seven are cells; the rest is the latch.
        Count::HashCells(cells) => (at(object.wrapping_add(cells))? / 6).checked_add(1)?.checked_mul(64)?,
    };
    Some((start, bytes))
}

/// Whether the lock word lies in an object of this type.
fn is_in(process: &Process, heap: &HeapLatch, word: u64) -> bool {
    let Some(object) = word.checked_sub(heap.word) else { return false };
    heap.evidence.iter().all(|evidence| holds(process, evidence, object).unwrap_or(false))
}

/// Whether `evidence` is true of the object; `None` if that cannot be read.
fn holds(process: &Process, evidence: &Evidence, object: u64) -> Option<bool> {
    match *evidence {
        Evidence::Magic { path, at, value } => {
            let place = follow(process, object, path)?.wrapping_add(at);
            Some(process.memory.u64(place)? == value)
        }
        Evidence::Same(a, b) => {
            let place = follow(process, object, a)?;
            Some(place != 0 && place == follow(process, object, b)?)
        }
        Evidence::Name(path) => Some(is_name(&process.memory.string(follow(process, object, path)?)?)),
        Evidence::PageHeader { path, id } => {
            let page = follow(process, object, path)?;
            let id = process.memory.u64(object.wrapping_add(id))?;
            Some(page != 0 && page % MIN_PAGE == 0 && page_id(&process.memory.array(page)?) == id)
        }
    }
}

fn follow(process: &Process, start: u64, path: Path) -> Option<u64> {
    path.iter().try_fold(start, |at, offset| process.memory.u64(at.wrapping_add(*offset)))
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
        let check = Evidence::PageHeader { path: &[8], id: 0 };
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
            assert_eq!(holds(process, &Evidence::Same(&[], &[8, 0]), addr(&pair[0])), Some(true));
            assert_eq!(holds(process, &Evidence::Same(&[], &[8]), addr(&pair[0])), Some(false));
            // Two null pointers are the same, but not a place.
            assert_eq!(holds(process, &Evidence::Same(&[0], &[0]), addr(&pair[0])), Some(false));
        });
    }

    #[test]
    fn garbage_is_never_recognised() {
        let noise: Vec<u64> = (0..512_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let zeros = vec![0_u64; 512];
        with_process(|process| {
            for word in [0, 1, 88, u64::MAX, addr(&noise[300]), addr(&zeros[300])] {
                for heap in crate::catalog::MARIADB_NAMES.heap {
                    assert!(!is_in(process, heap, word), "{} at {word:#x}", heap.latch.name);
                }
            }
        });
    }

    #[test]
    fn names_are_readable_text() {
        assert!(is_name("sbtest/sbtest1"));
        assert!(is_name("PRIMARY"));
        assert!(!is_name(""));
        assert!(!is_name("\u{1}\u{2}"));
    }
}

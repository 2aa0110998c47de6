//! Names MariaDB's latches.
//!
//! Since 10.6 a latch is a bare lock word that says nothing about itself. With performance_schema on, most have an
//! instrumented object next to them. With it off, a latch in static data is identified by its address, and one in an
//! array that static data points to, by the array. Any other is identified by the structure that contains it, which is
//! recognized by what it and its neighbors must contain.

mod lock_words;
pub(super) mod registrations;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::lock_words::waited;
use self::registrations::{made, Made};
use super::psi::{Instrument, Instruments};
use super::{is_readable, LatchName, Process};
use crate::catalog::{
    Around, ArrayLatches, Count, Evidence, Family, InsideLatch, Latch, MariadbNames, Object, Path, PsiClass, Table,
    Word,
};
use crate::discovery::Variables;
use crate::model::Kind;
use crate::server::Target;
use crate::symbols::Image;

/// The alignment of pages, in memory and in files.
const MIN_PAGE: u64 = 1024;

/// The cache line size, in bytes; larger lines are multiples of it.
const CACHE_LINE: u64 = 64;

/// What a MariaDB program shows about the names of its latches.
pub struct Rules {
    catalog: &'static MariadbNames,
    instruments: Instruments,
    found: Found,
}

/// What the code shows.
#[derive(Default, Serialize, Deserialize)]
pub struct Found {
    made: Made,
    /// The names by link-time address of the lock word.
    statics: BTreeMap<u64, LatchName>,
}

impl Found {
    /// Returns whether what was found at an earlier start refers only to what there is in the program.
    pub fn fits(&self, image: &Image) -> bool {
        self.made.statics.keys().chain(self.statics.keys()).all(|at| image.is_static_data(*at))
    }
}

impl Rules {
    /// Finds the names in a program.
    pub fn new(image: &Image, family: &Family, catalog: &'static MariadbNames) -> Rules {
        Rules::with(image, catalog, |rules, pointers| rules.search(image, family, pointers))
    }

    /// The same for a server, of which they may be kept from an earlier start.
    pub fn of(target: &Target, catalog: &'static MariadbNames) -> Rules {
        let image = &target.image;
        Rules::with(image, catalog, |rules, pointers| {
            let search = || rules.search(image, target.family, pointers);
            target.find(("latches", ()), |found: &Found| found.fits(image), search)
        })
    }

    /// Returns the rules with what `find` returns, given the rules without it and the program's static pointers.
    fn with(
        image: &Image,
        catalog: &'static MariadbNames,
        find: impl FnOnce(&mut Rules, &[(u64, u64)]) -> Found,
    ) -> Rules {
        let pointers = image.static_pointers();
        let instruments = Instruments::new(image, &pointers);
        let mut rules = Rules { catalog, instruments, found: Found::default() };
        rules.found = find(&mut rules, &pointers);
        rules
    }

    fn search(&mut self, image: &Image, family: &Family, pointers: &[(u64, u64)]) -> Found {
        let names = self.catalog.instrumented.iter().chain(self.catalog.mutexes).copied().collect();
        self.found.made = made(image, &self.instruments, &names);
        self.found.statics = self.find_statics(image, family, pointers);
        std::mem::take(&mut self.found)
    }

    /// Finds the latches in static data: those that are created with an instrument, those next to them, and those in
    /// objects whose members the server's tables list.
    fn find_statics(&self, image: &Image, family: &Family, pointers: &[(u64, u64)]) -> BTreeMap<u64, LatchName> {
        let waited = waited(image, family);
        let mut found: BTreeMap<u64, LatchName> = BTreeMap::new();
        let tables = [Table::System, Table::Status].map(|table| (table, Variables::new(image, pointers, table)));
        for around in self.catalog.around {
            for (word, latch) in latches_around(&tables, around, &waited) {
                found.insert(word, self.named(latch));
            }
        }
        for (at, name) in self.made_with(self.catalog.instrumented) {
            found.insert(self.word(at), self.name(Kind::Rwlock, name));
        }
        for beside in self.catalog.beside {
            let word = self.made_at(beside.instrumented).map(|at| self.word(at).wrapping_add(beside.distance));
            if let Some(word) = word.filter(|word| waited.get(word) == Some(&true)) {
                found.insert(word, self.named(beside.latch));
            }
        }
        found
    }

    /// Returns the latch in static data whose lock word is at this link-time address.
    pub fn static_latch(&self, link: u64) -> Option<LatchName> {
        self.found.statics.get(&link).cloned()
    }

    /// Returns all latches in static data that are identified by their address: link-time address of the lock word, and
    /// name.
    pub fn statics(&self) -> &BTreeMap<u64, LatchName> {
        &self.found.statics
    }

    /// Returns InnoDB's C library mutexes in static data, by link-time address.
    pub fn static_mutexes(&self) -> BTreeMap<u64, LatchName> {
        let mutexes = self.made_with(self.catalog.mutexes);
        mutexes.map(|(at, name)| (at, LatchName::innodb(Kind::Mutex, name))).collect()
    }

    /// Returns where the code creates those in static data that have one of these instruments.
    fn made_with(&self, instruments: &'static [&'static str]) -> impl Iterator<Item = (u64, &str)> {
        let all = self.found.made.statics.iter().map(|(&at, name)| (at, name.as_str()));
        all.filter(move |(_, name)| instruments.contains(name))
    }

    /// Returns where the code creates latches.
    pub fn made(&self) -> &Made {
        &self.found.made
    }

    /// Returns the latch whose lock word is at `word`, judging by the object that contains it.
    pub(super) fn latch_in(&self, process: &Process, word: u64) -> Option<LatchName> {
        let in_array = self.catalog.arrays.iter().find(|a| self.is_in_array(process, a, word)).map(|a| a.latch);
        let inside = || self.catalog.inside.iter().find(|i| self.is_inside(process, i, word)).map(|i| i.latch);
        Some(self.named(in_array.or_else(inside)?))
    }

    /// Returns the latch whose lock word is at `word`, judging by the performance_schema object next to it.
    pub(super) fn instrumented(&self, process: &Process, psi: PsiClass, word: u64) -> Option<LatchName> {
        let object = process.memory.u64(word.wrapping_add_signed(i64::from(self.catalog.psi_from_latch)))?;
        let class = process.memory.u64(object.wrapping_add(u64::from(psi.to_class)))?;
        process.instrument(psi, class)
    }

    /// Returns the latch of a page in the buffer pool.
    pub(super) fn page_latch(&self) -> LatchName {
        self.named(self.catalog.page_latch)
    }

    fn named(&self, latch: Latch) -> LatchName {
        self.name(latch.kind, latch.name)
    }

    fn name(&self, kind: Kind, name: &str) -> LatchName {
        let is_sxlock = self.instruments.by_name(name).is_some_and(Instrument::is_sxlock);
        LatchName::innodb(if is_sxlock { Kind::Sxlock } else { kind }, name)
    }

    /// Returns the lock word of the instrumented latch at `latch`.
    fn word(&self, latch: u64) -> u64 {
        latch.wrapping_add_signed(-i64::from(self.catalog.psi_from_latch))
    }

    /// Returns the address of the only latch in static data with this instrument.
    fn made_at(&self, instrument: &str) -> Option<u64> {
        let mut all = self.found.made.statics.iter().filter(|(_, name)| *name == instrument);
        all.next().filter(|_| all.next().is_none()).map(|(&at, _)| at)
    }

    pub(super) fn address(&self, image: &Image, object: Object) -> Option<u64> {
        match object {
            Object::Symbol { name, size } => image.symbol(name).filter(|s| s.size == size).map(|s| s.addr),
            Object::Around { instrumented, at } => self.made_at(instrumented)?.checked_sub(at),
        }
    }

    fn is_in_array(&self, process: &Process, array: &ArrayLatches, word: u64) -> bool {
        self.extent(process, array).is_some_and(|(start, bytes)| {
            let from = word.wrapping_sub(start).wrapping_sub(array.word);
            start != 0 && from < bytes && from % array.stride == 0
        })
    }

    /// Returns where an array begins in the process, and its largest possible size, in bytes.
    fn extent(&self, process: &Process, array: &ArrayLatches) -> Option<(u64, u64)> {
        let at = |link: u64| process.memory.u64(link.wrapping_add(process.bias));
        let object = self.address(process.image, array.object)?;
        let start = at(object.wrapping_add(array.array_at))?;
        let bytes = match array.count {
            Count::One => array.stride,
            Count::Variable(symbol) => at(process.image.symbol(symbol)?.addr)?.checked_mul(array.stride)?,
            // Of the eight 8-byte places in 64 bytes, seven are cells and one is the latch. If latches take two places,
            // the last latches are left out: memory after the array must not be taken for one.
            Count::HashCells(cells) => at(object.wrapping_add(cells))?.div_ceil(7).checked_mul(64)?,
        };
        Some((start, bytes))
    }

    /// Returns whether the lock word lies in a structure of this type.
    fn is_inside(&self, process: &Process, inside: &InsideLatch, word: u64) -> bool {
        let holds_at = |offset: u64| {
            let object = word.checked_sub(offset);
            object.is_some_and(|o| inside.evidence.iter().all(|e| holds(process, e, o).unwrap_or(false)))
        };
        match inside.word {
            Word::At(offset) => holds_at(offset),
            Word::Made => {
                let made = self.found.made.members.get(inside.latch.name);
                made.is_some_and(|offsets| offsets.iter().any(|&latch| holds_at(self.word(latch))))
            }
        }
    }
}

/// Returns the lock words in an object whose members the server's tables list: its rw-lock and its mutex, each if it is
/// the only one.
fn latches_around(tables: &[(Table, Variables)], around: &Around, waited: &BTreeMap<u64, bool>) -> Vec<(u64, Latch)> {
    let variable = |(table, name): &(Table, &str)| tables.iter().find(|(of, _)| of == table)?.1.variable(name);
    let members: Vec<u64> = around.variables.iter().filter_map(variable).collect();
    let (Some(&first), Some(&last)) = (members.iter().min(), members.iter().max()) else { return Vec::new() };
    let lines = first - first % CACHE_LINE..(last + 1).next_multiple_of(CACHE_LINE);
    let only = |is_rwlock: bool| {
        let mut all = waited.range(lines.clone()).filter(|(_, rwlock)| **rwlock == is_rwlock).map(|(&word, _)| word);
        all.next().filter(|_| all.next().is_none())
    };
    [(only(true), around.rwlock), (only(false), around.mutex)]
        .into_iter()
        .filter_map(|(word, latch)| Some((word?, latch)))
        .collect()
}

/// Returns whether `evidence` holds for the object; `None` if that cannot be read.
fn holds(process: &Process, evidence: &Evidence, object: u64) -> Option<bool> {
    match *evidence {
        Evidence::Magic { path, at, value } => {
            let address = follow(process, object, path)?.wrapping_add(at);
            Some(process.memory.u64(address)? == value)
        }
        Evidence::Same(a, b) => {
            let address = follow(process, object, a)?;
            Some(address != 0 && address == follow(process, object, b)?)
        }
        Evidence::Name(path) => Some(is_readable(&process.memory.string(follow(process, object, path)?)?)),
        Evidence::PageHeader { path, id } => {
            let page = follow(process, object, path)?;
            let id = process.memory.u64(object.wrapping_add(id))?;
            Some(page != 0 && page % MIN_PAGE == 0 && is_header_of(&process.memory.array(page)?, id))
        }
    }
}

fn follow(process: &Process, start: u64, path: Path) -> Option<u64> {
    path.iter().try_fold(start, |at, offset| process.memory.u64(at.wrapping_add(*offset)))
}

/// Returns whether a page's header is that of this page id. Memory that is all zeros, such as a new log buffer, would
/// be page 0 of tablespace 0, but that page has a type.
fn is_header_of(header: &[u8; 38], id: u64) -> bool {
    const TABLESPACE_HEADER: [u8; 2] = [0, 8];
    page_id(header) == id && (id != 0 || header[24..26] == TABLESPACE_HEADER)
}

/// Returns tablespace and page number from a page's header, which is in network byte order. As in a page id, the
/// tablespace is in the upper half.
fn page_id(header: &[u8; 38]) -> u64 {
    let number =
        |at: usize| u64::from(u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    number(34) << 32 | number(4)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::server::Memory;

    /// Uses this test's own executable and memory in address of a server's.
    fn with_process(test: impl FnOnce(&Process)) {
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        test(&Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 });
    }

    fn rules_of(made: Made) -> Rules {
        let catalog = &crate::catalog::MARIADB_NAMES;
        Rules { catalog, instruments: Instruments::default(), found: Found { made, ..Found::default() } }
    }

    fn addr<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    #[test]
    fn a_page_is_recognised_by_its_header() {
        let mut page = Box::new([0_u8; 3 * MIN_PAGE as usize]);
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
            let first = [0, addr(&page[skip + MIN_PAGE as usize])];
            assert_eq!(holds(process, &check, addr(&first)), Some(false), "a new log buffer is all zeros");
            page[skip + MIN_PAGE as usize + 25] = 8;
            assert_eq!(holds(process, &check, addr(&first)), Some(true), "page 0 of tablespace 0");
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
            // Two null pointers are equal, but do not lead to a address.
            assert_eq!(holds(process, &Evidence::Same(&[0], &[0]), addr(&pair[0])), Some(false));
        });
    }

    #[test]
    fn the_latches_of_an_array_lie_where_its_elements_have_them() {
        let elements = [[0_u64; 4]; 3];
        let object = [0, addr(&elements), 3];
        let array = |count| ArrayLatches {
            object: Object::Around { instrumented: "trx_sys_mutex", at: 0 },
            array_at: 8,
            count,
            stride: 32,
            word: 16,
            latch: Latch { kind: Kind::Rwlock, name: "buf_block_lock" },
        };
        let made = Made { statics: [(addr(&object), "trx_sys_mutex".to_owned())].into(), ..Made::default() };
        let rules = rules_of(made);
        with_process(|process| {
            let are_latches = |count| {
                let array = array(count);
                let words = elements.iter().flatten().enumerate();
                words.filter(|(_, word)| rules.is_in_array(process, &array, addr(*word))).map(|(i, _)| i).collect()
            };
            let only: Vec<usize> = are_latches(Count::One);
            assert_eq!(only, [2]);
            // 3 places, of which 7 in 8 are cells, take 64 bytes: two elements.
            let hashed: Vec<usize> = are_latches(Count::HashCells(16));
            assert_eq!(hashed, [2, 6]);
        });
    }

    #[test]
    fn garbage_is_never_recognised() {
        let noise: Vec<u64> = (0..512_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let zeros = vec![0_u64; 512];
        let offsets = (0..512).collect::<BTreeSet<u64>>();
        let names = crate::catalog::MARIADB_NAMES.instrumented.iter().map(|n| (*n).to_owned());
        let made = Made { members: names.map(|name| (name, offsets.clone())).collect(), ..Made::default() };
        let rules = rules_of(made);
        with_process(|process| {
            for word in [0, 1, 88, u64::MAX, addr(&noise[300]), addr(&zeros[300])] {
                for inside in crate::catalog::MARIADB_NAMES.inside {
                    assert!(!rules.is_inside(process, inside, word), "{} at {word:#x}", inside.latch.name);
                }
            }
        });
    }

    #[test]
    fn names_are_readable_text() {
        assert!(is_readable("sbtest/sbtest1"));
        assert!(is_readable("PRIMARY"));
        assert!(!is_readable(""));
        assert!(!is_readable("\u{1}\u{2}"));
    }
}

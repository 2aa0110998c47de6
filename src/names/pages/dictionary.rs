//! The server's cache of table definitions: `dict_sys`, its tables, and their indexes.
//!
//! Where these structures keep their lists differs between versions, so it is found in the running server. InnoDB's
//! lists are doubly linked, and their heads know the first and the last element and how many there are: what fits all
//! of that is a list. A list of tables is one whose elements have a list of indexes, and every index points to its
//! table. Where that does not hold, nothing is taken from it.

use crate::catalog::{Dictionary, SpaceAt};
use crate::server::Memory;

/// The most tables that are examined in one pass, and the most indexes of each. Servers cache a few thousand tables; a
/// table cannot have more than 64 indexes and a few internal ones.
const MAX_TABLES: usize = 1 << 16;
const MAX_INDEXES: usize = 128;
/// How much of each structure is searched for heads and links of lists, in bytes.
const SEARCHED: usize = 2048;
/// How many elements of a list are examined to find out how it is linked.
const EXAMINED: usize = 32;
/// The most elements that a list may have. More is no number of elements, but may be an address.
const MOST_COUNTED: usize = 1 << 24;
/// The most reads of the server's memory for one search. A server needs some hundreds.
const MAX_READS: usize = 20_000;

/// The smallest page size: a structure may end right before a page that cannot be read.
const PAGE: u64 = 4096;

/// A list's head: the offset of the pointer to the first element. The pointer to the last one follows.
type HeadAt = u64;
/// The offset in a list's element of the pointer to the next one. The pointer to the previous one comes before it.
type NextAt = u64;

/// Where one server's structures keep their lists; all offsets are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lists {
    /// The lists of tables: those that may be evicted, and the others.
    tables: Vec<HeadAt>,
    table_next: NextAt,
    /// The table's list of indexes.
    indexes: HeadAt,
    index_next: NextAt,
}

impl Lists {
    /// Finds the lists of the cache at this address. `None` if it does not look like one, or if the server changed it
    /// meanwhile.
    pub(super) fn find(memory: &Memory, layout: &Dictionary, cache: u64) -> Option<Lists> {
        Search { memory, layout, reads: MAX_READS }.lists(cache)
    }

    /// Calls `visit` with the tablespace, the number and the address of every index in the cache, until it returns
    /// false. Returns false if a list broke off, because the server changed it.
    pub(super) fn each_index(
        &self,
        memory: &Memory,
        layout: &Dictionary,
        cache: u64,
        mut visit: impl FnMut(u32, u64, u64) -> bool,
    ) -> bool {
        let mut whole = true;
        for head in &self.tables {
            match self.each_index_of(memory, layout, cache.wrapping_add(*head), &mut visit) {
                Some(true) => {}
                Some(false) => break,
                None => whole = false,
            }
        }
        whole
    }

    /// Does the same for one list of tables. Returns whether to go on; `None` if it broke off.
    fn each_index_of(
        &self,
        memory: &Memory,
        layout: &Dictionary,
        head: u64,
        visit: &mut impl FnMut(u32, u64, u64) -> bool,
    ) -> Option<bool> {
        let mut previous = 0;
        let mut table = memory.u64(head)?;
        for _ in 0..MAX_TABLES {
            if table == 0 {
                break;
            }
            let [before, next] = links(memory, table, self.table_next)?;
            if before != previous {
                return None;
            }
            let mut index = memory.u64(table.wrapping_add(self.indexes))?;
            let mut previous_index = 0;
            for _ in 0..MAX_INDEXES {
                if index == 0 {
                    break;
                }
                let [before, next] = links(memory, index, self.index_next)?;
                let owner = memory.u64(index.wrapping_add(layout.index_table))?;
                if before != previous_index || owner != table {
                    return None;
                }
                let space = match layout.space {
                    SpaceAt::Index(at) => memory.u32(index.wrapping_add(at)),
                    SpaceAt::Table(at) => memory.u32(table.wrapping_add(at)),
                };
                if !visit(space?, memory.u64(index.wrapping_add(layout.index_id))?, index) {
                    return Some(false);
                }
                (previous_index, index) = (index, next);
            }
            (previous, table) = (table, next);
        }
        Some(true)
    }
}

/// Returns the two pointers of a list's element, to the previous and the next one.
fn links(memory: &Memory, element: u64, next: NextAt) -> Option<[u64; 2]> {
    let bytes = memory.array::<16>(element.wrapping_add(next).wrapping_sub(8))?;
    let (before, next) = bytes.split_at(8);
    Some([before, next].map(|b| b.try_into().map_or(0, u64::from_le_bytes)))
}

/// What looks like a list's head, in the words of a structure.
#[derive(Clone, Copy)]
struct Head {
    at: HeadAt,
    first: u64,
    last: u64,
    /// The words beside the two pointers, one of which is the number of elements.
    beside: [u64; 2],
}

impl Head {
    /// Returns all that may be heads of lists with elements.
    fn all_in(words: &[u64]) -> impl Iterator<Item = Head> + '_ {
        words.windows(4).enumerate().filter_map(|(i, w)| {
            let [before, first, last, after] = *w else { return None };
            let at = (i as u64 + 1) * 8;
            (is_pointer(first) && is_pointer(last)).then_some(Head { at, first, last, beside: [before, after] })
        })
    }

    /// Returns whether the list has this many elements; or more, if that is how many were examined.
    fn counts(&self, elements: usize) -> bool {
        let fits = |count: &u64| {
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            if elements < EXAMINED {
                count == elements
            } else {
                (EXAMINED..=MOST_COUNTED).contains(&count)
            }
        };
        self.beside.iter().any(fits)
    }
}

/// Returns whether this may be the address of a structure with pointers in it.
fn is_pointer(word: u64) -> bool {
    (1 << 16..1 << 56).contains(&word) && word.is_multiple_of(8)
}

/// A search for the lists of one cache.
struct Search<'a> {
    memory: &'a Memory,
    layout: &'a Dictionary,
    /// How many more times the server's memory is read.
    reads: usize,
}

impl Search<'_> {
    fn lists(&mut self, cache: u64) -> Option<Lists> {
        let words = self.words(cache)?;
        let heads: Vec<Head> = Head::all_in(&words).collect();
        heads.iter().find_map(|head| {
            let found = self.links_of(head).into_iter().find_map(|next| {
                let tables = self.elements(head, next)?;
                Some((next, self.lists_of_indexes(&tables)?))
            });
            let (table_next, (indexes, index_next)) = found?;
            let is_one = |head: &&Head| self.is_list_of_tables(head, table_next, indexes);
            let tables = heads.iter().filter(is_one).map(|head| head.at).collect();
            Some(Lists { tables, table_next, indexes, index_next })
        })
    }

    fn is_list_of_tables(&mut self, head: &Head, table_next: NextAt, indexes: HeadAt) -> bool {
        let Some(tables) = self.elements(head, table_next) else { return false };
        tables.into_iter().all(|table| {
            let index = self.word(table.wrapping_add(indexes));
            index.is_some_and(|index| self.is_index_of(index, table))
        })
    }

    /// Returns where the elements of a list of at least two may have their links: the first has nothing before it, and
    /// the last nothing after it.
    fn links_of(&mut self, head: &Head) -> Vec<NextAt> {
        let (Some(first), Some(last)) = (self.words(head.first), self.words(head.last)) else { return Vec::new() };
        let fits = |(i, (first, last)): (usize, (&[u64], &[u64]))| {
            let ends = first[0] == 0 && is_pointer(first[1]) && is_pointer(last[0]) && last[1] == 0;
            ends.then_some((i as u64 + 1) * 8)
        };
        first.windows(2).zip(last.windows(2)).enumerate().filter_map(fits).collect()
    }

    /// Returns the elements of a list that is linked here, the first [`EXAMINED`] of them; `None` if it is no list.
    fn elements(&mut self, head: &Head, next: NextAt) -> Option<Vec<u64>> {
        let mut elements = Vec::new();
        let (mut previous, mut element) = (0, head.first);
        while element != 0 && elements.len() < EXAMINED {
            let [before, after] = self.read(|memory| links(memory, element, next))?;
            if before != previous {
                return None;
            }
            elements.push(element);
            (previous, element) = (element, after);
        }
        let ends = elements.len() == EXAMINED || previous == head.last;
        (ends && head.counts(elements.len())).then_some(elements)
    }

    /// Returns where these tables have their lists of indexes, and where the indexes have their links.
    fn lists_of_indexes(&mut self, tables: &[u64]) -> Option<(HeadAt, NextAt)> {
        let tables: Vec<Table> = tables.iter().filter_map(|at| Some((*at, self.words(*at)?))).collect();
        let (first, words) = tables.first()?;
        let found = Head::all_in(words).find_map(|head| {
            let next = self.is_index_of(head.first, *first).then(|| self.links_of_indexes(&tables, head.at));
            Some((head.at, next??))
        });
        found
    }

    /// Returns where the indexes of all these tables have their links, if their lists are here. Only tables with
    /// several indexes show it.
    fn links_of_indexes(&mut self, tables: &[Table], at: HeadAt) -> Option<NextAt> {
        let mut links: Option<Vec<NextAt>> = None;
        for (table, words) in tables {
            let head = Head::all_in(words).find(|head| head.at == at)?;
            if !(self.is_index_of(head.first, *table) && self.is_index_of(head.last, *table)) {
                return None;
            }
            if head.first != head.last {
                let mut fitting = links.unwrap_or_else(|| self.links_of(&head));
                fitting.retain(|next| self.elements(&head, *next).is_some());
                links = Some(fitting);
            }
        }
        <[NextAt; 1]>::try_from(links?).ok().map(|[next]| next)
    }

    fn is_index_of(&mut self, index: u64, table: u64) -> bool {
        self.word(index.wrapping_add(self.layout.index_table)) == Some(table)
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        self.read(|memory| memory.u64(at))
    }

    /// Returns the words of a structure: those on the page where it begins and, if they can be read, those on the next.
    fn words(&mut self, at: u64) -> Option<Vec<u64>> {
        let mut bytes = vec![0; SEARCHED];
        let on_page = usize::try_from(PAGE - at % PAGE).map_or(SEARCHED, |rest| rest.min(SEARCHED));
        let (page, next) = bytes.split_at_mut(on_page);
        self.read(|memory| memory.read(at, page).ok())?;
        if !next.is_empty() {
            self.read(|memory| memory.read(at + on_page as u64, next).ok());
        }
        Some(bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect())
    }

    /// Reads the server's memory, unless that was done too often.
    fn read<T>(&mut self, read: impl FnOnce(&Memory) -> Option<T>) -> Option<T> {
        self.reads = self.reads.checked_sub(1)?;
        read(self.memory)
    }
}

/// A table's address, and the words of its structure.
type Table = (u64, Vec<u64>);

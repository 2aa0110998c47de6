//! Finds the tables and indexes that pages belong to, from the server's cache of table definitions.
//!
//! The kernel side files waits for pages under numbers from the pages' headers. A number that is not found is searched
//! for a few more times, because its table may not have been in the cache yet. Names are read again from time to time,
//! because tables are renamed: one that is rebuilt has another name until it takes the place of the old one. A number
//! whose table has left the cache keeps its last name.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Process;
use crate::catalog::{Dictionary, Pages, Path, SpaceAt};
use crate::server::Memory;

/// The most tables that are examined in one pass, and the most indexes of each. Servers cache a few thousand tables; a
/// table cannot have more than 64 indexes and a few internal ones.
const MAX_TABLES: usize = 1 << 16;
const MAX_INDEXES: usize = 128;
/// How often reading restarts when the server changed a list meanwhile.
const MAX_RESTARTS: usize = 4;
/// How often, and at what interval, a number is searched for.
const MAX_TRIES: u8 = 8;
const BETWEEN_TRIES: Duration = Duration::from_secs(5);
/// At what interval names are read again.
const BETWEEN_CHECKS: Duration = Duration::from_secs(30);

/// The key by which the kernel side distinguishes pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKey {
    /// A page of an index.
    Index {
        /// The tablespace number.
        space: u32,
        /// The index number.
        index: u64,
        /// The level in the tree, 0 for leaf pages.
        level: u16,
    },
    /// A page of the type that its header gives.
    Plain {
        /// The tablespace number.
        space: u32,
        /// The type's number.
        kind: u16,
    },
}

/// What a page is part of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageName {
    /// The table as InnoDB names it, `db/table`. If the page belongs to no table, or the table is unknown, this is the
    /// tablespace's name or `space NUMBER`.
    pub table: String,
    /// The index's name, or `index NUMBER`. For a page without an index, this is its purpose in parentheses.
    pub index: String,
    /// The level, 0 for leaf pages; `None` for pages without an index.
    pub level: Option<u16>,
}

/// What is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    /// An index, by tablespace and number.
    Index(u32, u64),
    /// A table's own tablespace.
    Space(u32),
}

/// The names of one server's pages.
pub struct PageNames {
    catalog: &'static Pages,
    /// The location of the cache, if it was found.
    dictionary: Option<At>,
    indexes: HashMap<(u32, u64), IndexName>,
    spaces: HashMap<u32, String>,
    tries: HashMap<Wanted, u8>,
    tried: Option<Instant>,
    /// When all names were last read.
    checked: Instant,
}

/// The location of the cache of table definitions.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// The address of the pointer to it, which is null until the server has started.
    Pointer(u64),
    Object(u64),
}

/// An index and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexName {
    table: String,
    index: String,
}

impl PageNames {
    pub(super) fn new(catalog: &'static Pages, dictionary: Option<At>) -> PageNames {
        let spaces = catalog.spaces.iter().map(|&(id, name)| (id, name.to_owned())).collect();
        PageNames {
            catalog,
            dictionary,
            indexes: HashMap::new(),
            spaces,
            tries: HashMap::new(),
            tried: None,
            checked: Instant::now(),
        }
    }

    /// Returns what each of these pages is part of. These are all pages that there are: names of others are forgotten.
    pub(super) fn names(&mut self, process: &Process, keys: &[PageKey]) -> Vec<PageName> {
        self.forget_others(keys);
        self.look_for(&process.memory, keys);
        keys.iter().map(|key| self.name(*key)).collect()
    }

    fn forget_others(&mut self, keys: &[PageKey]) {
        let wanted: HashSet<Wanted> = keys.iter().filter_map(|key| self.wanted(*key)).collect();
        self.indexes.retain(|(space, index), _| wanted.contains(&Wanted::Index(*space, *index)));
        let fixed = self.catalog.spaces;
        self.spaces.retain(|space, _| {
            wanted.contains(&Wanted::Space(*space)) || fixed.iter().any(|(fixed, _)| fixed == space)
        });
        self.tries.retain(|what, _| wanted.contains(what));
    }

    fn name(&self, key: PageKey) -> PageName {
        match key {
            PageKey::Index { space, index, level } => {
                let found = self.indexes.get(&(space, index)).cloned();
                let name = found
                    .unwrap_or_else(|| IndexName { table: self.space_name(space), index: format!("index {index}") });
                PageName { table: name.table, index: name.index, level: Some(level) }
            }
            PageKey::Plain { space, kind } => {
                let what = self.catalog.types.iter().copied().flatten().find(|(number, _)| *number == kind);
                let index = what.map_or_else(|| format!("(page type {kind})"), |(_, what)| format!("({what})"));
                PageName { table: self.space_name(space), index, level: None }
            }
        }
    }

    fn space_name(&self, space: u32) -> String {
        self.spaces.get(&space).cloned().unwrap_or_else(|| format!("space {space}"))
    }

    /// Returns what names this page; `None` if that is not in the cache of tables.
    fn wanted(&self, key: PageKey) -> Option<Wanted> {
        let is_fixed = |space| self.catalog.spaces.iter().any(|(fixed, _)| *fixed == space);
        match key {
            PageKey::Index { space, index, .. } => Some(Wanted::Index(space, index)),
            PageKey::Plain { space, .. } if self.catalog.one_table_per_space && !is_fixed(space) => {
                Some(Wanted::Space(space))
            }
            PageKey::Plain { .. } => None,
        }
    }

    fn is_known(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Index(space, index) => self.indexes.contains_key(&(space, index)),
            Wanted::Space(space) => self.spaces.contains_key(&space),
        }
    }

    /// Searches for whatever has no name yet, unless that was done recently, or often enough. From time to time, reads
    /// the other names again.
    fn look_for(&mut self, memory: &Memory, keys: &[PageKey]) {
        let all: HashSet<Wanted> = keys.iter().filter_map(|key| self.wanted(*key)).collect();
        let (known, mut wanted): (HashSet<_>, HashSet<_>) = all.into_iter().partition(|w| self.is_known(*w));
        wanted.retain(|w| self.tries.get(w).is_none_or(|tries| *tries < MAX_TRIES));
        let is_new = wanted.iter().any(|w| !self.tries.contains_key(w));
        let is_due = self.tried.is_none_or(|tried| tried.elapsed() >= BETWEEN_TRIES);
        if is_new || is_due && !wanted.is_empty() {
            self.tried = Some(Instant::now());
            for w in &wanted {
                *self.tries.entry(*w).or_default() += 1;
            }
        } else {
            wanted.clear();
        }
        if self.checked.elapsed() >= BETWEEN_CHECKS {
            self.checked = Instant::now();
            wanted.extend(known);
        }
        if !wanted.is_empty() {
            self.read(memory, wanted);
        }
    }

    /// Reads these names from the cache of tables.
    fn read(&mut self, memory: &Memory, mut wanted: HashSet<Wanted>) {
        let dictionary = match self.dictionary {
            Some(At::Object(at)) => Some(at),
            Some(At::Pointer(at)) => memory.u64(at).filter(|at| *at != 0),
            None => None,
        };
        let Some(dictionary) = dictionary else { return };
        let layout = &self.catalog.dictionary;
        let (indexes, spaces) = (&mut self.indexes, &mut self.spaces);
        for list in layout.lists {
            let head = dictionary.wrapping_add(*list);
            for _ in 0..MAX_RESTARTS {
                let whole = each_index(memory, layout, head, |space, id, index| {
                    if wanted.remove(&Wanted::Index(space, id)) {
                        if let Some(name) = index_name(memory, layout, index) {
                            indexes.insert((space, id), name);
                        }
                    }
                    if wanted.remove(&Wanted::Space(space)) {
                        if let Some(name) = index_name(memory, layout, index) {
                            spaces.insert(space, name.table);
                        }
                    }
                    !wanted.is_empty()
                });
                if whole {
                    break;
                }
            }
        }
    }
}

/// Calls `visit` with the tablespace, the number and the address of every index in the list of tables at `head`, until
/// it returns false. Returns false if the list broke off, because the server changed it or it is not a list.
fn each_index(memory: &Memory, layout: &Dictionary, head: u64, mut visit: impl FnMut(u32, u64, u64) -> bool) -> bool {
    let mut previous = 0;
    let Some(mut table) = memory.u64(head) else { return false };
    for _ in 0..MAX_TABLES {
        if table == 0 {
            return true;
        }
        let Some([before, next]) = links(memory, table, layout.table_next) else { return false };
        if before != previous {
            return false;
        }
        let Some(mut index) = memory.u64(table.wrapping_add(layout.table_indexes)) else { return false };
        let mut previous_index = 0;
        for _ in 0..MAX_INDEXES {
            if index == 0 {
                break;
            }
            let Some([before, next]) = links(memory, index, layout.index_next) else { return false };
            let owner = memory.u64(index.wrapping_add(layout.index_table));
            if before != previous_index || owner != Some(table) {
                return false;
            }
            let space = match layout.space {
                SpaceAt::Index(at) => memory.u32(index.wrapping_add(at)),
                SpaceAt::Table(at) => memory.u32(table.wrapping_add(at)),
            };
            let (Some(space), Some(id)) = (space, memory.u64(index.wrapping_add(layout.index_id))) else {
                return false;
            };
            if !visit(space, id, index) {
                return true;
            }
            (previous_index, index) = (index, next);
        }
        (previous, table) = (table, next);
    }
    true
}

/// Returns the two pointers of a list's element, to the previous and the next one; the second is at this offset.
fn links(memory: &Memory, element: u64, next: u64) -> Option<[u64; 2]> {
    let bytes = memory.array::<16>(element.wrapping_add(next).wrapping_sub(8))?;
    let (before, next) = bytes.split_at(8);
    Some([before, next].map(|b| b.try_into().map_or(0, u64::from_le_bytes)))
}

/// Reads the names twice, because a table that is being renamed frees its old name.
fn index_name(memory: &Memory, layout: &Dictionary, index: u64) -> Option<IndexName> {
    let name = read_index_name(memory, layout, index)?;
    (read_index_name(memory, layout, index)? == name).then_some(name)
}

fn read_index_name(memory: &Memory, layout: &Dictionary, index: u64) -> Option<IndexName> {
    let string = |path: Path| {
        let at = path.iter().try_fold(index, |at, offset| memory.u64(at.wrapping_add(*offset)))?;
        memory.string(at).filter(|name| super::is_readable(name))
    };
    Some(IndexName { table: string(layout.table_name)?, index: string(layout.index_name)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{DictionaryAt, PageLatch};
    use crate::symbols::Image;

    /// Tables and indexes of 16 words each. Table: next at 2, first index at 3. Index: number at 0, table at 4, next at
    /// 6, name at 7, table's name at 8, tablespace at 9.
    static CATALOG: Pages = Pages {
        latch: PageLatch { space: 0, page_no: 0, frame: 0, flag: None, index_type: None },
        dictionary: Dictionary {
            at: DictionaryAt::Pointer("none"),
            lists: &[0],
            table_next: 16,
            table_indexes: 24,
            index_table: 32,
            index_next: 48,
            index_id: 0,
            index_name: &[56],
            table_name: &[64],
            space: SpaceAt::Index(72),
        },
        spaces: &[(0, "innodb_system")],
        one_table_per_space: true,
        types: &[&[(2, "undo log")]],
    };

    type Object = [u64; 16];

    fn addr<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    /// A list head, and two tables, the first with two indexes and the second with one.
    fn dictionary() -> Box<(u64, [Object; 2], [Object; 3])> {
        let mut d = Box::new((0, [[0; 16]; 2], [[0; 16]; 3]));
        let (table, index): ([u64; 2], [u64; 3]) =
            (std::array::from_fn(|i| addr(&d.1[i])), std::array::from_fn(|i| addr(&d.2[i])));
        d.0 = table[0];
        (d.1[0][2], d.1[1][1]) = (table[1], table[0]);
        (d.1[0][3], d.1[1][3]) = (index[0], index[2]);
        (d.2[0][6], d.2[1][5]) = (index[1], index[0]);
        for (i, name) in [c"PRIMARY", c"k_1", c"PRIMARY"].into_iter().enumerate() {
            d.2[i][0] = 150 + i as u64;
            d.2[i][4] = table[i / 2];
            d.2[i][7] = name.as_ptr() as u64;
            d.2[i][8] = [c"db/one", c"db/two"][i / 2].as_ptr() as u64;
            d.2[i][9] = 3 + i as u64 / 2;
        }
        d
    }

    fn names(d: &(u64, [Object; 2], [Object; 3]), keys: &[PageKey]) -> Vec<(String, String)> {
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(addr(&d.0))));
        names.names(&process, keys).into_iter().map(|n| (n.table, n.index)).collect()
    }

    const K1: PageKey = PageKey::Index { space: 3, index: 151, level: 1 };
    const TWO: PageKey = PageKey::Index { space: 4, index: 152, level: 0 };

    fn pair(table: &str, index: &str) -> (String, String) {
        (table.to_owned(), index.to_owned())
    }

    #[test]
    fn pages_are_named_by_the_cache_of_tables() {
        let plain = [
            PageKey::Plain { space: 0, kind: 2 },
            PageKey::Plain { space: 4, kind: 99 },
            PageKey::Plain { space: 7, kind: 2 },
        ];
        let got = names(&dictionary(), &[&[K1, TWO][..], &plain[..]].concat());
        assert_eq!(
            got,
            [
                pair("db/one", "k_1"),
                pair("db/two", "PRIMARY"),
                pair("innodb_system", "(undo log)"),
                pair("db/two", "(page type 99)"),
                pair("space 7", "(undo log)"),
            ]
        );
    }

    #[test]
    fn an_index_of_the_same_number_elsewhere_is_another() {
        let other = PageKey::Index { space: 4, index: 151, level: 1 };
        assert_eq!(names(&dictionary(), &[other]), [pair("space 4", "index 151")]);
    }

    #[test]
    fn what_does_not_fit_together_names_nothing() {
        let unnamed = [pair("space 4", "index 152")];
        let mut d = dictionary();
        d.2[2][4] = addr(&d.1[0]);
        assert_eq!(names(&d, &[TWO]), unnamed, "the index is another table's");
        let mut d = dictionary();
        d.1[1][1] = 8;
        assert_eq!(names(&d, &[TWO]), unnamed, "the table before knows of another next one");
        let mut d = dictionary();
        d.2[2][8] = 0xdead_0000;
        assert_eq!(names(&d, &[TWO]), unnamed, "the name is nowhere");
        let mut d = dictionary();
        d.0 = 0xdead_0000;
        assert_eq!(names(&d, &[TWO]), unnamed, "there is no list");
    }

    #[test]
    fn a_list_without_an_end_is_left() {
        let mut d = dictionary();
        // Tables and indexes that are their own neighbors.
        let (table, index) = (addr(&d.1[1]), addr(&d.2[1]));
        (d.1[1][1], d.1[1][2], d.1[1][3]) = (table, table, index);
        (d.2[1][4], d.2[1][5], d.2[1][6]) = (table, index, index);
        d.1[0][2] = table;
        assert_eq!(names(&d, &[TWO]), [pair("space 4", "index 152")]);
    }

    /// As after `RENAME TABLE one TO old, new TO one`, and as after the old table is dropped.
    #[test]
    fn a_renamed_table_gets_its_new_name() {
        let mut d = dictionary();
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(addr(&d.0))));
        let keys = [K1, PageKey::Plain { space: 4, kind: 2 }];
        let tables = |names: &mut PageNames| -> Vec<String> {
            names.names(&process, &keys).into_iter().map(|name| name.table).collect()
        };
        assert_eq!(tables(&mut names), ["db/one", "db/two"]);
        for (index, name) in d.2.iter_mut().zip([c"db/old", c"db/old", c"db/one"]) {
            index[8] = name.as_ptr() as u64;
        }
        assert_eq!(tables(&mut names), ["db/one", "db/two"], "not at each scrape");
        let check = |names: &mut PageNames| names.checked = Instant::now().checked_sub(BETWEEN_CHECKS).expect("a time");
        check(&mut names);
        assert_eq!(tables(&mut names), ["db/old", "db/one"]);
        d.0 = addr(&d.1[1]);
        d.1[1][1] = 0;
        check(&mut names);
        assert_eq!(tables(&mut names), ["db/old", "db/one"], "what is gone keeps its last name");
    }

    #[test]
    fn what_is_not_found_is_looked_for_a_few_times() {
        let d = dictionary();
        let missing = PageKey::Index { space: 9, index: 9, level: 0 };
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(addr(&d.0))));
        for _ in 0..3 {
            names.names(&process, &[missing]);
        }
        assert_eq!(names.tries[&Wanted::Index(9, 9)], 1, "not at each scrape");
        for _ in 0..20 {
            names.tried = None;
            names.names(&process, &[missing]);
        }
        assert_eq!(names.tries[&Wanted::Index(9, 9)], MAX_TRIES);
    }

    /// Tables come and go for weeks.
    #[test]
    fn names_of_pages_that_are_gone_are_forgotten() {
        let d = dictionary();
        let missing = PageKey::Index { space: 9, index: 9, level: 0 };
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(addr(&d.0))));
        names.names(&process, &[K1, TWO, missing, PageKey::Plain { space: 4, kind: 2 }]);
        assert_eq!((names.indexes.len(), names.spaces.len(), names.tries.len()), (2, 2, 4));
        names.names(&process, &[TWO]);
        assert_eq!((names.indexes.len(), names.spaces.len(), names.tries.len()), (1, 1, 1));
        let system = PageKey::Plain { space: 0, kind: 2 };
        assert_eq!(names.names(&process, &[system])[0].table, "innodb_system");
    }
}

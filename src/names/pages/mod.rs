//! Finds the tables and indexes that pages belong to, from the server's cache of table definitions.
//!
//! The kernel side files waits for pages under numbers from the pages' headers. A number that is not found is searched
//! for a few more times, because its table may not have been in the cache yet. Names are read again from time to time,
//! because tables are renamed: one that is rebuilt has another name until it takes the place of the old one. A number
//! whose table has left the cache keeps its last name.

mod dictionary;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use self::dictionary::Lists;
use super::Process;
use crate::catalog::{Dictionary, Pages, Path};
use crate::server::Memory;

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
        for _ in 0..MAX_RESTARTS {
            let Some(lists) = Lists::find(memory, layout, dictionary) else { continue };
            let whole = lists.each_index(memory, layout, dictionary, |space, id, index| {
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
    use crate::catalog::{DictionaryAt, PageLatch, SpaceAt};
    use crate::symbols::Image;

    /// As in [`dictionary`].
    static CATALOG: Pages = Pages {
        latch: PageLatch { space: 0, page_no: 0, frame: 0, flag: None, index_type: None },
        dictionary: Dictionary {
            at: DictionaryAt::Pointer("none"),
            index_table: 32,
            index_id: 0,
            index_name: &[56],
            table_name: &[64],
            space: SpaceAt::Index(72),
        },
        spaces: &[(0, "innodb_system")],
        one_table_per_space: true,
        types: &[&[(2, "undo log")]],
    };

    /// Structures of the size that is searched for lists.
    type Object = [u64; 256];

    /// Where the structures keep what, in words.
    const TABLES: usize = 6;
    const TABLE_NEXT: usize = 20;
    const INDEXES: usize = 31;
    const INDEX_NEXT: usize = 145;
    const TABLE: usize = 4;
    const NAME: usize = 7;
    const TABLE_NAME: usize = 8;

    struct Cache {
        cache: Object,
        tables: [Object; 2],
        indexes: [Object; 3],
    }

    impl Cache {
        fn address(&self) -> u64 {
            addr(&self.cache)
        }
    }

    fn addr<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    /// Makes a list of these elements, with its head here: the number of elements, the first, and the last.
    fn link(head: &mut [u64], elements: &mut [Object], next: usize) {
        let at: Vec<u64> = elements.iter().map(addr).collect();
        for (i, element) in elements.iter_mut().enumerate() {
            element[next - 1] = if i == 0 { 0 } else { at[i - 1] };
            element[next] = at.get(i + 1).copied().unwrap_or(0);
        }
        head.copy_from_slice(&[at.len() as u64, at[0], at[at.len() - 1]]);
    }

    /// Two tables, the first with two indexes and the second with one.
    fn dictionary() -> Box<Cache> {
        let mut d = Box::new(Cache { cache: [0; 256], tables: [[0; 256]; 2], indexes: [[0; 256]; 3] });
        let Cache { cache, tables, indexes } = &mut *d;
        link(&mut cache[TABLES - 1..=TABLES + 1], tables, TABLE_NEXT);
        let (first, second) = indexes.split_at_mut(2);
        for (table, indexes) in tables.iter_mut().zip([first, second]) {
            link(&mut table[INDEXES - 1..=INDEXES + 1], indexes, INDEX_NEXT);
            indexes.iter_mut().for_each(|index| index[TABLE] = addr(table));
        }
        for (i, name) in [c"PRIMARY", c"k_1", c"PRIMARY"].into_iter().enumerate() {
            indexes[i][0] = 150 + i as u64;
            indexes[i][NAME] = name.as_ptr() as u64;
            indexes[i][TABLE_NAME] = [c"db/one", c"db/two"][i / 2].as_ptr() as u64;
            indexes[i][9] = 3 + i as u64 / 2;
        }
        d
    }

    fn names(d: &Cache, keys: &[PageKey]) -> Vec<(String, String)> {
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(d.address())));
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
        d.indexes[2][TABLE] = addr(&d.tables[0]);
        assert_eq!(names(&d, &[TWO]), unnamed, "the index is another table's");
        let mut d = dictionary();
        d.tables[1][TABLE_NEXT - 1] = 8;
        assert_eq!(names(&d, &[TWO]), unnamed, "the table before knows of another next one");
        let mut d = dictionary();
        d.cache[TABLES - 1] = 3;
        assert_eq!(names(&d, &[TWO]), unnamed, "there should be more tables");
        let mut d = dictionary();
        d.tables[0][INDEXES - 1] = 3;
        assert_eq!(names(&d, &[TWO]), unnamed, "there should be more indexes");
        let mut d = dictionary();
        d.indexes[2][TABLE_NAME] = 0xdead_0000;
        assert_eq!(names(&d, &[TWO]), unnamed, "the name is nowhere");
        let mut d = dictionary();
        d.cache[TABLES] = 0xdead_0000;
        assert_eq!(names(&d, &[TWO]), unnamed, "there is no list");
    }

    #[test]
    fn a_list_without_an_end_is_left() {
        let mut d = dictionary();
        // Tables and indexes that are their own neighbors.
        let (table, index) = (addr(&d.tables[1]), addr(&d.indexes[1]));
        d.tables[1][TABLE_NEXT - 1..=TABLE_NEXT].copy_from_slice(&[table, table]);
        d.tables[1][INDEXES..=INDEXES + 1].copy_from_slice(&[index, index]);
        d.indexes[1][INDEX_NEXT - 1..=INDEX_NEXT].copy_from_slice(&[index, index]);
        d.indexes[1][TABLE] = table;
        d.tables[0][TABLE_NEXT] = table;
        assert_eq!(names(&d, &[TWO]), [pair("space 4", "index 152")]);
    }

    /// Pointers that lead everywhere, and no end of lists.
    #[test]
    fn a_search_of_hostile_memory_ends() {
        use crate::server::hostile;
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        for step in [1, 3, 7] {
            let bytes: Vec<u8> = (0..9 * step)
                .flat_map(|i| if i % 3 == 0 { 0_u64 } else { 0x7f00_0000 + i * 8 }.to_le_bytes())
                .collect();
            hostile::fill(&bytes);
            let process = Process { image: &image, memory: Memory::new(hostile::PID), bias: 0 };
            let mut names = PageNames::new(&CATALOG, Some(At::Object(0x7000_0000)));
            assert_eq!(names.names(&process, &[TWO])[0].table, "space 4");
        }
    }

    /// As after `RENAME TABLE one TO old, new TO one`, and as after the old table is dropped.
    #[test]
    fn a_renamed_table_gets_its_new_name() {
        let mut d = dictionary();
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(d.address())));
        let keys = [K1, PageKey::Plain { space: 4, kind: 2 }];
        let tables = |names: &mut PageNames| -> Vec<String> {
            names.names(&process, &keys).into_iter().map(|name| name.table).collect()
        };
        assert_eq!(tables(&mut names), ["db/one", "db/two"]);
        for (index, name) in d.indexes.iter_mut().zip([c"db/old", c"db/old", c"db/one"]) {
            index[TABLE_NAME] = name.as_ptr() as u64;
        }
        assert_eq!(tables(&mut names), ["db/one", "db/two"], "not at each scrape");
        let check = |names: &mut PageNames| names.checked = Instant::now().checked_sub(BETWEEN_CHECKS).expect("a time");
        check(&mut names);
        assert_eq!(tables(&mut names), ["db/old", "db/one"]);
        link(&mut d.cache[TABLES - 1..=TABLES + 1], &mut d.tables[1..], TABLE_NEXT);
        check(&mut names);
        assert_eq!(tables(&mut names), ["db/old", "db/one"], "what is gone keeps its last name");
    }

    #[test]
    fn what_is_not_found_is_looked_for_a_few_times() {
        let d = dictionary();
        let missing = PageKey::Index { space: 9, index: 9, level: 0 };
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let process = Process { image: &image, memory: Memory::new(std::process::id() as i32), bias: 0 };
        let mut names = PageNames::new(&CATALOG, Some(At::Object(d.address())));
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
        let mut names = PageNames::new(&CATALOG, Some(At::Object(d.address())));
        names.names(&process, &[K1, TWO, missing, PageKey::Plain { space: 4, kind: 2 }]);
        assert_eq!((names.indexes.len(), names.spaces.len(), names.tries.len()), (2, 2, 4));
        names.names(&process, &[TWO]);
        assert_eq!((names.indexes.len(), names.spaces.len(), names.tries.len()), (1, 1, 1));
        let system = PageKey::Plain { space: 0, kind: 2 };
        assert_eq!(names.names(&process, &[system])[0].table, "innodb_system");
    }
}

//! Pages: how a page's latch is recognised, and where the server keeps the names of tables and indexes.

use super::{Object, Path};

/// What is known of a family's pages.
#[derive(Debug)]
pub struct Pages {
    pub latch: PageLatch,
    pub dictionary: Dictionary,
    /// Tablespaces that have the same number in every server, and their names.
    pub spaces: &'static [(u32, &'static str)],
    /// Whether any other tablespace with a table in it is that table's alone, so that all of its pages are.
    pub one_table_per_space: bool,
    /// What pages are that belong to no index, by the type in their header.
    pub types: &'static [PageTypes],
}

/// Where a page's descriptor has what tells of the page, in bytes from its latch. A latch is a page's only if the page's own
/// header has the same tablespace and number, so another version's offsets lead to no page.
#[derive(Debug)]
pub struct PageLatch {
    pub space: i32,
    pub page_no: i32,
    /// The pointer to the page.
    pub frame: i32,
    /// A byte that is 1 in pages' latches only, in families that have one.
    pub flag: Option<u32>,
    /// A type of index pages that other families do not have.
    pub index_type: Option<u16>,
}

/// Types of pages by their numbers, and what such pages are.
pub type PageTypes = &'static [(u16, &'static str)];

/// Of all servers.
pub(super) const COMMON_PAGES: PageTypes = &[
    (2, "undo log"),
    (3, "segment list"),
    (5, "change buffer bitmap"),
    (6, "system"),
    (7, "transaction system"),
    (8, "tablespace header"),
    (9, "extent list"),
    (10, "blob"),
    (11, "blob"),
    (12, "blob"),
];

/// The server's cache of table definitions. Its lists are linked both ways, and every index knows its table: nothing is
/// taken from it where that does not hold.
#[derive(Debug)]
pub struct Dictionary {
    pub at: DictionaryAt,
    /// Where in it the lists of tables begin: those that may be evicted, and the others.
    pub lists: &'static [u64],
    /// In a table: the next table of the list, and its first index.
    pub table_next: u64,
    pub table_indexes: u64,
    /// In an index: its table and the table's next index.
    pub index_table: u64,
    pub index_next: u64,
    /// In an index: its number, its name, the name of its table (`db/table`), and the number of its tablespace.
    pub index_id: u64,
    pub index_name: Path,
    pub table_name: Path,
    pub space: SpaceAt,
}

/// Where the cache of table definitions is.
#[derive(Debug)]
pub enum DictionaryAt {
    /// A variable points to it.
    Pointer(&'static str),
    Object(Object),
}

/// Where the number of an index's tablespace is.
#[derive(Debug)]
pub enum SpaceAt {
    Index(u64),
    Table(u64),
}

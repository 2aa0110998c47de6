//! Pages: how a page's latch is recognized, and where the server stores the names of tables and indexes.

use super::{Object, Path};

/// Facts about a family's pages.
#[derive(Debug)]
pub struct Pages {
    /// How a page's latch is recognized, and what identifies its page.
    pub latch: PageLatch,
    /// Where the names of tables and indexes are.
    pub dictionary: Dictionary,
    /// The tablespaces that have the same number in every server, with their names.
    pub spaces: &'static [(u32, &'static str)],
    /// Whether every other tablespace with a table belongs to that table alone, so that all of its pages do.
    pub one_table_per_space: bool,
    /// What pages that belong to no index are, by the type in their header.
    pub types: &'static [PageTypes],
}

/// The offsets, in bytes from the latch, of the members of a page's descriptor that identify the page. A latch counts
/// as a page's only if the page's own header has the same tablespace and number, so another version's offsets merely
/// lead to no page.
#[derive(Debug)]
pub struct PageLatch {
    /// The tablespace number, a u32.
    pub space: i32,
    /// The page number, a u32.
    pub page_no: i32,
    /// The pointer to the page.
    pub frame: i32,
    /// A byte that is 1 only in pages' latches, in families that have one.
    pub flag: Option<u32>,
    /// A type of index pages that other families do not have.
    pub index_type: Option<u16>,
}

/// Page types by number, with descriptions.
pub type PageTypes = &'static [(u16, &'static str)];

/// The page types of all servers.
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

/// The server's cache of table definitions; all offsets are in bytes. Where its lists are is found in the running
/// server.
#[derive(Debug)]
pub struct Dictionary {
    /// Where the cache is.
    pub at: DictionaryAt,
    /// The offset in an index of the pointer to its table.
    pub index_table: u64,
    /// The offset in an index of its number, a u64.
    pub index_id: u64,
    /// The way from an index to its name.
    pub index_name: Path,
    /// The way from an index to the name of its table, which has the form `db/table`.
    pub table_name: Path,
    /// Where the number of an index's tablespace is stored.
    pub space: SpaceAt,
}

/// Where the cache of table definitions is.
#[derive(Debug)]
pub enum DictionaryAt {
    /// A variable with this name points to it.
    Pointer(&'static str),
    /// It is this object.
    Object(Object),
}

/// Where an index's tablespace number is stored.
#[derive(Debug)]
pub enum SpaceAt {
    /// At this offset of the index.
    Index(u64),
    /// At this offset of the index's table.
    Table(u64),
}

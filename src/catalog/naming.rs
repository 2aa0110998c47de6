//! How each family names its latches, and where the names are in its program and memory.

use super::{Function, Member, Table};
use crate::model::Kind;

/// How a family's latches get their names.
#[derive(Debug)]
pub enum Naming {
    /// InnoDB of MySQL, and of MariaDB up to 10.5: by latch ids and creation sites.
    Mysql(&'static MysqlNames),
    /// InnoDB of MariaDB 10.6 and newer: lock words, identified by the object that contains them.
    Mariadb(&'static MariadbNames),
    /// No names: only locks of the SQL layer are measured.
    None,
}

/// Where the facts for naming are in MySQL's program and memory.
#[derive(Debug)]
pub struct MysqlNames {
    /// How mutexes get their names, in versions whose mutexes have a latch id.
    pub ids: Option<&'static IdNames>,
    /// The key variable of latches that are deliberately not instrumented. Builds without this variable use a number
    /// instead.
    pub not_instrumented: &'static str,
    /// The kinds of latches that remember where they were created.
    pub created: &'static [Created],
}

/// Where latch ids and their names are.
#[derive(Debug)]
pub struct IdNames {
    /// The function that fills the vector of latch descriptions, or calls the function that does.
    pub latch_init: Function,
    /// The symbol of the vector of latch descriptions.
    pub latch_meta: &'static str,
    /// Latch ids whose names have the same prefix as the names of latch levels.
    pub sync_ids: &'static [&'static str],
    /// Latch ids that the server no longer instruments, with the name of their former instrument.
    pub uninstrumented_ids: &'static [(&'static str, &'static str)],
}

/// Latches that remember where they were created.
#[derive(Debug)]
pub struct Created {
    /// The function that creates them.
    pub by: Function,
    /// The member that holds the line of the call that created them.
    pub line: &'static Member,
    /// Their kind, unless their instrument says that the lock has a third mode.
    pub kind: Kind,
    /// The names of those that are created without an instrument, by the file that creates them.
    pub uninstrumented: &'static [(&'static str, Latch)],
}

/// Where latches are in MariaDB's memory.
#[derive(Debug)]
pub struct MariadbNames {
    /// The distance from a lock word to the pointer to its performance_schema instance, in bytes.
    pub psi_from_latch: i32,
    /// The latch of a page.
    pub page_latch: Latch,
    /// The instruments of latches that are lock words. The code that creates such a latch shows where it lies.
    pub instrumented: &'static [&'static str],
    /// The instruments of InnoDB's mutexes that are C library mutexes. The code that creates one shows where it lies,
    /// too.
    pub mutexes: &'static [&'static str],
    /// Latches at a fixed distance from an instrumented latch.
    pub beside: &'static [Beside],
    /// Latches in static objects that are found through their members, which the server's tables of variables list.
    pub around: &'static [Around],
    /// Latches in heap arrays that static data points to.
    pub arrays: &'static [ArrayLatches],
    /// Latches inside structures, recognized by the data around them; the offsets of all versions.
    pub inside: &'static [InsideLatch],
}

/// A latch's kind and the last component of its event name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latch {
    /// The kind. Where the server registers an instrument of this name, the instrument decides between rwlock and
    /// sxlock.
    pub kind: Kind,
    /// The last component of the event name, such as `buf_block_lock`.
    pub name: &'static str,
}

/// A latch in the same static object as an instrumented latch.
#[derive(Debug)]
pub struct Beside {
    /// The instrumented latch, by the last component of its event name.
    pub instrumented: &'static str,
    /// The distance from the instrumented latch's lock word to this one's.
    pub distance: u64,
    /// The latch that lies there.
    pub latch: Latch,
}

/// A static object that begins and ends at a cache line boundary, as objects do whose latches have a line of their own.
/// Everything on a line with one of its members belongs to it.
#[derive(Debug)]
pub struct Around {
    /// Members that are system or status variables.
    pub variables: &'static [(Table, &'static str)],
    /// The only rw-lock in the object.
    pub rwlock: Latch,
    /// The only mutex in the object, in builds that have one.
    pub mutex: Latch,
}

/// A static object.
#[derive(Clone, Copy, Debug)]
pub enum Object {
    /// An object with this symbol and size. A build in which the size differs has another layout, so the object is not
    /// found there.
    Symbol {
        /// The mangled name.
        name: &'static str,
        /// The size that the symbol table must give, in bytes.
        size: u64,
    },
    /// An object with an instrumented latch in it.
    Around {
        /// The instrumented latch, by the last component of its event name.
        instrumented: &'static str,
        /// Its offset in the object, in bytes.
        at: u64,
    },
}

/// A heap array with a latch in each element.
#[derive(Debug)]
pub struct ArrayLatches {
    /// The object that holds the pointer to the first element.
    pub object: Object,
    /// The offset of that pointer in the object, in bytes.
    pub array_at: u64,
    /// How many elements the array has.
    pub count: Count,
    /// The size of an element, in bytes.
    pub stride: u64,
    /// The offset of the lock word in an element.
    pub word: u64,
    /// The latch in each element.
    pub latch: Latch,
}

/// How many elements an array has.
#[derive(Debug)]
pub enum Count {
    /// A single object rather than an array.
    One,
    /// The u64 in this static variable.
    Variable(&'static str),
    /// The array is a hash table with a latch at the beginning of every 64 bytes. The u64 at this offset of the object
    /// is its number of 8-byte cells, without the latches and padding among them.
    HashCells(u64),
}

/// A latch inside a structure.
#[derive(Debug)]
pub struct InsideLatch {
    /// Where the lock word is in the structure.
    pub word: Word,
    /// The evidence, all of which must hold. Together it rules out chance, so another version's offsets merely lead to
    /// no name.
    pub evidence: &'static [Evidence],
    /// The latch, if all the evidence holds.
    pub latch: Latch,
}

/// The offset of a lock word in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// At this offset, in bytes.
    At(u64),
    /// At the offset that is seen in the code that creates latches with the instrument of this name.
    Made,
}

/// Pointers to follow from an object: the offset of each in what the previous one points to.
pub type Path = &'static [u64];

/// A condition on an object.
#[derive(Debug)]
pub enum Evidence {
    /// The u64 at offset `at` of what the path leads to is `value`.
    Magic {
        /// The way to the structure with the u64.
        path: Path,
        /// The offset of the u64 in that structure, in bytes.
        at: u64,
        /// The constant that the server stores there.
        value: u64,
    },
    /// Both paths lead to the same address, which is not null.
    Same(Path, Path),
    /// The path leads to a name: readable text.
    Name(Path),
    /// A page in memory has the page number and tablespace in its header that the object has in its page id.
    PageHeader {
        /// The way to the page.
        path: Path,
        /// The offset of the page id in the object, in bytes.
        id: u64,
    },
}

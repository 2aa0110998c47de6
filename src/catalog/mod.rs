//! What we know of each server family, as data: how to recognise it, which functions wait for latches, and
//! where they keep what identifies a latch.
//!
//! A new server version is an entry here with a test, not new code.

mod mariadb;
mod mysql;

use std::collections::HashSet;
use std::ops::Range;

use crate::code;
use crate::model::{Kind, Mode};
use crate::symbols::{Image, Symbol};

/// Who maintains the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    Mysql,
    Percona,
    Mariadb,
}

impl Flavor {
    /// The value of the `flavor` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Flavor::Mysql => "mysql",
            Flavor::Percona => "percona",
            Flavor::Mariadb => "mariadb",
        }
    }
}

/// Servers that wait for latches in the same functions and name them the same way.
#[derive(Debug)]
pub struct Family {
    pub wait_functions: &'static [WaitFunction],
    /// Beginnings of the mangled names of lock functions that waiters for all sorts of latches go through:
    /// who waits is found behind them.
    pub wrappers: &'static [&'static str],
    pub naming: Naming,
}

/// How a family's latches get their names.
#[derive(Debug)]
pub enum Naming {
    /// InnoDB of MySQL 8.0 and newer: latch ids and creation sites.
    Mysql(&'static MysqlNames),
    /// InnoDB of MariaDB 10.6 and newer: lock words known by what they are part of.
    Mariadb(&'static MariadbNames),
}

/// What MySQL's tables do not say of themselves.
#[derive(Debug)]
pub struct MysqlNames {
    /// The vector of latch descriptions, by symbol.
    pub latch_meta: &'static str,
    /// Latch ids whose instrument is not the id in lower case with `_mutex` behind it.
    pub instruments: &'static [(&'static str, &'static str)],
    /// The function that creates rw-locks: alternative names.
    pub rw_lock_create: &'static [&'static str],
    /// rw-locks that have no instrument in any build, by the file that creates them.
    pub uninstrumented: &'static [(&'static str, &'static str)],
}

/// Names of MariaDB's latches by what they are part of; names as performance_schema has them, without the prefix.
#[derive(Debug)]
pub struct MariadbNames {
    pub psi: Psi,
    /// Static objects: (symbol, latches in it).
    pub statics: &'static [(&'static str, &'static [Member])],
    pub arrays: &'static [ArrayLatches],
    pub heap: &'static [HeapLatch],
}

/// Latches spread over a hash table's array, which a static object points to.
#[derive(Clone, Copy, Debug)]
pub struct ArrayLatches {
    pub symbol: &'static str,
    /// Offset of the number of cells, 8 bytes each, in the static object.
    pub cells_at: u64,
    /// Offset of the pointer to the array.
    pub array_at: u64,
    pub name: &'static str,
    pub kind: Kind,
}

/// A latch inside an object on the heap, recognised by what surrounds it.
#[derive(Clone, Copy, Debug)]
pub struct HeapLatch {
    pub name: &'static str,
    pub kind: Kind,
    /// Where in the object the lock word is, in the versions known.
    pub word_at: &'static [u64],
    pub evidence: Evidence,
}

/// What must hold for an address to be an object of a certain type. Each is strong enough that a chance match
/// is out of the question, so that offsets of another version only lead to no name.
#[derive(Clone, Copy, Debug)]
pub enum Evidence {
    /// A child object, to which the object points at one of these offsets, points back to it.
    OwnedBy { child_at: &'static [u64], parent_at: u64 },
    /// It points to its own name and to an owner whose name is a table's (`db/table`).
    NamedPartOf { name_at: u64, owner_at: u64, owner_name_at: u64 },
    /// It points to a table's name.
    TableName { at: u64 },
    /// Its page number and tablespace are those in the header of the page frame that it points to.
    PageFrame { id_at: u64, frame_at: u64 },
    /// A magic number stands in it.
    Magic { at: &'static [u64], value: u64 },
}

/// A latch inside a static object.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Bytes from the object's start within which the lock word lies.
    pub offsets: (u64, u64),
    pub name: &'static str,
    pub kind: Kind,
}

/// How a lock word leads to its performance_schema class.
#[derive(Clone, Copy, Debug)]
pub struct Psi {
    /// Offset of the instance pointer from the lock word.
    pub from_latch: i32,
    /// Offset of the class pointer in the instance.
    pub to_class: u32,
    /// Offset of the event name in the class.
    pub to_name: u32,
}

/// A function in which threads wait for latches.
#[derive(Debug)]
pub struct WaitFunction {
    pub found: Found,
    /// Short, stable name for probes of it.
    pub label: &'static str,
    pub mode: Mode,
    pub shape: Shape,
    /// Which argument is the latch.
    pub latch_argument: usize,
    pub callsite: Callsite,
    pub identity: IdentityIn,
}

/// How a wait function is found in a binary.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// By name: alternatives, as versions differ.
    Symbols(&'static [&'static str]),
    /// It has no name, but is the only function without one that calls both of these (alternatives each).
    CallerOf(&'static [&'static str], &'static [&'static str]),
}

/// Which part of a function runs only when a latch is taken.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// All of it.
    Whole,
    /// A part of a hot function: that which spins by calling one of the first, or goes to sleep by calling one of
    /// the second.
    Contended { spin: &'static [&'static str], sleep: &'static [&'static str] },
}

/// How the code that waits is known.
#[derive(Clone, Copy, Debug)]
pub enum Callsite {
    /// It passes its source file's name and line as these arguments.
    FileLine { file: usize, line: usize },
    /// By the return address.
    Caller,
}

/// What identifies a latch, by offsets in it.
#[derive(Clone, Copy, Debug)]
pub enum IdentityIn {
    LatchId {
        offset: u16,
    },
    Created {
        file_offset: u16,
        line_offset: u16,
    },
    /// Nothing in it: a bare lock word.
    Word,
    /// The function serves only latches of this name, built as performance_schema would.
    Fixed(&'static str),
}

/// The family whose wait functions this binary has.
///
/// # Errors
/// What the program is instead, for a message that begins "process PID (NAME) is".
pub fn family(image: &Image) -> Result<&'static Family, String> {
    let known = [&mysql::MYSQL_8, &mariadb::MARIADB_10_6];
    if let Some(family) = known.into_iter().find(|f| f.wait_functions.iter().any(|w| !w.find(image).is_empty())) {
        return Ok(family);
    }
    if image.symbol("server_version").is_some() || image.symbol("my_progname").is_some() {
        return Err("a MySQL or MariaDB server without the symbols that armtrace needs: install its debug symbols \
                    package, or use the vendor's own build"
            .to_owned());
    }
    Err("not a MySQL or MariaDB server: find one with: pgrep -a 'mysqld|mariadbd'".to_owned())
}

/// Who maintains this server of a known family.
pub fn flavor(family: &Family, image: &Image) -> Flavor {
    match family.naming {
        Naming::Mariadb(_) => Flavor::Mariadb,
        Naming::Mysql(_) if mysql::is_percona(image) => Flavor::Percona,
        Naming::Mysql(_) => Flavor::Mysql,
    }
}

impl WaitFunction {
    /// Where it is in this binary; more than one place when several variants share an entry here.
    pub fn find(&self, image: &Image) -> Vec<Range<u64>> {
        match self.found {
            Found::Symbols(names) => named(image, names).filter_map(|s| bounds(image, &s)).collect(),
            Found::CallerOf(first, second) => unnamed_caller(image, first, second).into_iter().collect(),
        }
    }
}

/// The symbols of those names that this binary has.
pub fn named<'a>(image: &'a Image, names: &'a [&str]) -> impl Iterator<Item = Symbol<'a>> {
    names.iter().filter_map(|name| image.symbol(name))
}

/// A function's bounds: the unwind table knows them better than the symbol, whose size may be missing.
fn bounds(image: &Image, symbol: &Symbol<'_>) -> Option<Range<u64>> {
    image.function_at(symbol.addr).or_else(|| (symbol.size > 0).then(|| symbol.addr..symbol.addr + symbol.size))
}

fn unnamed_caller(image: &Image, first: &[&str], second: &[&str]) -> Option<Range<u64>> {
    let callers = |names: &[&str]| -> HashSet<(u64, u64)> {
        let targets: HashSet<u64> = named(image, names).map(|s| s.addr).collect();
        code::direct_calls(image, &targets)
            .into_iter()
            .filter_map(|(site, _)| image.function_at(site))
            .map(|f| (f.start, f.end))
            .collect()
    };
    let nameless = |f: &&(u64, u64)| image.symbol_at(f.0).is_none_or(|s| s.addr + s.size <= f.0);
    let (first, second) = (callers(first), callers(second));
    let mut both = first.intersection(&second).filter(nameless);
    let &(start, end) = both.next()?;
    both.next().is_none().then_some(start..end)
}

impl Family {
    /// Link-time return addresses behind which the caller proper is found one frame further up.
    pub fn wrapper_returns(&self, image: &Image) -> Vec<u64> {
        if self.wrappers.is_empty() {
            return Vec::new();
        }
        let is_wrapper = |name: &str| self.wrappers.iter().any(|w| name.starts_with(w));
        let wrappers: HashSet<u64> =
            image.symbols().filter(|s| s.is_function && is_wrapper(s.name)).map(|s| s.addr).collect();
        let waits = self.wait_functions.iter().flat_map(|w| w.find(image)).map(|r| r.start);
        let targets: HashSet<u64> = wrappers.iter().copied().chain(waits).collect();
        code::direct_calls(image, &targets)
            .into_iter()
            .filter(|(site, _)| image.symbol_at(*site).is_some_and(|s| is_wrapper(s.name)))
            .map(|(site, _)| site)
            .filter_map(|site| code::decode(image, site..site + 15).first().map(code::Insn::end))
            .collect()
    }

    /// How a lock word leads to its performance_schema class, where that is how latches are told apart.
    pub fn psi(&self) -> Option<Psi> {
        match self.naming {
            Naming::Mariadb(names) => Some(names.psi),
            Naming::Mysql(_) => None,
        }
    }
}

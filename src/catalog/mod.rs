//! What we know of each server family, as data: how to recognise it, which functions wait for latches, and
//! where they keep what identifies a latch.
//!
//! A new server version is an entry here with a test, not new code.

mod cpu;
mod events;
mod futex;
mod hardware;
mod library;
mod mariadb;
mod mariadb_sync;
mod mysql;
mod pages;
mod settings;
mod spin;
mod variables;

#[cfg(test)]
pub(crate) use mariadb::NAMES as MARIADB_NAMES;

pub use cpu::{class_of_function, is_futex_function, ChosenChecksum, PointerAt, CHECKSUMS, MEMORY_FUNCTIONS};
pub use events::{event_waits, EVENTS};
pub use hardware::{
    cpu as hardware_cpu, where_counters_are, Access, Code, Cpu, CpuId, HardwareEvent, Instruction, Place, Proof, Uncore,
};
pub use library::{is_word, library_lock, psi_places, tracked_id, Library, PsiClass};
pub use pages::{Dictionary, DictionaryAt, PageLatch, Pages, SpaceAt};
pub use settings::{settings, SETTINGS};
pub use spin::{SpinRounds, Turns};
pub use variables::{number, variable, Number, Table};

use std::collections::HashSet;
use std::ops::Range;

use crate::code;
use crate::model::{Kind, Mode};
use crate::symbols::{plain_name, Image, Symbol};

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
    /// MySQL's too where Percona Server is meant as well.
    pub flavor: Flavor,
    pub wait_functions: &'static [WaitFunction],
    /// Beginnings of the mangled names of lock functions that waiters for all sorts of latches go through:
    /// who waits is found behind them.
    pub wrappers: &'static [&'static str],
    pub naming: Naming,
    /// The locks of its SQL layer.
    pub library: &'static Library,
    /// How waits for pages are told apart; `None` where that is not known.
    pub pages: Option<&'static Pages>,
    /// How long its waiters spin; `None` where that is not known.
    pub spin: Option<&'static SpinRounds>,
    /// What the code of a build must do with the members of its latches, where other versions have functions of the same
    /// names but other latches.
    pub layout: &'static [Stored],
}

/// A function stores its argument of this number, counted from 0, at this offset of what the first points to.
#[derive(Debug)]
pub struct Stored {
    /// Alternative names.
    pub function: &'static [&'static str],
    pub argument: u8,
    pub offset: i64,
}

impl Stored {
    fn holds(&self, image: &Image) -> bool {
        let range = named(image, self.function).next().and_then(|s| bounds(image, &s));
        let function = range.and_then(|r| code::Function::new(image, r));
        function.is_some_and(|f| f.stores_argument(self.argument, 0, self.offset))
    }
}

/// How a family's latches get their names.
#[derive(Debug)]
pub enum Naming {
    /// InnoDB of MySQL 8.0 and newer, and of MariaDB up to 10.5: latch ids and creation sites.
    Mysql(&'static MysqlNames),
    /// InnoDB of MariaDB 10.6 and newer: lock words known by what they are part of.
    Mariadb(&'static MariadbNames),
    /// They have none: only locks of the SQL layer are seen.
    None,
}

/// Where naming finds things in MySQL's program and memory.
#[derive(Debug)]
pub struct MysqlNames {
    /// The function that fills the vector of latch descriptions, or calls the function that does.
    pub latch_init: &'static str,
    /// The key variable of latches that are deliberately not instrumented; `None` where the code has no key for them.
    pub not_instrumented: Option<&'static str>,
    /// The vector of latch descriptions, by symbol: its `begin` pointer is `latch_meta_begin` bytes behind the
    /// symbol, its `end` pointer 8 further.
    pub latch_meta: &'static str,
    pub latch_meta_begin: u64,
    /// In a latch description: u32 id, pointer to the id's name, u32 value of the instrument's key.
    pub meta_id: u64,
    pub meta_name: u64,
    pub meta_key: u64,
    /// Latch ids whose names begin as the names of latch levels do.
    pub sync_ids: &'static [&'static str],
    /// Latch ids that the server does not instrument but had an instrument for, and its name.
    pub uninstrumented_ids: &'static [(&'static str, &'static str)],
    /// The function that creates rw-locks: alternative names.
    pub rw_lock_create: &'static [&'static str],
    /// What to call rw-locks that are created without an instrument, by the file that creates them.
    pub uninstrumented_sites: &'static [(&'static str, &'static str)],
    /// How many bits of its line an rw-lock keeps.
    pub line_bits: u8,
}

/// Where naming finds latches in MariaDB's memory.
#[derive(Debug)]
pub struct MariadbNames {
    /// From a lock word to the pointer to its performance_schema instance, bytes.
    pub psi_from_latch: i32,
    /// The latch of a page.
    pub page_latch: Latch,
    /// The instruments of latches that are lock words. Where the code makes such a latch tells where it lies.
    pub instrumented: &'static [&'static str],
    /// The instruments of InnoDB's mutexes that are the C library's. The code that makes one tells where it lies, too.
    pub mutexes: &'static [&'static str],
    /// Latches at a fixed distance from one that is instrumented, each with that one's name.
    pub beside: &'static [Beside],
    /// Latches in static objects of which the server's own tables of variables show members.
    pub around: &'static [Around],
    /// Latches in arrays on the heap that static data points to.
    pub arrays: &'static [ArrayLatches],
    /// Latches inside structures, recognised by what surrounds them; all versions' offsets.
    pub inside: &'static [InsideLatch],
}

/// A latch's kind and the last part of its event name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latch {
    /// Where the server registers an instrument of this name, that decides between rwlock and sxlock.
    pub kind: Kind,
    pub name: &'static str,
}

/// A latch in the same static object as an instrumented one.
#[derive(Debug)]
pub struct Beside {
    pub instrumented: &'static str,
    /// From that one's lock word to this one's.
    pub distance: u64,
    pub latch: Latch,
}

/// A static object that begins and ends with a cache line, as objects with latches of their own line do: all of a line with
/// one of its members belongs to it.
#[derive(Debug)]
pub struct Around {
    /// Members that are system or status variables.
    pub variables: &'static [(Table, &'static str)],
    /// The only rw-lock in it.
    pub rwlock: Latch,
    /// The only mutex in it, in builds that have one.
    pub mutex: Latch,
}

/// A static object.
#[derive(Clone, Copy, Debug)]
pub enum Object {
    /// By its symbol. A build in which it has another size has another layout: there it is not found.
    Symbol { name: &'static str, size: u64 },
    /// An instrumented latch lies at this offset in it.
    Around { instrumented: &'static str, at: u64 },
}

/// An array on the heap with a latch in each element.
#[derive(Debug)]
pub struct ArrayLatches {
    /// Where the pointer to the first element is.
    pub object: Object,
    pub array_at: u64,
    pub count: Count,
    pub stride: u64,
    /// Of the lock word in an element.
    pub word: u64,
    pub latch: Latch,
}

/// How many elements an array has.
#[derive(Debug)]
pub enum Count {
    /// It is no array, but a single object.
    One,
    /// A u64 in this static variable.
    Variable(&'static str),
    /// The array is a hash table with a latch at the start of every 64 bytes. A u64 at this offset of the object is its number
    /// of cells, of 8 bytes each, without the latches and padding among them.
    HashCells(u64),
}

/// A latch inside a structure.
#[derive(Debug)]
pub struct InsideLatch {
    pub word: Word,
    /// All must hold. Together they leave no room for chance, so that another version's offsets only lead to no name.
    pub evidence: &'static [Evidence],
    pub latch: Latch,
}

/// Where a lock word is in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    At(u64),
    /// Where the code says that makes latches with the instrument of this name.
    Made,
}

/// Pointers to follow, from an object on: the offset of each in what the one before it points to.
pub type Path = &'static [u64];

/// Something that is true of an object of a type.
#[derive(Debug)]
pub enum Evidence {
    /// The u64 at offset `at` of what the path leads to is `value`.
    Magic { path: Path, at: u64, value: u64 },
    /// Both paths lead to the same place, which is not null.
    Same(Path, Path),
    /// The path leads to a name: readable text.
    Name(Path),
    /// The path leads to a page in memory whose header has the page number and tablespace of the page id at offset `id`.
    PageHeader { path: Path, id: u64 },
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
    /// By name, or among the functions without one by how it waits in a futex.
    Futex(&'static [&'static str], FutexShape),
}

/// What tells a lock primitive that waits in a futex of its own from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutexShape {
    /// Offset in the latch of the word that it sleeps on.
    pub word: i64,
    /// Whether it wakes all other sleepers when it has the latch.
    pub wakes_all: bool,
    /// Whether it spins in rounds before: whether it reads how many (`innodb_sync_spin_loops`).
    pub spins: bool,
}

/// Which part of a function runs only when a latch is taken.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// All of it.
    Whole,
    /// A part of a hot function: that which spins by calling one of the first, or goes to sleep by calling one of
    /// the second.
    Contended { spin: &'static [&'static str], sleep: &'static [&'static str] },
    /// All of it and what follows, until another function is called (alternatives).
    Until { end: &'static [&'static str] },
}

/// How the code that waits is known.
#[derive(Clone, Copy, Debug)]
pub enum Callsite {
    /// It passes its source file's name and line as these arguments.
    FileLine { file: usize, line: usize },
    /// By the return address.
    Caller,
}

/// What identifies the latches of a wait function.
#[derive(Clone, Copy, Debug)]
pub enum IdentityIn {
    /// Always the same, in the function's mode.
    Always(Identity),
    /// It depends on the kind of wait, the number of which is passed as this argument.
    ByKind { argument: usize, kinds: &'static [WaitKind] },
}

/// A kind of wait, where one function waits for several sorts of latches.
#[derive(Clone, Copy, Debug)]
pub struct WaitKind {
    pub number: u16,
    pub mode: Mode,
    pub identity: Identity,
}

/// What identifies a latch, by offsets in it.
#[derive(Clone, Copy, Debug)]
pub enum Identity {
    LatchId {
        offset: u16,
    },
    /// A pointer to the creating file's name, and the line in the low bits of a u32.
    Created {
        file_offset: u16,
        line_offset: u16,
        line_bits: u8,
    },
    /// Nothing in it: a bare lock word.
    Word,
}

/// Sizes of InnoDB's latches, in bytes: of a mutex with a latch id and of an rw-lock that remembers where it was made, in
/// MySQL 9.7.4 and MariaDB 10.2; and of MariaDB's lock words since 10.6, of which there are two in an rw-lock.
pub const MUTEX_BYTES: u64 = 0x30;
pub const RW_LOCK_BYTES: u64 = 0x78;
pub const WORDS_BYTES: u64 = 8;

/// A function with a spin loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinFunction {
    pub name: String,
    pub range: Range<u64>,
}

/// The family whose wait functions this binary has. The first function of each family is one that no other
/// family has by that name. Where none of them is found, or latches are laid out in another way, and InnoDB waits by events,
/// it is the family without wait functions.
///
/// # Errors
/// What the program is instead, for a message that begins "process PID (NAME) is".
pub fn family(image: &Image) -> Result<&'static Family, &'static str> {
    let known = [&mysql::MYSQL_8, &mariadb::MARIADB_10_6, &mariadb_sync::MARIADB_10_2];
    let has_first = |f: &&Family| f.wait_functions.first().is_some_and(|w| !w.find(image).is_empty());
    if let Some(family) = known.into_iter().find(has_first) {
        if family.layout.iter().all(|stored| stored.holds(image)) {
            return Ok(family);
        }
        if event_waits(image).is_empty() {
            return Err("a MySQL or MariaDB server whose latches are laid out in a way that armtrace does not know");
        }
        return Ok(&mariadb_sync::SLEEPS_ONLY);
    }
    if image.symbol("server_version").is_some() {
        if !event_waits(image).is_empty() {
            return Ok(&mariadb_sync::SLEEPS_ONLY);
        }
        return Err("a MySQL or MariaDB server in whose program armtrace does not find its latch functions");
    }
    Err("not a MySQL or MariaDB server: find one with: pgrep -a 'mysqld|mariadbd'")
}

/// Whether the image lacks symbols that the catalog knows a server by. MySQL exports all that count; a stripped MariaDB has no names of
/// InnoDB's functions. No other program lacks any.
pub fn misses_symbols(image: &Image) -> bool {
    match family(image) {
        Ok(family) => !family.wait_functions.iter().any(|w| w.is_named(image)),
        Err(_) => image.symbol("server_version").is_some(),
    }
}

/// The package that has a server's debug symbols, by the version that the server says it is; `None` for builds that are none of
/// Debian's or Ubuntu's.
///
/// Package names of bullseye, bookworm and Ubuntu 22.04: up to 10.6 they have the version in them.
pub fn debug_package(version: &str) -> Option<String> {
    let (number, build) = version.split_once("-MariaDB-")?;
    if !build.contains("deb") && !build.contains("ubuntu") {
        return None;
    }
    let mut parts = number.split('.');
    let (major, minor): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let versioned = (major, minor) <= (10, 6);
    Some(if versioned {
        format!("mariadb-server-core-{major}.{minor}-dbgsym")
    } else {
        "mariadb-server-core-dbgsym".to_owned()
    })
}

/// Who maintains this server of a known family.
pub fn flavor(family: &Family, image: &Image) -> Flavor {
    match family.flavor {
        Flavor::Mysql if mysql::is_percona(image) => Flavor::Percona,
        flavor => flavor,
    }
}

impl WaitFunction {
    /// One that waits for an `rw_lock_t`, its first argument; the third and fourth are where it is called.
    const fn rw_lock(
        symbols: &'static [&'static str],
        label: &'static str,
        mode: Mode,
        shape: Shape,
        identity: Identity,
    ) -> WaitFunction {
        WaitFunction {
            found: Found::Symbols(symbols),
            label,
            mode,
            shape,
            latch_argument: 0,
            callsite: Callsite::FileLine { file: 2, line: 3 },
            identity: IdentityIn::Always(identity),
        }
    }

    /// Whether a symbol of this binary has its name.
    fn is_named(&self, image: &Image) -> bool {
        match self.found {
            Found::Symbols(names) | Found::Futex(names, _) => named(image, names).next().is_some(),
            Found::CallerOf(..) => false,
        }
    }

    /// Where it is in this binary; more than one place when several variants share an entry here.
    pub fn find(&self, image: &Image) -> Vec<Range<u64>> {
        match self.found {
            Found::Symbols(names) => named(image, names).filter_map(|s| bounds(image, &s)).collect(),
            Found::CallerOf(first, second) => unnamed_caller(image, first, second).into_iter().collect(),
            Found::Futex(names, shape) => {
                let by_name: Vec<Range<u64>> = named(image, names).filter_map(|s| bounds(image, &s)).collect();
                if by_name.is_empty() {
                    futex::primitives(image).into_iter().filter(|(_, s)| *s == shape).map(|(range, _)| range).collect()
                } else {
                    by_name
                }
            }
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

    /// The functions in which threads spin for latches, in this binary: those that a contended part calls to spin, and those
    /// that spin before they sleep.
    pub fn spin_functions(&self, image: &Image) -> Vec<SpinFunction> {
        let mut found = Vec::new();
        for function in self.wait_functions {
            if let Shape::Contended { spin, .. } = function.shape {
                let called = named(image, spin).filter_map(|s| Some((plain_name(s.name), bounds(image, &s)?)));
                found.extend(called.map(|(name, range)| SpinFunction { name, range }));
            }
            if let Found::Futex(_, FutexShape { spins: true, .. }) = function.found {
                let name = || function.label.to_owned();
                found.extend(function.find(image).into_iter().map(|range| SpinFunction { name: name(), range }));
            }
        }
        found.sort_by_key(|f| f.range.start);
        found.dedup_by_key(|f| f.range.start);
        found
    }

    /// From a lock word to the pointer to its performance_schema instance, where that is how latches are told apart.
    pub fn psi_from_latch(&self) -> Option<i32> {
        match self.naming {
            Naming::Mariadb(names) => Some(names.psi_from_latch),
            Naming::Mysql(_) | Naming::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::debug_package;

    #[test]
    fn debug_packages_are_those_of_the_distribution() {
        let package = |version| debug_package(version).unwrap_or_default();
        assert_eq!(package("10.5.29-MariaDB-0+deb11u1"), "mariadb-server-core-10.5-dbgsym");
        assert_eq!(package("10.6.22-MariaDB-0ubuntu0.22.04.1"), "mariadb-server-core-10.6-dbgsym");
        assert_eq!(package("10.11.19-MariaDB-0+deb12u1"), "mariadb-server-core-dbgsym");
        for other in ["11.4.5-MariaDB", "9.7.4", "x-MariaDB-0+deb11u1", "10-MariaDB-deb"] {
            assert_eq!(package(other), "", "{other}");
        }
    }
}

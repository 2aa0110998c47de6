//! Names of functions and data, by address and by name.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::OnceLock;

use object::elf;
use object::read::elf::{ElfFile64, SectionHeader, Sym, SymbolTable};
use object::{LittleEndian, ReadRef};

use super::demangle::demangle;

/// The most bytes of a name; longer names are left out. The longest in the known servers has 4 KiB.
const MAX_NAME: usize = 32 << 10;

/// The most bytes of all names together; a MySQL server's have 6 MiB.
const MAX_NAMES: usize = 256 << 20;

/// The most entries of a symbol table; MySQL's with all its local symbols has 200,000.
const MAX_SYMBOLS: usize = 8 << 20;

/// The most symbols with the same start that are examined for one that contains an address.
const MAX_OVERLAPPING: usize = 16;

/// The reason why a symbol table cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// There are more symbols, or more bytes of names, than any program has.
    #[error("it has more symbols than a program can have")]
    TooMany,
    /// The names are not in the file.
    #[error("symbol names: {0}")]
    Names(object::read::Error),
}

/// A defined function or data object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The mangled name, as in the file.
    pub name: &'a str,
    /// The link-time virtual address.
    pub addr: u64,
    /// The size in bytes; 0 if the file does not say.
    pub size: u64,
    /// Whether it is a function rather than a data object.
    pub is_function: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    size: u32,
    name_at: u32,
    name_len: u16,
    is_function: bool,
}

/// The symbols of one binary, from one file or several.
#[derive(Debug, Default)]
pub struct Table {
    /// Sorted by address.
    entries: Vec<Entry>,
    names: String,
    /// Indices in `entries`, sorted by the hashes of the names. The hashes are recomputed on use to save memory,
    /// because a table lives as long as the agent.
    by_name: Vec<u32>,
    /// Indices in `entries`, sorted by the stems of the names; computed on first use.
    by_stem: OnceLock<Vec<u32>>,
    /// [`Table::digest`], computed on first use.
    digest: OnceLock<u32>,
}

impl Table {
    /// Creates a table of these symbols. A symbol that several sources have is stored once.
    ///
    /// # Errors
    /// Fails when there are more names than any program has.
    pub fn new<'a>(symbols: impl IntoIterator<Item = Symbol<'a>>) -> Result<Table, TableError> {
        let mut table = Table::default();
        for symbol in symbols {
            let Ok(name_len) = u16::try_from(symbol.name.len()) else { continue };
            if table.names.len() + symbol.name.len() > MAX_NAMES {
                return Err(TableError::TooMany);
            }
            table.entries.push(Entry {
                addr: symbol.addr,
                size: u32::try_from(symbol.size).unwrap_or(u32::MAX),
                name_at: table.names.len() as u32,
                name_len,
                is_function: symbol.is_function,
            });
            table.names.push_str(symbol.name);
        }
        let names = &table.names;
        // Names are compared only where the rest is equal, which is seldom.
        let place = |e: &Entry| (e.addr, e.size);
        table.entries.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.name_in(names).cmp(b.name_in(names))));
        table.entries.dedup_by(|a, b| place(a) == place(b) && a.name_in(names) == b.name_in(names));
        table.by_name = table.sorted_by(hash_of);
        // The vectors have grown by doubling.
        table.entries.shrink_to_fit();
        table.names.shrink_to_fit();
        Ok(table)
    }

    /// Reads the functions and data objects that an ELF file's symbol table defines.
    ///
    /// # Errors
    /// Fails when the names are not in the file.
    pub(super) fn from_elf<'a, R: ReadRef<'a>>(
        elf: &ElfFile64<'a, LittleEndian, R>,
        symbols: &SymbolTable<'a, elf::FileHeader64<LittleEndian>, R>,
    ) -> Result<Table, TableError> {
        if symbols.is_empty() {
            return Ok(Table::default());
        }
        let strings = elf.elf_section_table().section(symbols.string_section());
        // The strings are read in one piece, because the file is read rather than mapped.
        let strings = strings.and_then(|s| s.data(elf.endian(), elf.data())).map_err(TableError::Names)?;
        Table::of_symbols(symbols.symbols(), strings)
    }

    /// Returns the functions and data objects that these entries define; those whose names are not in `strings` are
    /// left out.
    ///
    /// # Errors
    /// Fails when there are more than a program can have.
    pub(super) fn of_symbols(symbols: &[elf::Sym64<LittleEndian>], strings: &[u8]) -> Result<Table, TableError> {
        if symbols.len() > MAX_SYMBOLS {
            return Err(TableError::TooMany);
        }
        let endian = LittleEndian;
        Table::new(symbols.iter().filter_map(|symbol| {
            let kind = symbol.st_type();
            let known = [elf::STT_FUNC, elf::STT_OBJECT, elf::STT_GNU_IFUNC].contains(&kind);
            let is_defined = symbol.st_value(endian) != 0 && !symbol.is_undefined(endian);
            (known && is_defined).then_some(())?;
            Some(Symbol {
                name: name_at(strings, symbol.st_name(endian) as usize)?,
                addr: symbol.st_value(endian),
                size: symbol.st_size(endian),
                is_function: kind != elf::STT_OBJECT,
            })
        }))
    }

    /// Returns whether there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of symbols.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns a checksum of all symbols.
    pub fn digest(&self) -> u32 {
        *self.digest.get_or_init(|| {
            let mut sum = crc32fast::Hasher::new();
            for symbol in self.iter() {
                sum.update(&symbol.addr.to_le_bytes());
                sum.update(&[u8::from(symbol.is_function)]);
                sum.update(symbol.name.as_bytes());
            }
            sum.finalize()
        })
    }

    /// Iterates over all symbols, by ascending address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|e| self.symbol(e))
    }

    /// Returns indices in `entries`, sorted by `key` of the names.
    fn sorted_by(&self, key: impl Fn(&str) -> u64) -> Vec<u32> {
        let mut keyed: Vec<(u64, u32)> =
            self.entries.iter().zip(0..).map(|(e, i)| (key(e.name_in(&self.names)), i)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, index)| index).collect()
    }

    fn name(&self, index: u32) -> &str {
        self.entries[index as usize].name_in(&self.names)
    }

    /// Returns the symbol with exactly this name.
    pub fn by_name(&self, name: &str) -> Option<Symbol<'_>> {
        let hash = hash_of(name);
        let begin = self.by_name.partition_point(|index| hash_of(self.name(*index)) < hash);
        let same = self.by_name[begin..].iter().take_while(|index| hash_of(self.name(**index)) == hash);
        same.map(|index| self.symbol(&self.entries[*index as usize])).filter(|s| s.name == name).last()
    }

    /// Returns the symbols whose mangled names begin with `prefix`: the functions of one name, whatever their further
    /// parameters are. Parts and copies that a compiler made of a function do not count; their names have a suffix
    /// after a dot.
    pub fn beginning_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = Symbol<'a>> {
        let indices = self.by_stem.get_or_init(|| self.sorted_by(stem));
        let (low, unknown) = (stem(prefix), 8 * STEM.end.saturating_sub(prefix.len()).min(8));
        let high = low | u64::MAX.checked_shr(64 - unknown as u32).unwrap_or(0);
        let begin = indices.partition_point(|index| stem(self.name(*index)) < low);
        let same = indices[begin..].iter().take_while(move |index| stem(self.name(**index)) <= high);
        let symbols = same.map(|index| self.symbol(&self.entries[*index as usize]));
        symbols.filter(move |s| s.name.starts_with(prefix) && !s.name.contains('.'))
    }

    /// Returns the function or data object that contains `addr`.
    pub fn at(&self, addr: u64) -> Option<Symbol<'_>> {
        let end = self.entries.partition_point(|e| e.addr <= addr);
        let mut before = self.entries[..end].iter().rev().take(MAX_OVERLAPPING);
        before.find(|e| addr - e.addr < u64::from(e.size).max(1)).map(|e| self.symbol(e))
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        Symbol {
            name: entry.name_in(&self.names),
            addr: entry.addr,
            size: u64::from(entry.size),
            is_function: entry.is_function,
        }
    }
}

impl Entry {
    fn name_in<'a>(&self, names: &'a str) -> &'a str {
        &names[self.name_at as usize..][..usize::from(self.name_len)]
    }
}

/// Returns a function's name in source form: demangled, without arguments, but with template arguments.
pub fn plain_name(mangled: &str) -> String {
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let name = demangle(mangled, options).unwrap_or_else(|| mangled.to_owned());
    name.split(" [clone").next().unwrap_or_default().to_owned()
}

pub(super) fn name_at(strings: &[u8], at: usize) -> Option<&str> {
    let tail = strings.get(at..)?;
    let end = memchr::memchr(0, &tail[..tail.len().min(MAX_NAME)])?;
    std::str::from_utf8(&tail[..end]).ok().filter(|name| !name.is_empty())
}

/// The most distinctive part of a mangled name, after `_Z`.
const STEM: Range<usize> = 2..10;

/// Returns the stem as a number that sorts as the stem does.
fn stem(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let part = name.as_bytes().get(STEM.start..name.len().min(STEM.end)).unwrap_or_default();
    bytes[..part.len()].copy_from_slice(part);
    u64::from_be_bytes(bytes)
}

fn hash_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_c_are_no_types() {
        assert_eq!(["f", "_Z1fi", "_ZN1a1bEv", "_Zf"].map(plain_name), ["f", "f", "a::b", "_Zf"]);
    }

    fn function(name: &str, addr: u64, size: u64) -> Symbol<'_> {
        Symbol { name, addr, size, is_function: true }
    }

    #[test]
    fn finds_by_name_and_by_address() {
        let symbols = [function("b", 0x20, 8), function("a", 0x10, 0x10), function("same as a", 0x10, 0x10)];
        let table = Table::new(symbols).expect("a table");
        assert_eq!(table.by_name("b"), Some(symbols[0]));
        assert_eq!(table.by_name("c"), None);
        assert_eq!(table.at(0x1f).map(|s| s.addr), Some(0x10));
        assert_eq!(table.at(0x27), Some(symbols[0]));
        assert_eq!(table.at(0x28), None);
        assert_eq!(table.at(0), None);
    }

    #[test]
    fn what_two_sources_have_is_there_once() {
        let (own, other) = ([function("a", 0x10, 4)], [function("a", 0x10, 4), function("b", 0x10, 4)]);
        let names = |t: &Table| t.iter().map(|s| s.name.to_owned()).collect::<Vec<_>>();
        let table = Table::new(own.into_iter().chain(other)).expect("a table");
        assert_eq!(names(&table), ["a", "b"]);
    }

    #[test]
    fn extreme_values_do_no_harm() {
        let table = Table::new([function("end", u64::MAX, u64::MAX), function("huge", 1, u64::MAX)]).expect("a table");
        assert_eq!(table.at(u64::MAX).map(|s| s.name), Some("end"));
        assert_eq!(table.at(u64::from(u32::MAX)).map(|s| s.name), Some("huge"));
        let long = "x".repeat(usize::from(u16::MAX) + 1);
        assert!(Table::new([function(&long, 1, 1)]).expect("a table").is_empty());
    }

    /// Many symbols that share one long name, as no linker creates them: a small file must not become a large table.
    #[test]
    fn too_many_names_are_refused() {
        let name = "x".repeat(MAX_NAME);
        let symbols = (0..).map(|addr| function(&name, addr, 1));
        assert!(Table::new(symbols.take(MAX_NAMES / MAX_NAME + 1)).is_err());
    }
}

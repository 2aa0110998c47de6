//! The files that a process has mapped: from an address of the process to a file and a function.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::server::{file_mappings, FileMapping, Target};
use crate::symbols::{plain_name, Image, Symbol};

/// The most bytes that are copied of a process's libraries. MySQL's and MariaDB's have 10 to 20 MB together.
const MAX_COPIED: u64 = 256 << 20;

/// The most libraries that are examined; the process chooses how many files it maps.
const MAX_LIBRARIES: usize = 256;

/// The files that contain a process's code.
pub(super) struct AddressSpace {
    pub(super) target: Arc<Target>,
    /// By ascending address.
    mappings: Vec<FileMapping>,
    /// By path; a library that could not be read is not retried.
    libraries: HashMap<String, Option<Image>>,
}

impl AddressSpace {
    pub(super) fn new(target: Arc<Target>) -> AddressSpace {
        let mappings = file_mappings(target.pid);
        AddressSpace { target, mappings, libraries: HashMap::new() }
    }

    /// Checks again which files the process has mapped, and returns whether these are others than before.
    pub(super) fn refresh(&mut self) -> bool {
        let now = file_mappings(self.target.pid);
        // A process that has ended has none, but samples of it may be left.
        let is_new = !now.is_empty() && now != self.mappings;
        if is_new {
            self.mappings = now;
        }
        is_new
    }

    /// Releases the memory of the parts of the files that were read.
    pub(super) fn release_memory(&self) {
        let libraries = self.libraries.values().flatten();
        libraries.chain([&*self.target.image]).for_each(Image::release_memory);
    }

    /// Returns the file mapped at an address of the process.
    pub(super) fn mapping(&self, address: u64) -> Option<&FileMapping> {
        let next = self.mappings.partition_point(|m| m.start <= address);
        self.mappings.get(next.checked_sub(1)?).filter(|m| address < m.end)
    }

    /// Returns the function at an address of the process.
    pub(super) fn find(&mut self, address: u64) -> Option<Found<'_>> {
        if self.target.image.extent().contains(&address.wrapping_sub(self.target.bias)) {
            return Some(Found::at(address, &self.target.image, self.target.bias, None));
        }
        let name = self.mapping(address)?.name.clone();
        let (image, bias) = self.library(address)?;
        Some(Found::at(address, image, bias, Some(name)))
    }

    /// Returns the result of `find` for the first mapped file whose name begins with `name`, given the file and the
    /// bias of its addresses.
    pub(super) fn named<T>(&mut self, name: &str, find: impl Fn(&Image, u64) -> Option<T>) -> Option<T> {
        let start = self.mappings.iter().find(|m| m.name.starts_with(name))?.start;
        let (image, bias) = self.library(start)?;
        find(image, bias)
    }

    /// Returns how many bytes another library may have; `None` if no other is examined.
    fn room(&self) -> Option<u64> {
        let copied: u64 = self.libraries.values().flatten().map(Image::file_size).sum();
        (self.libraries.len() < MAX_LIBRARIES).then(|| MAX_COPIED.saturating_sub(copied))
    }

    /// Returns the file that is mapped at an address of the process, and the bias of its addresses.
    pub(super) fn library(&mut self, address: u64) -> Option<(&Image, u64)> {
        let mapping = self.mapping(address)?.clone();
        let pid = self.target.pid;
        if !self.libraries.contains_key(mapping.path()) {
            let image = self.room().and_then(|room| mapping.image(pid, room).ok());
            self.libraries.insert(mapping.path().to_owned(), image);
        }
        let image = self.libraries.get(mapping.path())?.as_ref()?;
        let bias = mapping.start.wrapping_sub(image.page_address_of(mapping.offset)?);
        Some((image, bias))
    }
}

/// A function in a file.
pub(super) struct Found<'a> {
    pub(super) image: &'a Image,
    /// The difference between addresses in the process and in the file.
    pub(super) bias: u64,
    /// The function's first address, in the process and in the file.
    pub(super) start: u64,
    linked: u64,
    symbol: Option<Symbol<'a>>,
    /// The file's name, unless it is the server's program.
    library: Option<String>,
}

impl<'a> Found<'a> {
    fn at(address: u64, image: &'a Image, bias: u64, library: Option<String>) -> Found<'a> {
        let at = address.wrapping_sub(bias);
        let symbol = image.symbol_at(at).filter(|s| s.is_function);
        // Code outside all known functions is identified by its page.
        let linked = symbol.map(|s| s.addr).or_else(|| Some(image.function_at(at)?.start)).unwrap_or(at & !0xfff);
        Found { image, bias, start: linked.wrapping_add(bias), linked, symbol, library }
    }

    /// Returns the function's addresses in the file.
    pub(super) fn bounds(&self) -> Option<Range<u64>> {
        self.image.function_at(self.linked)
    }

    /// Returns the function's name, or its file and start address.
    pub(super) fn name(&self) -> String {
        match (self.symbol, &self.library) {
            (Some(symbol), _) => plain_name(symbol.name),
            (None, Some(library)) => format!("sub_{:x} ({library})", self.linked),
            (None, None) => format!("sub_{:x}", self.linked),
        }
    }
}

//! Static variables that a server names itself: those behind its system and status variables.
//!
//! In a position-independent binary each pointer in the tables that list them is a relocation, so the tables can be
//! read from stripped binaries too.

use std::collections::BTreeSet;

use crate::catalog::{number_size, Table, FLAGS_BEFORE_NAME};
use crate::symbols::Image;

/// What may be an entry of a table that ties names to static variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The address of the pointer to the name.
    name_at: u64,
    /// The address of the name.
    name: u64,
    /// The address of the variable.
    variable: u64,
}

/// The static variables that a program's tables of one kind tie to names. All addresses are link-time addresses.
pub struct Variables<'i> {
    image: &'i Image,
    entries: Vec<Entry>,
}

/// A number that a system variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its link-time address.
    pub addr: u64,
    /// Its size in bytes: 1, 4 or 8.
    pub size: u8,
}

impl<'i> Variables<'i> {
    /// Finds the tables of this kind. `pointers` are the image's static pointers, sorted.
    pub fn new(image: &'i Image, pointers: &[(u64, u64)], table: Table) -> Variables<'i> {
        let mut targets = pointers.iter();
        let entry = |&(name_at, name): &(u64, u64)| {
            let value_at = name_at.checked_add(table.value_behind_name())?;
            // Both ascend.
            while targets.as_slice().first().is_some_and(|(at, _)| *at < value_at) {
                targets.next();
            }
            let (_, variable) = *targets.as_slice().first().filter(|(at, _)| *at == value_at)?;
            image.is_static_data(variable).then_some(Entry { name_at, name, variable })
        };
        Variables { image, entries: pointers.iter().filter_map(entry).collect() }
    }

    /// Returns the address of the static variable that the tables tie to `name`, if there is exactly one.
    pub fn variable(&self, name: &str) -> Option<u64> {
        single(self.named(name).map(|entry| entry.variable).collect())
    }

    /// Returns the integer or boolean that the plugin's global system variable `name` holds, if there is exactly one.
    pub fn number(&self, name: &str) -> Option<Number> {
        let entry = single(self.named(name).collect())?;
        let flags = self.image.bytes(entry.name_at.checked_sub(FLAGS_BEFORE_NAME)?, 4)?;
        let size = number_size(u32::from_le_bytes(flags.try_into().ok()?))?;
        Some(Number { addr: entry.variable, size })
    }

    fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = Entry> + 'a {
        let expected = [name.as_bytes(), &[0]].concat();
        let is_name = move |addr: u64| self.image.bytes(addr, expected.len()) == Some(&expected[..]);
        self.entries.iter().copied().filter(move |entry| is_name(entry.name))
    }
}

fn single<T>(found: BTreeSet<T>) -> Option<T> {
    let mut found = found.into_iter();
    found.next().filter(|_| found.next().is_none())
}

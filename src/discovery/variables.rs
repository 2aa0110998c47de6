//! Static variables that a server names itself: those behind its system and status variables.
//!
//! In a position-independent binary each pointer in the tables that list them is a relocation, so the tables can be
//! read from stripped binaries too.

use std::collections::BTreeSet;

use crate::catalog::{number_size, Table, FLAGS_BEFORE_NAME};
use crate::symbols::Image;

/// Returns the link-time address of the static variable that tables of this kind tie to `name`, if there is exactly
/// one. `pointers` are the image's relative relocations, sorted.
pub fn variable(image: &Image, pointers: &[(u64, u64)], table: Table, name: &str) -> Option<u64> {
    single(entries(image, pointers, table, name).into_iter().map(|(_, value)| value).collect())
}

/// A number that a system variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its link-time address.
    pub addr: u64,
    /// Its size in bytes: 1, 4 or 8.
    pub size: u8,
}

/// Returns the integer or boolean that the plugin's global system variable `name` holds, if there is exactly one.
pub fn number(image: &Image, pointers: &[(u64, u64)], name: &str) -> Option<Number> {
    let (name_at, addr) = single(entries(image, pointers, Table::System, name))?;
    let flags = image.bytes(name_at.checked_sub(FLAGS_BEFORE_NAME)?, 4)?;
    let size = number_size(u32::from_le_bytes(flags.try_into().ok()?))?;
    Some(Number { addr, size })
}

/// Returns the table entries for `name`: the address of the pointer to the name, and the static variable that it is
/// tied to.
fn entries(image: &Image, pointers: &[(u64, u64)], table: Table, name: &str) -> BTreeSet<(u64, u64)> {
    let mut expected = name.as_bytes().to_vec();
    expected.push(0);
    let is_name = |addr: u64| image.bytes(addr, expected.len()) == Some(&expected[..]);
    let target = |at: u64| pointers.binary_search_by_key(&at, |p| p.0).ok().map(|i| pointers[i].1);
    pointers
        .iter()
        .filter(|(_, to)| is_name(*to))
        .filter_map(|(at, _)| Some((*at, target(at.checked_add(table.value_behind_name())?)?)))
        .filter(|(_, value)| image.is_static_data(*value))
        .collect()
}

fn single<T>(found: BTreeSet<T>) -> Option<T> {
    let mut found = found.into_iter();
    found.next().filter(|_| found.next().is_none())
}

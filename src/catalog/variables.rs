//! Static variables that a server names itself: those behind its system and status variables.
//!
//! A plugin such as InnoDB registers them in its own tables, whose structures the server's plugin interface defines. In
//! a position-independent binary each pointer in these tables is a relocation, so the tables can be read from stripped
//! binaries too.

use std::collections::BTreeSet;

use crate::symbols::Image;

/// The layout of a variable's description: the distance from the pointer to its name to the pointer to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `struct st_mysql_sys_var`: the name is followed by a comment, two functions, and the value.
    System,
    /// `struct st_mysql_show_var`: the name is followed by the value.
    Status,
}

impl Table {
    fn value_behind_name(self) -> u64 {
        match self {
            Table::System => 32,
            Table::Status => 8,
        }
    }
}

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

/// The distance from the flags to the pointer to the name in a `struct st_mysql_sys_var`.
const FLAGS_BEFORE_NAME: u64 = 8;

/// Returns the size of a number from its flags: `PLUGIN_VAR_THDLOCAL` and the types `PLUGIN_VAR_BOOL`, `_INT`, `_LONG`,
/// `_LONGLONG` of the plugin interface.
fn number_size(flags: u32) -> Option<u8> {
    const PER_CONNECTION: u32 = 0x100;
    match flags & 0x7f {
        _ if flags & PER_CONNECTION != 0 => None,
        1 => Some(1),
        2 => Some(4),
        3 | 4 => Some(8),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::number_size;

    #[test]
    fn only_numbers_for_all_connections_have_a_size() {
        let (bool, int, ulong, ulonglong, text, double) = (1, 2, 0x83, 0x84, 5, 8);
        assert_eq!(
            [bool, int, ulong, ulonglong, text, double].map(number_size),
            [Some(1), Some(4), Some(8), Some(8), None, None]
        );
        assert_eq!(number_size(0x100 | 3), None);
    }
}

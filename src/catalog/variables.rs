//! Static variables that a server names itself: those behind its system and status variables.
//!
//! A plugin such as InnoDB registers them in tables of its own, of structures that the server's plugin interface defines. In
//! a position-independent binary each pointer in them is a relocation, so they can be read from stripped ones too.

use std::collections::BTreeSet;

use crate::symbols::Image;

/// In the description of a variable: from the pointer to its name to the pointer to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `struct st_mysql_sys_var`: behind the name a comment, two functions, then the value.
    System,
    /// `struct st_mysql_show_var`: the value follows the name.
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

/// The link-time address of the static variable that a table of that kind ties to `name`, if it is one only. `pointers`
/// are the image's relative relocations, sorted.
pub fn variable(image: &Image, pointers: &[(u64, u64)], table: Table, name: &str) -> Option<u64> {
    let mut expected = name.as_bytes().to_vec();
    expected.push(0);
    let is_name = |addr: u64| image.bytes(addr, expected.len()) == Some(&expected[..]);
    let target = |at: u64| pointers.binary_search_by_key(&at, |p| p.0).ok().map(|i| pointers[i].1);
    let found: BTreeSet<u64> = pointers
        .iter()
        .filter(|(_, to)| is_name(*to))
        .filter_map(|(at, _)| target(at.checked_add(table.value_behind_name())?))
        .filter(|value| image.is_static_data(*value))
        .collect();
    let mut found = found.into_iter();
    found.next().filter(|_| found.next().is_none())
}

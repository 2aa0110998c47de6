//! The tables in which a plugin such as InnoDB registers its system and status variables. The server's plugin interface
//! defines their structures.

/// The layout of a variable's description: the distance from the pointer to its name to the pointer to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `struct st_mysql_sys_var`: the name is followed by a comment, two functions, and the value.
    System,
    /// `struct st_mysql_show_var`: the name is followed by the value.
    Status,
}

impl Table {
    /// Returns the distance from the pointer to the name to the pointer to the value, in bytes.
    pub fn value_behind_name(self) -> u64 {
        match self {
            Table::System => 32,
            Table::Status => 8,
        }
    }
}

/// The distance from the flags to the pointer to the name in a `struct st_mysql_sys_var`, in bytes.
pub const FLAGS_BEFORE_NAME: u64 = 8;

/// Returns the size of a number, in bytes, from its flags: `PLUGIN_VAR_THDLOCAL` and the types `PLUGIN_VAR_BOOL`,
/// `_INT`, `_LONG`, `_LONGLONG` of the plugin interface. `None` if each connection has its own value, or if it is not a
/// number.
pub fn number_size(flags: u32) -> Option<u8> {
    const PER_CONNECTION: u32 = 0x100;
    match flags & 0x7f {
        _ if flags & PER_CONNECTION != 0 => None,
        1 => Some(1),
        2 => Some(4),
        3 | 4 => Some(8),
        _ => None,
    }
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

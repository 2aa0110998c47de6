//! Reads the instruments that a server registers with performance_schema from its binary.
//!
//! Every latch class has a key variable. Static tables tie the keys to names, with one entry per class: `{ key *, const
//! char *name, flags, … }`. The binary contains these tables even if the server was started with performance_schema
//! off; only the keys' values are then all zero.

use std::collections::{HashMap, HashSet};

use crate::symbols::Image;

/// The flag of locks with a third mode.
const SXLOCK: u32 = 0x10;

/// One entry of a table of instruments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instrument {
    /// The name as registered, which is the last component of the event name: `log_writer_mutex`.
    pub name: String,
    /// The link-time address of the entry in the table that it is registered from.
    pub entry: u64,
    /// The flags: one u32 after the name. Meaningless for other tables.
    flags: u32,
}

impl Instrument {
    /// Returns whether its locks have a third mode: `wait/synch/sxlock/…` instead of `…/rwlock/…`.
    ///
    /// The flag is bit 4 (`PSI_FLAG_RWLOCK_SX`). MariaDB 10.2 has it, but no instruments of that kind.
    pub fn is_sxlock(&self) -> bool {
        self.flags & SXLOCK != 0
    }
}

/// The instruments of a binary, by the link-time address of their key variable.
#[derive(Debug, Default)]
pub struct Instruments {
    by_key: HashMap<u64, Instrument>,
    /// Key variables that are registered under several names.
    contradicted: HashSet<u64>,
}

impl Instruments {
    /// Collects the tables of a position-independent binary, in which every static pointer is a relocation. So an entry
    /// is a relocation that points to writable data, followed by one that points to a name.
    ///
    /// The global offset table is left out, because unrelated pointers are adjacent in it.
    ///
    /// `pointers` are the image's relative relocations, sorted. Other tables, such as those of status variables, have
    /// the same form. They do no harm, because no latch has their keys.
    pub fn new(image: &Image, pointers: &[(u64, u64)]) -> Instruments {
        let got = image.section(".got").unwrap_or(0..0);
        let has_sxlocks = has_sxlocks(image);
        let mut by_key: HashMap<u64, Instrument> = HashMap::new();
        let mut contradicted = HashSet::new();
        for pair in pointers.windows(2) {
            let [(at, key), (next, name)] = [pair[0], pair[1]];
            if at.checked_add(8) != Some(next) || got.contains(&at) || key % 4 != 0 || !image.is_static_data(key) {
                continue;
            }
            let Some(name) = instrument_name(image, name) else { continue };
            let flags = flags_behind(next, |at, len| image.bytes(at, len));
            let flags = if has_sxlocks { flags } else { flags & !SXLOCK };
            let instrument = Instrument { name: name.to_owned(), entry: at, flags };
            match by_key.get(&key) {
                Some(known) if known.name != instrument.name => {
                    contradicted.insert(key);
                }
                _ => {
                    by_key.insert(key, instrument);
                }
            }
        }
        by_key.retain(|key, _| !contradicted.contains(key));
        Instruments { by_key, contradicted }
    }

    /// Returns instruments with these key variables and names.
    #[cfg(test)]
    pub fn named(keys: &[(u64, &str)]) -> Instruments {
        let instrument = |name: &str| Instrument { name: name.to_owned(), flags: 0, entry: 0 };
        let by_key = keys.iter().map(|(key, name)| (*key, instrument(name))).collect();
        Instruments { by_key, ..Instruments::default() }
    }

    /// Returns the instrument whose key variable lies at this link-time address.
    pub fn by_key(&self, key: u64) -> Option<&Instrument> {
        self.by_key.get(&key)
    }

    /// Returns whether several instruments are registered with the key variable at this link-time address, so that none
    /// is known.
    pub fn is_contradicted(&self, key: u64) -> bool {
        self.contradicted.contains(&key)
    }

    /// Returns all instruments, with the link-time address of their key variable.
    pub fn keys(&self) -> impl Iterator<Item = (u64, &Instrument)> {
        self.by_key.iter().map(|(&key, instrument)| (key, instrument))
    }

    /// Returns the instrument with this name, if only one has it.
    pub fn by_name(&self, name: &str) -> Option<&Instrument> {
        let mut all = self.by_key.values().filter(|i| i.name == name);
        all.next().filter(|_| all.next().is_none())
    }
}

/// Returns the flags after the pointer to a name at this address; 0 if there are none.
fn flags_behind<'a>(name: u64, bytes: impl Fn(u64, usize) -> Option<&'a [u8]>) -> u32 {
    let flags = name.checked_add(8).and_then(|at| bytes(at, 4)?.try_into().ok());
    flags.map_or(0, u32::from_le_bytes)
}

/// Returns whether the server's performance_schema has a separate kind for locks with a third mode.
fn has_sxlocks(image: &Image) -> bool {
    image.has_string(b"wait/synch/sxlock")
}

/// Returns the string at `addr` if it can be the name of an instrument: `Event_scheduler::COND_state`.
fn instrument_name(image: &Image, addr: u64) -> Option<&str> {
    if !image.section(".rodata")?.contains(&addr) {
        return None;
    }
    let name = image.cstr(addr)?;
    let plausible = (3..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:.- ".contains(&b));
    plausible.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_at_the_end_of_all_addresses_has_no_flags() {
        assert_eq!(flags_behind(0x1000, |at, len| (at == 0x1008 && len == 4).then_some(&[0x10, 0, 0, 0])), SXLOCK);
        assert_eq!(flags_behind(u64::MAX - 7, |_, _| Some(&[0x10, 0, 0, 0])), 0);
    }
}

//! The names of MySQL's latches.

use std::collections::HashMap;

use super::created::{self, Key, Site};
use super::latch_ids::{self, Keys};
use super::psi::Instruments;
use super::references::References;
use super::{LatchName, Process};
use crate::catalog::{mysql, MysqlLayout};
use crate::model::Kind;
use crate::symbols::Image;

/// Longest name of a source file that is believed.
const MAX_PATH: usize = 1024;

pub struct Rules<'a> {
    pub layout: &'static MysqlLayout,
    image: &'a Image,
    instruments: Instruments,
    keys: Keys,
    sites: Vec<Site>,
    /// Latch ids read from the process, when first needed: they are there only once InnoDB has started.
    ids: HashMap<u32, String>,
}

impl<'a> Rules<'a> {
    pub fn new(image: &'a Image, layout: &'static MysqlLayout) -> Rules<'a> {
        let mut pointers = image.relative_relocations();
        pointers.sort_unstable();
        let instruments = Instruments::new(image, &pointers);
        let code = References::new(image, &pointers);
        let keys = latch_ids::keys(&code, layout, &instruments);
        let sites = created::sites(&code, layout, &instruments);
        Rules { layout, image, instruments, keys, sites, ids: HashMap::new() }
    }

    /// The mutex with this latch id.
    pub fn latch_id(&mut self, process: &Process, id: u32) -> Option<LatchName> {
        if !self.ids.contains_key(&id) {
            let ids = latch_ids::read(&process.memory, process.bias, self.image, self.layout).ok()?;
            self.ids = ids.into_iter().map(|i| (i.id, i.name)).collect();
        }
        Some(self.id_name(self.ids.get(&id)?))
    }

    /// The mutex whose latch id has this name.
    pub fn id_name(&self, id: &str) -> LatchName {
        let instrument = self.keys.get(id).copied().flatten().and_then(|key| self.instruments.by_key(key));
        match instrument {
            Some(instrument) => LatchName::innodb(Kind::Mutex, &instrument.name),
            None => LatchName::innodb(Kind::Mutex, &uninstrumented_id(id)),
        }
    }

    /// The rw-lock made at this place; `file` is an address in the process.
    pub fn created(&self, process: &Process, file: u64, line: u32) -> Option<LatchName> {
        // The name is a constant of the binary; only a build that copies it needs the process's memory.
        let link = file.wrapping_sub(process.bias);
        let path = match self.image.cstr(link) {
            Some(path) => path.to_owned(),
            None => process.memory.cstr(file, MAX_PATH).ok()?,
        };
        Some(self.site_name(&path, line))
    }

    /// The rw-lock made at this place in the source.
    pub fn site_name(&self, path: &str, line: u32) -> LatchName {
        let base = path.rsplit('/').next().unwrap_or(path);
        let site = self.sites.iter().find(|s| s.line == line && s.file == path);
        match site.map(|s| s.key) {
            Some(Key::Instrument(key)) => match self.instruments.by_key(key) {
                Some(instrument) if instrument.is_sxlock() => LatchName::innodb(Kind::Sxlock, &instrument.name),
                Some(instrument) => LatchName::innodb(Kind::Rwlock, &instrument.name),
                None => LatchName::unnamed(&format!("{base}:{line}")),
            },
            Some(Key::None) => match mysql::UNINSTRUMENTED_SITES.iter().find(|(file, _)| *file == base) {
                Some((_, name)) => LatchName::innodb(Kind::Sxlock, name),
                None => LatchName::unnamed(&format!("{base}:{line}")),
            },
            Some(Key::Unknown) | None => LatchName::unnamed(&format!("{base}:{line}")),
        }
    }
}

/// A name for an id that the server does not instrument: the server's own name for the latch, in the style of the
/// instruments.
fn uninstrumented_id(id: &str) -> String {
    let given = mysql::UNINSTRUMENTED_IDS.iter().find(|(known, _)| *known == id);
    given.map_or_else(
        || {
            let name = id.to_ascii_lowercase();
            if name.ends_with("_mutex") {
                name
            } else {
                format!("{name}_mutex")
            }
        },
        |(_, name)| (*name).to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uninstrumented_ids_look_like_instruments() {
        assert_eq!(uninstrumented_id("EVENT_MANAGER"), "event_manager_mutex");
        assert_eq!(uninstrumented_id("OS_AIO_READ_MUTEX"), "os_aio_read_mutex");
        assert_eq!(uninstrumented_id("BUF_BLOCK_MUTEX"), "buffer_block_mutex");
    }
}

//! The names of MySQL's latches.

use std::collections::HashMap;

use super::created::{self, Key, Site};
use super::latch_ids::{self, Keys, LatchId};
use super::psi::Instruments;
use super::references::References;
use super::{LatchName, Process};
use crate::catalog::MysqlNames;
use crate::model::Kind;
use crate::symbols::Image;

pub struct Rules {
    catalog: &'static MysqlNames,
    instruments: Instruments,
    keys: Keys,
    sites: Vec<Site>,
    /// Latch ids read from the process, when first needed: they are there only once InnoDB has started.
    ids: HashMap<u32, String>,
}

impl Rules {
    pub fn new(image: &Image, catalog: &'static MysqlNames) -> Rules {
        let pointers = image.static_pointers();
        let instruments = Instruments::new(image, &pointers);
        let code = References::new(image, &pointers);
        let keys = latch_ids::keys(&code, catalog, &instruments);
        let sites = created::sites(&code, catalog, &instruments);
        Rules { catalog, instruments, keys, sites, ids: HashMap::new() }
    }

    /// The latch ids that the code ties to an instrument, or to the lack of one.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// The places that make rw-locks.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The mutex with this latch id.
    pub(super) fn latch_id(&mut self, process: &Process, id: u32) -> Option<LatchName> {
        if !self.ids.contains_key(&id) {
            let ids = latch_ids::read(process, self.catalog)?;
            self.ids = ids.into_iter().map(|i| (i.id, i.name)).collect();
        }
        Some(self.id_name(self.ids.get(&id)?))
    }

    pub(super) fn read_ids(&self, process: &Process) -> Option<Vec<LatchId>> {
        latch_ids::read(process, self.catalog)
    }

    /// The mutex whose latch id has this name.
    pub fn id_name(&self, id: &str) -> LatchName {
        let instrument = self.keys.get(id).copied().flatten().and_then(|key| self.instruments.by_key(key));
        match instrument {
            Some(instrument) => LatchName::innodb(Kind::Mutex, &instrument.name),
            None => LatchName::innodb(Kind::Mutex, &uninstrumented_id(id, self.catalog)),
        }
    }

    /// The rw-lock made at this place; `file` is an address in the process.
    pub(super) fn created(&self, process: &Process, file: u64, line: u32) -> Option<LatchName> {
        self.site_name(&process.memory.string(file)?, line)
    }

    /// The rw-lock made at this place in the source, if the code there is known.
    pub fn site_name(&self, path: &str, line: u32) -> Option<LatchName> {
        let kept = u32::MAX >> (32 - self.catalog.line_bits.clamp(1, 32));
        let is_here = |s: &&Site| s.line & kept == line & kept && s.file == path;
        let mut here = self.sites.iter().filter(is_here).map(|s| s.key);
        let key = here.next()?;
        if here.any(|other| other != key) {
            return None;
        }
        match key {
            Key::Instrument(key) => {
                let instrument = self.instruments.by_key(key)?;
                let kind = if instrument.is_sxlock() { Kind::Sxlock } else { Kind::Rwlock };
                Some(LatchName::innodb(kind, &instrument.name))
            }
            Key::None => {
                let base = path.rsplit('/').next()?;
                let (_, name) = self.catalog.uninstrumented_sites.iter().find(|(file, _)| *file == base)?;
                Some(LatchName::innodb(Kind::Sxlock, name))
            }
            Key::Unknown => None,
        }
    }
}

/// A name for an id that the server does not instrument: the server's own name for the latch, in the style of the
/// instruments.
fn uninstrumented_id(id: &str, catalog: &MysqlNames) -> String {
    let given = catalog.uninstrumented_ids.iter().find(|(known, _)| *known == id);
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

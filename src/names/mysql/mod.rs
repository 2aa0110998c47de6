//! Names MySQL's latches.

pub(super) mod creation_sites;
pub(super) mod latch_ids;

use std::collections::HashMap;

use self::creation_sites::{CreationSite, Key};
use self::latch_ids::{Keys, LatchId};
use super::psi::Instruments;
use super::references::References;
use super::{LatchName, Process};
use crate::catalog::{Created, MysqlNames};
use crate::discovery::find_member;
use crate::model::Kind;
use crate::symbols::Image;

/// What a MySQL program shows about the names of its latches.
pub struct Rules {
    catalog: &'static MysqlNames,
    instruments: Instruments,
    keys: Keys,
    sites: Vec<CreationSite>,
    /// The bits of the creating line that latches keep, as a mask, where the code shows them.
    line_masks: Vec<(&'static Created, u32)>,
}

/// A running server's own names of latch ids. They are read when first needed, because they exist only once InnoDB has
/// started.
#[derive(Default)]
pub struct Ids(HashMap<u32, String>);

impl Ids {
    /// Returns the name of an id, once its mutex has been looked up.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }
}

impl Rules {
    /// Finds the names in a program.
    pub fn new(image: &Image, catalog: &'static MysqlNames) -> Rules {
        let pointers = image.static_pointers();
        let instruments = Instruments::new(image, &pointers);
        let code = References::new(image);
        let keys = catalog.ids.map(|ids| latch_ids::keys(&code, ids, &instruments)).unwrap_or_default();
        let sites = creation_sites::sites(&code, catalog, &instruments);
        let line_masks = catalog.created.iter().filter_map(|c| Some((c, find_member(image, c.line)?.mask))).collect();
        Rules { catalog, instruments, keys, sites, line_masks }
    }

    /// Returns the names of the latch ids whose instrument, or lack of one, the code shows.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// Returns the places that create latches which remember their place.
    pub fn sites(&self) -> &[CreationSite] {
        &self.sites
    }

    /// Returns the name of the mutex with this latch id.
    pub(super) fn latch_id(&self, process: &Process, ids: &mut Ids, id: u32) -> Option<LatchName> {
        if !ids.0.contains_key(&id) {
            let read = latch_ids::read(process, self.catalog.ids?)?;
            ids.0 = read.into_iter().map(|i| (i.id, i.name)).collect();
        }
        self.id_name(ids.text(id)?)
    }

    /// Reads the latch ids of the running server; see [`latch_ids::read`].
    pub(super) fn read_ids(&self, process: &Process) -> Option<Vec<LatchId>> {
        latch_ids::read(process, self.catalog.ids?)
    }

    /// Returns the name of the mutex whose latch id has this name; `None` if the code shows neither its instrument nor
    /// that it has none. The id alone is not enough, because some instruments have another name: that of `FIL_SHARD` is
    /// `fil_system_mutex`.
    pub fn id_name(&self, id: &str) -> Option<LatchName> {
        match *self.keys.get(id)? {
            Some(key) => {
                self.instruments.by_key(key).map(|instrument| LatchName::innodb(Kind::Mutex, &instrument.name))
            }
            None => Some(LatchName::innodb(Kind::Mutex, &uninstrumented_id(id, self.catalog))),
        }
    }

    /// Returns the name of the latch created at this place; `file` is the address of the file name in the process.
    pub(super) fn created(&self, process: &Process, file: u64, line: u32) -> Option<LatchName> {
        self.site_name(&process.memory.string(file)?, line)
    }

    /// Returns the name of the latch created at this place in the source, if the code there is known.
    pub fn site_name(&self, path: &str, line: u32) -> Option<LatchName> {
        let is_here = |s: &&CreationSite| {
            let kept = self.line_masks.iter().find(|(created, _)| std::ptr::eq(*created, s.created));
            kept.is_some_and(|(_, mask)| s.line & mask == line & mask) && s.file == path
        };
        let mut here = self.sites.iter().filter(is_here);
        let site = here.next()?;
        if here.any(|other| other.key != site.key || !std::ptr::eq(other.created, site.created)) {
            return None;
        }
        match site.key {
            Key::Instrument(key) => {
                let instrument = self.instruments.by_key(key)?;
                let has_third_mode = site.created.kind == Kind::Rwlock && instrument.is_sxlock();
                let kind = if has_third_mode { Kind::Sxlock } else { site.created.kind };
                Some(LatchName::innodb(kind, &instrument.name))
            }
            Key::None => {
                let base = path.rsplit('/').next()?;
                let (_, latch) = site.created.uninstrumented.iter().find(|(file, _)| *file == base)?;
                Some(LatchName::innodb(latch.kind, latch.name))
            }
            Key::Unknown => None,
        }
    }
}

/// Returns a name for an id that the server does not instrument: the server's own name for the latch, in the style of
/// instruments.
fn uninstrumented_id(id: &str, catalog: &MysqlNames) -> String {
    let known = catalog.ids.map_or(&[][..], |ids| ids.uninstrumented_ids);
    let given = known.iter().find(|(known, _)| *known == id);
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

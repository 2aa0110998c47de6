//! Turns an identity measured in the kernel into the name of a latch.
//!
//! The kernel side keys every wait by something bounded: the id or creation site that the latch itself holds, its
//! performance_schema class, its address if it is in static data, or else the waiting code. Here each of these becomes
//! the event name that performance_schema uses, whether or not performance_schema is on. Where the server defines no
//! event, the name is built in the same way from the server's own name for the latch, and `docs` lists it. Anything
//! uncertain is `unnamed:FUNCTION`, because a missing name is better than a wrong one.

mod mariadb;
mod mysql;
mod pages;
mod psi;
mod pthread;
mod references;

pub use mariadb::registrations::{made, Made};
pub use mariadb::Rules as MariadbRules;
pub use mysql::creation_sites::{CreationSite, Key};
pub use mysql::latch_ids::LatchId;
pub use mysql::Rules as MysqlRules;
pub use pages::{PageKey, PageName};
pub use psi::{Instrument, Instruments};
pub use pthread::locks::{locks, locks_one_member, waited, Locks};
pub use pthread::ANALYSIS_THREAD;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::mysql::Ids;
use self::pages::{At, PageNames};
use self::pthread::PthreadNames;
use crate::catalog::{DictionaryAt, Naming, PsiClass};
use crate::model::Kind;
use crate::server::{Memory, Target};
use crate::symbols::{Image, PerImage};

/// What identifies a latch on the kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The id that a MySQL mutex holds.
    LatchId(u32),
    /// The source location that created a MySQL rw-lock.
    Created {
        /// The address of the file name in the process.
        file: u64,
        /// The line, as far as the latch keeps its bits.
        line: u32,
    },
    /// The address in the process of the latch's performance_schema class.
    PsiClass(u64),
    /// The address in the process of a latch in the server's static data.
    Static(u64),
    /// A latch on the heap, identified by the waiting code: an address in the process, inside the waiting function.
    Caller(u64),
    /// The latch is part of a metadata lock.
    MetadataLock,
    /// The latch of a page.
    Page,
    /// A lock of the C library's allocator.
    Allocator,
}

/// A latch's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LatchName {
    /// The event name, such as `wait/synch/mutex/innodb/log_writer_mutex`, or `unnamed:FUNCTION`.
    pub event: String,
    /// The kind of latch, which is also part of the event name.
    pub kind: Kind,
}

impl LatchName {
    /// Returns the InnoDB event of this kind and bare name.
    pub fn innodb(kind: Kind, name: &str) -> LatchName {
        LatchName { event: format!("wait/synch/{}/innodb/{name}", kind.as_str()), kind }
    }

    /// Returns the name for a latch that could not be named: the waiting function or the place, never a guess. If the
    /// kind is uncertain, it is the one with the most modes among the possible kinds.
    fn unnamed(kind: Kind, what: &str) -> LatchName {
        LatchName { event: format!("unnamed:{what}"), kind }
    }

    /// Parses a complete event name as performance_schema writes it; `None` if it is not one.
    pub fn from_event(event: &str) -> Option<LatchName> {
        let (kind, rest) = event.strip_prefix("wait/synch/")?.split_once('/')?;
        let kind = Kind::from_name(kind)?;
        let plausible = rest.contains('/') && rest.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        plausible.then(|| LatchName { event: event.to_owned(), kind })
    }

    /// Returns whether this is a name rather than `unnamed:`.
    pub fn is_named(&self) -> bool {
        !self.event.starts_with("unnamed:")
    }
}

/// Names the latches of one server. A name that was once given is kept.
pub struct Namer {
    target: Arc<Target>,
    memory: Memory,
    rules: Arc<Rules>,
    ids: Ids,
    pthread: PthreadNames,
    /// `None` if nothing is known of this family's pages.
    pages: Option<PageNames>,
    known: HashMap<Identity, Known>,
}

/// What a family's identities mean.
enum Rules {
    Mysql(MysqlRules),
    Mariadb(MariadbRules),
    /// The family has no latches to name.
    None,
}

impl Rules {
    /// Derives them from a server's program.
    fn new(target: &Target) -> Rules {
        match target.family.naming {
            Naming::Mysql(catalog) => Rules::Mysql(MysqlRules::new(&target.image, catalog)),
            Naming::Mariadb(catalog) => Rules::Mariadb(MariadbRules::of(target, catalog)),
            Naming::None => Rules::None,
        }
    }
}

/// A name that was given before.
#[derive(Clone)]
struct Known {
    name: LatchName,
    /// The latch for which it was given.
    example: u64,
    /// Whether another latch with this identity had another name.
    is_contradicted: bool,
}

impl Namer {
    /// Derives the server's names from its program.
    pub fn new(target: &Arc<Target>) -> Namer {
        static RULES: PerImage<(), Rules> = PerImage::new();
        let rules = RULES.of(&target.image, (), || Rules::new(target));
        let mutexes = match &*rules {
            Rules::Mariadb(rules) => rules.static_mutexes(),
            Rules::Mysql(_) | Rules::None => BTreeMap::new(),
        };
        let pthread = PthreadNames::new(target, mutexes);
        let memory = Memory::new(target.pid);
        let pages = target.family.pages.map(|catalog| PageNames::new(catalog, dictionary(target, &rules)));
        Namer { memory, target: Arc::clone(target), rules, ids: Ids::default(), pthread, pages, known: HashMap::new() }
    }

    /// Returns what each of these pages is part of; `None` if nothing is known of this server's pages.
    pub fn pages(&mut self, keys: &[PageKey]) -> Option<Vec<PageName>> {
        let process = Process { image: &self.target.image, memory: self.memory, bias: self.target.bias };
        Some(self.pages.as_mut()?.names(&process, keys))
    }

    /// Returns the name of the latches with this identity; `example` is the address of one of them, the last that a
    /// thread waited for.
    ///
    /// Instances and shards of one latch share a name. Names are remembered. But if an identity is only the waiting
    /// function, a new example is examined again, and if one place turns out to wait for different latches, none of
    /// them is named after it.
    pub fn name(&mut self, identity: &Identity, example: u64) -> LatchName {
        let depends_on_example = matches!(identity, Identity::Caller(_));
        let known = self.known.get(identity).cloned();
        if let Some(known) = known.as_ref().filter(|k| !depends_on_example || k.is_contradicted || k.example == example)
        {
            return known.name.clone();
        }
        let Some(found) = self.find(identity, example) else {
            return known.map_or_else(|| self.unnamed(identity), |k| k.name);
        };
        let is_contradicted = known.is_some_and(|k| k.name != found);
        let name = if is_contradicted { self.unnamed(identity) } else { found };
        self.known.insert(*identity, Known { name: name.clone(), example, is_contradicted });
        name
    }

    /// Returns the name of a C library lock; `kind` is the kind that the waiting function implies. `None` during the
    /// first seconds, while it is not known yet.
    pub fn pthread_lock(&mut self, identity: &Identity, kind: Option<Kind>) -> Option<LatchName> {
        if matches!(identity, Identity::LatchId(_)) {
            return Some(self.name(identity, 0));
        }
        let process = Process { image: &self.target.image, memory: self.memory, bias: self.target.bias };
        self.pthread.name(&self.target, &process, identity, kind)
    }

    /// Returns the string at this address in the server's memory; `None` if it cannot be read.
    pub fn string_at(&self, addr: u64) -> Option<String> {
        self.memory.string(addr)
    }

    /// Returns MySQL's latch ids as the running server describes them, with their names here; `None` for other servers.
    /// An id whose instrument is not known has no name.
    pub fn latch_ids(&self) -> Option<Vec<(LatchId, Option<LatchName>)>> {
        let Rules::Mysql(rules) = &*self.rules else { return None };
        let ids = rules.read_ids(&self.process())?;
        Some(ids.into_iter().map(|id| (id.clone(), rules.id_name(&id.name))).collect())
    }

    fn find(&mut self, identity: &Identity, example: u64) -> Option<LatchName> {
        let process = Process { image: &self.target.image, memory: self.memory, bias: self.target.bias };
        match (&*self.rules, *identity) {
            (Rules::Mysql(rules), Identity::LatchId(id)) => rules.latch_id(&process, &mut self.ids, id),
            (Rules::Mysql(rules), Identity::Created { file, line }) => rules.created(&process, file, line),
            (Rules::Mariadb(_), Identity::PsiClass(class)) => process.instrument(self.target.psi_class(), class),
            (Rules::Mariadb(rules), Identity::Static(addr)) => {
                let by_address = rules.static_latch(addr.wrapping_sub(process.bias));
                by_address
                    .or_else(|| rules.latch_in(&process, addr))
                    .or_else(|| rules.instrumented(&process, self.target.psi_class(), addr))
            }
            (Rules::Mariadb(rules), Identity::Caller(_)) => rules.latch_in(&process, example),
            (Rules::Mariadb(rules), Identity::Page) => Some(rules.page_latch()),
            _ => None,
        }
    }

    fn process(&self) -> Process<'_> {
        Process { image: &self.target.image, memory: self.memory, bias: self.target.bias }
    }

    fn id_text(&self, id: u32) -> String {
        self.ids.text(id).map_or_else(|| format!("latch_id_{id}"), str::to_owned)
    }

    fn unnamed(&self, identity: &Identity) -> LatchName {
        match *identity {
            Identity::LatchId(id) => LatchName::unnamed(Kind::Mutex, &self.id_text(id)),
            Identity::Created { file, line } => {
                let file = self.memory.string(file).unwrap_or_default();
                let base = file.rsplit('/').next().unwrap_or_default();
                LatchName::unnamed(Kind::Sxlock, &format!("{base}:{line}"))
            }
            Identity::Static(addr) => LatchName::unnamed(Kind::Rwlock, &self.target.data_name(addr)),
            Identity::PsiClass(addr) | Identity::Caller(addr) => {
                LatchName::unnamed(Kind::Rwlock, &self.target.function_name(addr))
            }
            Identity::MetadataLock => LatchName::unnamed(Kind::Rwlock, "MDL_lock"),
            Identity::Page => LatchName::unnamed(Kind::Sxlock, "page"),
            Identity::Allocator => LatchName::unnamed(Kind::Mutex, "malloc"),
        }
    }
}

/// Finds the server's cache of table definitions in its memory.
fn dictionary(target: &Target, rules: &Rules) -> Option<At> {
    let in_process = |link: u64| link.wrapping_add(target.bias);
    match (&target.family.pages?.dictionary.at, rules) {
        (DictionaryAt::Pointer(name), _) => Some(At::Pointer(in_process(target.image.symbol(name)?.addr))),
        (DictionaryAt::Object(object), Rules::Mariadb(rules)) => {
            Some(At::Object(in_process(rules.address(&target.image, *object)?)))
        }
        (DictionaryAt::Object(_), Rules::Mysql(_) | Rules::None) => None,
    }
}

/// Returns whether a name read from memory is text. Names of indexes that are being built begin with a byte that no
/// text contains.
pub(crate) fn is_readable(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(char::is_control)
}

/// What is needed to inspect the server.
struct Process<'a> {
    image: &'a Image,
    memory: Memory,
    bias: u64,
}

impl Process<'_> {
    /// Returns the latch whose performance_schema class is at this address.
    fn instrument(&self, psi: PsiClass, class: u64) -> Option<LatchName> {
        LatchName::from_event(&self.memory.string(class.wrapping_add(u64::from(psi.to_name)))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_are_taken_apart() {
        let name = LatchName::from_event("wait/synch/prlock/sql/MDL_lock::rwlock").expect("an event");
        assert_eq!(name.kind, Kind::Prlock);
        for bad in [
            "",
            "wait/synch/",
            "wait/synch/mutex/",
            "wait/synch/mutex/sql",
            "wait/io/file/sql/x",
            "wait/synch/no/sql/x",
            "wait/synch/mutex/sql/\u{1}",
        ] {
            assert_eq!(LatchName::from_event(bad), None, "{bad}");
        }
    }
}

//! The names of the SQL layer's locks.
//!
//! With performance_schema on each has an instrument. With it off a lock in static data has the name of its symbol, because
//! the server names its global locks and their instruments alike; one of InnoDB's, which are members of its static objects,
//! has that of the instrument it is made with. Others are known by the code that waits for them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::{Identity, LatchName, Process};
use crate::catalog::{event_waits, is_word, Family, Library, Naming, EVENTS};
use crate::model::Kind;
use crate::symbols::Image;
use crate::target::Target;

/// What one server's locks are called. What was named once stays named.
pub struct LibraryNames {
    catalog: &'static Library,
    /// The functions in which threads wait for InnoDB's events, where that is all that is known of its latches.
    events: Vec<Range<u64>>,
    /// By link-time address, those that are known from the code that makes them.
    mutexes: BTreeMap<u64, LatchName>,
    known: HashMap<(Identity, Option<Kind>), LatchName>,
}

impl LibraryNames {
    /// `mutexes` are those that are known from the code that makes them, by link-time address.
    pub fn new(family: &'static Family, image: &Image, mutexes: BTreeMap<u64, LatchName>) -> LibraryNames {
        let events = if matches!(family.naming, Naming::None) { event_waits(image) } else { Vec::new() };
        LibraryNames { catalog: family.library, events, mutexes, known: HashMap::new() }
    }

    /// The lock's name. `kind` is what the function of the C library says that waits for it.
    pub(super) fn name(
        &mut self,
        target: &Target,
        process: &Process,
        identity: &Identity,
        kind: Option<Kind>,
    ) -> LatchName {
        if let Some(known) = self.known.get(&(*identity, kind)) {
            return known.clone();
        }
        let name = match *identity {
            Identity::PsiClass(class) => process.instrument(self.catalog.class, class),
            Identity::Static(addr) => self.static_lock(target, addr, kind),
            Identity::Caller(addr) => {
                self.event(target, addr, kind).or_else(|| self.lock_of(&target.function_name(addr), kind))
            }
            Identity::MetadataLock => LatchName::from_event(self.catalog.metadata_lock.event),
            _ => None,
        };
        let name = name.unwrap_or_else(|| {
            let what = match *identity {
                Identity::Allocator => "malloc".to_owned(),
                Identity::Static(addr) => target.data_name(addr),
                Identity::Caller(addr) => target.function_name(addr),
                _ => "unknown".to_owned(),
            };
            LatchName::unnamed(kind.unwrap_or(Kind::Mutex), &what)
        });
        self.known.insert((*identity, kind), name.clone());
        name
    }

    fn static_lock(&self, target: &Target, addr: u64, kind: Option<Kind>) -> Option<LatchName> {
        let kind = kind?;
        let link = addr.wrapping_sub(target.bias);
        if let Some(made) = self.mutexes.get(&link).filter(|_| kind == Kind::Mutex) {
            return Some(made.clone());
        }
        let array = self.catalog.arrays.iter().find(|a| a.contains(&target.image, link));
        if let Some(array) = array.filter(|_| kind == Kind::Mutex) {
            return self.global(kind, array.lock);
        }
        let (symbol, offset) = target.static_object(addr)?;
        if !is_word(kind, offset) {
            return None;
        }
        Some(self.global(kind, &symbol).unwrap_or_else(|| LatchName::unnamed(kind, &symbol)))
    }

    /// An event of InnoDB's that is waited for at this place.
    fn event(&self, target: &Target, addr: u64, kind: Option<Kind>) -> Option<LatchName> {
        let link = addr.wrapping_sub(target.bias);
        let waits = kind == Some(Kind::Cond) && self.events.iter().any(|f| f.contains(&link));
        waits.then(|| LatchName::unnamed(Kind::Cond, EVENTS))
    }

    /// The lock that is waited for in this function, where it locks no other.
    fn lock_of(&self, function: &str, kind: Option<Kind>) -> Option<LatchName> {
        // Several rw-locks have these functions, so it is not known which it is; but a writer who waits there for readers
        // by a condition variable is not idle.
        if self.catalog.prlock.contains(&function) {
            return Some(LatchName::unnamed(Kind::Prlock, function));
        }
        let owner = self.catalog.owners.iter().find(|(owner, _)| function.starts_with(owner))?;
        LatchName::from_event(owner.1).filter(|_| kind == Some(Kind::Mutex))
    }

    /// The event of a global lock.
    fn global(&self, kind: Kind, lock: &str) -> Option<LatchName> {
        let category = self.catalog.category(lock)?;
        Some(LatchName { event: format!("wait/synch/{}/{category}/{lock}", kind.as_str()), kind })
    }
}

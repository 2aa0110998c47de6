//! Names the SQL layer's locks.
//!
//! With performance_schema on, each lock has an instrument. With it off, a lock has the name of the instrument with
//! which the code creates it, where that is found. Other locks in static data are named after their symbol, because the
//! server gives its global locks and their instruments the same names. The rest are identified by the code that waits
//! for them.

pub(super) mod locks;
mod types;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use self::locks::{locks, locks_one_member, waited, Locks};
use super::psi::Instruments;
use super::{Identity, LatchName, Process};
use crate::catalog::{is_word, lock_starts, Naming, Pthread, EVENTS};
use crate::discovery::{event_waits, is_in_lock_array, metadata_lock_event, prlock_kind};
use crate::memory;
use crate::model::Kind;
use crate::server::Target;
use crate::symbols::PerImage;

/// The names of one server's locks. A name that was once given is kept.
pub struct PthreadNames {
    catalog: &'static Pthread,
    /// The functions in which threads wait for InnoDB's events, in servers where nothing more is known of its latches.
    events: Vec<Range<u64>>,
    /// The mutexes that are known from the code that creates them, by link-time address.
    mutexes: BTreeMap<u64, LatchName>,
    /// Computed when a thread first waits for a lock that nothing else names.
    made: Option<Arc<MadeLocks>>,
    known: HashMap<(Identity, Option<Kind>), LatchName>,
}

/// The name of the thread that analyses the server's code for the C library's locks, and then ends.
pub const ANALYSIS_THREAD: &str = "locks";

/// What the program shows about the locks that it creates. Computing it takes seconds and is done once, in a separate
/// thread, unless it is kept from an earlier start.
struct MadeLocks {
    target: Arc<Target>,
    locks: OnceLock<Arc<Locks>>,
}

impl MadeLocks {
    /// Starts the computation.
    fn begin(target: &Arc<Target>) -> Arc<MadeLocks> {
        let made = Arc::new(MadeLocks { target: Arc::clone(target), locks: OnceLock::new() });
        let worker = Arc::clone(&made);
        let spawned = std::thread::Builder::new().name(ANALYSIS_THREAD.to_owned()).spawn(move || {
            worker.work_out();
            worker.target.image.release_memory();
            memory::give_back();
        });
        if spawned.is_err() {
            made.work_out();
        }
        made
    }

    fn work_out(&self) {
        static LOCKS: PerImage<(), Locks> = PerImage::new();
        let image = &self.target.image;
        let search = || locks(image, &Instruments::new(image, &image.static_pointers()));
        let find = || self.target.find((ANALYSIS_THREAD, ()), |found: &Locks| found.fits(image), search);
        self.locks.get_or_init(|| LOCKS.of(image, (), find));
    }

    /// Returns the result, or `None` while it is being computed.
    fn get(&self) -> Option<&Locks> {
        self.locks.get().map(Arc::as_ref)
    }
}

impl PthreadNames {
    /// Creates the names. `mutexes` are those that are known from the code that creates them, by link-time address.
    pub fn new(target: &Arc<Target>, mutexes: BTreeMap<u64, LatchName>) -> PthreadNames {
        let family = target.family;
        let events = if matches!(family.naming, Naming::None) { event_waits(&target.image) } else { Vec::new() };
        PthreadNames { catalog: family.pthread, events, mutexes, made: None, known: HashMap::new() }
    }

    /// Returns the lock's name, or `None` while it is not yet known whether the code that creates locks shows it.
    /// `kind` is the kind that the waiting C library function implies.
    pub(super) fn name(
        &mut self,
        target: &Arc<Target>,
        process: &Process,
        identity: &Identity,
        kind: Option<Kind>,
    ) -> Option<LatchName> {
        if let Some(known) = self.known.get(&(*identity, kind)) {
            return Some(known.clone());
        }
        if let Some(name) = self.at_once(target, identity, kind) {
            self.known.insert((*identity, kind), name.clone());
            return Some(name);
        }
        if matches!(identity, Identity::Static(_) | Identity::Caller(_)) {
            self.made.get_or_insert_with(|| MadeLocks::begin(target)).get()?;
        }
        let name = match *identity {
            Identity::PsiClass(class) => process.instrument(target.psi_class(), class),
            Identity::Static(addr) => self.static_lock(target, addr, kind),
            Identity::Caller(addr) => {
                let member = waited(&target.image, self.locks()?, addr.wrapping_sub(target.bias), kind?);
                member.or_else(|| self.lock_of(target, addr, kind))
            }
            Identity::MetadataLock => LatchName::from_event(&metadata_lock_event(&target.image)),
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
        Some(name)
    }

    /// Returns the name if it is known without the code that creates locks.
    fn at_once(&self, target: &Target, identity: &Identity, kind: Option<Kind>) -> Option<LatchName> {
        match *identity {
            // The server's global locks and their instruments have the same names.
            Identity::Static(addr) => {
                let made = self.made_of_innodb(target, addr, kind?);
                made.or_else(|| self.by_variable(target, addr, kind?)).filter(LatchName::is_named)
            }
            Identity::Caller(addr) => {
                let owned = || self.lock_of(target, addr, kind).filter(LatchName::is_named);
                self.event(target, addr, kind).or_else(owned)
            }
            _ => None,
        }
    }

    fn locks(&self) -> Option<&Locks> {
        self.made.as_ref()?.get()
    }

    fn static_lock(&self, target: &Target, addr: u64, kind: Option<Kind>) -> Option<LatchName> {
        let kind = kind?;
        let link = addr.wrapping_sub(target.bias);
        let statics = &self.locks()?.statics;
        let mut made = lock_starts(kind, link).into_iter().filter_map(|at| statics.get(&at));
        if let Some(made) = made.find(|made| made.kind == kind) {
            return Some(made.clone());
        }
        self.by_variable(target, addr, kind)
    }

    fn made_of_innodb(&self, target: &Target, addr: u64, kind: Kind) -> Option<LatchName> {
        self.mutexes.get(&addr.wrapping_sub(target.bias)).filter(|_| kind == Kind::Mutex).cloned()
    }

    /// Returns the name of the variable that contains the lock.
    fn by_variable(&self, target: &Target, addr: u64, kind: Kind) -> Option<LatchName> {
        let link = addr.wrapping_sub(target.bias);
        let array = self.catalog.arrays.iter().find(|a| is_in_lock_array(&target.image, a, link));
        if let Some(array) = array.filter(|_| kind == Kind::Mutex) {
            return self.global(kind, array.lock);
        }
        let (symbol, offset) = target.static_object(addr)?;
        if !is_word(kind, offset) {
            return None;
        }
        Some(self.global(kind, &symbol).unwrap_or_else(|| LatchName::unnamed(kind, &symbol)))
    }

    /// Returns the name for an InnoDB event that is waited for at this place.
    fn event(&self, target: &Target, addr: u64, kind: Option<Kind>) -> Option<LatchName> {
        let link = addr.wrapping_sub(target.bias);
        let waits = kind == Some(Kind::Cond) && self.events.iter().any(|f| f.contains(&link));
        waits.then(|| LatchName::unnamed(Kind::Cond, EVENTS))
    }

    /// Returns the lock that is waited for in this function, if it locks no other.
    fn lock_of(&self, target: &Target, addr: u64, kind: Option<Kind>) -> Option<LatchName> {
        let function = target.function_name(addr);
        let function = function.as_str();
        // Several rw-locks share these functions, so the lock is not known. But a writer that waits there for readers,
        // on a condition variable, is not idle.
        if self.catalog.prlock.contains(&function) {
            return Some(LatchName::unnamed(prlock_kind(&target.image), function));
        }
        let owner = self.catalog.owners.iter().find(|(owner, _)| function.starts_with(owner))?;
        let is_only = || locks_one_member(&target.image, addr.wrapping_sub(target.bias));
        LatchName::from_event(owner.1).filter(|_| kind == Some(Kind::Mutex) && is_only())
    }

    /// Returns the event name of a global lock.
    fn global(&self, kind: Kind, lock: &str) -> Option<LatchName> {
        let category = self.catalog.category(lock)?;
        Some(LatchName { event: format!("wait/synch/{}/{category}/{lock}", kind.as_str()), kind })
    }
}

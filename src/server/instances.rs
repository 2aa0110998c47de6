//! Finds, in the running server, how performance_schema's instances of locks lead to the names of their instruments.
//!
//! The server's global locks provide the proof. `LOCK_open` has the instrument `wait/synch/mutex/sql/LOCK_open`, so the
//! path from such a lock to its own name is the path from any instance to its name.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Memory, Target};
use crate::catalog::{mutex_size, PsiClass};
use crate::model::Kind;

/// The possible offsets of the class pointer in an instance and of the instrument's name in a class, among their first
/// members.
const TO_CLASS: std::ops::RangeInclusive<u32> = 8..=64;
const TO_NAME: std::ops::RangeInclusive<u32> = 8..=64;

/// The number of locks that must lead to their names by the same path.
const WITNESSES: usize = 3;

/// The most global locks that are examined; a server has 50.
const MAX_LOCKS: usize = 256;

/// The interval at which a server without instances is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is known of a server's instances.
#[derive(Default)]
pub(super) struct Instances {
    /// The way from an instance to its name, once the locks agree.
    way: OnceLock<PsiClass>,
    /// The server's global locks: link-time address, and the event that each has. Found on first use.
    locks: OnceLock<Vec<(u64, String)>>,
    /// When they were last asked.
    asked: Mutex<Option<Instant>>,
}

impl Target {
    /// Returns how a performance_schema instance leads to its name in this server. If the server has no instances to
    /// learn from, as with performance_schema off, this is what the catalog says.
    pub fn psi_class(&self) -> PsiClass {
        if let Some(way) = self.instances.way.get() {
            return *way;
        }
        // Whoever comes while the locks are being asked waits for their answer.
        let mut asked = self.instances.asked.lock();
        // A server that is still starting may have instances later.
        if self.instances.way.get().is_none() && asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN) {
            if let Some(way) = self.witnessed() {
                _ = self.instances.way.set(way);
            }
            *asked = Some(Instant::now());
        }
        self.instances.way.get().copied().unwrap_or(self.family.pthread.class)
    }

    /// Returns the global locks that have an event.
    fn named_locks(&self) -> Vec<(u64, String)> {
        let locks = self.image.symbols().filter_map(|symbol| {
            let category = self.family.pthread.category(symbol.name).filter(|_| !symbol.is_function)?;
            Some((symbol.addr, format!("wait/synch/{}/{category}/{}", Kind::Mutex.as_str(), symbol.name)))
        });
        locks.take(MAX_LOCKS).collect()
    }

    /// Returns the path that the global mutexes agree on.
    fn witnessed(&self) -> Option<PsiClass> {
        let memory = Memory::new(self.pid);
        let beside = u64::from(mutex_size(self.image.arch()));
        let mut ways: HashMap<PsiClass, usize> = HashMap::new();
        for (lock, event) in self.instances.locks.get_or_init(|| self.named_locks()) {
            let instance = memory.u64(lock.wrapping_add(self.bias).wrapping_add(beside));
            for way in instance.filter(|at| *at != 0).map(|at| ways_to(&memory, at, event)).unwrap_or_default() {
                *ways.entry(way).or_default() += 1;
            }
        }
        let mut agreed = ways.into_iter().filter(|(_, witnesses)| *witnesses >= WITNESSES);
        agreed.next().filter(|_| agreed.next().is_none()).map(|(way, _)| way)
    }
}

/// Returns the paths by which the instance at this address can lead to the name of this event.
fn ways_to(memory: &Memory, instance: u64, event: &str) -> Vec<PsiClass> {
    let classes = TO_CLASS.step_by(8).filter_map(|at| Some((at, memory.u64(instance.wrapping_add(at.into()))?)));
    let leads = |class: u64, at: u32| memory.string(class.wrapping_add(at.into())).is_some_and(|name| name == event);
    let named = classes.filter(|(_, class)| *class != 0).flat_map(|(to_class, class)| {
        let names = TO_NAME.step_by(4).filter(move |at| leads(class, *at));
        names.map(move |to_name| PsiClass { to_class, to_name })
    });
    named.collect()
}

//! Which tables, indexes and other objects threads wait for in waits for locks, and who blocks them.
//!
//! These waits last for milliseconds to minutes, so it is enough to look at the waiting threads from time to time: at
//! their stacks, which do not change meanwhile. A thread that waits for longer is seen more often, so the samples of an
//! object are its share of the time waited.

mod blockers;
mod metadata;
mod rows;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use self::blockers::{Blocker, Blockers};
use self::metadata::MetadataKeys;
use self::rows::RowLocks;
use super::figures::{LockBlocker, LockedObject};
use super::plan::LockPlan;
use super::probes::LockProbes;
use super::stages::Stages;
use crate::bpf::lock::types;
use crate::catalog::LockKind;
use crate::measure::latch::{whole, InTurn, StatementDetail, ADDRESS_BITS};
use crate::server::{sleeps_at, Memory, Target};

/// The most threads whose stacks are read in one look. They stand for all that wait then.
const MOST_THREADS: usize = 8;

/// The most objects that are counted. What others have counts as [`LockedObject::OTHER`].
const MOST_OBJECTS: usize = 200;

/// The most blockers that are counted with their connections, and the most that are counted at all. What others block
/// counts as [`LockBlocker::OTHER`].
const MOST_CONNECTIONS: usize = 300;
const MOST_BLOCKERS: usize = 400;

/// How much of a stack is read, in bytes: what a thread keeps of its wait is in the innermost frames.
const STACK: usize = 4096;

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Object {
    /// A table as `schema.table`, or another name.
    name: String,
    /// The index with the locked row; empty for other locks.
    index: String,
}

/// How often threads were seen to wait for each object.
#[derive(Default)]
pub(super) struct SeenObjects(Mutex<HashMap<(String, Object), u64>>);

/// How often threads were seen that each connection blocked.
#[derive(Default)]
pub(super) struct SeenBlockers(Mutex<HashMap<(String, Blocker), u64>>);

/// What was seen of the threads that wait.
#[derive(Default)]
pub(super) struct Seen {
    pub objects: SeenObjects,
    pub blockers: SeenBlockers,
}

/// A waiting thread.
pub(super) struct Waiter {
    pub thread: u32,
    pub wait: types::lock_wait,
}

/// Looks at the threads of one server that wait for locks.
pub(super) struct ObjectSampler {
    target: Arc<Target>,
    memory: Memory,
    stages: Arc<Mutex<Stages>>,
    seen: Arc<Seen>,
    rows: RowLocks,
    /// `None` if who blocks whom cannot be found in this program.
    blockers: Option<Blockers>,
    metadata: MetadataKeys,
    in_turn: InTurn,
}

/// The innermost part of a thread's stack.
struct Stack {
    words: Vec<u64>,
}

impl SeenObjects {
    fn count(&self, lock: String, object: Object, samples: u64) {
        let mut seen = self.0.lock();
        let is_full = seen.len() >= MOST_OBJECTS;
        let key = (lock, object);
        let key = if is_full && !seen.contains_key(&key) { (key.0, Object::named(LockedObject::OTHER)) } else { key };
        *seen.entry(key).or_default() += samples;
    }

    /// Returns how often each object was seen since attach.
    pub fn all(&self) -> Vec<LockedObject> {
        let seen = self.0.lock();
        let rows = seen.iter().map(|((lock, object), samples)| LockedObject {
            lock: lock.clone(),
            object: object.name.clone(),
            index: object.index.clone(),
            samples: *samples,
        });
        let mut rows: Vec<LockedObject> = rows.collect();
        rows.sort_by(|a, b| (&a.lock, &a.object, &a.index).cmp(&(&b.lock, &b.object, &b.index)));
        rows
    }
}

impl SeenBlockers {
    fn count(&self, lock: String, blocker: Blocker, samples: u64) {
        let mut seen = self.0.lock();
        let of = |connection, statement: &str| Blocker { connection, statement: statement.to_owned() };
        let keys = [
            (MOST_CONNECTIONS, of(blocker.connection, &blocker.statement)),
            (MOST_BLOCKERS, of(0, &blocker.statement)),
            (usize::MAX, of(0, LockBlocker::OTHER)),
        ];
        let keys = keys.map(|(most, blocker)| (most, (lock.clone(), blocker)));
        let has_room = |(most, key): &(usize, _)| seen.len() < *most || seen.contains_key(key);
        if let Some((_, key)) = keys.into_iter().find(has_room) {
            *seen.entry(key).or_default() += samples;
        }
    }

    /// Returns how often each blocker was seen since attach.
    pub fn all(&self) -> Vec<LockBlocker> {
        let seen = self.0.lock();
        let rows = seen.iter().map(|((lock, blocker), samples)| LockBlocker {
            lock: lock.clone(),
            connection: blocker.connection,
            statement: blocker.statement.clone(),
            samples: *samples,
        });
        let mut rows: Vec<LockBlocker> = rows.collect();
        rows.sort_by(|a, b| a.place().cmp(&b.place()));
        rows
    }
}

impl Object {
    fn named(name: &str) -> Object {
        Object { name: name.to_owned(), index: String::new() }
    }
}

impl ObjectSampler {
    pub fn new(
        target: &Arc<Target>,
        plan: &LockPlan,
        stages: &Arc<Mutex<Stages>>,
        seen: &Arc<Seen>,
        statements: StatementDetail,
    ) -> ObjectSampler {
        let metadata = plan.waits.iter().find(|wait| wait.waits_for != LockKind::Row);
        ObjectSampler {
            memory: Memory::new(target.pid),
            stages: Arc::clone(stages),
            seen: Arc::clone(seen),
            rows: RowLocks::default(),
            blockers: Blockers::new(target, statements.show()),
            metadata: MetadataKeys::new(target, metadata),
            in_turn: InTurn::default(),
            target: Arc::clone(target),
        }
    }

    /// Looks at some of the threads that wait at the moment.
    pub fn look(&mut self, probes: &LockProbes) {
        let Ok(mut waiting) = probes.waiters() else { return };
        if waiting.is_empty() {
            return;
        }
        let all = waiting.len() as u64;
        self.in_turn.keep(&mut waiting, MOST_THREADS);
        let read = waiting.len() as u64;
        for waiter in waiting {
            let lock = self.stages.lock().name(&waiter.wait.key);
            let (object, blocker) = self.see(&lock, &waiter);
            // If the thread no longer waits, or waits anew, its stack may have been that of something else.
            if probes.still_waits(&waiter) {
                let samples = whole(all, read);
                if let Some(blocker) = blocker {
                    self.seen.blockers.count(lock.clone(), blocker, samples);
                }
                let object = object.unwrap_or_else(|| Object::named(LockedObject::UNKNOWN));
                self.seen.objects.count(lock, object, samples);
            }
        }
    }

    /// Returns what a thread waits for, if that is found, and who blocks it, if this kind of lock shows that.
    fn see(&mut self, lock: &str, waiter: &Waiter) -> (Option<Object>, Option<Blocker>) {
        let stack = sleeps_at(waiter.thread as i32).and_then(|at| Stack::read(&self.memory, at));
        if waiter.wait.key.stage != 0 {
            let object = stack.and_then(|stack| self.metadata.object(&self.target, &self.memory, &stack, lock));
            return (object, None);
        }
        let wait = stack.and_then(|stack| self.rows.wait(&self.memory, &stack));
        let known = wait.as_ref().and_then(|wait| self.blockers.as_mut()?.of(wait, waiter.wait.pointer));
        (wait.map(|wait| wait.object), Some(known.unwrap_or_else(Blocker::unknown)))
    }
}

impl Stack {
    fn read(memory: &Memory, start: u64) -> Option<Stack> {
        // The smallest page size: a stack ends with a page.
        const PAGE: u64 = 4096;
        let sizes = [STACK, (PAGE - start % PAGE) as usize];
        let read = |size| {
            let mut bytes = vec![0; size];
            memory.read(start, &mut bytes).is_ok().then_some(bytes)
        };
        Some(Stack { words: words(&sizes.into_iter().find_map(read)?) })
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect()
}

/// Returns whether this can be the address of an object.
fn is_pointer(word: u64) -> bool {
    /// Nothing is below.
    const FIRST: u64 = 1 << 16;
    word.is_multiple_of(8) && (FIRST..1 << ADDRESS_BITS).contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_beyond_the_bound_are_counted_together() {
        let seen = SeenObjects::default();
        for i in 0..2 * MOST_OBJECTS {
            seen.count("row lock".to_owned(), Object::named(&format!("db.t{i}")), 1);
        }
        let all = seen.all();
        assert_eq!(all.iter().map(|row| row.samples).sum::<u64>(), 2 * MOST_OBJECTS as u64);
        let other = all.iter().find(|row| row.object == LockedObject::OTHER).unwrap();
        assert_eq!((all.len(), other.samples), (MOST_OBJECTS + 1, MOST_OBJECTS as u64));
    }

    #[test]
    fn blockers_beyond_the_bound_are_counted_without_their_connections() {
        let seen = SeenBlockers::default();
        let see = |connection, statement: &str| {
            let blocker = Blocker { connection, statement: statement.to_owned() };
            seen.count("row lock".to_owned(), blocker, 1);
        };
        (0..2 * MOST_BLOCKERS as u32).for_each(|i| see(i + 1, LockBlocker::IDLE));
        (0..2 * MOST_BLOCKERS).for_each(|i| see(1, &format!("SELECT c{i}")));
        let all = seen.all();
        assert_eq!(all.iter().map(|row| row.samples).sum::<u64>(), 4 * MOST_BLOCKERS as u64);
        let of = |statement: &str| all.iter().find(|row| row.connection == 0 && row.statement == statement).unwrap();
        assert_eq!(of(LockBlocker::IDLE).samples as usize, 2 * MOST_BLOCKERS - MOST_CONNECTIONS);
        assert!(all.len() == MOST_BLOCKERS + 1 && of(LockBlocker::OTHER).samples > 0);
    }

    #[test]
    fn a_stack_is_read_up_to_its_end() {
        let words = [1u64, 2, 3];
        let stack = Stack::read(&Memory::new(std::process::id() as i32), words.as_ptr() as u64).unwrap();
        assert_eq!(stack.words[..3], words);
        assert!(Stack::read(&Memory::new(std::process::id() as i32), 8).is_none());
    }
}

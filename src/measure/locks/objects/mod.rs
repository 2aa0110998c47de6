//! Which tables, indexes and other objects threads wait for in waits for locks, and who blocks them.
//!
//! These waits last for milliseconds to minutes, so it is enough to look at the waiting threads from time to time: at
//! their stacks, which do not change meanwhile. A thread that waits for longer is seen more often, so the samples of an
//! object are its share of the time waited.

mod blockers;
mod calls;
mod metadata;
mod rows;
mod sessions;
mod tickets;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::blockers::RowBlockers;
use self::calls::Calls;
use self::metadata::{near, object_of};
use self::rows::RowLocks;
use self::sessions::{Blocker, Sessions};
use self::tickets::{Held, Tickets};
use super::figures::{LockBlocker, LockedObject};
use super::plan::LockPlan;
use super::probes::LockProbes;
use super::stages::Stages;
use crate::bpf::lock::types;
use crate::catalog::LockKind;
use crate::host::clock::now_ns;
use crate::measure::latch::{whole, InTurn, StatementDetail, ADDRESS_BITS};
use crate::measure::thread_pointers::ServerThread;
use crate::server::{sleeps_at, Memory, Target};

/// The most threads whose stacks are read in one look. They stand for all that wait then.
const MOST_THREADS: usize = 8;

/// The most objects that are counted. What others have counts as [`LockedObject::OTHER`].
const MOST_OBJECTS: usize = 200;

/// The most blockers that are counted with their connections, and the most that are counted at all. What others block
/// counts as [`LockBlocker::OTHER`].
const MOST_CONNECTIONS: usize = 300;
const MOST_BLOCKERS: usize = 400;

/// For how long waits that had begun before the probes were attached are searched for. It takes less, as a rule.
const LONGEST_SEARCH: Duration = Duration::from_secs(2);

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

/// What a thread waits for.
struct Wait {
    lock: String,
    object: Option<Object>,
    blocked: Blocked,
}

/// By whom a thread is blocked.
enum Blocked {
    /// By the one with this session; `None` if it is not known.
    BySession(Option<u64>),
    /// By those who hold the lock at this address; `None` if it is not known.
    ByHolderOf(Option<u64>),
}

/// Looks at the threads of one server that wait for locks.
pub(super) struct ObjectSampler {
    target: Arc<Target>,
    memory: Memory,
    stages: Arc<Mutex<Stages>>,
    seen: Arc<Seen>,
    rows: RowLocks,
    row_blockers: RowBlockers,
    /// The calls of the functions that wait for rows, and for metadata.
    row_calls: Calls,
    metadata_calls: Calls,
    tickets: Tickets,
    /// How often the probes were attached when it was last looked which waits had begun before.
    attachments: u32,
    /// `None` if this program, or the running server, does not show where they are.
    sessions: Option<Sessions>,
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
        let calls = |row: bool| {
            let wait = plan.waits.iter().find(|wait| (wait.waits_for == LockKind::Row) == row);
            Calls::of(target, wait)
        };
        ObjectSampler {
            memory: Memory::new(target.pid),
            stages: Arc::clone(stages),
            seen: Arc::clone(seen),
            rows: RowLocks::default(),
            row_blockers: RowBlockers::default(),
            row_calls: calls(true),
            metadata_calls: calls(false),
            tickets: Tickets::default(),
            attachments: 0,
            sessions: Sessions::new(target, statements.show()),
            in_turn: InTurn::default(),
            target: Arc::clone(target),
        }
    }

    /// Looks at some of the threads that wait at the moment.
    pub fn look(&mut self, probes: &LockProbes) {
        let attachments = probes.attachments();
        if std::mem::replace(&mut self.attachments, attachments) != attachments {
            self.add_begun(probes);
        }
        let Ok(mut waiting) = probes.waiters() else { return };
        if waiting.is_empty() {
            return;
        }
        let all = waiting.len() as u64;
        let for_metadata = waiting.iter().filter(|waiter| !waiter.is_for_row());
        let for_metadata: HashSet<u64> = for_metadata.map(|waiter| waiter.wait.pointer).collect();
        self.in_turn.keep(&mut waiting, MOST_THREADS);
        let samples = whole(all, waiting.len() as u64);
        let seen: Vec<(Waiter, Wait)> = waiting
            .into_iter()
            .filter_map(|waiter| {
                let wait = self.see(&waiter)?;
                Some((waiter, wait))
            })
            .collect();
        let held = self.held(probes, &for_metadata, seen.iter().map(|(_, wait)| &wait.blocked));
        for (waiter, wait) in seen {
            let blocker = self.blocker(&wait.blocked, held.as_ref());
            // If the thread no longer waits, or waits anew, its stack may have been that of something else.
            if probes.still_waits(&waiter) {
                if let Some(blocker) = blocker {
                    self.seen.blockers.count(wait.lock.clone(), blocker, samples);
                }
                let object = wait.object.unwrap_or_else(|| Object::named(LockedObject::UNKNOWN));
                self.seen.objects.count(wait.lock, object, samples);
            }
        }
    }

    /// Adds the waits that had begun before the probes were attached, as if they began now.
    fn add_begun(&mut self, probes: &LockProbes) {
        let until = Instant::now() + LONGEST_SEARCH;
        for ServerThread { thread, pointer } in probes.threads().unwrap_or_default() {
            if Instant::now() > until {
                return;
            }
            let Some((at, key)) = self.begun(thread, pointer) else { continue };
            let kind = match key.stage {
                0 => types::lock_kind::LOCK_ROW,
                _ => types::lock_kind::LOCK_METADATA,
            };
            let begin_ns = now_ns(libc::CLOCK_MONOTONIC);
            let wait = types::lock_wait { begin_ns, key, kind: kind.0, pointer, ..Default::default() };
            // Its end may just have been missed.
            if probes.add_wait(&Waiter { thread, wait }) && self.begun(thread, pointer).map(|(at, _)| at) != Some(at) {
                probes.forget_wait(thread);
            }
        }
    }

    /// Returns where a thread with this pointer to its own variables sleeps that waits for a lock, and for which;
    /// `None` if it does not wait for any.
    fn begun(&mut self, thread: u32, pointer: u64) -> Option<(u64, types::lock_key)> {
        let at = sleeps_at(thread as i32)?;
        let stack = Stack::read(&self.memory, at)?;
        let waits_for_row = self.row_calls.on(&self.target, &stack).next().is_some();
        if waits_for_row && self.rows.wait(&self.memory, &stack).is_some() {
            return Some((at, types::lock_key { stage: 0 }));
        }
        let near = near(&self.metadata_calls, &self.target, &stack);
        let mut stages = self.stages.lock();
        let stage = near.iter().copied().find(|word| stages.is_wait(*word))?;
        let lock = stages.name(&types::lock_key { stage });
        drop(stages);
        let object = object_of(&self.memory, &near, &lock);
        let session = *self.sessions.as_ref()?.of(&[pointer]).first()?;
        self.tickets.lock(&self.memory, session, &near, (&lock, object.as_ref()))?;
        Some((at, types::lock_key { stage }))
    }

    /// Returns what a thread waits for; `None` if it does not sleep, as at the end of its wait or between two calls.
    fn see(&mut self, waiter: &Waiter) -> Option<Wait> {
        let stack = Stack::read(&self.memory, sleeps_at(waiter.thread as i32)?);
        let lock = self.stages.lock().name(&waiter.wait.key);
        let sessions = self.sessions.as_ref().map(|sessions| sessions.of(&[waiter.wait.pointer]));
        let session = sessions.and_then(|sessions| sessions.first().copied());
        if waiter.is_for_row() {
            let wait = stack.and_then(|stack| self.rows.wait(&self.memory, &stack));
            let last = session.and_then(|session| self.row_blockers.last(&self.memory, wait.as_ref()?, session));
            let session = last.and_then(|last| self.row_blockers.session(&self.memory, last));
            return Some(Wait { lock, object: wait.map(|wait| wait.object), blocked: Blocked::BySession(session) });
        }
        let near = stack.map(|stack| near(&self.metadata_calls, &self.target, &stack)).unwrap_or_default();
        let object = object_of(&self.memory, &near, &lock);
        let of = (lock.as_str(), object.as_ref());
        let at = session.and_then(|session| self.tickets.lock(&self.memory, session, &near, of));
        Some(Wait { lock, object, blocked: Blocked::ByHolderOf(at) })
    }

    /// Returns which sessions hold the locks that these waits are for, but those that wait for metadata locks
    /// themselves; `None` if that is not read.
    fn held<'w>(
        &mut self,
        probes: &LockProbes,
        for_metadata: &HashSet<u64>,
        waits: impl Iterator<Item = &'w Blocked>,
    ) -> Option<Held> {
        let lock = |blocked: &Blocked| match blocked {
            Blocked::ByHolderOf(lock) => *lock,
            Blocked::BySession(_) => None,
        };
        let locks: HashSet<u64> = waits.filter_map(lock).collect();
        let sessions = self.sessions.as_ref().filter(|_| !locks.is_empty())?;
        self.tickets.held(&self.memory, &locks, || {
            let threads = probes.threads()?.into_iter().map(|thread| thread.pointer);
            let threads: Vec<u64> = threads.filter(|pointer| !for_metadata.contains(pointer)).collect();
            Some(sessions.of(&threads))
        })
    }

    /// Returns who blocks a thread; `None` if that is not looked for at the moment.
    fn blocker(&mut self, blocked: &Blocked, held: Option<&Held>) -> Option<Blocker> {
        let (session, idle) = match blocked {
            Blocked::BySession(session) => (*session, LockBlocker::IDLE_IN_TRANSACTION),
            Blocked::ByHolderOf(None) => (None, LockBlocker::IDLE),
            // Any of them is as likely, so that each gets its part.
            Blocked::ByHolderOf(Some(lock)) => (held?.get(lock).and_then(fastrand::choice).copied(), LockBlocker::IDLE),
        };
        let known = session.and_then(|session| self.sessions.as_mut()?.describe(session, idle));
        Some(known.unwrap_or_else(Blocker::unknown))
    }
}

impl Waiter {
    fn is_for_row(&self) -> bool {
        self.wait.key.stage == 0
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

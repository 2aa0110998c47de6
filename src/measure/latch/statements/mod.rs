//! Shows which statements threads execute while they wait for latches. Samples of CPU time use the same to show which
//! they execute while they run.
//!
//! Statements are not probed. Each look at the threads shows which of them wait; the statements of these are read from
//! the server's memory, and values are replaced as soon as a text is read. So a latch's wait time can be divided by the
//! number of times that each statement was seen.

mod digest;
mod kept;
mod lexer;
mod reader;

use std::sync::Arc;

use parking_lot::Mutex;

#[cfg(test)]
pub(super) use self::kept::Digest;
pub(super) use self::kept::Shown;
pub(in crate::measure) use self::kept::{Kept, Sample};
use self::reader::StatementReader;
pub(in crate::measure) use self::reader::{Executes, Place};
use super::keys::MapKey;
use super::looks::Look;
use crate::attach::stacks_are_shown;
use crate::discovery::{statement, NoStatements, StatementAt};
use crate::server::{Memory, Target};

#[cfg(any(test, fuzzing))]
pub(crate) use self::digest::digest_text;

/// What is shown of the statements that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StatementDetail {
    /// Nothing; they are not read
    Off,
    /// A hash of each, and its first word
    Digest,
    /// Their texts without values
    #[default]
    Text,
}

/// The most threads whose statements are read in one look.
const MOST_THREADS: usize = 256;

/// The reason why it is not known which statements wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// It is not known where they are.
    #[error("{0}")]
    NotFound(#[from] NoStatements),
    /// This kernel does not show what threads do.
    #[error("this kernel does not show what threads wait for while they run, which takes Linux 5.15")]
    NoLooks,
    /// The server's memory is out of reach.
    #[error("its memory cannot be read, which takes root or CAP_SYS_PTRACE")]
    NoMemory,
}

/// Finds where a server's threads have their statements.
///
/// # Errors
/// Fails if the kernel does not show threads, if the program does not show where statements are, or if the server's
/// memory cannot be read.
pub fn find(target: &Target) -> Result<StatementAt, NotRead> {
    if !stacks_are_shown() {
        return Err(NotRead::NoLooks);
    }
    let at = statement(&target.image)?;
    let begin = target.image.extent().start.wrapping_add(target.bias);
    Memory::new(target.pid).u64(begin).map(|_| at).ok_or(NotRead::NoMemory)
}

/// The statements of one server's waiting threads.
pub(in crate::measure) struct SeenStatements {
    at: StatementAt,
    /// Whether only the first word of statements may be shown.
    verbs_only: bool,
    kept: Mutex<Kept<MapKey>>,
}

impl SeenStatements {
    /// Creates one that has seen nothing; `None` if none are wanted.
    pub fn new(target: &Target, wanted: StatementDetail) -> Option<Result<SeenStatements, NotRead>> {
        let verbs_only = match wanted {
            StatementDetail::Off => return None,
            StatementDetail::Digest => true,
            StatementDetail::Text => false,
        };
        Some(find(target).map(|at| SeenStatements { at, verbs_only, kept: Mutex::new(Kept::new(verbs_only)) }))
    }

    /// Returns how often each statement was seen for each latch.
    pub fn samples(&self) -> Vec<Sample<MapKey>> {
        self.kept.lock().all()
    }

    /// Returns where the threads of a running server have their statements. `None` if its memory cannot be read.
    pub fn place(&self, target: &Target) -> Option<Place> {
        Place::new(target, self.at)
    }

    /// Returns what counts the statements of threads that run, and has counted nothing.
    pub fn of_running(&self) -> Kept<()> {
        Kept::new(self.verbs_only)
    }
}

/// Notes in each look what waiting threads execute.
pub(super) struct StatementSampler {
    reader: StatementReader,
    seen: Arc<SeenStatements>,
    /// With which of the waiting threads a look begins, if there are too many.
    first: usize,
}

/// A thread that waits for a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    pointer: u64,
    latch: MapKey,
    /// For how many threads it stands.
    weight: u64,
}

impl StatementSampler {
    /// Creates one. `None` if the server's memory cannot be read.
    pub fn new(target: &Target, seen: &Arc<SeenStatements>) -> Option<StatementSampler> {
        let reader = StatementReader::new(target, seen.place(target)?);
        Some(StatementSampler { reader, seen: Arc::clone(seen), first: 0 })
    }

    /// Adds a look. A thread that ran until then stands for as many as `cpus`.
    pub fn add(&mut self, look: &Look, cpus: u64) {
        let mut waiting = waiting(look, cpus);
        if waiting.len() > MOST_THREADS {
            self.first = (self.first + MOST_THREADS) % waiting.len();
            waiting.rotate_left(self.first);
            waiting.truncate(MOST_THREADS);
        }
        let executes = self.reader.read(&waiting.iter().map(|thread| thread.pointer).collect::<Vec<u64>>());
        let mut kept = self.seen.kept.lock();
        for (thread, executes) in waiting.iter().zip(executes) {
            kept.add(thread.latch, &executes, thread.weight);
        }
    }
}

/// Returns the threads that wait in a look, once for each latch that they wait for.
fn waiting(look: &Look, cpus: u64) -> Vec<Waiting> {
    let seen = look.threads.iter().filter_map(|thread| {
        let (latch, _) = thread.seen?;
        Some(Waiting { pointer: thread.pointer, latch, weight: 1 })
    });
    let read = look.waiters.iter().filter_map(|waiter| {
        let thread = look.threads.get(waiter.thread)?;
        let is_new = thread.seen.is_none_or(|(latch, _)| latch != waiter.latch);
        let weight = if waiter.ran_here { cpus } else { 1 };
        is_new.then_some(Waiting { pointer: thread.pointer, latch: waiter.latch, weight })
    });
    seen.chain(read).filter(|thread| thread.pointer != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::latch::types;
    use crate::measure::latch::looks::{Scheduled, SeenThread};
    use crate::measure::latch::stacks::Waiter;

    const LATCH: MapKey = [1; size_of::<MapKey>()];
    const OTHER: MapKey = [2; size_of::<MapKey>()];

    fn thread(pointer: u64, seen: Option<MapKey>) -> SeenThread {
        let state = types::thread_state::THREAD_ASLEEP;
        SeenThread {
            tid: 0,
            state,
            pointer,
            doing: 0,
            seen: seen.map(|latch| (latch, 0)),
            scheduled: Scheduled::default(),
        }
    }

    fn waiter(thread: usize, latch: MapKey, ran_here: bool) -> Waiter {
        Waiter { thread, latch, example: 0, callsite: (0, 0), is_asleep: true, ran_here }
    }

    #[test]
    fn a_thread_waits_once_for_each_latch() {
        let threads = vec![thread(10, Some(LATCH)), thread(20, None), thread(0, Some(LATCH)), thread(30, None)];
        let waiters =
            vec![waiter(0, LATCH, false), waiter(0, OTHER, false), waiter(1, OTHER, true), waiter(9, LATCH, false)];
        let found: Vec<_> =
            waiting(&Look { threads, waiters }, 4).iter().map(|w| (w.pointer, w.latch, w.weight)).collect();
        assert_eq!(found, [(10, LATCH, 1), (10, OTHER, 1), (20, OTHER, 4)]);
    }
}

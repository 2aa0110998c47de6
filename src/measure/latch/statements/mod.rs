//! Shows which statements threads execute while they wait for latches. Samples of CPU time use the same to show which
//! they execute while they run.
//!
//! Statements are not probed. The probes at the ends of waits, and looks at the threads, show what some of the waiting
//! threads execute. Texts are read from the server's memory, and values are replaced as soon as a text is here. So a
//! latch's wait time can be divided by the number of times that each statement was seen.
//!
//! Where the server's memory does not show statements, or is not to be read, the server is asked, if that is allowed.

mod asked;
mod digest;
mod ended;
mod executed;
mod key;
mod lexer;
mod reader;

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use parking_lot::Mutex;

use self::asked::{Asker, WaitingThread};
use self::ended::EndedWaits;
pub(super) use self::ended::ROOM;
pub(in crate::measure) use self::executed::{executes, tell_place};
pub(in crate::measure) use self::reader::{Executes, Place, StatementReader};
use super::holders::is_contended;
use super::keys::MapKey;
use super::looks::{InTurn, Look, Waiting};
use super::texts::{Sample, Texts};
use crate::analysis::ThreadOffset;
use crate::attach::stacks_are_shown;
use crate::bpf::latch::{LatchSkel, OpenLatchSkel};
use crate::discovery::{account, statement, AccountAt, NoStatements, StatementAt};
use crate::server::{Client, Memory, Target};

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

impl StatementDetail {
    /// Returns what makes of a statement without values what may be shown; `None` if nothing may be.
    pub(in crate::measure) fn show(self) -> Option<fn(&str) -> String> {
        match self {
            StatementDetail::Off => None,
            StatementDetail::Digest => Some(digest::verb_of),
            StatementDetail::Text => Some(str::to_owned),
        }
    }
}

/// Which statements that wait are wanted, and how they may be found.
#[derive(Default)]
pub struct StatementOptions {
    /// What is shown of them.
    pub detail: StatementDetail,
    /// Asks the server where its memory does not show them.
    pub client: Option<Client>,
    /// Whether the server is to be asked, and its memory not to be read.
    pub only_asked: bool,
}

/// The most threads whose statements are read in one look.
const MOST_THREADS: usize = 256;

/// The most statements that were displaced and keep what was counted for them.
const MOST_DISPLACED: usize = 1000;

/// The reason why it is not known which statements wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// It is not known where they are.
    #[error("{0}")]
    NotFound(#[from] NoStatements),
    /// The server's threads have their sessions where the C library keeps what belongs to a key. The server has not
    /// made its key yet, or it is not known where this C library has it.
    #[error(
        "the server's C library does not show where a thread has its session, or the server has only just started"
    )]
    NoKey,
    /// The server's threads have their sessions where the C library keeps what belongs to a key, and the kernel does
    /// not list the threads.
    #[error("this kernel does not list the server's threads")]
    NoThreads,
    /// The server's memory is out of reach.
    #[error("its memory cannot be read, which takes root or CAP_SYS_PTRACE")]
    NoMemory,
    /// The server is to be asked, but it is not known which threads wait at one moment.
    #[error("the server can only be asked where threads can be sampled, which takes Linux 5.15")]
    NoSamples,
    /// The server is to be asked, but not by whom.
    #[error("nothing may ask the server")]
    NoAccount,
    /// The server is to be asked, but nothing can do so.
    #[error("the system starts no thread that asks the server")]
    NoAsker,
}

impl NotRead {
    /// Returns the reason, and what else would show them.
    pub fn advice(&self) -> String {
        match self {
            NotRead::NoSamples | NotRead::NoAsker => self.to_string(),
            _ if !stacks_are_shown() => self.to_string(),
            _ => format!("{self}. With --pid and --mysql, armtrace asks the server"),
        }
    }
}

/// Finds where a server's threads have their statements.
///
/// # Errors
/// Fails if the program, the server's C library or the kernel does not show where statements are, or if the server's
/// memory cannot be read.
pub fn find(target: &Target) -> Result<StatementAt, NotRead> {
    let mut at = statement(&target.image)?;
    let begin = target.image.extent().start.wrapping_add(target.bias);
    Memory::new(target.pid).u64(begin).ok_or(NotRead::NoMemory)?;
    at.session = ThreadOffset::Fixed(key::distance(target, at.session)?);
    Ok(at)
}

/// What shows which statements threads execute.
enum Source {
    /// The server's memory, with statements and accounts there.
    Memory(StatementAt, AccountAt),
    /// The server's answers.
    Server(Arc<Asker>),
}

/// The statements of one server's waiting threads.
pub(in crate::measure) struct SeenStatements {
    source: Source,
    show: fn(&str) -> String,
    texts: Arc<Mutex<Texts<MapKey>>>,
    /// Those of waits whose ends probes see, once the programs are loaded.
    ended: OnceLock<EndedWaits>,
}

impl SeenStatements {
    /// Creates one that has seen nothing; `None` if none are wanted.
    pub fn new(target: &Target, wanted: StatementOptions) -> Option<Result<SeenStatements, NotRead>> {
        let show = wanted.detail.show()?;
        let texts = Arc::new(Mutex::new(Texts::new(MOST_DISPLACED, show)));
        let source = match wanted.client {
            Some(client) if wanted.only_asked => ask(client, target.pid, &texts),
            None if wanted.only_asked => Err(NotRead::NoAccount),
            client => match (find(target), client) {
                (Ok(at), _) => Ok(Source::Memory(at, account(&target.image))),
                (Err(_), Some(client)) => ask(client, target.pid, &texts),
                (Err(why), None) => Err(why),
            },
        };
        Some(source.map(|source| SeenStatements { source, show, texts, ended: OnceLock::new() }))
    }

    /// Returns how often each statement was seen for each latch.
    pub fn samples(&self) -> Vec<Sample<MapKey>> {
        self.take();
        self.texts.lock().all()
    }

    /// Takes what the programs have seen out of the kernel.
    pub fn take(&self) {
        let taken = self.ended.get().map_or(Ok(()), |ended| ended.take(&self.texts));
        // Other figures do without.
        if let Err(error) = taken {
            tracing::debug!("statements that waited are missing: {error:#}");
        }
    }

    /// Prepares programs, before they are loaded, to show what threads execute whose waits end. Returns whether they
    /// can: it has to be known where.
    ///
    /// # Errors
    /// Fails if they have no constants.
    pub fn prepare(&self, open: &mut OpenLatchSkel<'_>, target: &Target) -> Result<bool> {
        let Some(place) = self.place(target) else { return Ok(false) };
        let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
        tell_place!(rodata, place);
        open.maps.waiting_statements.set_max_entries(ROOM)?;
        Ok(true)
    }

    /// Lets prepared programs, which are loaded now, show it.
    ///
    /// # Errors
    /// Fails if a map cannot be used.
    pub fn begin(&self, skel: &LatchSkel<'_>) -> Result<()> {
        // Each server has its programs loaded once.
        _ = self.ended.set(EndedWaits::begin(skel)?);
        Ok(())
    }

    /// Returns where the threads of a running server have their statements. `None` if the server does not show that, as
    /// when its memory cannot be read.
    pub fn place(&self, target: &Target) -> Option<Place> {
        match self.source {
            Source::Memory(at, account) => Place::new(target, at, account),
            Source::Server(_) => None,
        }
    }

    /// Returns what counts the statements of threads that run, and has counted nothing.
    pub fn of_running(&self) -> Texts<bool> {
        Texts::new(MOST_DISPLACED, self.show)
    }
}

fn ask(client: Client, pid: i32, texts: &Arc<Mutex<Texts<MapKey>>>) -> Result<Source, NotRead> {
    if !stacks_are_shown() {
        return Err(NotRead::NoSamples);
    }
    let asker = Asker::start(client, pid, Arc::clone(texts));
    asker.map(|asker| Source::Server(Arc::new(asker))).map_err(|_| NotRead::NoAsker)
}

/// What shows which statements the threads of a look execute.
enum Shows {
    Memory(StatementReader),
    Server(Arc<Asker>),
}

/// Notes in looks what waiting threads execute.
pub(super) struct StatementSampler {
    shows: Shows,
    seen: Arc<SeenStatements>,
    in_turn: InTurn,
}

impl StatementSampler {
    /// Creates one. `None` if the server does not show where its threads have statements.
    pub fn new(target: &Target, seen: &Arc<SeenStatements>) -> Option<StatementSampler> {
        let shows = match &seen.source {
            Source::Memory(at, account) => Shows::Memory(StatementReader::new(target, *at, *account)?),
            Source::Server(asker) => Shows::Server(Arc::clone(asker)),
        };
        Some(StatementSampler { shows, seen: Arc::clone(seen), in_turn: InTurn::default() })
    }

    /// Adds the threads of a look that contend for latches. A thread that ran until then stands for as many as `cpus`.
    pub fn add(&mut self, look: &Look, cpus: u64) {
        let is_contended = |waiting: &Waiting| is_contended(&waiting.latch);
        let mut waiting: Vec<Waiting> = look.waiting(cpus).filter(is_contended).collect();
        match &mut self.shows {
            Shows::Memory(reader) => {
                waiting.retain(|waiting| look.threads[waiting.thread].pointer != 0);
                self.in_turn.keep(&mut waiting, MOST_THREADS);
                read(reader, look, &waiting, &mut self.seen.texts.lock());
            }
            Shows::Server(asker) if asker.is_free() && !waiting.is_empty() => {
                self.in_turn.keep(&mut waiting, MOST_THREADS);
                asker.ask(look.time_ns, waiting.iter().map(|waiting| of_server(look, waiting)).collect());
            }
            Shows::Server(_) => {}
        }
    }
}

/// Adds what waiting threads execute, as the server's memory shows it.
fn read(reader: &mut StatementReader, look: &Look, waiting: &[Waiting], texts: &mut Texts<MapKey>) {
    let pointers: Vec<u64> = waiting.iter().map(|waiting| look.threads[waiting.thread].pointer).collect();
    for (waiting, (executes, account)) in waiting.iter().zip(reader.read(&pointers)) {
        executes.add_to(&account, texts, waiting.latch, waiting.weight);
    }
}

/// Returns a waiting thread as the server knows it.
fn of_server(look: &Look, waiting: &Waiting) -> WaitingThread {
    let own_id = look.threads[waiting.thread].scheduled.own_id;
    WaitingThread { own_id, latch: waiting.latch, weight: waiting.weight }
}

//! Counts the statements that a server receives while it runs.

mod longest;
mod metrics;

pub use metrics::StatementMetrics;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;

use self::longest::LongestStatement;
use super::{Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::Costs;
use crate::server::{Account, Accounts, Client, ClientError};
use crate::worker::{Stop, Worker};

/// Statements that clients have sent since attach, at most a second old; `None` if the server is not asked, or does not
/// answer.
pub type Figures = Option<u64>;

/// The interval at which the server is queried, and the longest one after it has not answered.
const INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// The reason why statements cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum UncountedStatements {
    /// The server does not answer, or has no counter.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No thread can be started that queries the server.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Queries a server in a separate thread, so that nothing waits for a server that does not answer. Dropping it stops
/// the thread.
pub struct StatementCounter {
    answers: Arc<Mutex<Answers>>,
    _worker: Worker,
}

/// What the server has answered last; nothing if it did not.
#[derive(Default)]
struct Answers {
    /// The statements since the start.
    count: Option<u64>,
    /// For how long one has been running.
    longest: Option<Duration>,
}

impl StatementCounter {
    /// Starts counting the statements of process `pid`. Where the server has no connection left, it counts from its
    /// first answer on. If `wants_longest`, the server is also asked for how long statements have been running.
    ///
    /// # Errors
    /// Fails if the server does not answer, or has no such counter.
    pub fn start(pid: i32, mut client: Client, wants_longest: bool) -> Result<StatementCounter, UncountedStatements> {
        let before = match client.queries() {
            Ok(count) => Some(count),
            Err(error) if error.is_full() => None,
            Err(error) => return Err(error.into()),
        };
        let first = Answers { count: before.map(|_| 0), longest: None };
        let longest = wants_longest.then(|| LongestStatement::of(pid));
        let counter =
            StatementCounter::work(first, move |answers, stop| count(pid, client, before, longest, answers, stop));
        counter.map_err(UncountedStatements::Thread)
    }

    /// Starts counting once an option file has the account of process `pid`, and the process listens.
    ///
    /// # Errors
    /// Fails when the system starts no more threads.
    pub fn start_when_possible(pid: i32, option_file: PathBuf, wants_longest: bool) -> io::Result<StatementCounter> {
        let work = move |answers: &_, stop: &_| count_by_file(pid, &option_file, wants_longest, answers, stop);
        StatementCounter::work(Answers::default(), work)
    }

    fn work(
        first: Answers,
        work: impl FnOnce(&Mutex<Answers>, &Stop) + Send + 'static,
    ) -> io::Result<StatementCounter> {
        let answers = Arc::new(Mutex::new(first));
        let noted = Arc::clone(&answers);
        let worker = Worker::start("statements", move |stop| work(&noted, stop))?;
        Ok(StatementCounter { answers, _worker: worker })
    }

    /// Returns the statements of clients since the start, at most a second old; `None` while the server does not
    /// answer.
    pub fn latest(&self) -> Option<u64> {
        self.answers.lock().count
    }

    /// Returns for how long the statement of a client has been running that has been for longest, some seconds ago at
    /// most; `None` if the server is not asked, or does not answer.
    pub fn longest(&self) -> Option<Duration> {
        self.answers.lock().longest
    }
}

/// Looks for the process's account in the option file, at intervals that become longer, and counts by it. An account
/// that the server has refused is not tried again, which might lock it; another password is another account.
fn count_by_file(pid: i32, option_file: &Path, wants_longest: bool, answers: &Mutex<Answers>, stop: &Stop) {
    let mut refused: Option<Account> = None;
    let mut told = String::new();
    let mut interval = INTERVAL;
    while stop.wait(interval) {
        interval = (2 * interval).min(LONGEST_INTERVAL);
        let account = Accounts::read(option_file).map(|accounts| accounts.of(pid)).unwrap_or_else(|error| {
            let why = error.to_string();
            if told != why {
                tracing::warn!("the statements of process {pid} are not counted: {why}");
                told = why;
            }
            None
        });
        if let Some(account) = account.filter(|account| refused.as_ref() != Some(account)) {
            let longest = wants_longest.then(|| LongestStatement::of(pid));
            count(pid, Client::of(account.clone()), None, longest, answers, stop);
            refused = Some(account);
        }
    }
}

/// Queries process `pid` at intervals, which become longer while it does not answer, until it refuses. `before` is the
/// count at the start, if it is known; `longest` asks for more.
fn count(
    pid: i32,
    mut client: Client,
    mut before: Option<u64>,
    mut longest: Option<LongestStatement>,
    answers: &Mutex<Answers>,
    stop: &Stop,
) {
    let mut interval = INTERVAL;
    while stop.wait(interval) {
        match client.queries() {
            Ok(count) => {
                answers.lock().count = Some(count.saturating_sub(*before.get_or_insert(count)));
                let longest = longest.as_mut().and_then(|longest| longest.look(&mut client));
                answers.lock().longest = longest;
                interval = INTERVAL;
            }
            Err(error) if error.may_pass() => {
                if std::mem::take(&mut *answers.lock()).count.is_some() {
                    tracing::warn!("the statements of process {pid} are not counted until the server answers: {error}");
                }
                interval = (2 * interval).min(LONGEST_INTERVAL);
            }
            Err(error) => {
                *answers.lock() = Answers::default();
                return tracing::warn!("the statements of process {pid} are not counted: {error}");
            }
        }
    }
}

impl Room for StatementCounter {
    type Figures = Figures;
    type Metrics = StatementMetrics;
    type Report = Nothing;
    type Comparison = Nothing;

    /// The counter runs already: with `--pid`, a server that cannot be asked is an error before anything is attached.
    fn begin(on: &mut Attaching) -> Option<Result<Arc<StatementCounter>>> {
        on.more?.statements.clone().map(Ok)
    }
}

impl Measurement for StatementCounter {
    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.statements = self.latest();
        Ok(())
    }
}

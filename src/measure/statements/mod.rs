//! Counts the statements that a server receives while it runs.

mod metrics;

pub use metrics::StatementMetrics;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;

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
    latest: Arc<Mutex<Option<u64>>>,
    _worker: Worker,
}

impl StatementCounter {
    /// Starts counting the statements of process `pid`. Where the server has no connection left, it counts from its
    /// first answer on.
    ///
    /// # Errors
    /// Fails if the server does not answer, or has no such counter.
    pub fn start(pid: i32, mut client: Client) -> Result<StatementCounter, UncountedStatements> {
        let before = match client.queries() {
            Ok(count) => Some(count),
            Err(error) if error.is_full() => None,
            Err(error) => return Err(error.into()),
        };
        let first = before.map(|_| 0);
        let counter = StatementCounter::work(first, move |latest, stop| count(pid, client, before, latest, stop));
        counter.map_err(UncountedStatements::Thread)
    }

    /// Starts counting once an option file has the account of process `pid`, and the process listens.
    ///
    /// # Errors
    /// Fails when the system starts no more threads.
    pub fn start_when_possible(pid: i32, option_file: PathBuf) -> io::Result<StatementCounter> {
        StatementCounter::work(None, move |latest, stop| count_by_file(pid, &option_file, latest, stop))
    }

    fn work(
        first: Option<u64>,
        work: impl FnOnce(&Mutex<Option<u64>>, &Stop) + Send + 'static,
    ) -> io::Result<StatementCounter> {
        let latest = Arc::new(Mutex::new(first));
        let answer = Arc::clone(&latest);
        let worker = Worker::start("statements", move |stop| work(&answer, stop))?;
        Ok(StatementCounter { latest, _worker: worker })
    }

    /// Returns the statements of clients since the start, at most a second old; `None` while the server does not
    /// answer.
    pub fn latest(&self) -> Option<u64> {
        *self.latest.lock()
    }
}

/// Looks for the process's account in the option file, at intervals that become longer, and counts by it. An account
/// that the server has refused is not tried again, which might lock it; another password is another account.
fn count_by_file(pid: i32, option_file: &Path, latest: &Mutex<Option<u64>>, stop: &Stop) {
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
            count(pid, Client::of(account.clone()), None, latest, stop);
            refused = Some(account);
        }
    }
}

/// Queries process `pid` at intervals, which become longer while it does not answer, until it refuses. `before` is the
/// count at the start, if it is known.
fn count(pid: i32, mut client: Client, mut before: Option<u64>, latest: &Mutex<Option<u64>>, stop: &Stop) {
    let mut interval = INTERVAL;
    while stop.wait(interval) {
        match client.queries() {
            Ok(count) => {
                *latest.lock() = Some(count.saturating_sub(*before.get_or_insert(count)));
                interval = INTERVAL;
            }
            Err(error) if error.may_pass() => {
                if latest.lock().take().is_some() {
                    tracing::warn!("the statements of process {pid} are not counted until the server answers: {error}");
                }
                interval = (2 * interval).min(LONGEST_INTERVAL);
            }
            Err(error) => {
                *latest.lock() = None;
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

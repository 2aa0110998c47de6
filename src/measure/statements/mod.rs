//! Counts the statements that a server receives while it runs.

mod metrics;

pub use metrics::StatementMetrics;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;

use super::{Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::Costs;
use crate::server::{Client, ClientError};
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
    /// Starts counting. Where the server has no connection left, it counts from its first answer on.
    ///
    /// # Errors
    /// Fails if the server does not answer, or has no such counter.
    pub fn start(mut client: Client) -> Result<StatementCounter, UncountedStatements> {
        let before = match client.queries() {
            Ok(count) => Some(count),
            Err(error) if error.is_full() => None,
            Err(error) => return Err(error.into()),
        };
        let latest = Arc::new(Mutex::new(before.map(|_| 0)));
        let answer = Arc::clone(&latest);
        let worker = Worker::start("statements", move |stop| count(client, before, &answer, stop));
        let worker = worker.map_err(UncountedStatements::Thread)?;
        Ok(StatementCounter { latest, _worker: worker })
    }

    /// Returns the statements of clients since the start, at most a second old; `None` while the server does not
    /// answer.
    pub fn latest(&self) -> Option<u64> {
        *self.latest.lock()
    }
}

/// Queries the server at intervals, which become longer while it does not answer. `before` is the count at the start,
/// if it is known.
fn count(mut client: Client, mut before: Option<u64>, latest: &Mutex<Option<u64>>, stop: &Stop) {
    let mut interval = INTERVAL;
    while stop.wait(interval) {
        match client.queries() {
            Ok(count) => {
                *latest.lock() = Some(count.saturating_sub(*before.get_or_insert(count)));
                interval = INTERVAL;
            }
            Err(error) if error.may_pass() => {
                if latest.lock().take().is_some() {
                    tracing::warn!("statements are not counted until the server answers: {error}");
                }
                interval = (2 * interval).min(LONGEST_INTERVAL);
            }
            Err(error) => {
                *latest.lock() = None;
                return tracing::warn!("statements are no longer counted: {error}");
            }
        }
    }
}

impl Room for StatementCounter {
    type Figures = Figures;
    type Metrics = StatementMetrics;
    type Report = Nothing;
    type Comparison = Nothing;

    /// Goes on counting: a server that cannot be asked is an error before anything is attached.
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

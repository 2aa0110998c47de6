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
use crate::worker::Worker;

/// Statements that clients have sent since attach, at most a second old; `None` if the server is not asked, or does not
/// answer.
pub type Figures = Option<u64>;

/// The interval at which the server is queried.
const INTERVAL: Duration = Duration::from_secs(1);

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
    /// Starts counting.
    ///
    /// # Errors
    /// Fails if the server does not answer, or has no such counter.
    pub fn start(mut client: Client) -> Result<StatementCounter, UncountedStatements> {
        let before = client.queries()?;
        let latest = Arc::new(Mutex::new(Some(0)));
        let answer = Arc::clone(&latest);
        let worker = Worker::start("statements", move |stop| {
            while stop.wait(INTERVAL) {
                let count = client.queries();
                let since = count.as_ref().ok().map(|count| count.saturating_sub(before));
                *answer.lock() = since;
                if let Err(error) = count {
                    return tracing::warn!("statements are no longer counted: {error}");
                }
            }
        });
        let worker = worker.map_err(UncountedStatements::Thread)?;
        Ok(StatementCounter { latest, _worker: worker })
    }

    /// Returns the statements of clients since the start, at most a second old; `None` after the server has failed to
    /// answer.
    pub fn latest(&self) -> Option<u64> {
        *self.latest.lock()
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

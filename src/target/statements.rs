//! How many statements a server is sent, while it runs.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::Client;
use crate::failure::Failure;

/// How often the server is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Asks a server in a thread of its own, so that nobody waits for one that does not answer. Dropping it ends that.
pub struct StatementCounter {
    latest: Arc<Mutex<Option<u64>>>,
    /// Without it the thread ends.
    _asking: Sender<()>,
}

impl StatementCounter {
    /// Counts from now on.
    ///
    /// # Errors
    /// Status 1 where the server does not answer, or counts none.
    pub fn start(mut client: Client) -> Result<StatementCounter, Failure> {
        let before = client.queries()?;
        let latest = Arc::new(Mutex::new(Some(0)));
        let (asking, stop) = mpsc::channel();
        let counter = StatementCounter { latest: Arc::clone(&latest), _asking: asking };
        let ask = move || {
            while stop.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let count = client.queries();
                let since = count.as_ref().ok().map(|count| count.saturating_sub(before));
                *latest.lock().unwrap_or_else(PoisonError::into_inner) = since;
                if let Err(error) = count {
                    return tracing::warn!("statements are not counted any more: {error}");
                }
            }
        };
        thread::Builder::new()
            .name("statements".into())
            .spawn(ask)
            .map_err(|error| Failure::running(format!("cannot start a thread: {error}")))?;
        Ok(counter)
    }

    /// Statements of clients since the start, at most a second old; `None` once the server has not answered.
    pub fn latest(&self) -> Option<u64> {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

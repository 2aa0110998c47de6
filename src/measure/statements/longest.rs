//! Asks the server for how long statements have been running.

use std::time::{Duration, Instant};

use crate::server::{Client, ExecutionsIn, NotShown};

/// The time between questions.
const INTERVAL: Duration = Duration::from_secs(5);

/// What asks one server, as long as it says where it shows that.
pub(super) struct LongestStatement {
    pid: i32,
    /// Where it shows that, once this is known.
    from: Option<ExecutionsIn>,
    /// When to ask again; `None` if the server refuses.
    next: Option<Instant>,
    latest: Option<Duration>,
}

impl LongestStatement {
    /// Asks process `pid` at the next opportunity.
    pub fn of(pid: i32) -> LongestStatement {
        LongestStatement { pid, from: None, next: Some(Instant::now()), latest: None }
    }

    /// Returns for how long the longest one has been running, as the server said when it was asked last; `None` if it
    /// did not say. Asks it now if the time has come.
    pub fn look(&mut self, client: &mut Client) -> Option<Duration> {
        let now = Instant::now();
        if self.next.is_some_and(|next| now >= next) {
            self.next = Some(now + INTERVAL);
            self.latest = self.ask(client).inspect_err(|why| self.note(why)).ok();
        }
        self.latest
    }

    fn ask(&mut self, client: &mut Client) -> Result<Duration, NotShown> {
        let from = match self.from {
            Some(from) => from,
            None => *self.from.insert(client.shows_executions_in(self.pid)?),
        };
        client.longest_statement(from)
    }

    fn note(&mut self, why: &NotShown) {
        if why.may_pass() {
            return tracing::debug!("it is not known how long statements of process {} take: {why}", self.pid);
        }
        // Another attempt might lock the account.
        self.next = None;
        tracing::warn!("it is not known how long statements of process {} take: {why}", self.pid);
    }
}

//! Watches the cache line of one latch at a time for `armtrace top`, in a thread of its own.

use std::io;
use std::sync::mpsc::{self, Receiver, TryIter};
use std::sync::Arc;

use crate::agent::{Agent, Source};
use crate::host::Machine;
use crate::measure::watchpoint::LineWatch;
use crate::measure::watchpoint::{self, Allowance, Burst, CrashRisk, Unwatched, Wanted, Watcher};
use crate::model::ProbeState;
use crate::server::Target;
use crate::ui::screen::Watching;
use crate::worker::Worker;

/// The server whose latches are watched.
#[derive(Clone)]
pub(super) struct Server {
    target: Arc<Target>,
    source: Arc<Source>,
    /// The share of the server's CPU time that bursts may take, 0 to 1.
    share: f64,
    risk: CrashRisk,
}

/// A watch in progress. Dropping it stops the watch.
pub(super) struct Watch {
    worker: Option<Worker>,
    told: Receiver<Watching>,
}

impl Server {
    pub fn new(agent: &Agent, share: f64, risk: CrashRisk) -> Server {
        Server { target: Arc::clone(&agent.target), source: agent.source(), share, risk }
    }

    /// Starts to watch the latch of this name that has the most waiters.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn watch(&self, latch: String) -> io::Result<Watch> {
        let (tell, told) = mpsc::channel();
        let server = self.clone();
        let worker = Worker::start("watch", move |stop| {
            // Sending fails once the receiver has been dropped, when the state is no longer needed.
            let found = server.run(latch, |state| _ = tell.send(state), || stop.is_told());
            _ = tell.send(match found {
                Ok(Some(found)) => Watching::Found(Box::new(found)),
                Ok(None) => Watching::Failed("stopped before any thread waited for it".to_owned()),
                Err(why) => Watching::Failed(why.to_string()),
            });
        })?;
        Ok(Watch { worker: Some(worker), told })
    }

    fn run(
        &self,
        latch: String,
        tell: impl Fn(Watching),
        is_over: impl Fn() -> bool,
    ) -> Result<Option<LineWatch>, Unwatched> {
        let allowance = Allowance::of_share(self.share, self.risk)?;
        let watcher = Watcher { target: Arc::clone(&self.target), latches: self.source.latches(), allowance };
        let wanted = Wanted::Name(latch);
        let seen = watcher.look(&wanted, &is_over)?;
        let of = watchpoint::bursts(Machine::this().cache_line_bytes());
        let mut done = 0;
        let found = watcher.watch(&wanted, &seen, |bursts| {
            let new = &bursts[done..];
            if !new.is_empty() || done == 0 {
                done = bursts.len();
                self.source.watchpoints().add(ProbeState::DutyCycle, hits(new), allowance.hit_ns);
                tell(Watching::Bursts { done, of });
            }
            is_over()
        });
        self.source.watchpoints().add(ProbeState::Detached, 0, allowance.hit_ns);
        found
    }
}

fn hits(bursts: &[Burst]) -> u64 {
    bursts.iter().map(|burst| burst.touches.len() as u64).sum()
}

impl Watch {
    /// Stops the watch. Its result is what was seen so far.
    pub fn stop(&mut self) {
        self.worker = None;
    }

    /// Returns the states since the last call.
    pub fn news(&self) -> TryIter<'_, Watching> {
        self.told.try_iter()
    }
}

//! The open HTTP connections. Those that are idle keep their place only as long as nobody else needs it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::sleep;

/// The most connections served at a time. Further ones wait in the kernel's queue.
const MOST: usize = 64;

/// The interval at which it is checked whether one of that many has become idle.
const CHECK: Duration = Duration::from_millis(50);

/// Connections, each served by a task.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, (AbortHandle, Arc<Activity>)>,
}

/// What a connection does.
pub(super) struct Activity(Mutex<State>);

enum State {
    /// No request is being answered since then.
    Idle(Instant),
    Answering,
    /// It is an answer without end.
    Page,
}

impl Activity {
    /// Returns the activity of a new connection.
    pub fn new() -> Activity {
        Activity(Mutex::new(State::Idle(Instant::now())))
    }

    /// Notes that a request has come.
    pub fn begin(&self) {
        *self.0.lock() = State::Answering;
    }

    /// Notes that a request has an answer.
    pub fn end(&self) {
        let mut state = self.0.lock();
        if matches!(*state, State::Answering) {
            *state = State::Idle(Instant::now());
        }
    }

    /// Notes that the answer goes on for as long as the client wants.
    pub fn stay(&self) {
        *self.0.lock() = State::Page;
    }

    fn idle_since(&self) -> Option<Instant> {
        match *self.0.lock() {
            State::Idle(since) => Some(since),
            _ => None,
        }
    }
}

impl Connections {
    /// Serves a connection. If there is no room, the one that has been idle for longest is closed.
    pub fn serve<F: Future<Output = ()> + Send + 'static>(&mut self, connection: impl FnOnce(Arc<Activity>) -> F) {
        if self.tasks.len() >= MOST {
            self.longest_idle().into_iter().for_each(AbortHandle::abort);
        }
        let activity = Arc::new(Activity::new());
        let task = self.tasks.spawn(connection(Arc::clone(&activity)));
        self.open.insert(task.id(), (task, activity));
    }

    /// Returns whether there is room for one more, also if one has to be closed for that.
    pub fn have_room(&self) -> bool {
        self.tasks.len() < MOST || (self.tasks.len() == MOST && self.longest_idle().is_some())
    }

    /// Returns when a connection has ended, or when it is time to ask again whether there is room.
    pub async fn change(&mut self) {
        let full = self.tasks.len() >= MOST;
        tokio::select! {
            Some(ended) = self.tasks.join_next_with_id() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => error.id(),
                };
                self.open.remove(&id);
            }
            () = sleep(CHECK), if full => {}
            else => std::future::pending().await,
        }
    }

    /// Returns when all have ended.
    pub async fn end(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    fn longest_idle(&self) -> Option<&AbortHandle> {
        let idle = self.open.values().filter(|(task, _)| !task.is_finished());
        let idle = idle.filter_map(|(task, activity)| Some((activity.idle_since()?, task)));
        idle.min_by_key(|(since, _)| *since).map(|(_, task)| task)
    }
}

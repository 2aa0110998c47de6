//! The open HTTP connections. Those that are idle keep their place only as long as nobody else needs it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
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
    open: HashMap<Id, Open>,
}

struct Open {
    task: AbortHandle,
    activity: Arc<Activity>,
    from: Network,
}

/// Where a client is: an address, or the part of an IPv6 address that hosts do not choose themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Network {
        const PREFIX: u128 = !0 << 64;
        Network(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & PREFIX).into(),
            address => address,
        })
    }
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
    /// Serves a connection. If there is no room, one that is idle is closed.
    pub fn serve<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        from: Network,
        connection: impl FnOnce(Arc<Activity>) -> F,
    ) {
        if self.tasks.len() >= MOST {
            self.dispensable().into_iter().for_each(AbortHandle::abort);
        }
        let activity = Arc::new(Activity::new());
        let task = self.tasks.spawn(connection(Arc::clone(&activity)));
        self.open.insert(task.id(), Open { task, activity, from });
    }

    /// Returns whether there is room for one more, also if one has to be closed for that.
    pub fn have_room(&self) -> bool {
        self.tasks.len() < MOST || (self.tasks.len() == MOST && self.idle().next().is_some())
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

    /// Returns the idle connection that makes room: of the clients' networks, the one with the most connections gives
    /// up the one that has been idle for longest. So nobody can keep others out by connecting all the time.
    fn dispensable(&self) -> Option<&AbortHandle> {
        let mut connections: HashMap<Network, usize> = HashMap::new();
        self.alive().for_each(|open| *connections.entry(open.from).or_default() += 1);
        let number = |open: &Open| connections.get(&open.from).copied();
        self.idle().max_by_key(|(open, since)| (number(open), Reverse(*since))).map(|(open, _)| &open.task)
    }

    fn alive(&self) -> impl Iterator<Item = &Open> {
        self.open.values().filter(|open| !open.task.is_finished())
    }

    /// Returns the idle connections, and since when each is.
    fn idle(&self) -> impl Iterator<Item = (&Open, Instant)> {
        self.alive().filter_map(|open| Some((open, open.activity.idle_since()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_what_others_have_assigned() {
        let network = |text: &str| Network::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    }
}

//! Follows all servers of this host: finds them, attaches to each, and attaches again when one has restarted.

mod patience;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::patience::Patience;
use crate::agent::{Agent, AttachError, Options};
use crate::export::{Server, Servers, SnapshotSource, State, View};
use crate::memory;
use crate::present::format::flavor;
use crate::recording::Recent;
use crate::server::{processes_like_servers, running_server, started_at, OpenError, Programs, RunningServer, Target};
use crate::symbols::Settings;
use crate::worker::{side_by_side, Stop, Worker};

/// The time between two searches for servers.
const SEARCH: Duration = Duration::from_secs(3);
/// The most servers that are measured at a time. Any user can start processes that look like servers, and each takes
/// memory here and in the kernel.
const MOST: usize = 100;
/// How long a server that has ended is remembered, so that an alert on it can fire and be seen.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// How long, and of how many processes, what was measured before they ended is kept for those who ask why.
const PAST_KEPT: Duration = Duration::from_secs(3600);
const MAX_PASTS: usize = 8;
/// The most servers that are remembered after they have ended.
const MAX_ENDED: usize = 100;

/// The reason why a server that was found is not measured.
#[derive(Debug, thiserror::Error)]
enum NotMeasured {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("{MOST} other servers are measured already, which is the most; measure this one with --pid {0}")]
    TooMany(i32),
}

/// Makes the options for one more server, which has this process ID.
pub type MakeOptions = dyn Fn(i32) -> Options + Send;

/// The servers of this host.
#[derive(Default)]
pub struct Following {
    servers: Mutex<BTreeMap<String, Followed>>,
    /// What is kept of processes that have ended, the oldest first.
    pasts: Mutex<VecDeque<Past>>,
    paused: AtomicBool,
    /// Whether to attach to all servers again.
    renews: AtomicBool,
    /// When the search for servers last got on.
    searched: Mutex<Option<Instant>>,
}

/// One server, measured or not.
struct Followed {
    /// Its process, or the last one that it had.
    process: Process,
    measured: Option<Measured>,
    state: State,
    /// Since when it has this state.
    since: Instant,
    patience: Patience,
    attached: u64,
    failed: u64,
}

/// A server that is attached to.
struct Measured {
    agent: Agent,
    view: Arc<View>,
}

/// What is kept of a server's process that has ended.
struct Past {
    name: String,
    recent: Arc<Recent>,
    /// When it ended.
    since: Instant,
}

/// What tells a process from a later one with the same ID, and from itself with another program.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    pid: i32,
    started: u64,
    program: u64,
}

impl Servers for Following {
    fn servers(&self) -> Vec<Server> {
        let servers = self.servers.lock();
        let server = |(name, followed): (&String, &Followed)| Server {
            name: name.clone(),
            state: followed.state.clone(),
            view: followed.measured.as_ref().map(|measured| Arc::clone(&measured.view)),
            attached: followed.attached,
            failed: followed.failed,
        };
        servers.iter().map(server).collect()
    }

    fn pasts(&self) -> Vec<(String, Arc<Recent>)> {
        self.pasts.lock().iter().map(|past| (past.name.clone(), Arc::clone(&past.recent))).collect()
    }
}

impl Following {
    /// Starts a thread that searches for servers and attaches to them until the worker is dropped. `log` is told what
    /// happens to each, in one line. Dropping it detaches nothing: that is [`Following::detach`].
    ///
    /// # Errors
    /// Fails when the system starts no more threads.
    pub fn start(
        self: &Arc<Following>,
        options: Box<MakeOptions>,
        settings: Settings,
        log: fn(&str),
    ) -> io::Result<Worker> {
        self.gets_on();
        let (following, programs, others) = (Arc::clone(self), Programs::default(), HashSet::new());
        let mut finder = Finder { following, options, settings, programs, log, others };
        Worker::start("follow", move |stop| finder.work(stop))
    }

    /// Detaches the probes of all servers until [`Following::resume`].
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Relaxed);
        self.each(Agent::pause);
    }

    /// Attaches the probes of all servers again.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::Relaxed);
        self.each(Agent::resume);
    }

    /// Attaches to all servers again at the next search for servers, with new options.
    pub fn renew(&self) {
        self.renews.store(true, Ordering::Relaxed);
    }

    fn each(&self, act: fn(&Agent)) {
        self.servers.lock().values().filter_map(|followed| followed.measured.as_ref()).for_each(|m| act(&m.agent));
    }

    /// Detaches from all servers, for good.
    pub fn detach(&self) {
        let mut servers = self.servers.lock();
        let measured: Vec<Measured> = servers.values_mut().filter_map(|followed| followed.measured.take()).collect();
        drop(servers);
        side_by_side(measured, Measured::end);
    }

    /// Returns whether the search for servers, or what it does about one of them, has got on within this time.
    pub fn is_searching(&self, within: Duration) -> bool {
        self.searched.lock().is_some_and(|last| last.elapsed() < within)
    }

    fn gets_on(&self) {
        *self.searched.lock() = Some(Instant::now());
    }

    /// Returns how many servers are measured.
    fn measured(&self) -> usize {
        self.servers.lock().values().filter(|followed| followed.measured.is_some()).count()
    }

    /// Takes out what is attached to servers that have ended since the last call, and forgets those that ended long
    /// ago.
    fn take_ended(&self) -> Vec<(String, Option<Measured>)> {
        let mut servers = self.servers.lock();
        let ended = servers.iter_mut().filter(|(_, followed)| followed.has_ended());
        let ended = ended.map(|(name, followed)| {
            followed.note_end();
            followed.turn(State::Ended);
            let measured = followed.measured.take();
            (name.clone(), measured)
        });
        let ended: Vec<(String, Option<Measured>)> = ended.collect();
        forget(&mut servers);
        drop(servers);
        for (name, measured) in &ended {
            self.keep_past(name, measured.as_ref());
        }
        self.pasts.lock().retain(|past| past.since.elapsed() < PAST_KEPT);
        ended
    }

    /// Keeps what was measured of a server that has ended, if anything was.
    fn keep_past(&self, name: &str, measured: Option<&Measured>) {
        let Some(source) = measured.map(|measured| measured.agent.source()) else { return };
        let Some(recent) = source.recent() else { return };
        recent.end(&source.snapshot());
        let mut pasts = self.pasts.lock();
        if pasts.len() == MAX_PASTS {
            pasts.pop_front();
        }
        pasts.push_back(Past { name: name.to_owned(), recent, since: Instant::now() });
    }

    /// Returns the names of the servers that are measured.
    fn measured_names(&self) -> Vec<String> {
        let servers = self.servers.lock();
        servers.iter().filter(|(_, followed)| followed.measured.is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Takes out what is attached to a server, which stays one that is measured.
    fn take(&self, name: &str) -> Option<(Process, Measured)> {
        let mut servers = self.servers.lock();
        let followed = servers.get_mut(name)?;
        Some((followed.process, followed.measured.take()?))
    }

    /// Adds a server that was attached to.
    fn add(&self, name: String, process: Process, agent: Agent) {
        if self.paused.load(Ordering::Relaxed) {
            agent.pause();
        }
        let source: Arc<dyn SnapshotSource> = agent.source();
        let measured = Measured { agent, view: Arc::new(View::new(source)) };
        let mut servers = self.servers.lock();
        let followed = servers.entry(name.clone()).or_insert_with(|| Followed::new(process));
        followed.process = process;
        // It may have ended and started again between two searches.
        let before = followed.measured.replace(measured);
        followed.note_attached(before.is_some());
        drop(servers);
        self.keep_past(&name, before.as_ref());
    }

    /// Notes why a server is not measured. Returns whether the reason is another one than before.
    fn refuse(&self, name: String, process: Process, why: &str) -> bool {
        let mut servers = self.servers.lock();
        let followed = servers.entry(name).or_insert_with(|| Followed::new(process));
        followed.process = process;
        let state = State::Refused(why.to_owned());
        let is_new = followed.state != state;
        followed.failed += 1;
        followed.patience.failed(Instant::now());
        followed.turn(state);
        is_new
    }
}

impl Measured {
    fn end(self) {
        self.view.end();
        self.agent.detach();
    }
}

/// Finds servers, and attaches to them.
struct Finder {
    following: Arc<Following>,
    options: Box<MakeOptions>,
    settings: Settings,
    programs: Programs,
    log: fn(&str),
    /// Processes that are called like a server and are none.
    others: HashSet<Process>,
}

impl Finder {
    fn work(&mut self, stop: &Stop) {
        loop {
            self.following.gets_on();
            self.let_go_of_ended();
            if self.following.renews.swap(false, Ordering::Relaxed) {
                self.renew(stop);
            }
            let processes: Vec<Process> = processes_like_servers().into_iter().filter_map(identified).collect();
            self.others.retain(|other| processes.contains(other));
            for process in processes {
                if stop.is_told() {
                    return;
                }
                if self.is_due(process) {
                    self.following.gets_on();
                    self.take_up(process);
                }
            }
            if !stop.wait(SEARCH) {
                return;
            }
        }
    }

    /// Attaches to all servers again, one after the other, so that each is missing for as short a time as can be.
    fn renew(&mut self, stop: &Stop) {
        for name in self.following.measured_names() {
            if stop.is_told() {
                return;
            }
            self.following.gets_on();
            if let Some((process, measured)) = self.following.take(&name) {
                measured.end();
                self.measure(name, process);
            }
        }
    }

    /// Detaches from servers that have ended, and forgets those that ended long ago.
    fn let_go_of_ended(&self) {
        let ended = self.following.take_ended();
        if ended.is_empty() {
            return;
        }
        for (name, measured) in ended {
            (self.log)(&format!("{name} has ended"));
            if let Some(measured) = measured {
                measured.end();
            }
        }
        memory::give_back();
    }

    /// Returns whether to attach to this process: it may be a server, it is not measured, and it has not just failed.
    fn is_due(&self, process: Process) -> bool {
        let servers = self.following.servers.lock();
        let is_due = |followed: &Followed| {
            matches!(followed.state, State::Refused(_)) && followed.patience.is_over(Instant::now())
        };
        !self.others.contains(&process) && servers.values().filter(|known| known.process == process).all(is_due)
    }

    /// Attaches to a process if it is a server.
    fn take_up(&mut self, process: Process) {
        let Some(server) = running_server(process.pid) else {
            self.others.insert(process);
            return;
        };
        if let Some(name) = self.free_name(&server, process) {
            self.measure(name, process);
        }
    }

    fn measure(&mut self, name: String, process: Process) {
        match self.attach(process.pid) {
            Ok(agent) => {
                (self.log)(&format!("measuring {name}: {}", in_words(&agent.target)));
                self.following.add(name, process, agent);
            }
            Err(why) => {
                let why = why.to_string();
                if self.following.refuse(name.clone(), process, &why) {
                    (self.log)(&format!("cannot measure {name}: {why}"));
                }
            }
        }
    }

    /// Returns what to call a server; `None` if it must wait, because it has restarted too often lately.
    fn free_name(&self, server: &RunningServer, process: Process) -> Option<String> {
        let servers = self.following.servers.lock();
        let numbered = (2..).map(|n| format!("{} #{n}", server.longer_name()));
        let names = [server.lasting_name(), server.longer_name()].into_iter().chain(numbered);
        for name in names {
            match servers.get(&name) {
                Some(other) if other.process != process && other.is_running() => {}
                Some(same) if !same.patience.is_over(Instant::now()) => return None,
                _ => return Some(name),
            }
        }
        None
    }

    fn attach(&mut self, pid: i32) -> Result<Agent, NotMeasured> {
        if self.following.measured() >= MOST {
            return Err(NotMeasured::TooMany(pid));
        }
        let target = Target::open_sharing(pid, &self.settings, &mut self.programs)?;
        for line in target.remarks() {
            tracing::info!("{line}");
        }
        let agent = Agent::attach(target, (self.options)(pid))?;
        for line in agent.degradations() {
            tracing::info!("{line}");
        }
        Ok(agent)
    }
}

impl Followed {
    fn new(process: Process) -> Followed {
        Followed {
            process,
            measured: None,
            state: State::Ended,
            since: Instant::now(),
            patience: Patience::default(),
            attached: 0,
            failed: 0,
        }
    }

    /// Notes that it was attached to. It may have been measured until now: if that `has_ended`, the server has started
    /// again meanwhile; otherwise it runs on, and is measured with other settings.
    fn note_attached(&mut self, has_ended: bool) {
        self.attached += 1;
        self.patience.worked();
        if has_ended {
            self.note_end();
        }
        self.turn(State::Measured);
    }

    /// Notes that the server has ended, if it was measured.
    fn note_end(&mut self) {
        if self.state == State::Measured {
            self.patience.ended(self.since.elapsed(), Instant::now());
        }
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.since = Instant::now();
    }

    /// Whether it was running at the last search, and is not any more.
    fn has_ended(&self) -> bool {
        let ended = match &self.measured {
            Some(measured) => measured.agent.target.ended(),
            None => identified(self.process.pid) != Some(self.process),
        };
        self.state != State::Ended && ended
    }

    fn is_running(&self) -> bool {
        self.state != State::Ended && !self.has_ended()
    }
}

/// Forgets servers that ended long ago, and the oldest of too many.
fn forget(servers: &mut BTreeMap<String, Followed>) {
    servers.retain(|_, followed| followed.state != State::Ended || followed.since.elapsed() < REMEMBERED);
    let mut ended: Vec<(Instant, String)> = servers
        .iter()
        .filter(|(_, followed)| followed.state == State::Ended)
        .map(|(name, followed)| (followed.since, name.clone()))
        .collect();
    ended.sort();
    for (_, name) in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
        servers.remove(name);
    }
}

/// Returns what identifies the process with this ID; `None` if it has ended.
fn identified(pid: i32) -> Option<Process> {
    let program = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?.ino();
    Some(Process { pid, started: started_at(pid)?, program })
}

/// Returns what the server is: `MySQL 9.7.4, process 70`.
pub fn in_words(target: &Target) -> String {
    format!("{} {}, process {}", flavor(target.flavor.as_str()), target.version, target.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_does_not_get_on_is_noticed() {
        let following = Following::default();
        assert!(!following.is_searching(REMEMBERED), "it has not begun");
        following.gets_on();
        assert!(following.is_searching(REMEMBERED) && !following.is_searching(Duration::ZERO));
    }

    #[test]
    fn only_a_server_that_ends_has_a_short_life() {
        let process = identified(std::process::id() as i32).expect("this process");
        for (has_ended, is_tried_at_once) in [(false, true), (true, false)] {
            let mut followed = Followed::new(process);
            (0..10).for_each(|_| followed.note_attached(has_ended));
            assert_eq!(followed.patience.is_over(Instant::now()), is_tried_at_once, "ended: {has_ended}");
        }
    }
}

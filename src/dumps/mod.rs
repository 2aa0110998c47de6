//! Dumps that a running armtrace writes by itself, while nobody watches: recordings of a server's last minutes.

mod folder;
mod spell;

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Timestamp;

pub use self::folder::Folder;
pub use self::spell::Spell;
use crate::local::{Past, Sources};
use crate::memory;
use crate::present::format;
use crate::recording::{FormatError, Recent, Recording};
use crate::worker::Worker;

/// The interval at which servers are looked at.
const SECOND: Duration = Duration::from_secs(1);

/// The time after which a dump that could not be written is tried again, if the reason still holds.
const AGAIN: Duration = Duration::from_secs(30);

/// Why a dump is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Waiting,
    Statement,
    Ended,
    Asked,
}

impl Cause {
    const ALL: [Cause; 4] = [Cause::Waiting, Cause::Statement, Cause::Ended, Cause::Asked];

    /// Returns its name in a file's.
    fn as_str(self) -> &'static str {
        match self {
            Cause::Waiting => "waiting",
            Cause::Statement => "statement",
            Cause::Ended => "ended",
            Cause::Asked => "signal",
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Cause::Waiting => "threads waited for latches",
            Cause::Statement => "a statement took long",
            Cause::Ended => "it has ended",
            Cause::Asked => "a signal asked for them",
        }
    }
}

/// The limits at which dumps are written, besides at a server's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// So many threads wait for latches.
    pub waiting: Option<f64>,
    /// A client's statement has been running for so long.
    pub statement: Option<Duration>,
}

/// A thread that writes dumps.
pub struct Dumps {
    is_asked: Arc<AtomicBool>,
    worker: Worker,
}

impl Dumps {
    /// Starts to look at the servers whose past is kept, for so long. `log` is told of each file, in one line.
    ///
    /// # Errors
    /// Fails when the system starts no more threads.
    pub fn start(
        folder: Folder,
        limits: Limits,
        keep: Duration,
        sources: Arc<Sources>,
        log: fn(&str),
    ) -> io::Result<Dumps> {
        let asked = Arc::new(AtomicBool::new(false));
        let is_asked = Arc::clone(&asked);
        let mut writer = Writer::new(folder, limits, keep, sources, log);
        let worker = Worker::start("dumps", move |stop| {
            let mut turn = || writer.turn(asked.swap(false, Ordering::Relaxed), Instant::now());
            while stop.wait(SECOND) {
                turn();
            }
            turn();
        })?;
        Ok(Dumps { is_asked, worker })
    }

    /// Asks for a dump of each server, which is written within a second.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Looks a last time, and returns when everything is written.
    pub fn finish(self) {
        self.worker.end();
    }
}

/// What writes the dumps.
struct Writer {
    folder: Folder,
    limits: Limits,
    /// How much of the past is kept, and so the shortest time between two dumps of a server for the same cause: they do
    /// not overlap.
    keep: Duration,
    sources: Arc<Sources>,
    log: fn(&str),
    watched: Vec<Watched>,
    /// Until when no other dump of a server is written for a cause.
    rests: BTreeMap<(String, Cause), Instant>,
    /// Whether the last dump could not be written, which is told once.
    is_failing: bool,
}

/// A process whose past is kept.
struct Watched {
    recent: Arc<Recent>,
    waiting: Spell,
    has_ended: bool,
}

impl Writer {
    fn new(folder: Folder, limits: Limits, keep: Duration, sources: Arc<Sources>, log: fn(&str)) -> Writer {
        let (watched, rests) = (Vec::new(), BTreeMap::new());
        Writer { folder, limits, keep, sources, log, watched, rests, is_failing: false }
    }

    /// Looks at all servers. Call it once a second; `is_asked` wants a dump of each that is measured.
    fn turn(&mut self, is_asked: bool, now: Instant) {
        let pasts = (self.sources)();
        self.watched.retain(|known| pasts.iter().any(|past| Arc::ptr_eq(&past.recent, &known.recent)));
        self.rests.retain(|_, until| now < *until);
        for past in &pasts {
            for cause in self.causes(past, is_asked) {
                let is_written = self.write(past, cause);
                if cause != Cause::Asked {
                    let rest = if is_written { self.keep } else { AGAIN.min(self.keep) };
                    self.rests.insert((name(past), cause), now + rest);
                }
            }
        }
    }

    /// Returns why to write a dump of this server now.
    fn causes(&mut self, past: &Past, is_asked: bool) -> Vec<Cause> {
        let may = |cause: &Cause| !self.rests.contains_key(&(name(past), *cause));
        let known = known(&mut self.watched, &past.recent);
        let (recent, Limits { waiting, statement }) = (&past.recent, self.limits);
        let mut causes = Vec::new();
        if recent.has_server_ended() && !mem::replace(&mut known.has_ended, true) {
            causes.push(Cause::Ended);
        }
        if let Some(source) = past.source.as_ref().filter(|_| !recent.has_ended()) {
            let waits = waiting.is_some_and(|limit| recent.waiting() >= limit);
            if known.waiting.second(waits && may(&Cause::Waiting)) {
                causes.push(Cause::Waiting);
            }
            // Until then, the past may be coarser: to keep each second costs.
            if known.waiting.has_begun() {
                recent.watch();
            }
            if statement.is_some_and(|limit| source.longest_statement().is_some_and(|longest| longest >= limit)) {
                causes.push(Cause::Statement);
            }
            if is_asked {
                causes.push(Cause::Asked);
            }
        }
        causes.retain(may);
        causes
    }

    /// Writes a dump, and returns whether it is written. The first that fails is told; others are not until one
    /// succeeds.
    fn write(&mut self, past: &Past, cause: Cause) -> bool {
        let written = self.try_to_write(past, cause);
        let is_written = matches!(written, Ok(Some(_)));
        match written {
            Ok(None) => {}
            Ok(Some((path, length))) => {
                self.is_failing = false;
                let length = format::span(Duration::from_secs_f64(length.as_secs_f64().round()));
                let (name, why, path) = (name(past), cause.in_words(), path.display());
                (self.log)(&format!("the last {length} of {name} are in {path}: {why}"));
            }
            Err(why) if mem::replace(&mut self.is_failing, true) => tracing::debug!("no dump is written: {why:#}"),
            Err(why) => tracing::warn!("no dump of {} could be written: {why:#}", name(past)),
        }
        memory::give_back();
        is_written
    }

    /// Returns the file, and the time that it has; `None` if nothing is kept yet.
    fn try_to_write(&self, past: &Past, cause: Cause) -> Result<Option<(PathBuf, Duration)>> {
        let recording = match Recording::of_files(&past.files(self.keep)?, self.keep) {
            Err(FormatError::Empty) => return Ok(None),
            read => read?,
        };
        let server = &recording.start.server;
        let called = past.name.as_ref().unwrap_or(&server.flavor);
        let file = folder::file_name(called, Timestamp::now(), cause, server.pid);
        let path = self.folder.write(&file, |to| recording.write(to))?;
        Ok(Some((path, recording.duration())))
    }
}

/// Returns what is known of the process whose past this is.
fn known<'a>(watched: &'a mut Vec<Watched>, recent: &Arc<Recent>) -> &'a mut Watched {
    let place = watched.iter().position(|known| Arc::ptr_eq(&known.recent, recent));
    let place = place.unwrap_or_else(|| {
        watched.push(Watched { recent: Arc::clone(recent), waiting: Spell::default(), has_ended: false });
        watched.len() - 1
    });
    &mut watched[place]
}

/// Returns what a server is called, whatever process it is.
fn name(past: &Past) -> String {
    past.name.clone().unwrap_or_else(|| format!("process {}", past.recent.start().server.pid))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use parking_lot::Mutex;
    use tempfile::TempDir;

    use super::*;
    use crate::export::SnapshotSource;
    use crate::measure::latch::{Figures, LatchWaits};
    use crate::measure::Snapshot;
    use crate::model::{Histogram, Kind, Mode};
    use crate::recording::{Ending, Server, Start};

    const KEEP: Duration = Duration::from_secs(900);

    /// A server, as it is measured, with its second, how many threads wait in each, and its longest statement.
    struct Measured {
        recent: Arc<Recent>,
        seconds: Mutex<(u64, u64)>,
        longest: Mutex<Option<Duration>>,
    }

    impl Measured {
        fn new(pid: i32) -> Arc<Measured> {
            let server = Server { pid, flavor: "mysql".to_owned(), ..Server::default() };
            let recent = Arc::new(Recent::new(Start { server, ..Start::default() }, KEEP));
            Arc::new(Measured { recent, seconds: Mutex::default(), longest: Mutex::default() })
        }

        /// Lets a second pass in which so many threads wait.
        fn second(&self, waiting: u64) {
            let mut seconds = self.seconds.lock();
            *seconds = (seconds.0 + 1, seconds.1 + waiting);
            drop(seconds);
            self.recent.add(&self.snapshot());
        }

        fn end(&self, up: bool) {
            self.recent.end(&Snapshot { up, ..self.snapshot() });
        }
    }

    impl SnapshotSource for Measured {
        fn snapshot(&self) -> Snapshot {
            let (seconds, waited) = *self.seconds.lock();
            let waits = Histogram { count: waited, sum_ns: waited * 1_000_000_000, ..Histogram::default() };
            let row = LatchWaits {
                latch: "wait/synch/mutex/innodb/x".to_owned(),
                kind: Kind::Mutex,
                mode: Mode::None,
                waits,
                sleep_ns: 0,
                sleeps: 0,
                spin_cpu_ns: 0,
                spins_won: 0,
                spins_wasted: 0,
                estimated_ns: 0,
                variance_us2: 0,
            };
            let latch = Figures { waits: vec![row], ..Figures::default() };
            Snapshot { elapsed: Duration::from_secs(seconds), latch, up: true, ..Snapshot::default() }
        }

        fn recent(&self) -> Option<Arc<Recent>> {
            Some(Arc::clone(&self.recent))
        }

        fn longest_statement(&self) -> Option<Duration> {
            *self.longest.lock()
        }
    }

    /// A server with its name, and whether it is measured still.
    type Known = (Option<String>, Arc<Measured>, bool);

    /// A writer, its folder, and its servers.
    struct Case {
        folder: TempDir,
        servers: Arc<Mutex<Vec<Known>>>,
        writer: Writer,
        now: Instant,
    }

    impl Case {
        fn new(servers: Vec<(Option<&str>, Arc<Measured>)>) -> Case {
            let folder = tempfile::tempdir().expect("a folder");
            let servers = servers.into_iter().map(|(name, server)| (name.map(str::to_owned), server, true)).collect();
            let servers: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(servers));
            let limits = Limits { waiting: Some(20.0), statement: Some(Duration::from_secs(60)) };
            let seen = Arc::clone(&servers);
            let past = |(name, server, is_measured): &Known| {
                let source = is_measured.then(|| Arc::clone(server) as Arc<dyn SnapshotSource>);
                Past { name: name.clone(), recent: Arc::clone(&server.recent), source }
            };
            let sources = Arc::new(move || seen.lock().iter().map(past).collect());
            let opened = Folder::open(folder.path()).expect("a folder");
            let writer = Writer::new(opened, limits, KEEP, sources, |_| {});
            Case { folder, servers, writer, now: Instant::now() }
        }

        /// Lets a second pass, after which the writer looks.
        fn turn(&mut self) {
            self.now += SECOND;
            self.writer.turn(false, self.now);
        }

        /// Returns the names of the files, without their times.
        fn names(&self) -> Vec<String> {
            let files = fs::read_dir(self.folder.path()).expect("a folder").map(|entry| entry.expect("an entry"));
            let without_time = |name: String| {
                let parts: Vec<&str> = name.split('-').collect();
                [&parts[..1], &parts[2..]].concat().join("-")
            };
            let mut names: Vec<String> =
                files.map(|file| without_time(file.file_name().into_string().expect("a name"))).collect();
            names.sort();
            names
        }

        /// Removes the files.
        fn clear(&self) {
            let files = fs::read_dir(self.folder.path()).expect("a folder");
            files.for_each(|file| fs::remove_file(file.expect("an entry").path()).expect("a file"));
        }
    }

    #[test]
    fn threads_that_wait_for_seconds_are_a_reason_once_in_the_time_that_is_kept() {
        let server = Measured::new(7);
        let mut case = Case::new(vec![(Some("db"), Arc::clone(&server))]);
        let seconds = |case: &mut Case, count: u32, waiting| {
            for _ in 0..count {
                server.second(waiting);
                case.turn();
            }
        };
        seconds(&mut case, 4, 30);
        assert!(server.recent.is_watched(), "each second is wanted");
        seconds(&mut case, 10, 19);
        assert_eq!(case.names(), [""; 0], "not for five in a row");
        seconds(&mut case, 10, 20);
        assert_eq!(case.names(), ["db-waiting-7.rec"]);
        case.clear();
        seconds(&mut case, 899, 30);
        assert_eq!(case.names(), [""; 0], "the next one would have seconds of the last");
        seconds(&mut case, 10, 30);
        assert_eq!(case.names(), ["db-waiting-7.rec"]);
    }

    #[test]
    fn a_statement_that_takes_long_is_a_reason_at_once() {
        let [server, other] = [7, 8].map(Measured::new);
        let mut case = Case::new(vec![(Some("db"), Arc::clone(&server)), (Some("b"), Arc::clone(&other))]);
        server.second(0);
        other.second(0);
        *other.longest.lock() = Some(Duration::from_secs(59));
        case.turn();
        assert_eq!(case.names(), [""; 0]);
        *server.longest.lock() = Some(Duration::from_secs(60));
        case.turn();
        assert_eq!(case.names(), ["db-statement-7.rec"]);
        case.clear();
        case.turn();
        assert_eq!(case.names(), [""; 0]);
        case.now += KEEP;
        case.turn();
        assert_eq!(case.names(), ["db-statement-7.rec"]);
    }

    #[test]
    fn the_end_of_a_server_is_a_reason_but_not_that_of_measuring_it() {
        let [ended, left] = [7, 8].map(Measured::new);
        let mut case = Case::new(vec![(None, Arc::clone(&ended)), (Some("b"), Arc::clone(&left))]);
        ended.second(3);
        left.second(0);
        case.turn();
        ended.end(false);
        left.end(true);
        case.turn();
        assert_eq!(case.names(), ["mysql-ended-7.rec"]);
        let file = fs::read_dir(case.folder.path()).expect("a folder").next().expect("a file").expect("an entry");
        let recording = crate::recording::read(&file.path()).expect("a recording");
        assert_eq!(recording.end.map(|end| end.ending), Some(Ending::ServerEnded));
        case.clear();
        // It is kept for those who ask, long after no other dump would overlap.
        case.servers.lock()[0].2 = false;
        case.now += KEEP;
        case.turn();
        assert_eq!(case.names(), [""; 0]);
    }

    /// A server that crashes again and again would take the place of all other dumps.
    #[test]
    fn a_server_that_restarts_again_and_again_is_a_reason_now_and_then() {
        let mut case = Case::new(Vec::new());
        let crash = |case: &mut Case, pid| {
            let server = Measured::new(pid);
            *case.servers.lock() = vec![(Some("db".to_owned()), Arc::clone(&server), true)];
            server.second(0);
            server.end(false);
            case.turn();
        };
        (1..=5).for_each(|pid| crash(&mut case, pid));
        assert_eq!(case.names(), ["db-ended-1.rec"]);
        case.now += KEEP;
        crash(&mut case, 6);
        assert_eq!(case.names(), ["db-ended-1.rec", "db-ended-6.rec"]);
        assert_eq!((case.writer.watched.len(), case.writer.rests.len()), (1, 1), "others are forgotten");
    }

    #[test]
    fn a_signal_asks_for_all_that_is_measured_whenever_it_comes() {
        let [a, b] = [7, 8].map(Measured::new);
        let mut case = Case::new(vec![(Some("a"), Arc::clone(&a)), (Some("b"), Arc::clone(&b))]);
        a.second(0);
        for _ in 0..2 {
            case.writer.turn(true, case.now);
            assert_eq!(case.names(), ["a-signal-7.rec"], "nothing is kept of the other yet");
            case.clear();
        }
        b.second(0);
        a.end(false);
        case.writer.turn(true, case.now);
        assert_eq!(case.names(), ["a-ended-7.rec", "b-signal-8.rec"]);
    }

    #[test]
    fn a_folder_that_is_gone_does_no_harm() {
        let server = Measured::new(7);
        let mut case = Case::new(vec![(Some("a"), Arc::clone(&server))]);
        server.second(0);
        let (path, away) = (case.folder.path().to_owned(), case.folder.path().with_extension("away"));
        fs::rename(&path, &away).expect("a folder");
        case.writer.turn(true, case.now);
        assert!(case.writer.is_failing);
        fs::rename(&away, &path).expect("a folder");
        case.writer.turn(true, case.now);
        assert!(!case.writer.is_failing && case.names() == ["a-signal-7.rec"]);
    }
}

//! The last minutes of a server that is measured all the time, kept in memory until somebody asks for them.
//!
//! They are kept as files that follow each other: dropping the oldest one needs no change to the others. Whoever asks
//! gets them all, and [joins](super::join) them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::schema::{Ending, Start};
use super::writer::Recorder;
use super::SHORTEST;
use crate::measure::Snapshot;
use crate::model::Kind;

/// The time that one file covers. What is kept is longer than what was asked for by up to this time.
const PART: Duration = Duration::from_secs(60);
/// The most bytes that are kept of a second, on average: 4 MiB of 15 minutes. MySQL 8.0.31 under `oltp_update_index`
/// with 16 threads takes some 3 KB.
const MOST_BYTES_A_SECOND: usize = (4 << 20) / 900;

/// For how long somebody is taken to go on who has wanted each second.
const WATCHED: Duration = Duration::from_secs(3);

/// Reads the settings that a server has now; none that cannot be read.
type ReadSettings = dyn Fn() -> BTreeMap<String, String> + Send + Sync;

/// What was measured on one server lately.
pub struct Recent {
    start: Start,
    /// Settings may change while a server runs, so each file has those of its beginning.
    settings: Box<ReadSettings>,
    /// How much of the past is kept.
    keep: Duration,
    most_bytes: usize,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    done: VecDeque<Part>,
    /// The file that is being written, with when it began.
    open: Option<(Duration, Recorder<Vec<u8>>)>,
    /// The time since attach up to which there are seconds.
    until: Duration,
    /// The time waited for latches up to then, in nanoseconds.
    waited_ns: u64,
    /// How many threads waited on average when that was last noted.
    waiting: f64,
    is_paused: bool,
    /// Why nothing is added any more.
    ended: Option<Ending>,
    /// When somebody last wanted each second, and the time before.
    watched: [Option<Instant>; 2],
}

/// A file that is not written any more.
struct Part {
    /// When it began and ended, as times since attach.
    began: Duration,
    until: Duration,
    file: Vec<u8>,
}

impl Recent {
    /// Keeps nothing yet. `start` is what is known of the server and its host.
    pub fn new(start: Start, keep: Duration) -> Recent {
        let seconds = keep.max(PART).as_secs() as usize;
        let settings = Box::new(BTreeMap::new);
        Recent { start, settings, keep, most_bytes: seconds * MOST_BYTES_A_SECOND, parts: Mutex::default() }
    }

    /// Takes settings that may have changed from here, whenever a file begins.
    pub fn with_settings(self, read: impl Fn() -> BTreeMap<String, String> + Send + Sync + 'static) -> Recent {
        Recent { settings: Box::new(read), ..self }
    }

    /// Returns what was known of the server and its host at first.
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// Returns the same for a recording that begins now, with the settings that the server has now.
    pub fn start_now(&self) -> Start {
        let mut start = self.start.clone();
        start.server.settings.extend((self.settings)());
        start
    }

    /// Returns how far back it reaches.
    pub fn reaches(&self) -> Duration {
        let parts = self.parts.lock();
        parts.began().map_or(Duration::ZERO, |began| parts.until.saturating_sub(began))
    }

    /// Returns how many threads waited for latches between the last two times that something was added, on average.
    pub fn waiting(&self) -> f64 {
        self.parts.lock().waiting
    }

    /// Notes that somebody looks, who wants each second if this is called again and again.
    pub fn watch(&self) {
        let mut parts = self.parts.lock();
        parts.watched = [Some(Instant::now()), parts.watched[0]];
    }

    /// Whether somebody looks again and again, so that each second is wanted.
    pub fn is_watched(&self) -> bool {
        let [last, before] = self.parts.lock().watched;
        let of = last.zip(before).filter(|(last, before)| last.duration_since(*before) < WATCHED);
        of.is_some_and(|(last, _)| last.elapsed() < WATCHED)
    }

    /// Whether nothing is counted for a while.
    pub fn is_paused(&self) -> bool {
        self.parts.lock().is_paused
    }

    /// Adds the time since the last call, in which this was measured. Drops what is older than what is to be kept.
    pub fn add(&self, now: &Snapshot) {
        let mut parts = self.parts.lock();
        // A snapshot that somebody has asked for may have overtaken this one.
        if parts.ended.is_some() || now.elapsed <= parts.until {
            return;
        }
        self.second(&mut parts, now);
        parts.is_paused = now.paused;
        if parts.open.as_ref().is_some_and(|(began, _)| now.elapsed.saturating_sub(*began) >= PART) {
            parts.close();
            self.open(&mut parts, now, now);
        }
        let oldest = now.elapsed.saturating_sub(self.keep);
        while parts.done.front().is_some_and(|part| part.until <= oldest) || parts.bytes() > self.most_bytes {
            if parts.done.pop_front().is_none() {
                // One minute alone is too large.
                self.open(&mut parts, now, now);
                break;
            }
        }
    }

    /// Adds the last time before the server ended, or was no longer measured. After that nothing is added any more.
    pub fn end(&self, last: &Snapshot) {
        let mut parts = self.parts.lock();
        if parts.ended.is_some() {
            return;
        }
        let ending = if last.up { Ending::Interrupted } else { Ending::ServerEnded };
        parts.ended = Some(ending);
        if last.elapsed > parts.until {
            self.second(&mut parts, last);
        }
        let ended = parts.open.take().map(|(began, mut open)| (began, open.ended(ending, last)));
        let until = parts.until;
        if let Some((began, Ok(file))) = ended.filter(|(began, _)| *began < until) {
            parts.done.push_back(Part { began, until, file });
        }
    }

    /// Whether the server has ended, or is no longer measured.
    pub fn has_ended(&self) -> bool {
        self.parts.lock().ended.is_some()
    }

    /// Whether the server has ended while it was measured.
    pub fn has_server_ended(&self) -> bool {
        self.parts.lock().ended == Some(Ending::ServerEnded)
    }

    /// Returns the files that have the last so much time, the oldest first: up to its end if the server has ended,
    /// otherwise up to `now`.
    ///
    /// # Errors
    /// Fails if `now` has more figures than fit into a file.
    pub fn files(&self, last: Duration, now: &Snapshot) -> io::Result<Vec<Vec<u8>>> {
        let mut parts = self.parts.lock();
        if parts.ended.is_none() && now.elapsed.saturating_sub(parts.until) >= SHORTEST {
            self.second(&mut parts, now);
        }
        let oldest = parts.until.saturating_sub(last);
        let mut files: Vec<Vec<u8>> =
            parts.done.iter().filter(|part| part.until > oldest).map(|part| part.file.clone()).collect();
        let until = parts.until;
        match &mut parts.open {
            // It has no second yet.
            Some((began, _)) if *began == until => {}
            Some((_, open)) => files.push(open.ended(Ending::Complete, now)?),
            None => {}
        }
        Ok(files)
    }

    /// Adds a second to the file that is being written. If it does not fit, all that is kept begins after it.
    fn second(&self, parts: &mut Parts, now: &Snapshot) {
        if parts.open.is_none() && parts.done.is_empty() {
            let attach = Snapshot { statements: now.statements.map(|_| 0), ..Snapshot::default() };
            self.open(parts, &attach, now);
        }
        parts.note_waits(now);
        let written = parts.open.as_mut().map(|(_, open)| open.second(now, now.statements));
        if let Some(Err(why)) = written {
            tracing::warn!("the past begins anew: {why}");
            parts.done.clear();
            self.open(parts, now, now);
        }
        parts.until = now.elapsed;
    }

    /// Begins a file of what is counted after `before`.
    fn open(&self, parts: &mut Parts, before: &Snapshot, now: &Snapshot) {
        let began = SystemTime::now() - now.elapsed.saturating_sub(before.elapsed);
        let start = self.start_now().beginning(began, now);
        parts.until = before.elapsed;
        parts.open = Recorder::begin_after(before, Vec::new(), &start).ok().map(|open| (before.elapsed, open));
    }
}

impl Parts {
    /// Notes how many threads have waited since the last time. To wait for a condition is no contention.
    fn note_waits(&mut self, now: &Snapshot) {
        let latches = now.latch.waits.iter().filter(|latch| latch.kind != Kind::Cond);
        let waited_ns: u64 = latches.map(|latch| latch.waits.sum_ns).sum();
        let seconds = now.elapsed.saturating_sub(self.until).as_secs_f64();
        if seconds > 0.0 {
            self.waiting = waited_ns.saturating_sub(self.waited_ns) as f64 / 1e9 / seconds;
        }
        self.waited_ns = waited_ns;
    }

    /// Ends the file that is being written. No other is begun.
    fn close(&mut self) {
        if let Some((began, open)) = self.open.take() {
            let mut file = open.into_output();
            file.shrink_to_fit();
            self.done.push_back(Part { began, until: self.until, file });
        }
    }

    fn began(&self) -> Option<Duration> {
        self.done.front().map(|part| part.began).or(self.open.as_ref().map(|(began, _)| *began))
    }

    fn bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |(_, open)| open.bytes());
        self.done.iter().map(|part| part.file.len()).sum::<usize>() + open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Recording;

    fn after(seconds: u64) -> Snapshot {
        Snapshot { elapsed: Duration::from_secs(seconds), ..Snapshot::default() }
    }

    #[test]
    fn memory_is_bounded_before_time_is() {
        let recent = Recent { most_bytes: 20_000, ..Recent::new(Start::default(), Duration::from_secs(3600)) };
        for second in 1..=3600 {
            recent.add(&after(second));
            assert!(recent.parts.lock().bytes() <= 20_000, "after {second} s");
        }
        let reaches = recent.reaches().as_secs();
        assert!((120..3000).contains(&reaches), "{reaches} s");
    }

    #[test]
    fn a_minute_that_is_too_large_is_dropped() {
        let recent = Recent { most_bytes: 10, ..Recent::new(Start::default(), Duration::from_secs(3600)) };
        recent.add(&after(1));
        assert_eq!(recent.reaches(), Duration::ZERO);
        assert_eq!(recent.files(Duration::from_secs(1), &after(1)).unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(recent.files(Duration::from_secs(9), &after(3)).unwrap().len(), 1, "it goes on");
    }

    #[test]
    fn who_looks_twice_is_taken_to_go_on() {
        let recent = Recent::new(Start::default(), Duration::from_secs(60));
        assert!(!recent.is_watched());
        recent.watch();
        assert!(!recent.is_watched(), "once is not again and again");
        recent.watch();
        assert!(recent.is_watched());
        let earlier = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        recent.parts.lock().watched = [earlier(4), earlier(5)];
        assert!(!recent.is_watched());
        recent.parts.lock().watched = [earlier(0), earlier(5)];
        assert!(!recent.is_watched());
    }

    /// A server has thousands of keys in hours, of which a minute needs few.
    #[test]
    fn a_file_has_rows_for_what_was_added_while_it_was_written() {
        let lost = |n: u64| {
            let causes = (0..5000).map(|i| (format!("cause {i}"), if i == 7 { n } else { 5 }));
            let new = (n > 2).then(|| ("new".to_owned(), n)).into_iter();
            Snapshot { lost: causes.chain(new).collect(), ..after(n) }
        };
        let mut file = Vec::new();
        let mut recorder = Recorder::begin_after(&lost(1), &mut file, &Start::default()).unwrap();
        (2..=4).for_each(|n| recorder.second(&lost(n), None).unwrap());
        let recording = Recording::read_from(file.as_slice()).unwrap();
        assert_eq!(recording.lost(), [("cause 7".to_owned(), 3), ("new".to_owned(), 4)]);
    }

    /// Somebody who asks may take a snapshot later, and add it earlier.
    #[test]
    fn time_does_not_go_backwards() {
        let recent = Recent::new(Start::default(), Duration::from_secs(60));
        recent.add(&after(1));
        recent.files(Duration::from_secs(60), &after(5)).unwrap();
        recent.add(&after(4));
        recent.end(&after(3));
        let files = recent.files(Duration::from_secs(60), &after(6)).unwrap();
        assert_eq!(Recording::read_from(files[0].as_slice()).unwrap().duration(), Duration::from_secs(5));
    }

    #[test]
    fn a_server_that_is_no_longer_measured_has_not_ended() {
        let recent = Recent::new(Start::default(), Duration::from_secs(60));
        recent.end(&Snapshot { up: true, ..after(1) });
        recent.end(&after(2));
        assert!(recent.has_ended() && !recent.has_server_ended());
    }

    #[test]
    fn a_server_that_has_ended_has_a_past_without_a_future() {
        let recent = Recent::new(Start::default(), Duration::from_secs(60));
        recent.add(&after(1));
        recent.end(&after(2));
        recent.add(&after(3));
        assert!(recent.has_ended() && recent.has_server_ended() && recent.reaches() == Duration::from_secs(2));
        let files = recent.files(Duration::from_secs(60), &after(4)).unwrap();
        let recording = Recording::read_from(files[0].as_slice()).unwrap();
        assert_eq!((files.len(), recording.duration()), (1, Duration::from_secs(2)));
        assert_eq!(recording.end.map(|end| end.ending), Some(Ending::ServerEnded));
    }
}

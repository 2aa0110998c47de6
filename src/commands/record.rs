//! `armtrace record`: records what a server waits for, second by second, in a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use tokio::task::spawn_blocking;
use tokio::time::{interval_at, Instant, MissedTickBehavior};

use super::log;
use super::new_file::{self, cannot_write};
use super::session::{self, AttachArgs, EndedBy, Session, Signals};
use super::values::{pid, time, ValueError};
use super::Failure;
use crate::agent::Source;
use crate::attach::Writes;
use crate::export::SnapshotSource;
use crate::local::{self, Asked, Recorded};
use crate::measure::Snapshot;
use crate::present::format;
use crate::recording::{self, End, Ending, Recorder, Recording, Start, LONGEST, SECOND, SHORTEST};
use crate::server::{Client, SettingsAt, SETTINGS};
use crate::ui::top::Interval;

#[derive(Args, Clone, Debug)]
pub(super) struct RecordArgs {
    /// Process ID of the server
    #[arg(long, value_name = "PID", value_parser = pid)]
    pid: i32,
    #[command(flatten)]
    attach: AttachArgs,
    /// Length of the recording: 90s, 5m, 1h
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    duration: Duration,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
    /// Attach probes of its own, even if an armtrace measures the server already
    #[arg(long)]
    own_probes: bool,
    /// Describe the recording for comparisons, as threads=64; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

/// Parses the length of a recording.
fn duration(text: &str) -> Result<Duration, ValueError> {
    let is_possible = |time: &Duration| (Duration::from_secs(1)..=LONGEST).contains(time);
    time(text).and_then(|time| Some(time).filter(is_possible).ok_or(ValueError::Duration))
}

/// Parses a label such as `threads=64` into its key and value.
fn label(text: &str) -> Result<(String, String), ValueError> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or(ValueError::Label)?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn record(args: &RecordArgs) -> Result<(), Failure> {
    new_file::refuse_existing(&args.output, args.force)?;
    if let Some(recorded) = running(args) {
        return record_by(recorded, args);
    }
    let target = session::open(args.pid, &args.attach, Writes::File)?;
    let (mut client, settings) = connect(args)?.unzip();
    let mut known = SettingsAt::of(&target).read();
    known.extend(settings.unwrap_or_default());
    let start = Start::here(&target, known, args.attach.no_probes);
    let mut session =
        Session::attach(target, &args.attach, None, client.as_ref().map(Client::another), Duration::ZERO)?;
    // Attaching may take long on a busy machine. Times count from when probes did.
    let attached = session.agent.source().snapshot();
    let start = start.beginning(SystemTime::now() - attached.elapsed, &attached);
    let start = Start { labels: args.labels.iter().cloned().collect(), ..start };
    let file = new_file::create(&args.output, args.force)?;
    let queries = client.as_mut().map(Client::queries).transpose()?;
    let recorder = Recorder::begin(file, &start, queries).map_err(|why| cannot_write(&args.output, why))?;
    let mut recording = InProgress {
        recorder,
        source: session.agent.source(),
        client,
        progress: Progress::new(args.duration),
        before: None,
    };
    let recorded = session.runtime.block_on(recording.run(args.duration, &mut session.ends));
    let ending = recorded.map_err(|why| cannot_write(&args.output, why))?;
    session.agent.detach();
    let InProgress { recorder, source, progress, before, .. } = recording;
    // A short recording ends before all measurements are prepared.
    source.wait_until_prepared();
    let last = source.snapshot();
    recorder.end(ending, &last).map_err(|why| cannot_write(&args.output, why))?;
    progress.end(ending, before.map_or(Duration::ZERO, |last| last.elapsed), &args.output);
    Ok(())
}

/// Returns what an armtrace begins to record that measures the server already, unless this one is to do so in its own
/// way.
fn running(args: &RecordArgs) -> Option<Recorded> {
    if args.own_probes || !args.attach.are_defaults() {
        return None;
    }
    // Who may not ask is told what is missing when this armtrace attaches.
    let all = local::servers(&local::folder()).ok()?;
    let is_it = |asked: &Asked| asked.server.pid == args.pid && !asked.server.has_ended && !asked.server.is_paused;
    let asked = all.into_iter().find(is_it)?;
    let recorded = asked.record(args.duration, args.labels.iter().cloned().collect());
    recorded.inspect_err(|why| tracing::info!("{why}")).ok()
}

/// Writes what another armtrace records.
fn record_by(mut recorded: Recorded, args: &RecordArgs) -> Result<(), Failure> {
    let runtime = session::runtime()?;
    let file = new_file::create(&args.output, args.force)?;
    let end = recorded.end().map_err(Failure::Start)?;
    let time = format::span(args.duration);
    log::tell(&format!("the armtrace that measures the server records it for {time}; --own-probes attaches more"));
    let written = runtime.block_on(async {
        let mut signals = Signals::new().map_err(Failure::Start)?;
        let copying = spawn_blocking(move || copy(&mut recorded, &mut &file));
        tokio::pin!(copying);
        let copied = tokio::select! {
            copied = &mut copying => copied,
            () = signals.wait() => {
                end();
                copying.await
            }
        };
        Ok::<_, Failure>(copied.unwrap_or_else(|why| Err(Uncopied::Unread(io::Error::other(why)))))
    })?;
    match written {
        Ok(()) => {}
        // A file gets an end; in a pipe, nothing can say that it is not whole.
        Err(Uncopied::Unread(why)) if !args.output.is_file() => return Err(Failure::Local(why.into())),
        Err(Uncopied::Unread(why)) => {
            log::tell(&format!("the armtrace that records has stopped answering: {why}; --own-probes does without it"));
        }
        Err(Uncopied::Unwritten(why)) => return Err(cannot_write(&args.output, why)),
    }
    let recording = whole(args)?;
    let ending = recording.as_ref().and_then(|recording| recording.end.as_ref());
    let ending = ending.map_or(Ending::Complete, |end| end.ending);
    let length = recording.map_or(args.duration, |recording| recording.duration());
    Progress::new(args.duration).end(ending, length, &args.output);
    Ok(())
}

/// The side on which a copy failed.
#[derive(Debug)]
enum Uncopied {
    Unread(io::Error),
    Unwritten(io::Error),
}

/// Copies until `from` ends.
fn copy(from: &mut impl Read, to: &mut impl Write) -> Result<(), Uncopied> {
    let mut part = vec![0; 64 << 10];
    loop {
        let read = match from.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            Err(why) => return Err(Uncopied::Unread(why)),
        };
        to.write_all(&part[..read]).map_err(Uncopied::Unwritten)?;
    }
}

/// Reads the file that another armtrace has made, and gives it an end if that armtrace has ended before it. `None` if
/// it is no file but a pipe.
fn whole(args: &RecordArgs) -> Result<Option<Recording>, Failure> {
    let path = &args.output;
    if !path.is_file() {
        return Ok(None);
    }
    let mut recording = recording::read(path).map_err(Failure::of_file(path))?;
    if recording.end.is_none() {
        let is_running = Path::new(&format!("/proc/{}", args.pid)).exists();
        recording.end = Some(End::unseen(if is_running { Ending::Interrupted } else { Ending::ServerEnded }));
        new_file::write_whole(path, true, |to| recording.write(to))?;
    }
    Ok(Some(recording))
}

/// A recording in progress.
struct InProgress {
    recorder: Recorder<File>,
    source: std::sync::Arc<Source>,
    client: Option<Client>,
    progress: Progress,
    before: Option<Snapshot>,
}

impl InProgress {
    /// Records each second until `duration` is over, a signal comes or the server ends.
    async fn run(&mut self, duration: Duration, ends: &mut session::Ends) -> io::Result<Ending> {
        // Seconds start at attach, which is when waits are counted from.
        let began = Instant::now() - self.source.age();
        let mut ticks = interval_at(began + SECOND, SECOND);
        // A late tick makes its second longer and the next one shorter. Missed ticks are not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let is_over = tokio::time::sleep_until(began + duration);
        tokio::pin!(is_over);
        let ending = loop {
            tokio::select! {
                by = ends.wait() => break match by {
                    EndedBy::Signal => Ending::Interrupted,
                    EndedBy::Server => Ending::ServerEnded,
                },
                () = &mut is_over => break Ending::Complete,
                _ = ticks.tick() => self.second()?,
            }
        };
        let rest = self.before.as_ref().map_or(SECOND, |before| self.source.age().saturating_sub(before.elapsed));
        if rest >= SHORTEST {
            self.second()?;
        }
        Ok(ending)
    }

    fn second(&mut self) -> io::Result<()> {
        let now = self.source.snapshot();
        let queries = self.queries();
        self.recorder.second(&now, queries)?;
        self.progress.show(&now, self.before.as_ref());
        self.before = Some(now);
        Ok(())
    }

    /// Returns the server's count of statements. A server that stops answering is not asked again.
    fn queries(&mut self) -> Option<u64> {
        match self.client.as_mut()?.queries() {
            Ok(queries) => Some(queries),
            Err(error) => {
                if self.source.snapshot().up {
                    tracing::warn!("statements are no longer counted: {error}");
                }
                self.client = None;
                None
            }
        }
    }
}

/// The values of the server's settings, by name.
type Settings = BTreeMap<String, String>;

/// Opens the connection of `--mysql`, if given, and reads the server's settings.
fn connect(args: &RecordArgs) -> Result<Option<(Client, Settings)>, Failure> {
    let Some(mut client) = session::connect(&args.attach)? else { return Ok(None) };
    let settings = client.settings(SETTINGS)?;
    Ok(Some((client, settings)))
}

/// Shows progress on standard error: on a terminal a line that is redrawn, elsewhere only a line at the end.
struct Progress {
    duration: Duration,
    is_terminal: bool,
}

impl Progress {
    fn new(duration: Duration) -> Progress {
        Progress { duration, is_terminal: io::stderr().is_terminal() }
    }

    fn show(&self, now: &Snapshot, before: Option<&Snapshot>) {
        if !self.is_terminal {
            return;
        }
        let latches = Interval::new(now, before).top_latches();
        let waiting: f64 = latches.iter().map(|latch| latch.wait_ns_per_second).sum::<f64>() / 1e9;
        let top = latches.first().filter(|top| top.wait_ns_per_second > 0.0);
        let top = top.map_or_else(String::new, |top| format!(" · {}", top.latch));
        let (done, all) = (format::span(now.elapsed), format::span(self.duration));
        // A closed standard error must not end the recording.
        _ = write!(io::stderr(), "\r\x1b[Karmtrace: {done} of {all} · {waiting:.2} threads waiting{top}");
    }

    fn end(&self, ending: Ending, recorded: Duration, output: &Path) {
        let why = match ending {
            Ending::Complete => "",
            Ending::Interrupted => " (interrupted)",
            Ending::ServerEnded => " (the server has ended)",
        };
        let size = output.metadata().map_or(0, |meta| meta.len().div_ceil(1024));
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        let length = format::span(Duration::from_secs_f64(recorded.as_secs_f64().round()));
        _ = writeln!(io::stderr(), "{clear}armtrace: {length} recorded{why} in {}, {size} KiB", output.display());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor, Read};
    use std::time::Duration;

    use super::{copy, duration, label, Uncopied};

    #[test]
    fn a_recording_takes_a_second_to_an_hour() {
        assert_eq!(duration("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert!(["0.5s", "2h", "1d", "x"].into_iter().all(|bad| duration(bad).is_err()));
    }

    /// Times out.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }

    #[test]
    fn a_copy_tells_on_which_side_it_failed() {
        let (mut whole, mut part, mut full) = (Vec::new(), Vec::new(), [0; 2]);
        copy(&mut &b"recording"[..], &mut whole).expect("both sides work");
        let unread = copy(&mut b"rec".chain(Broken), &mut part);
        let unwritten = copy(&mut &b"recording"[..], &mut Cursor::new(&mut full[..]));
        assert!(matches!(unread, Err(Uncopied::Unread(_))) && matches!(unwritten, Err(Uncopied::Unwritten(_))));
        assert_eq!((&whole[..], &part[..]), (&b"recording"[..], &b"rec"[..]));
    }

    #[test]
    fn labels_have_a_key() {
        assert_eq!(label("os=openEuler 24=03"), Ok(("os".to_owned(), "openEuler 24=03".to_owned())));
        assert!(label("threads").is_err() && label(" =64").is_err());
    }
}

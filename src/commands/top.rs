//! `armtrace top`: shows a full-screen view of what a server waits for.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tokio::runtime::Runtime;

use super::line::{Server, Watch};
use super::servers;
use super::session::{self, AttachArgs, Session};
use super::values::{pid, time, ValueError};
use super::{Failure, UsageError};
use crate::attach::Writes;
use crate::export::SnapshotSource;
use crate::ui::screen::{Answer, Screen, Watching};

#[derive(Args, Clone, Debug)]
pub(super) struct TopArgs {
    /// Process ID of the server; without, choose among those that run
    #[arg(long, value_name = "PID", value_parser = pid)]
    pid: Option<i32>,
    #[command(flatten)]
    attach: AttachArgs,
    /// Refresh interval, 0.5s to 1m
    #[arg(long, default_value = DELAY, value_name = "TIME", value_parser = delay)]
    delay: Duration,
    /// Watch latches even in a virtual machine on x86, where a watched access can kill the server
    #[arg(long)]
    accept_crash_risk: bool,
}

/// The refresh interval if none is given.
pub(super) const DELAY: &str = "2s";

/// Parses the refresh interval of `armtrace top`.
pub(super) fn delay(text: &str) -> Result<Duration, ValueError> {
    let is_possible = |time: &Duration| (Duration::from_millis(500)..=Duration::from_secs(60)).contains(time);
    time(text).and_then(|time| Some(time).filter(is_possible).ok_or(ValueError::Delay))
}

/// The most events that are read and not yet dealt with.
const MOST_EVENTS: usize = 16;

/// The longest time until a signal, or the terminal's end, is noticed while no key is pressed.
const GLANCE: Duration = Duration::from_millis(100);

pub(super) fn top(args: &TopArgs) -> Result<(), Failure> {
    let Some(pid) = server(args)? else { return Ok(()) };
    let target = session::open(pid, &args.attach, Writes::Nothing)?;
    let Session { agent, mut ends, runtime } = Session::attach_with_statements(target, &args.attach, None)?;
    let lines = Some(Server::new(&agent, args.attach.max_overhead, args.accept_crash_risk.into()));
    let view = View { source: agent.source(), lines, delay: args.delay };
    // The end of the server does not end the session: its last figures stay on the screen until the user quits.
    let shown = view.show_until(&runtime, async move { ends.signal().await });
    agent.detach();
    runtime.shutdown_background();
    shown
}

/// Returns the server to show: the one in the arguments, or the one that the user chooses, if any.
fn server(args: &TopArgs) -> Result<Option<i32>, Failure> {
    if args.pid.is_some() {
        return require_terminal(Vec::new).map(|()| args.pid);
    }
    require_terminal(servers::choices)?;
    servers::choose()
}

/// Fails if the full-screen view has no terminal to draw on.
///
/// # Errors
/// Fails if standard input or output is no terminal; `servers` returns those that could have been chosen there.
pub(super) fn require_terminal(servers: impl FnOnce() -> Vec<String>) -> Result<(), Failure> {
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        return Ok(());
    }
    Err(UsageError::NoTerminal(servers()).into())
}

/// Keys and new sizes of the terminal. A thread of its own reads them: if the terminal goes, its end is read again and
/// again, so nobody waits for that thread.
struct Events {
    events: Receiver<io::Result<Event>>,
    is_over: Arc<AtomicBool>,
}

impl Events {
    /// Starts to read.
    ///
    /// # Errors
    /// Fails if there is no room for a thread.
    fn start() -> io::Result<Events> {
        let (sender, events) = mpsc::sync_channel(MOST_EVENTS);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        thread::Builder::new().name("keys".to_owned()).spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let event = match event::poll(GLANCE) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                if sender.send(event).is_err() {
                    break;
                }
            }
        })?;
        Ok(Events { events, is_over })
    }

    /// Returns the next event, if there is one within this time.
    ///
    /// # Errors
    /// Fails if the terminal is gone, or cannot be read.
    fn next(&self, time: Duration) -> io::Result<Option<Event>> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "it is gone");
        let event = match self.events.recv_timeout(time) {
            Ok(event) => Some(event?),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
        };
        let input = io::stdin();
        let mut wanted = [PollFd::new(&input, PollFlags::empty())];
        match poll(&mut wanted, Some(&Timespec::default())) {
            Ok(_) if wanted[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => Err(gone()),
            Ok(_) | Err(Errno::INTR) => Ok(event),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes over an event, and returns whether no more can come.
    fn has_ended(&self) -> bool {
        matches!(self.events.recv_timeout(GLANCE), Err(RecvTimeoutError::Disconnected))
    }
}

impl Drop for Events {
    /// Waits until nothing is read any more, so that the shell gets what is typed next. If the terminal is gone, it
    /// gives up: the end is read for ever.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + 2 * GLANCE;
        while Instant::now() < deadline && !self.has_ended() {}
    }
}

/// The sources of the screen's figures, and its refresh interval.
pub(super) struct View {
    pub source: Arc<dyn SnapshotSource>,
    /// Watches cache lines; `None` if there is no server, as in a replay.
    pub lines: Option<Server>,
    pub delay: Duration,
}

impl View {
    /// Takes over the terminal until the user quits or `end` completes.
    ///
    /// # Errors
    /// Fails if the terminal cannot be drawn on.
    pub fn show_until(&self, runtime: &Runtime, end: impl Future<Output = ()> + Send + 'static) -> Result<(), Failure> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let waiting = runtime.spawn(async move {
            end.await;
            over.store(true, Ordering::Relaxed);
        });
        let mut terminal = ratatui::try_init().map_err(Failure::Terminal)?;
        let shown = self.show(&mut terminal, &is_over);
        let restored = ratatui::try_restore();
        waiting.abort();
        shown.and(restored).map_err(Failure::Terminal)
    }

    /// Draws at each interval and after each key, until the user quits or a signal comes.
    fn show(&self, terminal: &mut DefaultTerminal, is_over: &AtomicBool) -> io::Result<()> {
        let mut screen = Screen::new(self.source.snapshot());
        let events = Events::start()?;
        let mut watch = None;
        let mut due = Instant::now() + self.delay;
        terminal.draw(|frame| screen.draw(frame))?;
        while !is_over.load(Ordering::Relaxed) {
            let mut has_changed = false;
            let time = GLANCE.min(due.saturating_duration_since(Instant::now()));
            match events.next(time)? {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    match screen.key(key) {
                        Answer::Quit => break,
                        Answer::Watch(latch) => watch = self.watch(latch, &mut screen),
                        Answer::StopWatch => watch.iter_mut().for_each(Watch::stop),
                        Answer::Continue => {}
                    }
                    has_changed = true;
                }
                Some(Event::Resize(..)) => has_changed = true,
                _ => {}
            }
            for state in watch.iter().flat_map(Watch::news) {
                screen.watching(state);
                has_changed = true;
            }
            if Instant::now() >= due {
                screen.update(self.source.snapshot());
                due = Instant::now() + self.delay;
                has_changed = true;
            }
            if has_changed {
                terminal.draw(|frame| screen.draw(frame))?;
            }
        }
        Ok(())
    }

    fn watch(&self, latch: String, screen: &mut Screen) -> Option<Watch> {
        let Some(lines) = &self.lines else {
            screen.watching(Watching::Failed("this is a recording, and its server's memory is not in it".to_owned()));
            return None;
        };
        let watch = lines.watch(latch);
        watch.inspect_err(|error| screen.watching(Watching::Failed(error.to_string()))).ok()
    }
}

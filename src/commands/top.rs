//! `armtrace top`: a full-screen view of what a server waits for.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;

use super::session::{self, Session};
use super::TopArgs;
use crate::agent::Source;
use crate::export::SnapshotSource;
use crate::failure::Failure;
use crate::ui::screen::{Answer, Screen};

/// How soon a signal is noticed while no key is pressed.
const GLANCE: Duration = Duration::from_millis(100);

pub(super) fn top(args: &TopArgs) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: `armtrace run` prints lines, `armtrace record` writes a file",
        ));
    }
    let target = session::open(&args.attach)?;
    let Session { mut agent, mut ends, runtime } = Session::attach(target, &args.attach)?;
    let source = agent.source();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let watch = runtime.spawn(async move {
        // A server that has ended stays on the screen until the user has seen that.
        ends.signal().await;
        over.store(true, Ordering::Relaxed);
    });
    let failed = |e: io::Error| Failure::running(format!("cannot draw on the terminal: {e}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, &source, args.delay, &is_over);
    let restored = ratatui::try_restore();
    watch.abort();
    agent.detach();
    runtime.shutdown_background();
    shown.and(restored).map_err(failed)
}

/// Draws at its interval and after each key, until the user quits or a signal comes.
fn show(terminal: &mut DefaultTerminal, source: &Source, delay: Duration, is_over: &AtomicBool) -> io::Result<()> {
    let mut screen = Screen::new(source.snapshot());
    let mut due = Instant::now() + delay;
    terminal.draw(|frame| screen.draw(frame))?;
    while !is_over.load(Ordering::Relaxed) {
        let mut has_changed = false;
        if event::poll(GLANCE.min(due.saturating_duration_since(Instant::now())))? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if screen.key(key) == Answer::Quit {
                        break;
                    }
                    has_changed = true;
                }
                Event::Resize(..) => has_changed = true,
                _ => {}
            }
        }
        if Instant::now() >= due {
            screen.update(source.snapshot());
            due = Instant::now() + delay;
            has_changed = true;
        }
        if has_changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
    }
    Ok(())
}

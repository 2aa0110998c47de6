//! Commands to the thread that holds the programs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use crate::attach::Budget;

/// The commands to the thread. It ends when no sender is left.
pub(super) enum Command {
    /// Keep the probes within this budget.
    Govern(Budget),
    /// Detach all groups until told to resume, and report when they are detached.
    Pause(Sender<()>),
    Resume,
    /// Detach everything.
    Detach,
}

/// Returns the next command.
pub(super) fn next(commands: &Receiver<Command>) -> Command {
    commands.recv().unwrap_or(Command::Detach)
}

/// Waits until the given time, unless a command arrives, which is then returned as the error.
pub(super) fn wait_until(commands: &Receiver<Command>, until: Instant) -> Result<(), Command> {
    match commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Err(RecvTimeoutError::Disconnected) => Err(Command::Detach),
        Ok(command) => Err(command),
    }
}

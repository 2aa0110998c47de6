//! The thread that holds the programs on a server, and executes commands of other threads.

use std::sync::mpsc::Receiver;

use super::attacher::Attacher;
use super::command::{next, Command};
use super::duty::DutyCycle;

/// Executes commands until told to detach, and then detaches.
pub(super) fn keep(mut attacher: Attacher<'_>, commands: &Receiver<Command>) {
    let mut governed: Option<DutyCycle> = None;
    let mut paused = false;
    loop {
        let command = match &mut governed {
            Some(governed) if !paused => governed.run(&mut attacher, commands),
            _ => Ok(next(commands)),
        };
        match command {
            Ok(Command::Govern(budget)) => governed = Some(DutyCycle::new(budget, attacher.groups())),
            Ok(Command::Pause(off)) => {
                attacher.take_all_off();
                paused = true;
                _ = off.send(());
            }
            Ok(Command::Resume) => {
                paused = false;
                // With a budget, the turns continue as they were.
                if governed.is_none() {
                    attacher.put_all_on();
                }
            }
            Ok(Command::Detach) => break,
            Err(error) => {
                tracing::error!("the overhead budget is no longer enforced: {error:#}");
                // Whatever is on stays on: at the last check it was within the budget.
                governed = None;
            }
        }
    }
    attacher.detach();
}

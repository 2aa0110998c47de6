//! The thread that holds the programs on a server, and executes commands of other threads.

use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::attacher::Attacher;
use super::command::{next, wait_until, Command};
use super::duty::DutyCycle;
use super::status::Status;
use crate::attach::Budget;

/// For how long probes are off after the budget could not be enforced.
pub(super) const AFTER_ERROR: Duration = Duration::from_secs(30);

/// The probes on a server.
pub(super) trait Probes {
    /// How a budget is enforced.
    type Duty;
    fn duty(&self, budget: Budget) -> Self::Duty;
    /// Enforces the budget until a command arrives.
    ///
    /// # Errors
    /// Fails when it is not known what the probes cost. Then any of them may be attached.
    fn enforce(&mut self, duty: &mut Self::Duty, commands: &Receiver<Command>) -> Result<Command>;
    /// Takes all probes off, and returns when the kernel has finished.
    fn take_all_off(&mut self);
    fn put_all_on(&mut self);
    fn detach(self);
}

impl Probes for Attacher<'_> {
    type Duty = DutyCycle;

    fn duty(&self, budget: Budget) -> DutyCycle {
        DutyCycle::new(budget, self.groups())
    }

    fn enforce(&mut self, duty: &mut DutyCycle, commands: &Receiver<Command>) -> Result<Command> {
        duty.run(self, commands)
    }

    fn take_all_off(&mut self) {
        Attacher::take_all_off(self);
    }

    fn put_all_on(&mut self) {
        Attacher::put_all_on(self);
    }

    fn detach(self) {
        Attacher::detach(self);
    }
}

/// Executes commands until told to detach, and then detaches. If the budget cannot be enforced, probes are off for
/// `after_error`, because nobody knows what they cost; then it is tried again.
pub(super) fn keep<P: Probes>(mut probes: P, commands: &Receiver<Command>, after_error: Duration) {
    let mut governed: Option<P::Duty> = None;
    let mut paused = false;
    let mut off_until: Option<Instant> = None;
    loop {
        let command = match (&mut governed, off_until) {
            (Some(duty), None) if !paused => probes.enforce(duty, commands),
            (Some(_), Some(time)) if !paused => match wait_until(commands, time) {
                Ok(()) => {
                    off_until = None;
                    continue;
                }
                Err(command) => Ok(command),
            },
            _ => Ok(next(commands)),
        };
        match command {
            Ok(Command::Govern(budget)) => governed = Some(probes.duty(budget)),
            Ok(Command::Pause(off)) => {
                probes.take_all_off();
                paused = true;
                _ = off.send(());
            }
            Ok(Command::Resume) => {
                paused = false;
                // With a budget, the turns continue as they were.
                if governed.is_none() {
                    probes.put_all_on();
                }
            }
            Ok(Command::Detach) => break,
            Err(error) => {
                tracing::error!(
                    "the overhead budget cannot be enforced, so all probes are off for {after_error:?}: {error:#}"
                );
                probes.take_all_off();
                off_until = Some(Instant::now() + after_error);
            }
        }
    }
    probes.detach();
}

/// Says, when it is dropped, that nothing is attached any more.
pub(super) struct SaysEnd(pub Arc<Status>);

impl Drop for SaysEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("waits are no longer measured, and all probes are off: this is a bug in armtrace");
        }
        self.0.set_detached();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Sender};
    use std::thread;

    use super::super::maps::Tracepoint;
    use super::*;
    use crate::attach::Costs;
    use crate::model::ProbeState;

    /// Probes whose budget can be enforced in every second attempt.
    struct Flaky {
        attempts: usize,
        done: Sender<(&'static str, Instant)>,
    }

    impl Flaky {
        fn note(&self, what: &'static str) {
            self.done.send((what, Instant::now())).expect("the test listens");
        }
    }

    impl Probes for Flaky {
        type Duty = ();
        fn duty(&self, _: Budget) {}
        fn enforce(&mut self, (): &mut (), commands: &Receiver<Command>) -> Result<Command> {
            self.note("enforce");
            self.attempts += 1;
            anyhow::ensure!(self.attempts.is_multiple_of(2), "a map cannot be read");
            Ok(next(commands))
        }
        fn take_all_off(&mut self) {
            self.note("off");
        }
        fn put_all_on(&mut self) {
            self.note("on");
        }
        fn detach(self) {
            self.note("detach");
        }
    }

    fn budget() -> Budget {
        Budget { share: 0.01, costs: Costs::default(), others_ns: Box::new(|| 0) }
    }

    /// Returns what is done on these commands, when it has ended.
    fn done_on(after_error: Duration, send: impl FnOnce(&Sender<Command>)) -> Vec<(&'static str, Instant)> {
        let (commands, orders) = mpsc::channel();
        let (done, seen) = mpsc::channel();
        let keeper = thread::spawn(move || keep(Flaky { attempts: 0, done }, &orders, after_error));
        send(&commands);
        drop(commands);
        keeper.join().expect("no panic");
        seen.iter().collect()
    }

    #[test]
    fn without_a_known_cost_probes_are_off_for_a_while() {
        let pause = Duration::from_millis(50);
        let done = done_on(pause, |commands| {
            commands.send(Command::Govern(budget())).expect("it runs");
            thread::sleep(10 * pause);
        });
        let names: Vec<&str> = done.iter().map(|(what, _)| *what).collect();
        assert_eq!(names, ["enforce", "off", "enforce", "detach"]);
        assert!(done[2].1 - done[1].1 >= pause, "{done:?}");
    }

    #[test]
    fn a_resumed_measurement_stays_off_until_its_time() {
        let done = done_on(Duration::from_secs(600), |commands| {
            let (off, are_off) = mpsc::channel();
            commands.send(Command::Govern(budget())).expect("it runs");
            commands.send(Command::Pause(off)).expect("it runs");
            are_off.recv().expect("an answer");
            commands.send(Command::Resume).expect("it runs");
        });
        let names: Vec<&str> = done.iter().map(|(what, _)| *what).collect();
        assert_eq!(names, ["enforce", "off", "off", "detach"]);
    }

    #[test]
    fn a_thread_that_panics_says_that_probes_are_off() {
        let status = Arc::new(Status::default());
        *status.probes.lock() = vec![ProbeState::Attached, ProbeState::Failed, ProbeState::DutyCycle];
        *status.tracepoints.lock() = vec![(Tracepoint::ThreadExit, ProbeState::Attached)];
        let says = SaysEnd(Arc::clone(&status));
        let panicked = thread::spawn(move || {
            let _says = says;
            panic!("in there");
        });
        assert!(panicked.join().is_err());
        let expected = [ProbeState::Detached, ProbeState::Failed, ProbeState::Detached];
        assert_eq!(*status.probes.lock(), expected);
        assert_eq!(*status.tracepoints.lock(), [(Tracepoint::ThreadExit, ProbeState::Detached)]);
    }
}

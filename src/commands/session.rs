//! What commands that attach to a server share: attaching, the budget, and what ends them.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::signal::unix::{signal, Signal, SignalKind};

use super::AttachArgs;
use crate::agent::{Agent, More, Options};
use crate::attach;
use crate::failure::Failure;
use crate::measure::statements::StatementCounter;
use crate::symbols::Settings;
use crate::target::{Client, Target};

/// A server with probes attached, and what will end that.
pub(super) struct Session {
    pub agent: Agent,
    pub ends: Ends,
    pub runtime: Runtime,
}

/// The server, before anything is attached to it: what else may fail should fail between this and [`Session::attach`].
pub(super) fn open(args: &AttachArgs) -> Result<Target, Failure> {
    let target = Target::open_with(args.pid, &Settings::from_env(args.symbols.clone()))?;
    attach::require_privilege()?;
    Ok(target)
}

/// The connection that was asked for.
pub(super) fn connect(args: &AttachArgs) -> Result<Option<Client>, Failure> {
    args.mysql.as_deref().map(Client::connect).transpose()
}

impl Session {
    /// Attaches, and counts the statements of the server too where that was asked for.
    pub fn attach_with_statements(target: Target, args: &AttachArgs) -> Result<Session, Failure> {
        let statements = connect(args)?.map(StatementCounter::start).transpose()?;
        Session::attach(target, args, statements)
    }

    /// Attaches, and keeps what that costs within the budget.
    pub fn attach(target: Target, args: &AttachArgs, statements: Option<StatementCounter>) -> Result<Session, Failure> {
        let failed = |e: io::Error| Failure::running(format!("cannot start: {e}"));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
        // From here on a signal is waited for rather than fatal, so that it cannot cut attaching short.
        let ends = {
            let _entered = runtime.enter();
            Ends::new(&target).map_err(failed)?
        };
        let remarks = target.remarks();
        let more = More { sample_hz: args.sample_hz, hardware_events: args.hardware_events, statements };
        let options = Options { max_overhead: args.max_overhead, domains: args.handoffs, more: Some(more) };
        let agent = Agent::attach(target, options)?;
        for line in remarks.into_iter().chain(agent.degradations()) {
            tracing::warn!("{line}");
        }
        Ok(Session { agent, ends, runtime })
    }
}

/// What ends a session: SIGINT, SIGTERM or the server's end. Signals that ask for a pause come here too, so that they are
/// fatal to none.
pub(super) struct Ends {
    interrupt: Signal,
    terminate: Signal,
    pause: Signal,
    resume: Signal,
    server: AsyncFd<OwnedFd>,
}

/// What a session is told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// SIGUSR1.
    Pause,
    /// SIGUSR2.
    Resume,
    End(EndedBy),
}

/// What ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    Signal,
    Server,
}

impl Ends {
    pub fn new(target: &Target) -> io::Result<Ends> {
        let pidfd = target.pidfd()?;
        // SAFETY: `pidfd` owns an open descriptor for as long as it is registered, and nobody else closes it.
        let server = unsafe { AsyncFd::register(pidfd) }?;
        Ok(Ends {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            pause: signal(SignalKind::user_defined1())?,
            resume: signal(SignalKind::user_defined2())?,
            server,
        })
    }

    pub async fn told(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::End(EndedBy::Signal),
            _ = self.terminate.recv() => Told::End(EndedBy::Signal),
            _ = self.server.readable() => Told::End(EndedBy::Server),
            _ = self.pause.recv() => Told::Pause,
            _ = self.resume.recv() => Told::Resume,
        }
    }

    /// Waits for the end alone: a session that cannot pause goes on.
    pub async fn wait(&mut self) -> EndedBy {
        loop {
            if let Told::End(by) = self.told().await {
                return by;
            }
        }
    }

    /// Waits for a signal alone.
    pub async fn signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

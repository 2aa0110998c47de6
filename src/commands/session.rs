//! What commands that attach to a server share: attaching, the budget, and what ends them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::signal::unix::{signal, Signal, SignalKind};

use super::AttachArgs;
use crate::agent::{Agent, Source};
use crate::attach;
use crate::failure::Failure;
use crate::memory;
use crate::symbols::Settings;
use crate::target::{Client, StatementCounter, Target};

/// As `nice` counts.
const LOWEST_PRIORITY: i32 = 19;

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
        let session = Session::attach(target, args)?;
        if let Some(statements) = statements {
            session.agent.source().count_statements(statements);
        }
        Ok(session)
    }

    /// Attaches, and keeps what that costs within the budget.
    pub fn attach(target: Target, args: &AttachArgs) -> Result<Session, Failure> {
        let failed = |e: io::Error| Failure::running(format!("cannot start: {e}"));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
        // From here on a signal is waited for rather than fatal, so that it cannot cut attaching short.
        let ends = {
            let _entered = runtime.enter();
            Ends::new(&target).map_err(failed)?
        };
        let remarks = target.remarks();
        let agent = Agent::attach(target, args.sample_hz, args.handoffs, args.max_overhead)?;
        for line in remarks.into_iter().chain(agent.degradations()) {
            tracing::warn!("{line}");
        }
        runtime.spawn_blocking(agent.keep_within(args.max_overhead));
        look_further(agent.source(), args.hardware_events);
        Ok(Session { agent, ends, runtime })
    }
}

/// Finds out the rest in a thread of its own, which takes next to nothing of a busy CPU for what takes long.
fn look_further(source: Arc<Source>, hardware_events: bool) {
    let look = move || {
        source.look_into_code();
        if hardware_events {
            source.count_hardware_events();
        }
        // SAFETY: the call takes and changes nothing but this thread's own priority.
        let lowered = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST_PRIORITY) };
        if lowered == 0 {
            source.count_barriers();
        }
        memory::give_back();
    };
    if let Err(error) = std::thread::Builder::new().name("code".into()).spawn(look) {
        tracing::warn!("the server's code is not looked into: {error}");
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

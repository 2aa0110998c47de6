//! Shared parts of the commands that attach to a server: attaching within the budget, signals, and the server's end.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, FromArgMatches};
use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::signal::unix::{signal, Signal, SignalKind};

use super::hindsight::HindsightArgs;
use super::values::{share, MAX_OVERHEAD};
use super::{Failure, UsageError};
use crate::agent::{Agent, Options};
use crate::attach::{self, Writes};
use crate::host::Domains;
use crate::kept::Cache;
use crate::measure::latch::{StatementDetail, StatementOptions};
use crate::measure::statements::StatementCounter;
use crate::measure::More;
use crate::server::{Access, Client, Target};
use crate::symbols::Settings;
use crate::worker::can_start;

/// The number of threads for work that blocks: a snapshot for those who ask for one, one for what is drawn, and the
/// check of a password.
const BLOCKING_THREADS: usize = 3;

/// How long a thread may be idle: as long as any process runs.
const LONG: Duration = Duration::from_secs(100 * 365 * 86400);

/// The arguments of every command that attaches to a server, besides which server it is.
#[derive(Args, Clone, Debug, PartialEq)]
pub(super) struct AttachArgs {
    /// Debug file or symbol file of a stripped server
    #[arg(long, value_name = "FILE")]
    pub symbols: Option<PathBuf>,
    /// Probes' largest share of CPU time
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share)]
    pub max_overhead: f64,
    /// Folder of what is found in programs, or off
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Attach no probe: look at threads' stacks
    #[arg(long)]
    pub no_probes: bool,
    /// CPU samples per CPU and second, 0 for none [default: 99 or fewer]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub sample_hz: Option<u32>,
    /// What to show of statements that wait: text without values, digest or off
    #[arg(long, default_value = "text", value_name = "DETAIL", hide_possible_values = true)]
    pub statements: StatementDetail,
    /// Ask the server which statements wait
    #[arg(long)]
    pub ask_statements: bool,
    /// Between what to count handoffs: auto, node, cache, core or off
    #[arg(long, default_value = "auto", value_name = "BETWEEN", hide_possible_values = true)]
    pub handoffs: Domains,
    /// Count hardware events too, if proven on this CPU
    #[arg(long)]
    pub hardware_events: bool,
    /// Read the server's statement count: mysql://USER:PASSWORD@HOST:PORT or mysql://USER@localhost?socket=/PATH
    #[arg(long, value_name = "URL", env = "ARMTRACE_MYSQL", hide_env = true, hide_env_values = true)]
    pub mysql: Option<String>,
    /// The same, from an option file's group [client]
    #[arg(long, value_name = "FILE", conflicts_with = "mysql")]
    pub defaults_file: Option<PathBuf>,
}

impl AttachArgs {
    /// Returns whether none of them was given.
    pub fn are_defaults(&self) -> bool {
        let none = AttachArgs::augment_args(clap::Command::new("none")).get_matches_from(["none"]);
        // The URL may be in the environment.
        self.mysql.is_none() && AttachArgs::from_arg_matches(&none).is_ok_and(|none| none == *self)
    }

    /// Returns where what is found in programs is kept, if anywhere.
    pub fn cache(&self) -> Option<Cache> {
        match &self.cache_dir {
            None => Some(Cache::usual()),
            Some(folder) if folder.as_os_str() == "off" => None,
            Some(folder) => Some(Cache::below(folder)),
        }
    }

    /// Returns which statements that wait are wanted, and what may ask the server for them.
    pub fn statement_options(&self, client: Option<Client>) -> StatementOptions {
        StatementOptions { detail: self.statements, client, only_asked: self.ask_statements }
    }

    /// Returns the options that say how to ask the server, and whether one of them is given.
    pub fn ways_to_ask(&self) -> (&'static str, bool) {
        ("--mysql or --defaults-file", self.access().is_some())
    }

    /// Returns how to ask the server, if it is to be asked.
    fn access(&self) -> Option<Access<'_>> {
        let file = self.defaults_file.as_deref().map(Access::OptionFile);
        file.or(self.mysql.as_deref().map(Access::Url))
    }
}

/// A server with probes attached, and the events that end the session.
pub(super) struct Session {
    pub agent: Agent,
    pub ends: Ends,
    pub runtime: Runtime,
}

/// Gives up the privileges that are not needed, then opens the server without attaching anything to it. Call it before
/// any thread is started, and do everything else that may fail between this and [`Session::attach`].
///
/// # Errors
/// Fails if the process is not a supported server, if a privilege is missing, or if the server is to be asked and it is
/// not said how.
pub(super) fn open(pid: i32, args: &AttachArgs, writes: Writes) -> Result<Target, Failure> {
    let (access, is_given) = args.ways_to_ask();
    if args.ask_statements && !is_given {
        return Err(UsageError::NobodyToAsk { option: "--ask-statements", access }.into());
    }
    confine(writes);
    let target = Target::open_with(pid, &Settings::from_env(args.symbols.clone()))?;
    attach::require_privilege()?;
    Ok(target)
}

/// Gives up the privileges that are not needed. Call it before any thread is started.
pub(super) fn confine(writes: Writes) {
    if let Err(why) = attach::confine(writes) {
        tracing::warn!("armtrace keeps privileges that it does not need: {why}");
    }
}

/// Opens the connection of `--mysql` or `--defaults-file`, if given.
pub(super) fn connect(args: &AttachArgs) -> Result<Option<Client>, Failure> {
    Ok(args.access().map(Client::connect).transpose()?)
}

impl Session {
    /// Attaches, and counts the server's statements too if it may be asked. The past is kept as `hindsight` says, if at
    /// all.
    pub fn attach_with_statements(
        target: Target,
        args: &AttachArgs,
        hindsight: Option<&HindsightArgs>,
    ) -> Result<Session, Failure> {
        let wants_longest = hindsight.is_some_and(|args| args.dump_when_statement.is_some());
        let client = args.access().map(Client::connect_when_possible).transpose()?;
        let asks = client.as_ref().map(Client::another);
        let count = |client| StatementCounter::start(target.pid, client, wants_longest);
        let statements = client.map(count).transpose()?;
        Session::attach(target, args, statements, asks, hindsight.map_or(Duration::ZERO, |args| args.keep))
    }

    /// Attaches, and keeps the cost within the budget. `asks` may ask the server. So much of the past is kept.
    pub fn attach(
        target: Target,
        args: &AttachArgs,
        statements: Option<StatementCounter>,
        asks: Option<Client>,
        keep: Duration,
    ) -> Result<Session, Failure> {
        let runtime = runtime()?;
        // From here on signals are queued instead of fatal, so that none can interrupt attaching halfway.
        let ends = {
            let _entered = runtime.enter();
            Ends::new(&target).map_err(Failure::Start)?
        };
        let remarks = target.remarks();
        let statements = statements.map(Arc::new);
        let more = More { sample_hz: args.sample_hz, hardware_events: args.hardware_events, statements };
        let options = Options {
            max_overhead: args.max_overhead,
            without_probes: args.no_probes,
            statements: args.statement_options(asks),
            domains: args.handoffs,
            keep,
            cache: args.cache(),
            more: Some(more),
        };
        let agent = Agent::attach(target, options)?;
        for line in remarks.iter().chain(agent.degradations()) {
            tracing::warn!("{line}");
        }
        Ok(Session { agent, ends, runtime })
    }
}

/// Starts the runtime in which a command waits for signals and serves metrics.
///
/// # Errors
/// Fails if the kernel provides no thread, or no descriptor.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    // The runtime panics where it gets none.
    can_start(1 + BLOCKING_THREADS).map_err(Failure::Start)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).thread_keep_alive(LONG).enable_all().build().map_err(Failure::Start)?;
    start_blocking_threads(&runtime);
    Ok(runtime)
}

/// Starts the threads that take snapshots and draw, which stay: later, when the system may refuse to start any, none is
/// needed.
fn start_blocking_threads(runtime: &Runtime) {
    let gate = Arc::new(Mutex::new(()));
    // None of them is free for the work of another before all have begun.
    let closed = gate.lock();
    for _ in 0..BLOCKING_THREADS {
        let gate = Arc::clone(&gate);
        runtime.spawn_blocking(move || drop(gate.lock()));
    }
    drop(closed);
}

/// Lets SIGUSR1 and SIGUSR2 have no effect until there is something that pauses and resumes. Without this, they would
/// kill a command that has just begun, or that cannot pause.
pub fn ignore_early_requests() {
    for request in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: installs no handler, and the process has one thread.
        unsafe { libc::signal(request, libc::SIG_IGN) };
    }
}

/// Returns whether whoever started this process wants it to outlive its terminal, as nohup does.
fn hangups_are_ignored() -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only reads the present action, into space for one, which is initialized if the call succeeds.
    unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Returns whether this process has a terminal that it can lose. A service has none.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// SIGINT, SIGTERM, and SIGHUP unless it is ignored: they are no longer fatal once this exists.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Begins to receive the signals. Call it within a runtime.
    ///
    /// # Errors
    /// Fails if the kernel refuses to deliver them to a handler.
    pub fn new() -> io::Result<Signals> {
        let hangup = (!hangups_are_ignored()).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
        }
    }
}

/// What signals ask for: SIGINT, SIGTERM or SIGHUP for the end, SIGUSR1 and SIGUSR2 for a pause and its end, SIGQUIT
/// for a dump.
pub(super) struct Requests {
    signals: Signals,
    pause: Signal,
    resume: Signal,
    /// SIGHUP, where it asks for the settings to be read again.
    reload: Option<Signal>,
    /// SIGQUIT, where it asks for a dump. Otherwise it ends the process.
    dump: Option<Signal>,
}

impl Requests {
    /// Begins to receive the signals. Call it within a runtime.
    ///
    /// # Errors
    /// Fails if the kernel refuses to deliver them to a handler.
    pub fn new() -> io::Result<Requests> {
        let (pause, resume) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
        Ok(Requests { signals: Signals::new()?, pause, resume, reload: None, dump: None })
    }

    /// Lets SIGHUP ask for the settings to be read again, as is usual for services, where no terminal can be lost.
    pub fn reload_on_hangup(&mut self) {
        if !has_terminal() {
            self.reload = self.signals.hangup.take();
        }
    }

    /// Lets SIGQUIT ask for a dump, as it asks other programs for a state of all threads. Call it within a runtime.
    ///
    /// # Errors
    /// Fails if the kernel refuses to deliver it to a handler.
    pub fn dump_on_quit(&mut self) -> io::Result<()> {
        self.dump = Some(signal(SignalKind::quit())?);
        Ok(())
    }

    /// Waits for the next one.
    pub async fn told(&mut self) -> Told {
        tokio::select! {
            () = self.signals.wait() => Told::End(EndedBy::Signal),
            _ = self.pause.recv() => Told::Pause,
            _ = self.resume.recv() => Told::Resume,
            Some(()) = async { self.reload.as_mut()?.recv().await } => Told::Reload,
            Some(()) = async { self.dump.as_mut()?.recv().await } => Told::Dump,
        }
    }
}

/// The events that end a session: SIGINT, SIGTERM, SIGHUP or the server's end. SIGUSR1 and SIGUSR2 are received here
/// too.
pub(super) struct Ends {
    requests: Requests,
    server: AsyncFd<OwnedFd>,
}

/// An event from outside the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// SIGUSR1.
    Pause,
    /// SIGUSR2.
    Resume,
    /// SIGHUP, after [`Requests::reload_on_hangup`].
    Reload,
    /// SIGQUIT, after [`Requests::dump_on_quit`].
    Dump,
    End(EndedBy),
}

/// The event that ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    Signal,
    Server,
}

impl Ends {
    pub fn new(target: &Target) -> io::Result<Ends> {
        let pidfd = target.pidfd()?;
        // SAFETY: `pidfd` owns an open descriptor for as long as it is registered, and nothing else closes it.
        let server = unsafe { AsyncFd::register(pidfd) }?;
        Ok(Ends { requests: Requests::new()?, server })
    }

    /// As [`Requests::reload_on_hangup`].
    pub fn reload_on_hangup(&mut self) {
        self.requests.reload_on_hangup();
    }

    /// As [`Requests::dump_on_quit`].
    pub fn dump_on_quit(&mut self) -> io::Result<()> {
        self.requests.dump_on_quit()
    }

    pub async fn told(&mut self) -> Told {
        tokio::select! {
            told = self.requests.told() => told,
            _ = self.server.readable() => Told::End(EndedBy::Server),
        }
    }

    /// Waits for the end of the session, and ignores requests to pause or resume.
    pub async fn wait(&mut self) -> EndedBy {
        loop {
            if let Told::End(by) = self.told().await {
                return by;
            }
        }
    }

    /// Waits for a signal that ends the session, and ignores the server's end.
    pub async fn signal(&mut self) {
        self.requests.signals.wait().await;
    }
}

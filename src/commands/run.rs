//! `armtrace run`: attaches, serves metrics and shows the top latches until interrupted or the server ends.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::config::ConfigArgs;
use super::discover;
use super::hindsight::{self, HindsightArgs};
use super::log::{self, LogArgs};
use super::notify::{Notifier, Supervised};
use super::output::Format;
use super::port::PortArgs;
use super::reload::Reload;
use super::session::{self, AttachArgs, EndedBy, Ends, Session, Told};
use super::values::pid;
use super::watch;
use super::Failure;
use crate::agent::Agent;
use crate::attach::Writes;
use crate::dumps::Dumps;
use crate::export::{self, Exporter, Listener, Policy, Servers, SnapshotSource};
use crate::follow::in_words;
use crate::ui::LiveView;

#[derive(Args, Clone, Debug)]
pub(super) struct RunArgs {
    // The group makes clap choose `run` if no command is given: clap leaves it empty where a structure is flattened.
    /// Process ID of the server
    #[arg(long, group = "RunArgs", value_name = "PID", value_parser = pid)]
    pub pid: Option<i32>,
    /// Measure all servers of this host, now and later
    #[arg(long, group = "RunArgs", conflicts_with_all = ["pid", "symbols", "mysql", "ask_statements", "watch"])]
    pub discover: bool,
    #[command(flatten)]
    pub attach: AttachArgs,
    #[command(flatten)]
    pub hindsight: HindsightArgs,
    #[command(flatten)]
    pub port: PortArgs,
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// Watch a latch's cache line for false sharing
    #[arg(long, value_name = "LATCH", conflicts_with_all = ["listen", "web_config_file", "allowed_hosts", "no_probes"])]
    pub watch: Option<String>,
    /// Watch in an x86 VM too: it may kill the server
    #[arg(long, requires = "watch")]
    pub accept_crash_risk: bool,
    /// Output of --watch: text or json
    #[arg(long, default_value = "text", requires = "watch", hide_possible_values = true)]
    pub format: Format,
    /// Short for --format json
    #[arg(long, requires = "watch", conflicts_with = "format")]
    pub json: bool,
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    if let Some(file) = &args.config.config {
        tracing::info!("settings that the command line leaves out are those in {}", file.display());
    }
    let Some(pid) = args.pid else { return discover::discover(args) };
    if let Some(latch) = &args.watch {
        return watch::watch(args, pid, latch);
    }
    let (attach, kept) = (&args.attach, &args.hindsight);
    kept.check(attach.ways_to_ask())?;
    let target = session::open(pid, attach, Writes::Nothing)?;
    // The file is read with the privileges that armtrace keeps, because it may change later.
    let policy = args.port.policy()?;
    let listener = args.port.listen.bind()?;
    let folder = kept.folder()?;
    let Session { agent, ends, runtime } = Session::attach_with_statements(target, attach, Some(kept))?;
    let socket = kept.socket();
    let sources = hindsight::of_one(agent.source());
    let dumps = folder.map(|folder| kept.start_dumps(folder, Arc::clone(&sources), log::tell)).transpose()?;
    let ended = runtime.block_on(async {
        let _answering = socket.map(|socket| hindsight::answer(socket, sources));
        serve(agent, listener, policy, ends, dumps, Reload::new(args)).await
    });
    // A thread may still be blocked writing to a terminal that does not read. Do not wait for it.
    runtime.shutdown_background();
    ended
}

/// Serves metrics and shows the live table until the session ends, then detaches the probes.
async fn serve(
    agent: Agent,
    listener: Listener,
    policy: Policy,
    mut ends: Ends,
    dumps: Option<Dumps>,
    reload: Reload,
) -> Result<(), Failure> {
    ends.reload_on_hangup();
    dumps.as_ref().map_or(Ok(()), |_| ends.dump_on_quit()).map_err(Failure::Start)?;
    let shown = Shown::begin(agent.source(), listener, policy)?;
    let notifier = Notifier::ready(Arc::new(OneServer(in_words(&agent.target))));
    if watch(&agent, &mut ends, dumps.as_ref(), &reload).await == EndedBy::Server {
        log::tell(&format!("process {} has ended", agent.target.pid));
    }
    notifier.stopping();
    shown.hide();
    agent.detach();
    // Only now the past of a server that has ended is whole.
    dumps.into_iter().for_each(Dumps::finish);
    shown.stop().await;
    Ok(())
}

/// The server that is measured, in words.
struct OneServer(String);

impl Supervised for OneServer {
    fn status(&self) -> String {
        format!("Measuring {}", self.0)
    }
}

/// A live table that is being drawn, and metrics that are being served.
pub(super) struct Shown {
    view: JoinHandle<()>,
    /// Makes the table show the last figures, and end.
    last: oneshot::Sender<()>,
    server: JoinHandle<io::Result<()>>,
    stop: oneshot::Sender<()>,
}

impl Shown {
    /// Starts to draw and serve what `source` has.
    ///
    /// # Errors
    /// Fails if the metrics cannot be registered.
    pub fn begin(source: Arc<dyn SnapshotSource>, listener: Listener, policy: Policy) -> Result<Shown, Failure> {
        let exporter = Exporter::new(Arc::clone(&source)).map_err(Failure::Export)?;
        let (last, is_last) = oneshot::channel();
        let view = tokio::spawn(show(source, listener.url(policy.speaks_tls()), is_last));
        Ok(Shown::serving(exporter, listener, policy, view, last))
    }

    /// The same for several servers, which have a line each, on a terminal only.
    ///
    /// # Errors
    /// Fails if the metrics cannot be registered.
    pub fn many(servers: Arc<dyn Servers>, listener: Listener, policy: Policy) -> Result<Shown, Failure> {
        let exporter = Exporter::of_many(Arc::clone(&servers)).map_err(Failure::Export)?;
        let url = listener.url(policy.speaks_tls());
        let view = tokio::spawn(async move {
            if io::stdout().is_terminal() {
                discover::show(servers, url).await;
            }
        });
        // The table goes on until it is stopped.
        let (last, _) = oneshot::channel();
        Ok(Shown::serving(exporter, listener, policy, view, last))
    }

    fn serving(
        exporter: Exporter,
        listener: Listener,
        policy: Policy,
        view: JoinHandle<()>,
        last: oneshot::Sender<()>,
    ) -> Shown {
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(export::serve(listener, exporter, policy, async { _ = stopped.await }));
        Shown { view, last, server, stop }
    }

    /// Draws no more. Metrics are still served.
    pub fn hide(&self) {
        self.view.abort();
    }

    /// Stops at once.
    pub async fn stop(self) {
        self.view.abort();
        _ = self.stop.send(());
        _ = self.server.await;
    }

    /// Draws the last figures, and stops. If nobody reads the output, they are left out.
    pub async fn finish(mut self) {
        _ = self.last.send(());
        _ = tokio::time::timeout(LONGEST_DRAWING, &mut self.view).await;
        self.view.abort();
        _ = self.stop.send(());
        _ = self.server.await;
    }
}

/// When the table is drawn for the first time. Rates of less than a second say nothing.
const FIRST: Duration = Duration::from_secs(1);

/// The longest that drawing the last figures may take.
const LONGEST_DRAWING: Duration = Duration::from_millis(500);

/// Detaches and reattaches the probes on SIGUSR1 and SIGUSR2, reads the settings again on SIGHUP, writes a dump on
/// SIGQUIT, and returns what ended the session.
async fn watch(agent: &Agent, ends: &mut Ends, dumps: Option<&Dumps>, reload: &Reload) -> EndedBy {
    loop {
        match ends.told().await {
            Told::End(by) => return by,
            Told::Pause => agent.pause(),
            Told::Resume => agent.resume(),
            Told::Reload => reload.all_but_attached(),
            Told::Dump => dumps.into_iter().for_each(Dumps::ask),
        }
    }
}

/// Redraws the live table at its interval, and a last time when `last` says so. If the output is not read, only the
/// drawing blocks.
async fn show(source: Arc<dyn SnapshotSource>, url: String, mut last: oneshot::Receiver<()>) {
    if !log::table_is_seen() {
        return tracing::info!("metrics are served on {url}");
    }
    let mut view = LiveView::new(io::stdout().is_terminal(), &url);
    let mut ticks = tokio::time::interval_at(Instant::now() + FIRST, view.interval());
    let mut is_last = false;
    while !is_last {
        is_last = tokio::select! {
            _ = ticks.tick() => false,
            _ = &mut last => true,
        };
        let source = Arc::clone(&source);
        let drawn = tokio::task::spawn_blocking(move || view.draw(&source.snapshot()).map(|()| view)).await;
        view = match drawn {
            Ok(Ok(view)) => view,
            Ok(Err(error)) => return tracing::warn!("cannot write the live table: {error}"),
            Err(_) => return,
        };
    }
}

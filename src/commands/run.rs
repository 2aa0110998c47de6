//! `armtrace run`: attaches, serves metrics and shows the top latches until interrupted or the server ends.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use clap::Args;
use tokio::sync::oneshot;

use super::output::Format;
use super::session::{self, AttachArgs, EndedBy, Ends, Session, Told};
use super::watch;
use super::Failure;
use crate::agent::{Agent, Source};
use crate::export::{self, Exporter, Listen, Listener, SnapshotSource};
use crate::ui::LiveView;

#[derive(Args, Clone, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub attach: AttachArgs,
    /// Address to serve metrics on
    #[arg(long, default_value = ":9435", value_name = "ADDR:PORT")]
    pub listen: Listen,
    /// Watch the cache line of this latch with hardware watchpoints, report what touches it and whether a neighbour on
    /// the line slows it down, and exit; part of the name is enough
    #[arg(long, value_name = "LATCH", conflicts_with = "listen")]
    pub watch: Option<String>,
    /// Output format of --watch
    #[arg(long, default_value = "text", requires = "watch")]
    pub format: Format,
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    if let Some(latch) = &args.watch {
        return watch::watch(args, latch);
    }
    let attach = &args.attach;
    let target = session::open(attach)?;
    let listener = args.listen.bind()?;
    let Session { agent, ends, runtime } = Session::attach_with_statements(target, attach)?;
    let ended = runtime.block_on(serve(agent, listener, ends));
    // A thread may still be blocked writing to a terminal that does not read. Do not wait for it.
    runtime.shutdown_background();
    ended
}

/// Serves metrics and shows the live table until the session ends, then detaches the probes.
async fn serve(agent: Agent, listener: Listener, mut ends: Ends) -> Result<(), Failure> {
    let source = agent.source();
    let view = tokio::spawn(show(Arc::clone(&source), listener.url()));
    let (stop, stopped) = oneshot::channel::<()>();
    let exporter = Exporter::new(source).map_err(Failure::Export)?;
    let server = tokio::spawn(export::serve(listener, exporter, async { _ = stopped.await }));
    if watch(&agent, &mut ends).await == EndedBy::Server {
        eprintln!("armtrace: process {} has ended", agent.target.pid);
    }
    view.abort();
    agent.detach();
    _ = stop.send(());
    _ = server.await;
    Ok(())
}

/// Detaches and reattaches the probes on SIGUSR1 and SIGUSR2, and returns what ended the session.
async fn watch(agent: &Agent, ends: &mut Ends) -> EndedBy {
    loop {
        match ends.told().await {
            Told::End(by) => return by,
            Told::Pause => agent.pause(),
            Told::Resume => agent.resume(),
        }
    }
}

/// Redraws the live table at its interval. If nobody reads the output, only the drawing blocks.
async fn show(source: Arc<Source>, url: String) {
    let mut view = LiveView::new(io::stdout().is_terminal(), &url);
    let mut ticks = tokio::time::interval(view.interval());
    loop {
        ticks.tick().await;
        let source = Arc::clone(&source);
        let drawn = tokio::task::spawn_blocking(move || view.draw(&source.snapshot()).map(|()| view)).await;
        view = match drawn {
            Ok(Ok(view)) => view,
            Ok(Err(error)) => return tracing::warn!("cannot write the live table: {error}"),
            Err(_) => return,
        };
    }
}

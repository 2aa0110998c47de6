//! `armtrace run`: attach, serve metrics, show the top latches, until interrupted or the server ends.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::oneshot;

use super::RunArgs;
use crate::agent::{Agent, Source};
use crate::attach;
use crate::export::{self, Exporter, Listener, SnapshotSource};
use crate::failure::Failure;
use crate::target::Target;
use crate::ui::LiveView;

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let target = Target::open(args.pid)?;
    attach::require_privilege()?;
    let listener = args.listen.bind().map_err(Failure::running)?;
    let mut agent = Agent::attach(target)?;
    for line in agent.degradations() {
        tracing::warn!("{line}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Failure::running(format!("cannot start: {e}")))?;
    let ended = runtime.block_on(serve(&agent, listener));
    agent.detach();
    runtime.shutdown_background();
    ended
}

/// Serves and shows until something ends it.
async fn serve(agent: &Agent, listener: Listener) -> Result<(), Failure> {
    let source = agent.source();
    let calibrating = Arc::clone(&source);
    tokio::task::spawn_blocking(move || calibrating.calibrate());
    let view = tokio::spawn(show(Arc::clone(&source), listener.url()));
    let (stop, stopped) = oneshot::channel::<()>();
    let exporter = Exporter::new(source).map_err(|e| Failure::running(format!("cannot export metrics: {e}")))?;
    let server = tokio::spawn(export::serve(listener, exporter, async { _ = stopped.await }));
    let ended = wait_for_end(agent).await;
    view.abort();
    _ = view.await;
    _ = stop.send(());
    _ = server.await;
    ended
}

/// Returns at SIGINT, SIGTERM or the server's end.
async fn wait_for_end(agent: &Agent) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::running(format!("cannot wait for signals: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let pidfd = agent.target.pidfd().map_err(failed)?;
    // SAFETY: `pidfd` owns an open descriptor for as long as it is registered, and nobody else closes it.
    let server = unsafe { AsyncFd::register(pidfd) }.map_err(|e| failed(e.into()))?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = server.readable() => eprintln!("armtrace: process {} has ended", agent.target.pid),
    }
    Ok(())
}

/// Redraws the live table at its interval.
async fn show(source: Arc<Source>, url: String) {
    let mut view = LiveView::new(io::stdout().is_terminal(), &url);
    let mut ticks = tokio::time::interval(view.interval());
    loop {
        ticks.tick().await;
        let reading = Arc::clone(&source);
        let Ok(snapshot) = tokio::task::spawn_blocking(move || reading.snapshot()).await else { return };
        if let Err(error) = view.draw(&snapshot) {
            tracing::warn!("cannot write the live table: {error}");
            return;
        }
    }
}

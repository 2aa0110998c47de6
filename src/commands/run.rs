//! `armtrace run`: attach, serve metrics, show the top latches, until interrupted or the server ends.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::oneshot;

use super::RunArgs;
use crate::agent::{Agent, Source};
use crate::attach;
use crate::export::{self, Exporter, Listener, SnapshotSource};
use crate::failure::Failure;
use crate::symbols::Settings;
use crate::target::Target;
use crate::ui::LiveView;

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let target = Target::open_with(args.pid, &Settings::from_env(args.symbols.clone()))?;
    attach::require_privilege()?;
    let listener = args.listen.bind().map_err(Failure::running)?;
    let failed = |e: io::Error| Failure::running(format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
    // From here on a signal is waited for rather than fatal, so that it cannot cut attaching short.
    let ends = {
        let _entered = runtime.enter();
        Ends::new(&target).map_err(failed)?
    };
    let remarks = target.remarks();
    let mut agent = Agent::attach(target)?;
    for line in remarks.into_iter().chain(agent.degradations()) {
        tracing::warn!("{line}");
    }
    let ended = runtime.block_on(serve(&mut agent, args.max_overhead, listener, ends));
    // Whoever still writes to a terminal that does not read is left behind.
    runtime.shutdown_background();
    ended
}

/// Serves and shows until something ends it, then takes the probes off.
async fn serve(agent: &mut Agent, max_overhead: f64, listener: Listener, mut ends: Ends) -> Result<(), Failure> {
    let source = agent.source();
    tokio::task::spawn_blocking(agent.keep_within(max_overhead));
    let view = tokio::spawn(show(Arc::clone(&source), listener.url()));
    let (stop, stopped) = oneshot::channel::<()>();
    let exporter = Exporter::new(source).map_err(|e| Failure::running(format!("cannot export metrics: {e}")))?;
    let server = tokio::spawn(export::serve(listener, exporter, async { _ = stopped.await }));
    ends.wait(agent.target.pid).await;
    view.abort();
    agent.detach();
    _ = stop.send(());
    _ = server.await;
    Ok(())
}

/// What ends a run: SIGINT, SIGTERM or the server's end.
struct Ends {
    interrupt: Signal,
    terminate: Signal,
    server: AsyncFd<OwnedFd>,
}

impl Ends {
    fn new(target: &Target) -> io::Result<Ends> {
        let pidfd = target.pidfd()?;
        // SAFETY: `pidfd` owns an open descriptor for as long as it is registered, and nobody else closes it.
        let server = unsafe { AsyncFd::register(pidfd) }?;
        Ok(Ends { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, server })
    }

    async fn wait(&mut self, pid: i32) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.server.readable() => eprintln!("armtrace: process {pid} has ended"),
        }
    }
}

/// Redraws the live table at its interval. Output that is not read holds up only the drawing.
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

//! An exporter served on a loopback port.

use armtrace::export::{serve, Exporter, Listen, Policy, Server, Servers, State, View};
use armtrace::measure::Snapshot;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Servers that do not change.
struct Still(Vec<Server>);

impl Servers for Still {
    fn servers(&self) -> Vec<Server> {
        self.0.clone()
    }
}

/// Returns an exporter of several servers, by name, and of one called `ended`, which has ended.
pub fn of_many(snapshots: Vec<(&str, Snapshot)>) -> Exporter {
    let measured = snapshots.into_iter().map(|(name, snapshot)| Server {
        name: name.to_owned(),
        state: State::Measured,
        view: Some(Arc::new(View::new(Arc::new(move || snapshot.clone())))),
        attached: 1,
        failed: 0,
    });
    let ended = Server { name: "ended".to_owned(), state: State::Ended, view: None, attached: 2, failed: 1 };
    Exporter::of_many(Arc::new(Still(measured.chain([ended]).collect()))).unwrap()
}

/// A running exporter, which serves until stopped or dropped.
pub struct ServedExporter {
    /// The address that it listens on, `127.0.0.1:PORT`.
    pub address: String,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    served: JoinHandle<io::Result<()>>,
}

impl ServedExporter {
    /// Serves a source of snapshots on a free port.
    pub fn of(source: impl Fn() -> Snapshot + Send + Sync + 'static) -> ServedExporter {
        ServedExporter::with(Policy::default(), source)
    }

    /// Like [`ServedExporter::of`], for those whom a policy allows.
    pub fn with(policy: Policy, source: impl Fn() -> Snapshot + Send + Sync + 'static) -> ServedExporter {
        ServedExporter::serving(policy, Exporter::new(Arc::new(source)).unwrap())
    }

    /// Serves an exporter on a free port.
    pub fn serving(policy: Policy, exporter: Exporter) -> ServedExporter {
        let listener = "127.0.0.1:0".parse::<Listen>().unwrap().bind().unwrap();
        let address = listener.address().to_string();
        let (stop, stopped) = oneshot::channel();
        let runtime = Runtime::new().unwrap();
        let served = runtime.spawn(serve(listener, exporter, policy, async { _ = stopped.await }));
        ServedExporter { address, runtime, stop, served }
    }

    /// Stops as `armtrace run` does. Returns how long that took.
    pub fn stop(self) -> Duration {
        let began = Instant::now();
        self.stop.send(()).unwrap();
        self.runtime.block_on(self.served).unwrap().unwrap();
        self.runtime.shutdown_background();
        began.elapsed()
    }
}

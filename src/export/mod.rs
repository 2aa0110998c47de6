//! What Prometheus sees: metric families made from a snapshot at each scrape, and the HTTP server for them.

mod agent;
mod collector;
mod http;
mod listen;
mod page;
mod port_holder;
mod process;

pub use collector::{families, SnapshotCollector};
pub use http::{serve, Exporter};
pub use listen::{BindError, Listen, Listener, DEFAULT_PORT};
pub use process::ProcessSelf;

use crate::measure::Snapshot;

/// Where the figures come from: asked once for each scrape and each view of the landing page, never twice
/// at the same time by one [`Exporter`].
pub trait SnapshotSource: Send + Sync {
    fn snapshot(&self) -> Snapshot;
}

impl<F: Fn() -> Snapshot + Send + Sync> SnapshotSource for F {
    fn snapshot(&self) -> Snapshot {
        self()
    }
}

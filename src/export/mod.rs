//! Exports snapshots to Prometheus: turns one into metric families at each scrape, and serves them over HTTP.

mod agent;
mod answer;
mod collector;
mod connections;
mod events;
mod hosts;
mod http;
mod listen;
mod pace;
mod page;
mod policy;
mod port_holder;
mod process;
mod servers;
mod tls_port;
mod view;
mod web;

pub use collector::families;
pub(crate) use collector::SnapshotCollector;
pub use hosts::Hosts;
#[cfg(any(test, fuzzing))]
pub(crate) use http::serve_one;
pub use http::{serve, Exporter};
pub use listen::{BindError, Listen, Listener};
pub use policy::Policy;
pub use process::ProcessSelf;
pub use servers::{Server, Servers, State};
pub use view::View;
pub use web::{parse_yaml, Web, WebFileError, YamlError};

use std::sync::Arc;
use std::time::Duration;

use crate::measure::Snapshot;
use crate::recording::Recent;

/// A source of figures. An [`Exporter`] takes a snapshot for a scrape, for a view of the landing page, and for each
/// second in which such a page is open: at most one a second for each of these, and never two at the same time.
pub trait SnapshotSource: Send + Sync {
    /// Takes a snapshot of all figures as they are now.
    fn snapshot(&self) -> Snapshot;

    /// Returns what was measured lately, if that is kept.
    fn recent(&self) -> Option<Arc<Recent>> {
        None
    }

    /// Returns for how long the statement of a client has been running that has been for longest, some seconds ago at
    /// most; `None` if the server is not asked, or does not answer.
    fn longest_statement(&self) -> Option<Duration> {
        None
    }
}

impl<F: Fn() -> Snapshot + Send + Sync> SnapshotSource for F {
    fn snapshot(&self) -> Snapshot {
        self()
    }
}

//! What Prometheus sees, over real HTTP and through a real Prometheus, from snapshots built by hand.

mod dashboard;
mod http;
mod metrics;
mod reference;

//! The exporter with hand-built snapshots, over real HTTP and with a real Prometheus.

mod dashboard;
mod http;
mod metrics;
mod reference;

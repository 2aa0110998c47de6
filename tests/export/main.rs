//! The exporter with hand-built snapshots, over real HTTP.

mod dashboard;
mod http;
mod metrics;
mod provisioning;
mod reference;
mod web;

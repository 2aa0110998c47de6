//! What the tests and the benchmark share: real servers and load on them, the agent as its users run it, another tracer, a real
//! Prometheus, and snapshots built by hand.

pub mod agent;
pub mod bench;
pub mod binaries;
pub mod dashboard;
pub mod elf;
pub mod exporter;
pub mod http;
pub mod load;
pub mod machine;
pub mod prometheus;
pub mod releases;
pub mod server;
pub mod snapshots;
pub mod tracer;

use std::path::{Path, PathBuf};

/// A file of this repository, by its path in it.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

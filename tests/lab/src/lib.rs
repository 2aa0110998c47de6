//! Shared by the tests and the benchmark: real servers under load, the agent as its users run it, bpftrace for
//! comparison, a real Prometheus, and hand-built snapshots.

pub mod agent;
pub mod audited;
pub mod bench;
pub mod binaries;
pub mod browser;
pub mod cgroup;
pub mod counters;
pub mod dashboard;
pub mod elf;
pub mod exporter;
pub mod golden;
pub mod http;
pub mod load;
pub mod machine;
pub mod prometheus;
pub mod promql;
pub mod releases;
pub mod rules;
pub mod server;
pub mod snapshots;
pub mod tls;
pub mod toolchain;
pub mod tracer;

use std::path::{Path, PathBuf};

/// Returns the full path of a file, given its path in this repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

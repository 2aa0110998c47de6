//! Tests on real servers under real load. They need root, and run one at a time: two servers under load at once would
//! starve one another on a small machine. `tests/README.md` says more.

mod agent;
#[path = "../common/mod.rs"]
mod common;
mod lab;
mod load;
mod naming;
mod server;
mod truth;

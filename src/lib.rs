//! armtrace: what a live MySQL or MariaDB server waits on.

pub mod attach;
pub mod bpf;
pub mod code;
pub mod export;
pub mod failure;
pub mod model;
pub mod symbols;
pub mod ui;

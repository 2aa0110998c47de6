//! Shows which latches a live MySQL or MariaDB server waits on.

pub mod advice;
pub mod agent;
pub mod analysis;
pub mod attach;
pub mod audit;
mod bpf;
pub mod catalog;
pub mod commands;
pub mod discovery;
mod dumps;
pub mod export;
pub mod fleet;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(test)]
mod golden;
pub mod host;
mod html;
pub mod isa;
pub mod kept;
mod local;
pub mod measure;
pub mod memory;
mod metrics;
pub mod model;
pub mod names;
mod present;
pub mod recording;
pub mod server;
pub mod symbols;
pub mod ui;
mod worker;
mod yaml;

//! What tests share.
#![allow(dead_code)]

pub mod dashboard;
pub mod http;
pub mod prometheus;
pub mod server;
pub mod snapshots;

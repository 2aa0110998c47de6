//! The benchmark's arithmetic and tables, in this crate so that tests can use them.

pub mod report;
pub mod stats;

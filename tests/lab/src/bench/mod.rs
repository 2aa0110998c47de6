//! The benchmark's arithmetic and tables. They are here, so that tests reach them.

pub mod report;
pub mod stats;

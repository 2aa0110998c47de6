//! armtrace: what a live MySQL or MariaDB server waits on.

pub mod export;
pub mod model;
pub mod symbols;
pub mod ui;

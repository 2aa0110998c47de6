//! armtrace: what a live MySQL or MariaDB server waits on.

pub mod catalog;
pub mod code;
pub mod model;
pub mod names;
pub mod symbols;
pub mod target;

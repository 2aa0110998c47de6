//! How figures and names are written, in the live table, web pages and reports alike.

pub mod foreign;
pub mod format;
pub mod names;

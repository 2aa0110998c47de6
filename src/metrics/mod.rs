//! Metric families in the Prometheus data model: how one is declared, and how its samples are made.
//!
//! This module knows no measurement. Each measurement declares its own families with [`families!`].

mod family;

pub(crate) use family::families;
pub use family::{label, seconds, Family};

//! Probes that take no turns: what begins or ends while they are off would be missing. Where they cost more than their
//! part of the budget, they rest for some minutes, and nothing is shown meanwhile.

mod governed;
mod phase;
mod shown;

pub(super) use governed::{Governed, Probes};
pub(super) use phase::INTERVAL;
pub(super) use shown::{Shown, Timed};

//! The figures of hardware events.

use strum::IntoStaticStr;

/// The figures of hardware events, counted since attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The events that count on this host, one entry per event.
    pub events: Vec<EventCount>,
    /// The events whose functions matter, sampled, one entry per (event, function).
    pub functions: Vec<EventFunction>,
}

/// What a figure counts the events of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Scope {
    /// The server's threads, outside of the kernel.
    Process,
    /// All processes of the host.
    Host,
}

impl Scope {
    /// Returns the value of the `scope` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One event, counted since shortly after attach.
#[derive(Clone, Debug, PartialEq)]
pub struct EventCount {
    /// The vendor's name of the event: `dmb_spec`.
    pub event: String,
    /// What its count is for.
    pub scope: Scope,
    /// How often it occurred. If the CPU has fewer counters than there are events, a count of part of the time is
    /// scaled up.
    pub count: f64,
    /// The share of the time in which it was counted, 0 to 1; `None` until the server's threads have run.
    pub running_ratio: Option<f64>,
}

/// How often a function of the server had a hardware event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventFunction {
    /// The vendor's name of the event.
    pub event: String,
    /// The function's name, or [`CpuTime::OTHER`](crate::measure::cpu::CpuTime::OTHER) for all that have no row of
    /// their own.
    pub function: String,
    /// How often the event occurred there, as far as samples show it.
    pub count: u64,
}

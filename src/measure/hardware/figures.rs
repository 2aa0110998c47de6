//! Hardware events: the figures.

use strum::IntoStaticStr;

/// Everything counted about hardware events since attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The events that count on this host, one entry per event.
    pub events: Vec<EventCount>,
    /// The events whose functions matter, sampled, one entry per (event, function).
    pub functions: Vec<EventFunction>,
}

/// Whose events a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Scope {
    /// The server's, outside of the kernel.
    Process,
    /// Everybody's on the host.
    Host,
}

impl Scope {
    /// The value of the `scope` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One event, counted since it was first asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct EventCount {
    /// The vendor's name for it: `dmb_spec`.
    pub event: String,
    pub scope: Scope,
    /// Where the CPU has fewer counters than there are events, what was counted part of the time is scaled up.
    pub count: f64,
    /// The part of the time that it was counted, 0 to 1; `None` until the server's threads have run.
    pub running_ratio: Option<f64>,
}

/// How often a function of the server had a hardware event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventFunction {
    pub event: String,
    /// The function's name, or [`CpuTime::OTHER`](crate::measure::cpu::CpuTime::OTHER): all that have no row of their own.
    pub function: String,
    pub count: u64,
}

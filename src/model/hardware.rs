//! Events that the CPU counts.

/// Whose events a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The server's, outside of the kernel.
    Process,
    /// Everybody's on the host.
    Host,
}

impl Scope {
    /// The value of the `scope` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Process => "process",
            Scope::Host => "host",
        }
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

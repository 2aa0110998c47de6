//! How long waiters spin: the figures.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::present::format;

/// How long waiters spin; `None` if it is not known.
pub type Figures = Option<SpinSettings>;

/// How long the server's waiters spin before they sleep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpinSettings {
    /// That tells the CPU that the code spins: `pause`, `isb`. `None`: the build's loop has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// One turn of the loop on this CPU, nanoseconds.
    pub turn_ns: f64,
    /// `innodb_spin_wait_delay` and `innodb_sync_spin_loops`.
    pub delay: u32,
    pub rounds: u32,
    /// Turns of the loop in a round, on average.
    pub turns: f64,
}

/// How waiters spin: `9ns a turn (pause), 38.4µs before a sleep`.
impl fmt::Display for SpinSettings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let hint = self.instruction.as_deref().unwrap_or("no spin hint");
        let [turn, budget] = [self.turn_ns, self.budget_ns()].map(format::nanoseconds);
        write!(f, "{turn} a turn ({hint}), {budget} before a sleep")
    }
}

impl SpinSettings {
    /// One round on average, nanoseconds.
    pub fn round_ns(&self) -> f64 {
        self.turn_ns * self.turns
    }

    /// All rounds before a sleep, nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.round_ns() * f64::from(self.rounds)
    }
}

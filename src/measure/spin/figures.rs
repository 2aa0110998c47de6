//! The figures of how long waiters spin.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::present::format;

/// How long waiters spin; `None` if it is not known.
pub type Figures = Option<SpinSettings>;

/// How long the server's waiters spin before they sleep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpinSettings {
    /// The instruction that tells the CPU that the code spins: `pause`, `isb`; `None` if this build's loop has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// The duration of one turn of the loop on this CPU, in nanoseconds.
    pub turn_ns: f64,
    /// The value of `innodb_spin_wait_delay`.
    pub delay: u32,
    /// The value of `innodb_sync_spin_loops`: the number of rounds before a sleep.
    pub rounds: u32,
    /// The mean number of turns of the loop in a round.
    pub turns: f64,
}

/// Formats how waiters spin: `9ns a turn (pause), 38.4µs before a sleep`.
impl fmt::Display for SpinSettings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let hint = self.instruction.as_deref().unwrap_or("no spin hint");
        let [turn, budget] = [self.turn_ns, self.budget_ns()].map(format::nanoseconds);
        write!(f, "{turn} a turn ({hint}), {budget} before a sleep")
    }
}

impl SpinSettings {
    /// Returns the mean duration of a round, in nanoseconds.
    pub fn round_ns(&self) -> f64 {
        self.turn_ns * self.turns
    }

    /// Returns the mean duration of all rounds before a sleep, in nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.round_ns() * f64::from(self.rounds)
    }
}

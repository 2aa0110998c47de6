//! How long servers spin before they sleep: where the settings are stored, and what a round consists of.
//!
//! Read from the disassembly of MySQL 9.7.4's `ut_delay` and of `srw_mutex_impl<true>::wait_and_lock` in MariaDB 11.4.5
//! and 10.11.19, for both architectures.

/// The spin settings of a family.
#[derive(Debug)]
pub struct SpinRounds {
    /// The InnoDB system variable, without its `innodb_` prefix, that gives the length of a round.
    pub delay: &'static str,
    /// The InnoDB system variable, without its `innodb_` prefix, that gives the number of rounds before a sleep.
    pub rounds: &'static str,
    /// The number of loop iterations per unit of the delay.
    pub turns: Turns,
    /// The mean share of the delay that a round takes: one half if the delay is random.
    pub mean_part: f64,
}

/// A factor of the length of a round.
#[derive(Debug)]
pub enum Turns {
    /// The value of a system variable.
    Variable(&'static str),
    /// The 32-bit value of a global variable, divided by a constant.
    Global {
        /// The variable's name.
        symbol: &'static str,
        /// The constant.
        divisor: u32,
        /// The factor in builds without the variable, whose code has the number built in.
        built_in: u32,
    },
}

pub(super) static MYSQL: SpinRounds = SpinRounds {
    delay: "spin_wait_delay",
    rounds: "sync_spin_loops",
    turns: Turns::Variable("spin_wait_pause_multiplier"),
    mean_part: 0.5,
};

pub(super) static MARIADB_10_6: SpinRounds = SpinRounds {
    delay: "spin_wait_delay",
    rounds: "sync_spin_loops",
    turns: Turns::Global { symbol: "my_cpu_relax_multiplier", divisor: 4, built_in: 50 },
    mean_part: 1.0,
};

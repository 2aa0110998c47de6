//! Allowances for the machine that the tests run on.

use std::time::Duration;

/// Returns whether the machine is emulated (`tests/vm/live` sets the variable). Timings are meaningless there, and
/// every step takes many times longer.
pub fn is_emulated() -> bool {
    std::env::var_os("ARMTRACE_EMULATED").is_some()
}

/// Returns how long to wait for something that takes at most `usual` on real hardware.
pub fn patience(usual: Duration) -> Duration {
    usual * if is_emulated() { 10 } else { 1 }
}

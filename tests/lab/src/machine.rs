//! What the machine that the tests run on asks of them.

use std::time::Duration;

/// Whether the machine is an emulated one, as `tests/vm/live` says: its times mean nothing, and steps take many times as
/// long.
pub fn is_emulated() -> bool {
    std::env::var_os("ARMTRACE_EMULATED").is_some()
}

/// How long to wait for what takes `usual` at most on real hardware.
pub fn patience(usual: Duration) -> Duration {
    usual * if is_emulated() { 10 } else { 1 }
}

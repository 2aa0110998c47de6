//! How long to wait before attaching to a server again.

use std::time::{Duration, Instant};

/// The first wait, which doubles with each further failure, and the longest.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// A server that ends within this time after it was attached to restarts in a loop.
const SHORT_LIFE: Duration = Duration::from_secs(60);
/// The short lives in a row that are taken for accidents, as when an administrator tries a setting.
const ACCIDENTS: u32 = 2;

/// What has gone wrong with a server lately. With nothing wrong there is nothing to wait for.
#[derive(Debug, Default)]
pub struct Patience {
    failures: u32,
    short_lives: u32,
    until: Option<Instant>,
}

impl Patience {
    /// Whether it may be tried at this moment.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Notes that attaching failed.
    pub fn failed(&mut self, now: Instant) {
        self.failures += 1;
        self.until = Some(now + doubled(self.failures));
    }

    /// Notes that attaching worked.
    pub fn worked(&mut self) {
        self.failures = 0;
    }

    /// Notes that the server ended, this long after it was attached to.
    pub fn ended(&mut self, lived: Duration, now: Instant) {
        self.short_lives = if lived < SHORT_LIFE { self.short_lives + 1 } else { 0 };
        self.until = self.short_lives.checked_sub(ACCIDENTS).filter(|n| *n > 0).map(|n| now + doubled(n));
    }
}

/// Returns the wait after the `n`th failure in a row, from 1.
fn doubled(n: u32) -> Duration {
    FIRST.saturating_mul(1 << n.saturating_sub(1).min(16)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn failures_are_tried_again_ever_more_seldom() {
        let (mut patience, mut now) = (Patience::default(), Instant::now());
        assert!(patience.is_over(now));
        for wait in [10, 20, 40, 80, 160, 300, 300] {
            patience.failed(now);
            assert!(!patience.is_over(now + SECOND * (wait - 1)) && patience.is_over(now + SECOND * wait), "{wait}");
            now += SECOND * wait;
        }
        patience.worked();
        patience.failed(now);
        assert!(patience.is_over(now + SECOND * 10));
    }

    #[test]
    fn a_restart_is_followed_at_once_but_not_a_loop_of_them() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        for wait in [0, 0, 10, 20, 40] {
            patience.worked();
            patience.ended(SECOND * 5, now);
            assert!(patience.is_over(now + SECOND * wait), "{wait}");
            assert!(wait == 0 || !patience.is_over(now + SECOND * (wait - 1)), "{wait}");
        }
        patience.ended(SECOND * 3600, now);
        assert!(patience.is_over(now), "it ran for long");
    }
}

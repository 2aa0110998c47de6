//! How often one network may ask: nobody who asks all the time costs a CPU.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::time::{sleep, Duration};

use super::connections::Network;

/// The time in which requests are counted.
const SPAN: Duration = Duration::from_secs(1);

/// The number of networks above which those that did not ask of late are forgotten.
const MANY: usize = 256;

/// Counts what each network does.
pub(super) struct Pace {
    /// The most in one [`SPAN`].
    most: u32,
    counted: Mutex<HashMap<Network, Span>>,
}

struct Span {
    began: Instant,
    count: u32,
}

impl Pace {
    /// Lets each network do so much in a second.
    pub fn new(most: u32) -> Pace {
        Pace { most, counted: Mutex::default() }
    }

    /// Counts one more. Otherwise returns how long it takes until there may be one.
    pub fn count(&self, from: Network) -> Result<(), Duration> {
        let mut counted = self.counted.lock();
        if counted.len() > MANY {
            counted.retain(|_, span| span.began.elapsed() < SPAN);
        }
        let span = counted.entry(from).or_insert_with(|| Span { began: Instant::now(), count: 0 });
        let elapsed = span.began.elapsed();
        if elapsed >= SPAN {
            *span = Span { began: Instant::now(), count: 0 };
        }
        if span.count >= self.most {
            return Err(SPAN - elapsed);
        }
        span.count += 1;
        Ok(())
    }

    /// Waits until there may be one more.
    pub async fn wait(&self, from: Network) {
        while let Err(time) = self.count(from) {
            sleep(time).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn network(number: u32) -> Network {
        IpAddr::from(number.to_be_bytes()).into()
    }

    #[tokio::test]
    async fn each_network_has_its_own_pace() {
        let pace = Pace::new(3);
        let began = Instant::now();
        for _ in 0..3 {
            pace.wait(network(1)).await;
        }
        assert!(pace.count(network(1)).is_err_and(|time| time <= SPAN));
        assert!(pace.count(network(2)).is_ok());
        assert!(began.elapsed() < SPAN);
        pace.wait(network(1)).await;
        assert!(began.elapsed() >= SPAN);
    }

    #[tokio::test]
    async fn networks_that_do_not_ask_are_forgotten() {
        let pace = Pace::new(1);
        (0..10 * MANY as u32).for_each(|number| _ = pace.count(network(number)));
        sleep(SPAN).await;
        assert!(pace.count(network(u32::MAX)).is_ok());
        assert_eq!(pace.counted.lock().len(), 1);
    }
}

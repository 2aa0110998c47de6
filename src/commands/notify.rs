//! What the service manager is told: that armtrace is ready, what it measures, that it is alive, that it stops. Only
//! where a service manager listens (`Type=notify` of systemd) is anything told.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::interval;

use crate::present::foreign::harmless_in_line;

/// The longest time between two looks at what is measured.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// How often armtrace says within the time of the watchdog that it is alive, so that a late turn does no harm.
const TURNS: u32 = 4;

/// What a command does, for the service manager.
pub(super) trait Supervised: Send + Sync + 'static {
    /// Returns in a line what is measured, or why nothing is.
    fn status(&self) -> String;

    /// Returns whether the threads that others rely on get on with their work.
    fn is_alive(&self) -> bool {
        true
    }
}

/// Tells the service manager from its start until it is stopped.
pub(super) struct Notifier(Option<JoinHandle<()>>);

impl Notifier {
    /// Tells that armtrace is ready: call it once the port listens. From then on a thread of the runtime that also
    /// serves the port tells at intervals that it is alive, and what is measured if that has changed. Call it within
    /// the runtime.
    pub fn ready(supervised: Arc<dyn Supervised>) -> Notifier {
        if env::var_os("NOTIFY_SOCKET").is_none() {
            return Notifier(None);
        }
        let status = status(supervised.as_ref());
        tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
        let watchdog = sd_notify::watchdog_enabled().filter(|time| !time.is_zero());
        Notifier(Some(tokio::spawn(keep_telling(supervised, watchdog, status))))
    }

    /// Tells that armtrace stops.
    pub fn stopping(self) {
        if let Some(task) = self.0 {
            task.abort();
            tell(&[NotifyState::Stopping, NotifyState::Status("Stopping")]);
        }
    }
}

async fn keep_telling(supervised: Arc<dyn Supervised>, watchdog: Option<Duration>, mut told: String) {
    let mut turns = interval(turn(watchdog));
    loop {
        turns.tick().await;
        if watchdog.is_some() && supervised.is_alive() {
            tell(&[NotifyState::Watchdog]);
        }
        let status = status(supervised.as_ref());
        if status != told {
            tell(&[NotifyState::Status(&status)]);
            told = status;
        }
    }
}

fn turn(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(LONGEST_TURN, |time| (time / TURNS).min(LONGEST_TURN))
}

/// Returns the status. A server chooses its own name and version, and a second line would be another message.
fn status(supervised: &dyn Supervised) -> String {
    harmless_in_line(&supervised.status()).into_owned()
}

fn tell(states: &[NotifyState]) {
    if let Err(why) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told of {states:?}: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Hostile;

    impl Supervised for Hostile {
        fn status(&self) -> String {
            "Measuring db\nMAINPID=1".to_owned()
        }
    }

    #[test]
    fn a_status_is_one_message() {
        assert_eq!(status(&Hostile), "Measuring db\u{fffd}MAINPID=1");
    }

    #[test]
    fn a_sign_of_life_comes_several_times_before_it_is_missed() {
        assert_eq!(turn(None), LONGEST_TURN);
        assert_eq!(turn(Some(Duration::from_secs(120))), LONGEST_TURN);
        assert_eq!(turn(Some(Duration::from_secs(2))), Duration::from_millis(500));
    }
}

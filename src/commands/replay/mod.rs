//! `armtrace replay`: serves recordings as if their servers were live.

mod many;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;

use super::notify::{Notifier, Supervised};
use super::port::PortArgs;
use super::run::Shown;
use super::session::{self, Signals};
use super::values::ValueError;
use super::{report, top, Failure, UsageError};
use crate::export::{Listener, Policy, SnapshotSource};
use crate::measure::Snapshot;
use crate::present::format;
use crate::recording::{Recording, Replay};

#[derive(Args, Clone, Debug)]
pub(super) struct ReplayArgs {
    /// Files that `armtrace record` wrote; several are served as several servers
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    port: PortArgs,
    /// Speed of playing, 0.1 to 1000
    #[arg(long, default_value = "1", value_name = "TIMES", value_parser = speed)]
    speed: f64,
    /// Start again at the end; counters go on growing
    #[arg(long = "loop", conflicts_with = "stay")]
    repeat: bool,
    /// At the end, go on serving the last figures
    #[arg(long)]
    stay: bool,
    /// The full screen of `armtrace top`, no metrics
    #[arg(long, conflicts_with_all = ["listen", "web_config_file", "allowed_hosts", "stay"])]
    top: bool,
    /// Refresh interval of --top
    #[arg(long, default_value = top::DELAY, value_name = "TIME", value_parser = top::delay, requires = "top")]
    delay: Duration,
}

/// Parses the speed of a replay.
fn speed(text: &str) -> Result<f64, ValueError> {
    let speed = text.parse::<f64>().ok().filter(|speed| (0.1..=1000.0).contains(speed));
    speed.ok_or(ValueError::Speed)
}

pub(super) fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let [file] = &args.files[..] else {
        return if args.top { Err(UsageError::SeveralOnScreen.into()) } else { many::replay(args) };
    };
    let recording = read(file)?;
    if args.top {
        return on_screen(recording, file, args);
    }
    let policy = args.port.policy()?;
    let listener = args.port.listen.bind()?;
    let runtime = session::runtime()?;
    let served = runtime.block_on(serve(recording, file, listener, policy, args));
    // A thread may still be blocked writing to a terminal that does not read. Do not wait for it.
    runtime.shutdown_background();
    served
}

/// Reads a recording, and says if it was cut short.
fn read(file: &Path) -> Result<Recording, Failure> {
    let recording = report::read(file)?;
    if recording.end.is_none() {
        tracing::warn!("{}: its end is missing, so it was cut short", file.display());
    }
    Ok(recording)
}

/// Serves metrics and shows the live table until the recording ends or a signal comes.
async fn serve(
    recording: Recording,
    file: &Path,
    listener: Listener,
    policy: Policy,
    args: &ReplayArgs,
) -> Result<(), Failure> {
    let mut signals = Signals::new().map_err(Failure::Start)?;
    let length = recording.duration();
    let player = Player::start(recording, file, args);
    let end = player.began + length.div_f64(args.speed);
    let shown = Shown::begin(player, listener, policy)?;
    let notifier = Notifier::ready(Arc::new(Replayed(file.to_owned())));
    let goes_on = args.repeat || args.stay;
    tokio::select! {
        () = signals.wait() => {
            notifier.stopping();
            shown.stop().await;
        }
        () = tokio::time::sleep_until(end.into()), if !goes_on => {
            notifier.stopping();
            shown.finish().await;
            eprintln!("armtrace: {}: {} replayed", file.display(), in_seconds(length));
        }
    }
    Ok(())
}

/// Returns a length in whole seconds, in words.
fn in_seconds(length: Duration) -> String {
    format::span(Duration::from_secs_f64(length.as_secs_f64().round()))
}

/// The recording that is served.
struct Replayed(PathBuf);

impl Supervised for Replayed {
    fn status(&self) -> String {
        format!("Replaying {}", self.0.display())
    }
}

/// Shows the full-screen view until the user quits or a signal comes.
fn on_screen(recording: Recording, file: &Path, args: &ReplayArgs) -> Result<(), Failure> {
    top::require_terminal(Vec::new)?;
    let runtime = session::runtime()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new().map_err(Failure::Start)?
    };
    let view = top::View { source: Player::start(recording, file, args), lines: None, delay: args.delay };
    let shown = view.show_until(&runtime, async move { signals.wait().await });
    runtime.shutdown_background();
    shown
}

/// Plays a recording from now on.
struct Player {
    replay: Mutex<Replay>,
    began: Instant,
    speed: f64,
}

impl Player {
    fn start(recording: Recording, file: &Path, args: &ReplayArgs) -> Arc<Player> {
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Player::named(recording, name, args)
    }

    fn named(recording: impl Into<Arc<Recording>>, name: String, args: &ReplayArgs) -> Arc<Player> {
        let replay = Mutex::new(Replay::new(recording, name, args.repeat));
        Arc::new(Player { replay, began: Instant::now(), speed: args.speed })
    }
}

impl SnapshotSource for Player {
    fn snapshot(&self) -> Snapshot {
        let mut replay = self.replay.lock();
        replay.advance_to(self.began.elapsed().mul_f64(self.speed));
        replay.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::speed;

    #[test]
    fn speeds_are_from_a_tenth_to_a_thousand() {
        assert_eq!(["0.1", "1", "2.5", "1000"].map(speed), [0.1, 1.0, 2.5, 1000.0].map(Ok));
        assert!(["0", "-1", "1001", "nan", "inf", "x", ""].into_iter().all(|bad| speed(bad).is_err()));
    }
}

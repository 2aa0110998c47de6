//! Several recordings at once: each is a server of its own, as with `--discover`.

use std::collections::{HashMap, HashSet};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::notify::{Notifier, Supervised};
use super::super::run::Shown;
use super::super::session::{self, Signals};
use super::super::{log, Failure, UsageError};
use super::{in_seconds, read, Player, ReplayArgs};
use crate::export::{Listener, Policy, Server, Servers, SnapshotSource, State, View};
use crate::recording::Recording;

/// The end of the names of recordings, which is not part of what they are called.
const ENDING: &str = "rec";

pub(super) fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let names = names(&args.files)?;
    let recordings = recordings(&args.files)?;
    let policy = args.port.policy()?;
    let listener = args.port.listen.bind()?;
    let length = recordings.iter().map(|recording| recording.duration()).max().unwrap_or_default();
    let servers = names.into_iter().zip(recordings).map(|(name, recording)| {
        let source: Arc<dyn SnapshotSource> = Player::named(recording, name.clone(), args);
        Server { name, state: State::Measured, view: Some(Arc::new(View::new(source))), attached: 0, failed: 0 }
    });
    let players = Arc::new(Players(servers.collect()));
    let runtime = session::runtime()?;
    let served = runtime.block_on(serve(players, length, listener, policy, args));
    // A thread may still be blocked writing to a terminal that does not read. Do not wait for it.
    runtime.shutdown_background();
    served
}

/// Serves metrics and shows a line for each recording until the longest one ends or a signal comes.
async fn serve(
    players: Arc<Players>,
    length: Duration,
    listener: Listener,
    policy: Policy,
    args: &ReplayArgs,
) -> Result<(), Failure> {
    let mut signals = Signals::new().map_err(Failure::Start)?;
    let end = Instant::now() + length.div_f64(args.speed);
    let number = players.0.len();
    let url = listener.url(policy.speaks_tls());
    let shown = Shown::many(Arc::clone(&players) as Arc<dyn Servers>, listener, policy)?;
    if !io::stdout().is_terminal() {
        log::tell(&format!("{number} recordings are served on {url}"));
    }
    let notifier = Notifier::ready(players);
    let goes_on = args.repeat || args.stay;
    tokio::select! {
        () = signals.wait() => {}
        () = tokio::time::sleep_until(end.into()), if !goes_on => {
            eprintln!("armtrace: {number} recordings: {} replayed", in_seconds(length));
        }
    }
    notifier.stopping();
    shown.stop().await;
    Ok(())
}

/// The recordings, as servers.
struct Players(Vec<Server>);

impl Servers for Players {
    fn servers(&self) -> Vec<Server> {
        self.0.clone()
    }

    fn server(&self, name: &str) -> Option<Server> {
        self.0.iter().find(|server| server.name == name).cloned()
    }
}

impl Supervised for Players {
    fn status(&self) -> String {
        format!("Replaying {} recordings", self.0.len())
    }
}

/// Reads all recordings. Those that are one file, by several links, share what is in it.
fn recordings(files: &[PathBuf]) -> Result<Vec<Arc<Recording>>, Failure> {
    let mut known: HashMap<PathBuf, Arc<Recording>> = HashMap::new();
    let mut all = Vec::with_capacity(files.len());
    for file in files {
        let path = file.canonicalize().unwrap_or_else(|_| file.clone());
        let recording = match known.get(&path) {
            Some(recording) => Arc::clone(recording),
            None => Arc::new(read(file)?),
        };
        known.insert(path, Arc::clone(&recording));
        all.push(recording);
    }
    Ok(all)
}

/// Returns what recordings are called: the ends of their paths, as long as they must be to differ.
fn names(files: &[PathBuf]) -> Result<Vec<String>, UsageError> {
    let mut seen = HashSet::new();
    if let Some(twice) = files.iter().find(|file| !seen.insert(*file)) {
        return Err(UsageError::ReplayedTwice(twice.clone()));
    }
    let deepest = files.iter().map(|file| file.components().count()).max().unwrap_or_default();
    let ends = |depth| files.iter().map(|file| end(file, depth)).collect::<Vec<_>>();
    let differ = |names: &[String]| names.iter().collect::<HashSet<_>>().len() == names.len();
    let short = (1..=deepest).map(ends).find(|names| differ(names));
    Ok(short.unwrap_or_else(|| files.iter().map(|file| file.display().to_string()).collect()))
}

/// Returns the last components of a path, without the usual ending of a recording.
fn end(file: &Path, depth: usize) -> String {
    let is_usual = file.extension().is_some_and(|ending| ending == ENDING);
    let file = if is_usual { file.with_extension("") } else { file.to_owned() };
    let count = file.components().count();
    file.components().skip(count.saturating_sub(depth)).collect::<PathBuf>().display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(files: &[&str]) -> Vec<String> {
        names(&files.iter().map(PathBuf::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn recordings_have_the_shortest_names_that_differ() {
        assert_eq!(named(&["x86.rec", "data/arm.rec"]), ["x86", "arm"]);
        assert_eq!(named(&["d/host=a/x.rec", "d/host=b/x.rec", "y.rec"]), ["host=a/x", "host=b/x", "y"]);
        assert_eq!(named(&["x", "x.rec", "x.old.rec"]), ["x", "x.rec", "x.old.rec"]);
        let twice = names(&[PathBuf::from("a/x.rec"), PathBuf::from("a/x.rec")]);
        assert!(matches!(twice, Err(UsageError::ReplayedTwice(file)) if file == Path::new("a/x.rec")));
    }
}

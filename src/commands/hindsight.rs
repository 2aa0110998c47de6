//! The past that `armtrace run` keeps, for those who ask for it later.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::task::AbortHandle;

use super::values::{time, ValueError};
use crate::export::{Servers, SnapshotSource};
use crate::local::{self, Past, Socket, Sources};
use crate::recording::LONGEST;

/// How much of the past is kept by default.
pub(super) const KEPT: &str = "15m";

#[derive(Args, Clone, Debug)]
pub(super) struct HindsightArgs {
    /// Past to keep for `armtrace dump`
    #[arg(long, default_value = KEPT, value_name = "TIME", value_parser = kept)]
    pub keep: Duration,
}

/// Parses how much of the past is to be kept.
fn kept(text: &str) -> Result<Duration, ValueError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    time(text).and_then(|time| Some(time).filter(|time| *time <= LONGEST).ok_or(ValueError::Kept))
}

/// Parses how much of the past is asked for.
pub(super) fn last(text: &str) -> Result<Duration, ValueError> {
    kept(text).and_then(|time| Some(time).filter(|time| !time.is_zero()).ok_or(ValueError::Time))
}

impl HindsightArgs {
    /// Binds the socket on which commands ask, if anything is kept. Where that is not allowed, nobody can ask.
    pub fn socket(&self) -> Option<Socket> {
        if self.keep.is_zero() {
            return None;
        }
        let folder = local::folder();
        let unbound = |why: &std::io::Error| {
            tracing::info!("`armtrace dump` will have nothing: no socket in {}: {why}", folder.display());
        };
        Socket::bind(&folder).inspect_err(unbound).ok()
    }
}

/// A task that answers until this is dropped, and the socket on which it does.
pub(super) struct Answering {
    task: AbortHandle,
    _socket: Socket,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers the commands that ask on the socket. Call it within a runtime.
pub(super) fn answer(socket: Socket, sources: Arc<Sources>) -> Answering {
    let listener = socket.listener();
    let answering = tokio::spawn(async {
        let answered = async { local::serve(listener?, sources).await };
        if let Err(why) = answered.await {
            tracing::warn!("`armtrace dump` has nothing: {why}");
        }
    });
    Answering { task: answering.abort_handle(), _socket: socket }
}

/// Returns what is kept of one server.
pub(super) fn of_one(source: Arc<dyn SnapshotSource>) -> Arc<Sources> {
    Arc::new(move || Past::of_source(None, Arc::clone(&source)).into_iter().collect())
}

/// Returns what is kept of several servers, which have names.
pub(super) fn of_all(servers: Arc<dyn Servers>) -> Arc<Sources> {
    Arc::new(move || {
        let measured = servers.servers().into_iter();
        let measured = measured.filter_map(|server| Past::of_source(Some(server.name), server.view?.source()));
        let ended = servers.pasts().into_iter();
        measured.chain(ended.map(|(name, recent)| Past { name: Some(name), recent, source: None })).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_an_hour_at_most() {
        assert_eq!(kept("0"), Ok(Duration::ZERO));
        assert_eq!((kept("15m"), last("1h")), (Ok(Duration::from_secs(900)), Ok(LONGEST)));
        assert!(kept("2h").is_err() && kept("x").is_err() && last("0").is_err());
    }
}

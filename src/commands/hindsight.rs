//! The past that `armtrace run` keeps, for those who ask for it later.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::task::AbortHandle;

use super::values::{positive, time, ValueError};
use super::{Failure, UsageError};
use crate::dumps::{Dumps, Folder, Limits};
use crate::export::{Servers, SnapshotSource};
use crate::local::{self, Past, Socket, Sources};
use crate::recording::LONGEST;

/// How much of the past is kept by default.
pub(super) const KEPT: &str = "15m";

/// The part of the help that has the options of dumps, whose names are longer than those of others.
const DUMPS: &str = "Dumps that armtrace writes by itself";

#[derive(Args, Clone, Debug)]
pub(super) struct HindsightArgs {
    /// Past to keep for `armtrace dump`
    #[arg(long, default_value = KEPT, value_name = "TIME", value_parser = kept)]
    pub keep: Duration,
    /// Write to this folder when a server ends
    #[arg(long, value_name = "FOLDER", help_heading = DUMPS)]
    pub dump_to: Option<PathBuf>,
    /// And when so many threads wait for 5 seconds
    #[arg(long, value_name = "THREADS", value_parser = positive, help_heading = DUMPS)]
    pub dump_when_waiting: Option<f64>,
    /// And when a statement takes so long
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = DUMPS)]
    pub dump_when_statement: Option<Duration>,
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
    /// Checks that the options fit together. `access` are the options that say how to ask the server, and whether one
    /// of them is given.
    pub fn check(&self, (access, is_given): (&'static str, bool)) -> Result<(), UsageError> {
        let waiting = self.dump_when_waiting.map(|_| "--dump-when-waiting");
        let statement = self.dump_when_statement.map(|_| "--dump-when-statement");
        match (&self.dump_to, waiting.or(statement), statement) {
            (None, Some(option), _) => Err(UsageError::NowhereToDump(option)),
            (Some(_), ..) if self.keep.is_zero() => Err(UsageError::NothingToDump),
            (_, _, Some(option)) if !is_given => Err(UsageError::NobodyToAsk { option, access }),
            _ => Ok(()),
        }
    }

    /// Checks that dumps can be written, if they are to be. Returns where.
    pub fn folder(&self) -> Result<Option<Folder>, Failure> {
        let Some(path) = &self.dump_to else { return Ok(None) };
        Folder::open(path).map(Some).map_err(|why| Failure::Dumps { folder: path.clone(), why })
    }

    /// Starts to write dumps to this folder. `log` is told of each.
    pub fn start_dumps(&self, folder: Folder, sources: Arc<Sources>, log: fn(&str)) -> Result<Dumps, Failure> {
        let limits = Limits { waiting: self.dump_when_waiting, statement: self.dump_when_statement };
        Dumps::start(folder, limits, self.keep, sources, log).map_err(Failure::Start)
    }

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
    fn what_is_to_be_dumped_is_kept_and_has_a_place() {
        let folder = Some(PathBuf::from("/x"));
        let none = HindsightArgs { keep: LONGEST, dump_to: None, dump_when_waiting: None, dump_when_statement: None };
        let check = |args: &HindsightArgs, may_ask| args.check(("--mysql", may_ask)).map_err(|why| why.to_string());
        let waiting = HindsightArgs { dump_when_waiting: Some(20.0), ..none.clone() };
        let statement = HindsightArgs { dump_when_statement: Some(LONGEST), ..none.clone() };
        let says = |args: &HindsightArgs, may_ask, words| check(args, may_ask).is_err_and(|why| why.contains(words));
        assert!(says(&waiting, true, "--dump-when-waiting needs --dump-to"));
        assert!(says(&statement, true, "--dump-when-statement needs --dump-to"));
        let statement = HindsightArgs { dump_to: folder.clone(), ..statement };
        assert!(says(&statement, false, "--dump-when-statement needs --mysql"));
        let nothing = HindsightArgs { keep: Duration::ZERO, dump_to: folder.clone(), ..none.clone() };
        assert!(says(&nothing, true, "--keep 0"));
        let right = [none, HindsightArgs { dump_to: folder, ..waiting }];
        assert!(check(&statement, true).is_ok() && right.iter().all(|args| check(args, false).is_ok()));
    }

    #[test]
    fn the_past_is_an_hour_at_most() {
        assert_eq!(kept("0"), Ok(Duration::ZERO));
        assert_eq!((kept("15m"), last("1h")), (Ok(Duration::from_secs(900)), Ok(LONGEST)));
        assert!(kept("2h").is_err() && kept("x").is_err() && last("0").is_err());
    }
}

//! The error that a command ends with: what was tried, why it failed and what to do next.

use std::io;
use std::path::PathBuf;

use tracing_subscriber::filter;

use crate::agent::AttachError;
use crate::attach::MissingPrivilege;
use crate::audit::AuditError;
use crate::export::BindError;
use crate::measure::statements::UncountedStatements;
use crate::measure::watchpoint::Unwatched;
use crate::recording::compare::{PsError, ScalingError};
use crate::recording::FormatError;
use crate::server::{ClientError, OpenError};
use crate::symbols::{ImageError, NamedFileError, UnusableFile};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum Failure {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Privilege(#[from] MissingPrivilege),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Statements(#[from] UncountedStatements),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("{}", unwatched(.latch, .why))]
    Watch { latch: String, why: Unwatched },
    /// A file that the command line names cannot be used.
    #[error("{}: {why}", .path.display())]
    File { path: PathBuf, why: FileError },
    /// A server's program cannot be used. The error contains its path.
    #[error(transparent)]
    Program(#[from] ImageError),
    /// The file of `--symbols` cannot be used. The error contains its path.
    #[error(transparent)]
    Symbols(#[from] NamedFileError),
    #[error("{} has no build id, so its symbols cannot be matched to a server", .0.display())]
    NoBuildId(PathBuf),
    #[error("{} already exists: choose another name, or overwrite it with --force", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: {why}", .path.display())]
    Write { path: PathBuf, why: io::Error },
    /// The directories in which symbols are searched cannot be opened.
    #[error(transparent)]
    Roots(io::Error),
    #[error(transparent)]
    Scaling(#[from] ScalingError),
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error("cannot start: {0}")]
    Start(io::Error),
    #[error("cannot export metrics: {0}")]
    Export(prometheus::Error),
    #[error("cannot draw on the terminal: {0}")]
    Terminal(io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("armtrace cannot trace here: see the lines marked NO above")]
    NotReady,
}

/// What is wrong with the command line alone.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    #[error("no server given: name one, as in sudo armtrace --pid $(pidof mysqld)")]
    NoServer,
    #[error("--log-level {level}: {why}")]
    LogLevel { level: String, why: filter::ParseError },
    #[error("top needs a terminal: use `armtrace run` to print lines, or `armtrace record` to write a file")]
    NoTerminal,
    #[error("--from-ps stands for A: give one recording, B")]
    TwoRecordingsWithDump,
    #[error("--from-ps needs --ps-unit and --ps-duration")]
    DumpWithoutUnit,
    #[error("give two recordings, A and B, or any number with --by LABEL")]
    NotTwoRecordings,
}

/// The reason why a file cannot be used, for a message that begins with its path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a file. Give a server's program, such as /usr/sbin/mysqld")]
    NotAProgram,
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Recording(#[from] FormatError),
    #[error("no label {0} with a number above 0: record with --label {0}=64")]
    NoLabel(String),
    #[error("too large to be a summary from performance_schema")]
    DumpTooLarge,
    #[error(transparent)]
    Dump(#[from] PsError),
    #[error("{0}. Give a server's debug file, or its program if it is not stripped")]
    NoSymbols(#[from] UnusableFile),
}

impl Failure {
    /// Returns a function that turns the reason why the file at `path` cannot be used into a failure.
    pub fn of_file<E: Into<FileError>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Failure {
        let path = path.into();
        |why| Failure::File { path, why: why.into() }
    }
}

/// Says why a latch was not watched, with the latches that could have been.
fn unwatched(latch: &str, why: &Unwatched) -> String {
    match why {
        Unwatched::Ended(_) => why.to_string(),
        Unwatched::NobodyWaited(others) => {
            let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
            format!("--watch {latch}: {why}.\nlatches with waiters: {others}")
        }
        _ => format!("--watch {latch}: {why}"),
    }
}

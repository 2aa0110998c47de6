//! The error that a command ends with: what was tried, why it failed and what to do next.

use std::io;
use std::path::PathBuf;

use super::config::ConfigError;
use crate::agent::AttachError;
use crate::attach::MissingPrivilege;
use crate::audit::AuditError;
use crate::export::{BindError, WebFileError};
use crate::fleet::FleetError;
use crate::local::LocalError;
use crate::measure::statements::UncountedStatements;
use crate::measure::watchpoint::Unwatched;
use crate::present::foreign::harmless;
use crate::recording::compare::{PsError, ScalingError};
use crate::recording::table::ExportError;
use crate::recording::FormatError;
use crate::server::{ClientError, OpenError};
use crate::symbols::{ImageError, NamedFileError, UnusableFile};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum Failure {
    /// The command line is wrong.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A setting in the environment or in the file of `--config` is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No server was given, and none runs here.
    #[error(
        "no process mysqld or mariadbd is seen here, so there is no server to look at\n\
         next: start one, or see armtrace without: `make demo` in its source folder, `armtrace replay FILE` of a recording"
    )]
    NoServer,
    /// The process cannot be opened as a server.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// This process may not load and attach programs.
    #[error(transparent)]
    Privilege(#[from] MissingPrivilege),
    /// The server gives no answer to the connection of `--mysql`.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Its statements cannot be counted.
    #[error(transparent)]
    Statements(#[from] UncountedStatements),
    /// Nothing could be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The line of the latch in `--watch` was not watched.
    #[error("{}", unwatched(.latch, .why))]
    Watch {
        /// The latch's name, or a part of it.
        latch: String,
        /// The reason.
        why: Unwatched,
    },
    /// A file that the command line names cannot be used.
    #[error("{}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: FileError,
    },
    /// A server's program cannot be used. The error contains its path.
    #[error("{0}. Give a server's program, such as /usr/sbin/mysqld")]
    Program(#[from] ImageError),
    /// The file of `--symbols` cannot be used. The error contains its path.
    #[error(transparent)]
    Symbols(#[from] NamedFileError),
    /// The file whose symbols are to be exported has no build ID.
    #[error(
        "{} has no build id, so its symbols cannot be matched to a server: give the debug file of a package",
        .0.display()
    )]
    NoBuildId(PathBuf),
    /// The file to write exists.
    #[error("{} already exists: choose another name, or overwrite it with --force", .0.display())]
    Exists(PathBuf),
    /// No dump can be written to the folder of `--dump-to`.
    #[error("--dump-to {}: no file can be written there: {why}", .folder.display())]
    Dumps {
        /// The folder.
        folder: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// The file to write cannot be written.
    #[error("cannot write {}: {why}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// The directories in which symbols are searched cannot be opened.
    #[error(transparent)]
    Roots(io::Error),
    /// The recordings show no scaling.
    #[error(transparent)]
    Scaling(#[from] ScalingError),
    /// Servers in Prometheus cannot be compared.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The port cannot be bound.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The file of `--web.config.file` cannot be used.
    #[error(transparent)]
    Web(#[from] WebFileError),
    /// The runtime cannot be started, or signals cannot be received.
    #[error("cannot start: {0}")]
    Start(io::Error),
    /// The metrics cannot be registered.
    #[error("cannot export metrics: {0}")]
    Export(prometheus::Error),
    /// A recording cannot be exported.
    #[error(transparent)]
    Tables(ExportError),
    /// The terminal cannot be drawn on.
    #[error("cannot draw on the terminal: {0}")]
    Terminal(io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// The result cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// No armtrace keeps the past of a server.
    #[error(
        "no armtrace runs here that keeps the past of a server, so there is nothing to write\n\
         next: start one, as with `sudo armtrace --discover`, or record what comes with `armtrace record`"
    )]
    NothingKept,
    /// An armtrace runs, but it does not keep the past of the server that is meant.
    #[error("the past of no such server is kept here\nservers whose past is: {}", .0.join(", "))]
    NotKept(
        /// Those whose past is kept.
        Vec<String>,
    ),
    /// What is kept cannot be asked for.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// What was kept is not a recording that this armtrace reads.
    #[error("what the armtrace that runs here keeps cannot be read: {0}")]
    Kept(FormatError),
    /// Doctor has found that armtrace cannot trace on this host.
    #[error("armtrace cannot trace here: see the lines marked NO above")]
    NotReady,
}

/// What is wrong with the command line alone.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// `top` has no terminal to draw on.
    #[error(
        "top needs a terminal: use `armtrace run` to print lines, or `armtrace record` to write a file{}",
        offered(.0)
    )]
    NoTerminal(
        /// The servers that the user could have chosen from there.
        Vec<String>,
    ),
    /// There is more than one recording to replay on the full screen.
    #[error("--top shows one recording: give one, or leave out --top to serve them all")]
    SeveralOnScreen,
    /// The server is to be asked, but it is not said how.
    #[error("{option} needs {access}, to ask the server")]
    NobodyToAsk {
        /// The option for which it is to be asked.
        option: &'static str,
        /// The options that say how.
        access: &'static str,
    },
    /// It is said when to write dumps, but not where.
    #[error("{0} needs --dump-to FOLDER, where the past is written")]
    NowhereToDump(
        /// The option that says when.
        &'static str,
    ),
    /// Dumps are to be written, but nothing is kept.
    #[error("--dump-to writes what is kept of the past, and --keep 0 keeps nothing: leave out one of them")]
    NothingToDump,
    /// Files are to be written, but it is not said where.
    #[error("parquet needs a folder for its files: give --output FOLDER")]
    NoFolder,
    /// What goes to standard output is to be written to a folder.
    #[error("--output is for parquet: other formats go to standard output")]
    NoFolderNeeded,
    /// A recording to replay is given twice.
    #[error("{} is given twice: each recording is served as a server of its own", .0.display())]
    ReplayedTwice(PathBuf),
    /// The past of several servers is kept.
    #[error("the past of several servers is kept: choose one with --pid or --target\nservers: {}", .0.join(", "))]
    SeveralKept(
        /// The servers.
        Vec<String>,
    ),
    /// There are more or fewer than two systems, of which one or more are dumps.
    #[error("--from-ps stands for A: give one recording, B, or --from-ps a second time")]
    NotTwoWithDumps,
    /// There are more times or counts of statements than dumps, or a count for only one of two.
    #[error("give --ps-duration once for all, or for each --from-ps, and --ps-statements for each, in the same order")]
    NotForEachDump,
    /// A dump has two counts of statements.
    #[error("--ps-statements and --qps-a or --qps-b say the same: give one of them")]
    StatementsTwice,
    /// A rate of statements is given, but not the time in which a dump was counted.
    #[error("--qps-a and --qps-b are rates: give --ps-duration too, or --ps-statements in their place")]
    RateWithoutTime,
    /// It is not said which servers in Prometheus B has.
    #[error("give --b, the labels of B's servers, or --before and --after to compare two times of A's")]
    NoServersOfB,
    /// There are more or fewer than two recordings to compare.
    #[error("give two recordings, A and B, or any number with --by LABEL")]
    NotTwoRecordings,
}

/// The reason why a file cannot be used, for a message that begins with its path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is missing, or cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is a directory, a device or a pipe.
    #[error("not a file. Give a server's program, such as /usr/sbin/mysqld")]
    NotAProgram,
    /// It cannot be audited.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// It is not a whole recording.
    #[error(transparent)]
    Recording(#[from] FormatError),
    /// The recording lacks this label, or its value is not a number above 0.
    #[error("no label {0} with a number above 0: record with --label {0}=64")]
    NoLabel(String),
    /// It is larger than any dump of performance_schema's summary.
    #[error("too large to be a summary from performance_schema")]
    DumpTooLarge,
    /// It is not such a dump.
    #[error(transparent)]
    Dump(#[from] PsError),
    /// Its symbols cannot be read.
    #[error("{0}. Give a server's debug file, or its program if it is not stripped")]
    NoSymbols(#[from] UnusableFile),
}

impl Failure {
    /// Returns the message for the user's terminal.
    pub fn message(&self) -> String {
        harmless(&self.to_string()).into_owned()
    }

    /// Returns a function that turns the reason why the file at `path` cannot be used into a failure.
    pub fn of_file<E: Into<FileError>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Failure {
        let path = path.into();
        |why| Failure::File { path, why: why.into() }
    }
}

/// Lists the servers that run here, if there is a list.
fn offered(servers: &[String]) -> String {
    if servers.is_empty() {
        String::new()
    } else {
        format!("\nservers here: {}", servers.join(", "))
    }
}

/// Says why a latch was not watched, with the latches that could have been.
fn unwatched(latch: &str, why: &Unwatched) -> String {
    match why {
        Unwatched::Ended(_) => why.to_string(),
        Unwatched::NobodyWaited(others) => {
            let next = match others.join(", ") {
                none if none.is_empty() => "no thread waited for any other either: watch it under load".to_owned(),
                others => format!("latches with waiters: {others}"),
            };
            format!("--watch {latch}: {why}.\n{next}")
        }
        _ => format!("--watch {latch}: {why}"),
    }
}

//! Why a process cannot be examined as a server, and why a server gives its client no answer.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::sync::Arc;

use super::{symbols_advice, OptionFileError};
use crate::discovery::Unrecognized;
use crate::symbols::{ImageError, NamedFileError, Trial};

/// The reason why a process cannot be opened as a server.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum OpenError {
    /// There is no process with this ID.
    #[error("there is no process {0}: run `armtrace` alone to list the servers of this host")]
    NoProcess(i32),
    /// The ID is that of a thread.
    #[error("{thread} is a thread of process {process}: use --pid {process}")]
    Thread {
        /// The ID that was given.
        thread: i32,
        /// The ID of the process that it belongs to.
        process: i32,
    },
    /// The kernel is older than `pidfd_open`.
    #[error("this kernel has no pidfd_open: armtrace needs Linux 5.10 or newer")]
    NoPidfd,
    /// No descriptor that shows the end of the process can be had.
    #[error("cannot watch process {pid}: {why}")]
    Unwatchable {
        /// The process ID.
        pid: i32,
        /// The kernel's error.
        why: io::Error,
    },
    /// This user may not read the program or the memory of the process with this ID.
    #[error("not permitted to inspect process {0}: run armtrace as root (sudo armtrace …)")]
    NotPermitted(i32),
    /// The process has no program file.
    #[error(
        "process {pid} ({name}) runs no program file (it is a kernel thread, or is ending), so it is not a database server: \
         run `armtrace` alone to list those of this host"
    )]
    NoProgram {
        /// The process ID.
        pid: i32,
        /// The process's name.
        name: String,
    },
    /// The program file of the process cannot be used.
    #[error("process {pid}: {why}")]
    Program {
        /// The process ID.
        pid: i32,
        /// What is wrong with the file.
        why: ImageError,
    },
    /// The program is not found among the process's mappings.
    #[error("process {pid}: cannot find where its program is loaded: {why}")]
    NotLoaded {
        /// The process ID.
        pid: i32,
        /// The error of reading or searching the mappings.
        why: io::Error,
    },
    /// The symbol file that the user named cannot be used.
    #[error(transparent)]
    Symbols(#[from] NamedFileError),
    /// The program is not a server that the catalog knows.
    #[error(transparent)]
    Unsupported(Box<Unsupported>),
}

/// A process whose program is not a supported server, and what is known of it.
#[derive(Debug, thiserror::Error)]
pub struct Unsupported {
    /// The process ID.
    pub pid: i32,
    /// The process's name.
    pub name: String,
    /// What the program is instead.
    pub what: Unrecognized,
    /// The version that the server itself reports.
    pub version: Option<String>,
    /// Which symbols its program has, in words.
    pub symbols: String,
    /// The attempts to find more.
    pub trials: Arc<Vec<Trial>>,
}

impl Display for Unsupported {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Unsupported { pid, name, what, version, symbols, trials } = self;
        match version {
            Some(version) if !trials.is_empty() && trials.iter().all(|trial| trial.outcome.is_err()) => {
                let tried: Vec<String> = trials.iter().map(Trial::to_string).collect();
                write!(
                    f,
                    "process {pid} ({name}, version {version}) is {what}.\nIts program has {symbols}. No other symbols were found ({}). {}",
                    tried.join("; "),
                    symbols_advice(version)
                )
            }
            Some(version) => write!(
                f,
                "process {pid} ({name}, version {version}) is {what}. Its program has {symbols}.\narmtrace supports MySQL and Percona Server \
                 from 8.0 on, MariaDB from 10.6 on and 10.2 with its symbols; of other MariaDB versions up to 10.5 it measures only sleeps"
            ),
            None => write!(f, "process {pid} ({name}) is {what}"),
        }
    }
}

/// The reason why a server gives its client no answer.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum ClientError {
    /// The URL is invalid. Its text is not repeated, because it may contain a password.
    #[error("--mysql: {0}. Write mysql://USER:PASSWORD@HOST:PORT or mysql://USER@localhost?socket=/PATH")]
    Url(#[from] mysql::UrlError),
    /// The option file cannot be used.
    #[error(transparent)]
    OptionFile(#[from] OptionFileError),
    /// The server refuses, or does not answer.
    #[error("cannot read the server's counters: {0}. Check --mysql or --defaults-file, or omit it: figures per query are then absent")]
    Server(#[from] mysql::Error),
    /// The server does not report how many statements it has received.
    #[error(
        "cannot read the server's counters: it has no statement counter. Omit --mysql and --defaults-file: figures per \
         query are then absent"
    )]
    NoCounter,
}

impl ClientError {
    /// Whether the server has as many connections as it allows, or as it allows this user.
    pub fn is_full(&self) -> bool {
        // ER_CON_COUNT_ERROR and ER_TOO_MANY_USER_CONNECTIONS.
        matches!(self, ClientError::Server(mysql::Error::MySqlError(why)) if matches!(why.code, 1040 | 1203))
    }

    /// Whether a later attempt may succeed. After most refusals it would not, and might lock the account.
    pub fn may_pass(&self) -> bool {
        self.is_full() || matches!(self, ClientError::Server(why) if !matches!(why, mysql::Error::MySqlError(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::symbols::{NoSymbols, SymbolSource};

    #[test]
    fn a_server_without_symbols_is_told_where_to_get_them() {
        let none = || Trial {
            source: SymbolSource::BuildId,
            outcome: Err(NoSymbols::NoFile(vec![PathBuf::from("/x.debug")])),
        };
        let has = "no .symtab, .dynsym with 84789 functions and variables";
        let said = |version: &str, trials: Vec<Trial>| {
            let (version, symbols) = (Some(version.to_owned()), has.to_owned());
            let what = Unrecognized::NoWaitFunctions;
            Unsupported { pid: 0, name: "mysqld".to_owned(), what, version, symbols, trials: Arc::new(trials) }
                .to_string()
        };
        let message = said("11.4.5-MariaDB", vec![none()]);
        for words in ["11.4.5", has, "build-id: there is no /x.debug", "DEBUGINFOD_URLS", "--symbols FILE"] {
            assert!(message.contains(words), "{words} is not in {message}");
        }
        assert_eq!(message.lines().count(), 2);
        let message = said("10.5.29-MariaDB-0+deb11u1", vec![none()]);
        assert!(message.contains("Install mariadb-server-core-10.5-dbgsym"), "{message}");
        // If they were found, or if the server has its own, symbols are not what is missing.
        let found = Trial { source: SymbolSource::Debuglink, outcome: Ok(PathBuf::from("/y.debug")) };
        for trials in [vec![none(), found], vec![]] {
            let message = said("11.4.5-MariaDB", trials);
            assert!(!message.contains("--symbols") && message.contains(has), "{message}");
        }
    }
}

//! How a command asks the armtrace that runs on this host: over a Unix socket that root and its group may open.
//!
//! ```text
//! folder    $RUNTIME_DIRECTORY, or /run/armtrace; one socket per process, named by its ID
//! request   a line of JSON
//! answer    a line of JSON, then the bytes of the files or of the recording that it announces
//! ```

mod client;
mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use client::{servers, Asked, LocalError, Recorded};
pub use server::{serve, Past, Socket, Sources};

/// The variable in which systemd passes the folder of `RuntimeDirectory=`.
const FOLDER_VARIABLE: &str = "RUNTIME_DIRECTORY";
const FOLDER: &str = "/run/armtrace";

/// The longest line of a request and of an answer, in bytes.
const LONGEST_REQUEST: u64 = 4 << 10;
const LONGEST_ANSWER: u64 = 1 << 20;

/// What a command asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// The servers whose past is kept.
    Servers,
    /// The recordings that have a server's last so many milliseconds.
    Files { pid: i32, last_ms: u64 },
    /// A recording from now on, as it is made. It ends when the client closes its side, at the latest after this time.
    Record { pid: i32, duration_ms: u64, labels: BTreeMap<String, String> },
}

/// What the agent answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Servers(Vec<Kept>),
    /// The sizes of the files that follow, in bytes.
    Files(Vec<u64>),
    /// A recording follows.
    Recording,
    /// The reason why there is no other answer.
    Failed(String),
}

/// A server whose past is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Its process ID.
    pub pid: i32,
    /// The value of the label `target`; `None` if armtrace measures only this one.
    pub name: Option<String>,
    /// Its maintainer and version.
    pub flavor: String,
    pub version: String,
    /// Whether the process has ended, or is no longer measured.
    pub has_ended: bool,
    /// Whether nothing is counted for a while.
    pub is_paused: bool,
    /// How far back the past is kept, in milliseconds.
    pub reaches_ms: u64,
    /// How many threads waited for latches in the last seconds, five at most, on average.
    pub waiting: f64,
}

/// Returns the folder of the sockets.
pub fn folder() -> PathBuf {
    // systemd passes several, separated by colons.
    let given = env::var(FOLDER_VARIABLE).ok().and_then(|folders| folders.split(':').next().map(PathBuf::from));
    given.filter(|folder| folder.is_absolute()).unwrap_or_else(|| FOLDER.into())
}

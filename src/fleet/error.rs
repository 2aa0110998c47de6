//! The reasons why servers in Prometheus cannot be compared.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::config::ConfigError;
use super::grid::Range;

/// The reason why servers cannot be compared, and what to do next.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum FleetError {
    /// It is no URL of an HTTP API.
    #[error("--prometheus {url}: {what}\nnext: give the URL below which its API is, such as http://prometheus:9090")]
    Url {
        /// What was given, without a password.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The configuration of the HTTP client cannot be used.
    #[error("--http-config {}: {why}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: ConfigError,
    },
    /// A request failed.
    #[error("{url}: {why}\nnext: {}", .why.next())]
    Request {
        /// What was asked, without the query.
        url: String,
        /// The reason.
        why: RequestError,
    },
    /// No server has such labels in this time.
    #[error(
        "no server in Prometheus has {servers} {range}\n\
         next: the query armtrace_target_info shows which servers there are, and the labels to choose them by"
    )]
    NoServers {
        /// The matchers.
        servers: String,
        /// The time.
        range: Range,
    },
    /// The range has no two scrapes of a server that follow each other.
    #[error(
        "servers with {servers} have no two scrapes in a row {range}, without a restart between them\n\
         next: give a longer --range; the query up{{job=\"armtrace\"}} shows when they were scraped"
    )]
    NoWindows {
        /// The matchers.
        servers: String,
        /// The time.
        range: Range,
    },
    /// The range is too short for the interval between two scrapes.
    #[error("--range: servers with {servers} are scraped every {every:?}, so it has to be at least {least:?}")]
    Short {
        /// The matchers.
        servers: String,
        /// The time between two scrapes.
        every: Duration,
        /// The shortest range.
        least: Duration,
    },
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The whole answer was not there in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// There is no connection, or it ended.
    #[error("{0}")]
    Http(Box<ureq::Error>),
    /// The system starts no thread.
    #[error("no thread for the request: {0}")]
    NoThread(io::Error),
    /// It wants to know who asks, or does not let them.
    #[error("it refuses the request with status {0}")]
    Refused(u16),
    /// It answered with this status, and not in the API's form.
    #[error("it answers with status {0}")]
    Status(u16),
    /// The answer is larger than this many bytes.
    #[error("its answer is larger than {} MiB", .0 >> 20)]
    TooLarge(u64),
    /// The answer is something else.
    #[error("it answers with {0}, which is not the HTTP API of Prometheus")]
    NotTheApi(&'static str),
    /// Parts of the storage are missing from the answer.
    #[error("its answer is incomplete, because a part of its storage gave none")]
    Partial,
    /// It could not compute the answer.
    #[error("it says: {0}")]
    Api(String),
}

impl RequestError {
    fn next(&self) -> &'static str {
        match self {
            RequestError::Late(_) | RequestError::Partial => {
                "try it again, with a shorter --range, or with fewer servers in --a and --b"
            }
            RequestError::TooLarge(_) | RequestError::Api(_) => {
                "give a shorter --range, or choose fewer servers with --a and --b"
            }
            RequestError::Http(_) => "check the URL, and that it can be reached from this host",
            RequestError::NoThread(_) => "allow this user or service more threads",
            RequestError::Refused(_) => {
                "put a user and password, or a token, into a file, and name it with --http-config"
            }
            RequestError::Status(_) | RequestError::NotTheApi(_) => {
                "give the URL below which /api/v1/query is, with its path if it has one"
            }
        }
    }
}

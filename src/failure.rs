//! The error that a command ends with: one message that says what was tried, why it failed and what to do next, and the
//! exit status that scripts rely on.

use std::fmt;

/// An error message with its exit status.
#[derive(Debug)]
pub struct Failure {
    /// The exit status: 1 to 4, one for each of the functions below.
    pub status: u8,
    /// What was tried, why it failed and what to do next.
    pub message: String,
}

impl Failure {
    /// Returns a failure with status 1: something failed while running.
    pub fn running(message: impl fmt::Display) -> Failure {
        Failure { status: 1, message: message.to_string() }
    }

    /// Returns a failure with status 2: bad usage.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure { status: 2, message: message.to_string() }
    }

    /// Returns a failure with status 3: no such process, or not a supported server.
    pub fn target(message: impl fmt::Display) -> Failure {
        Failure { status: 3, message: message.to_string() }
    }

    /// Returns a failure with status 4: a privilege or a kernel feature is missing.
    pub fn privilege(message: impl fmt::Display) -> Failure {
        Failure { status: 4, message: message.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::running(format!("{error:#}"))
    }
}

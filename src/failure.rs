//! The error that a command ends with: one message that says what was tried, why it failed and what to do next, and the
//! exit status that scripts rely on.

use std::fmt;

/// An error message with its exit status.
#[derive(Debug)]
pub struct Failure {
    /// 1: failed while running. 2: bad usage. 3: no such process, or not a supported server. 4: a privilege or a kernel
    /// feature is missing.
    pub status: u8,
    pub message: String,
}

impl Failure {
    pub fn running(message: impl fmt::Display) -> Failure {
        Failure { status: 1, message: message.to_string() }
    }

    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure { status: 2, message: message.to_string() }
    }

    pub fn target(message: impl fmt::Display) -> Failure {
        Failure { status: 3, message: message.to_string() }
    }

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

//! The log, on standard error, and what else is told there.

use std::fs::Metadata;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload, EnvFilter, Layer, Registry};

use crate::present::foreign::harmless_in_line;

/// The format of the log, once it has begun.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// What the log lets through, once it has begun.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Args, Clone, Debug)]
pub(super) struct LogArgs {
    /// Format of the log: text or json
    #[arg(long, default_value = "text", value_name = "FORMAT", hide_possible_values = true)]
    pub log_format: LogFormat,
}

/// Begins to log what `level` lets through, which is a valid filter.
pub(super) fn start(level: &str, format: LogFormat) {
    _ = FORMAT.set(format);
    // Clap colours its help and errors by the same rules: on terminals, but not where NO_COLOR is set.
    let has_colours = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text if needs_times() => lines.with_ansi(has_colours).boxed(),
        LogFormat::Text => lines.with_ansi(has_colours).without_time().boxed(),
    };
    let (filter, handle) = reload::Layer::new(EnvFilter::new(level));
    _ = FILTER.set(handle);
    Registry::default().with(filter).with(lines).init();
}

/// Lets through from now on what `level` does, which is a valid filter.
pub(super) fn set_level(level: &str) {
    let set = FILTER.get().map(|handle| handle.reload(EnvFilter::new(level)));
    if let Some(Err(why)) = set {
        tracing::warn!("the log stays as it was: {why}");
    }
}

/// Tells the user what has happened: in a line of the log if that is JSON, where it counts as a warning.
pub(super) fn tell(message: &str) {
    match FORMAT.get() {
        Some(LogFormat::Json) => tracing::warn!("{message}"),
        _ => eprintln!("{}", line(message)),
    }
}

/// Returns the line that tells a message, which may have words of a server in it.
fn line(message: &str) -> String {
    format!("armtrace: {}", harmless_in_line(message))
}

/// Tells the user why the command has failed.
pub fn tell_failure(message: &str) {
    match FORMAT.get() {
        Some(LogFormat::Json) => tracing::error!("{message}"),
        _ => eprintln!("armtrace: {message}"),
    }
}

/// Returns whether somebody may look at the live table: in the journal its blocks would bury everything else.
pub(super) fn table_is_seen() -> bool {
    !(is_journal(&io::stdout()) || is_nowhere(&io::stdout()))
}

/// Returns whether standard error is a file or a pipe, in which nothing else says when a line was written.
fn needs_times() -> bool {
    !(io::stderr().is_terminal() || is_journal(&io::stderr()))
}

fn is_nowhere(stream: &impl AsFd) -> bool {
    let null = std::fs::metadata(Path::new("/dev/null"));
    null.is_ok_and(|null| status(stream.as_fd()).is_ok_and(|stream| stream.rdev() != 0 && stream.rdev() == null.rdev()))
}

/// Returns whether a stream is connected to the journal, which systemd says in this variable.
fn is_journal(stream: &impl AsFd) -> bool {
    let journal = std::env::var("JOURNAL_STREAM").ok();
    journal.is_some_and(|journal| {
        status(stream.as_fd()).is_ok_and(|stream| journal == format!("{}:{}", stream.dev(), stream.ino()))
    })
}

fn status(stream: BorrowedFd) -> io::Result<Metadata> {
    std::fs::File::from(stream.try_clone_to_owned()?).metadata()
}

#[cfg(test)]
mod tests {
    use super::line;

    /// A server chooses its version, which is told when it is found.
    #[test]
    fn a_servers_own_words_do_not_reach_the_terminal_as_commands() {
        let told = line("measuring mysql.service: MySQL 9.7\x1b[2J\nfake line, process 70");
        assert!(told.starts_with("armtrace: measuring mysql.service: MySQL 9.7") && !told.contains(char::is_control));
    }
}

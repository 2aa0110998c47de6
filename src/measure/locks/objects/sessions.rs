//! Reads which connection a session is, and what it executes.

use std::sync::Arc;

use super::is_pointer;
use crate::discovery::{connection, statement, AccountAt};
use crate::measure::latch::{Executes, StatementReader};
use crate::measure::locks::LockBlocker;
use crate::server::{Memory, Target};

/// Returns what is shown of a statement.
pub(super) type Show = fn(&str) -> String;

/// Who blocks others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blocker {
    /// See [`LockBlocker::connection`].
    pub connection: u32,
    /// See [`LockBlocker::statement`].
    pub statement: String,
}

/// The sessions of one server.
pub(super) struct Sessions {
    memory: Memory,
    reader: StatementReader,
    /// The offset in a session of the ID of its connection.
    connection: u64,
    /// `None` if statements are not to be read.
    show: Option<Show>,
}

impl Blocker {
    fn without_connection(statement: &str) -> Blocker {
        Blocker { connection: 0, statement: statement.to_owned() }
    }

    /// One that was not found.
    pub fn unknown() -> Blocker {
        Blocker::without_connection(LockBlocker::UNKNOWN)
    }
}

impl Sessions {
    /// Creates one that reads statements unless `show` is `None`. Returns `None` if the program or the running server
    /// does not show where threads have their sessions, as when its memory cannot be read.
    pub fn new(target: &Arc<Target>, show: Option<Show>) -> Option<Sessions> {
        let reader = StatementReader::new(target, statement(&target.image).ok()?, AccountAt::default())?;
        let connection = connection(&target.image)?;
        Some(Sessions { memory: Memory::new(target.pid), reader, connection, show })
    }

    /// Returns the addresses of the sessions of threads that have these pointers to their own variables, without those
    /// that have none.
    pub fn of(&self, threads: &[u64]) -> Vec<u64> {
        self.reader.sessions(threads).into_iter().flatten().filter(|at| is_pointer(*at)).collect()
    }

    /// Returns who has the session at this address, with `idle` in place of a statement if it executes none; `None` if
    /// that cannot be read.
    pub fn describe(&mut self, session: u64, idle: &str) -> Option<Blocker> {
        if session == 0 {
            return Some(Blocker::without_connection(LockBlocker::NO_CONNECTION));
        }
        let connection = self.memory.u32(session.wrapping_add(self.connection))?;
        let statement = match self.show {
            None => String::new(),
            Some(show) => match self.reader.read_sessions(vec![Some(session)]).into_iter().next()? {
                Executes::Statement(text) => show(&text),
                Executes::Nothing => idle.to_owned(),
                Executes::Unread => LockBlocker::UNREAD.to_owned(),
            },
        };
        Some(Blocker { connection, statement })
    }
}

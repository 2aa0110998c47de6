//! Reads the statements that threads execute from the server's memory.

use std::hash::Hash;

use super::digest::digest_text;
use crate::analysis::ThreadOffset;
use crate::discovery::StatementAt;
use crate::measure::latch::texts::{Shown, Texts};
use crate::server::{Memory, Target};

/// How much of a statement is read, in bytes.
const PREFIX: usize = 1024;

/// The longest statement that a server takes, in bytes (`max_allowed_packet`).
const LONGEST: u64 = 1 << 30;

/// What a thread executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::measure) enum Executes {
    /// No statement.
    Nothing,
    /// A statement, without its values.
    Statement(String),
    /// Something that could not be read, that is no statement, or that changed while it was read.
    Unread,
}

impl Executes {
    /// Returns what a text is that was read, the beginning of a longer one if it `is_cut`.
    pub fn of(text: &[u8], is_cut: bool) -> Executes {
        digest_text(text, is_cut).map_or(Executes::Unread, Executes::Statement)
    }

    /// Counts `weight` samples of threads that did something and executed this.
    pub fn add_to<D: Copy + Eq + Hash>(&self, texts: &mut Texts<D>, doing: D, weight: u64) {
        let shown = match self {
            Executes::Statement(text) => texts.seen(text, weight),
            Executes::Nothing => Shown::Nothing,
            Executes::Unread => Shown::Unread,
        };
        texts.count(doing, shown, weight);
    }
}

/// Where the threads of a running server have their statements.
#[derive(Clone, Copy, Debug)]
pub(in crate::measure) struct Place {
    /// The distance of the pointer to the session from the thread pointer.
    pub session: i64,
    /// The offset in the session of the text's address, which its length follows.
    pub text: u64,
}

impl Place {
    /// Returns the place for a program that has statements there. `None` if the server's memory cannot be read.
    pub(super) fn new(target: &Target, at: StatementAt) -> Option<Place> {
        let session = match at.session {
            ThreadOffset::Fixed(distance) => distance,
            ThreadOffset::InSlot(slot) => Memory::new(target.pid).u64(slot.wrapping_add(target.bias))? as i64,
        };
        Some(Place { session, text: at.text })
    }
}

/// Reads the statements of one server's threads. Values in them do not leave this module.
pub(in crate::measure) struct StatementReader {
    memory: Memory,
    place: Place,
    // Memory that is used again in each look.
    copies: Vec<u8>,
}

/// The address and the length of a text.
type Text = (u64, u64);

impl StatementReader {
    /// Creates one for a server whose program has statements there. `None` if the server's memory cannot be read.
    pub fn new(target: &Target, at: StatementAt) -> Option<StatementReader> {
        Some(StatementReader { memory: Memory::new(target.pid), place: Place::new(target, at)?, copies: Vec::new() })
    }

    /// Returns what the threads with these thread pointers execute, which has to be the same all the while.
    pub fn read(&mut self, threads: &[u64]) -> Vec<Executes> {
        let sessions = self.sessions(threads);
        self.read_sessions(sessions)
    }

    /// Returns the address of the session that each thread with one of these thread pointers has, or 0 if it has none;
    /// `None` if that cannot be read.
    pub fn sessions(&self, threads: &[u64]) -> Vec<Option<u64>> {
        let at: Vec<u64> = threads.iter().map(|thread| thread.wrapping_add_signed(self.place.session)).collect();
        self.memory.read_many(&at).into_iter().map(|bytes| bytes.map(u64::from_le_bytes)).collect()
    }

    /// Returns what is executed in these sessions, which has to be the same all the while.
    pub fn read_sessions(&mut self, sessions: Vec<Option<u64>>) -> Vec<Executes> {
        let mut executes: Vec<Executes> = sessions
            .iter()
            .map(|session| match session {
                Some(0) => Executes::Nothing,
                _ => Executes::Unread,
            })
            .collect();
        let open = sessions.into_iter().enumerate().filter_map(|(n, session)| Some((n, session.filter(|s| *s != 0)?)));
        let (open, at): (Vec<usize>, Vec<u64>) =
            open.map(|(n, session)| (n, session.wrapping_add(self.place.text))).unzip();
        let texts = self.texts(&at);
        for (n, text) in open.iter().zip(&texts) {
            if matches!(text, Some((0, _) | (_, 0))) {
                executes[*n] = Executes::Nothing;
            }
        }
        let is_text = |text: &Text| text.0 != 0 && (1..=LONGEST).contains(&text.1);
        let found =
            open.iter().zip(&at).zip(&texts).filter_map(|((n, at), text)| Some((*n, *at, text.filter(is_text)?)));
        let found: Vec<(usize, u64, Text)> = found.collect();
        let statements = self.statements(&found);
        // What has not changed meanwhile was read whole.
        let again = self.texts(&found.iter().map(|(_, at, _)| *at).collect::<Vec<u64>>());
        for (((n, _, text), statement), again) in found.iter().zip(statements).zip(again) {
            if let Some(statement) = statement.filter(|_| again == Some(*text)) {
                executes[*n] = Executes::Statement(statement);
            }
        }
        executes
    }

    /// Reads where texts are and how long.
    fn texts(&self, at: &[u64]) -> Vec<Option<Text>> {
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let text = |bytes: [u8; 16]| (half(&bytes[..8]), half(&bytes[8..]));
        self.memory.read_many::<16>(at).into_iter().map(|bytes| bytes.map(text)).collect()
    }

    /// Reads texts, and returns them without their values.
    fn statements(&mut self, texts: &[(usize, u64, Text)]) -> Vec<Option<String>> {
        let prefix = |(_, _, (at, length)): &(usize, u64, Text)| (*at, (*length as usize).min(PREFIX));
        let pieces: Vec<(u64, usize)> = texts.iter().map(prefix).collect();
        let is_copied = self.memory.read_ranges(&pieces, &mut self.copies);
        let mut left = &self.copies[..];
        let mut statements = Vec::with_capacity(texts.len());
        for ((_, _, (_, length)), ((_, piece), is_copied)) in texts.iter().zip(pieces.iter().zip(is_copied)) {
            let (bytes, rest) = left.split_at(*piece);
            left = rest;
            let is_cut = *length as usize > *piece;
            statements.push(is_copied.then(|| digest_text(bytes, is_cut)).flatten());
        }
        statements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where this test's sessions and threads have things, in bytes.
    const TEXT: u64 = 24;
    const SESSION: i64 = -16;

    /// A session in this process: the address and the length of its statement are its last two words.
    fn session(at: u64, length: u64) -> [u64; 5] {
        [7, 7, 7, at, length]
    }

    /// Reads the statements of threads that have these pointers to their sessions.
    fn read(sessions: &[u64]) -> Vec<Executes> {
        let threads: Vec<[u64; 3]> = sessions.iter().map(|session| [*session, 8, 9]).collect();
        let pointers: Vec<u64> = threads.iter().map(|thread| std::ptr::from_ref(&thread[2]) as u64).collect();
        let memory = Memory::new(std::process::id() as i32);
        let place = Place { session: SESSION, text: TEXT };
        StatementReader { memory, place, copies: Vec::new() }.read(&pointers)
    }

    fn at<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    #[test]
    fn statements_are_read_without_values() {
        let (text, long) = (*b"SELECT a FROM t WHERE b = 'x'", [&b"SELECT "[..], &[b'a'; 2000]].concat());
        let [some, cut] = [session(at(&text), text.len() as u64), session(long.as_ptr() as u64, long.len() as u64)];
        let [none, empty] = [session(0, 5), session(at(&text), 0)];
        let statement = |text: &str| Executes::Statement(text.to_owned());
        let expected = [
            statement("SELECT a FROM t WHERE b = ?"),
            Executes::Nothing,
            statement("SELECT ..."),
            Executes::Nothing,
            Executes::Nothing,
        ];
        assert_eq!(read(&[at(&some), 0, at(&cut), at(&none), at(&empty)]), expected);
        assert!(read(&[]).is_empty());
    }

    /// If it is not known where a thread has what, something else is found there, or nothing.
    #[test]
    fn what_is_elsewhere_is_no_statement() {
        let (text, number) = (*b"hello, world", 5_u64);
        let [other, garbage, huge] =
            [session(at(&text), text.len() as u64), session(0x1234, 80), session(at(&number), LONGEST + 1)];
        let all = read(&[at(&other), at(&garbage), at(&huge), 0x10, u64::MAX - 7]);
        assert!(all.iter().all(|executes| *executes == Executes::Unread), "{all:?}");
    }
}

//! Reads the statements that threads execute from the server's memory.

use std::hash::Hash;

use super::digest::digest_text;
use super::key;
use crate::discovery::{AccountAt, StatementAt, UserAt};
use crate::measure::latch::figures::Account;
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

    /// Counts `weight` samples of threads that did something and executed this for someone.
    pub fn add_to<D: Copy + Eq + Hash>(&self, account: &Account, texts: &mut Texts<D>, doing: D, weight: u64) {
        let shown = match self {
            Executes::Statement(text) => texts.seen(text, account, weight),
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
    /// Where the session keeps for whom it works.
    pub account: AccountAt,
}

impl Place {
    /// Returns the place for a program that has statements there. `None` if the running server does not show it, as
    /// when its memory cannot be read.
    pub(super) fn new(target: &Target, at: StatementAt, account: AccountAt) -> Option<Place> {
        let session = key::distance(target, at.session).ok()?;
        Some(Place { session, text: at.text, account })
    }
}

/// Reads the statements of one server's threads. Values in them do not leave it.
pub(in crate::measure) struct StatementReader {
    memory: Memory,
    place: Place,
    // Memory that is used again in each look.
    copies: Vec<u8>,
}

/// The address and the length of a text.
type Text = (u64, u64);

/// The longest name of a user or schema that is read, in bytes, as in samples of CPU time. Servers allow up to 128
/// characters.
const LONGEST_NAME: u64 = 127;

/// A name whose length is not known is not read beyond its page. This is the smallest page size.
const PAGE: u64 = 4096;

/// Returns the name that these bytes are, up to a NUL: the last byte, if they are a name as a whole. What changed while
/// it was read mostly ends elsewhere.
pub(in crate::measure) fn name_of(bytes: &[u8], as_a_whole: bool) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).filter(|end| !as_a_whole || end + 1 == bytes.len())?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    (!name.chars().any(char::is_control)).then(|| name.to_owned())
}

impl StatementReader {
    /// Creates one for a server whose program has statements and accounts there. `None` if the running server does not
    /// show where, as when its memory cannot be read.
    pub fn new(target: &Target, at: StatementAt, account: AccountAt) -> Option<StatementReader> {
        let place = Place::new(target, at, account)?;
        Some(StatementReader { memory: Memory::new(target.pid), place, copies: Vec::new() })
    }

    /// Returns what the threads with these thread pointers execute, which has to be the same all the while, and for
    /// whom.
    pub fn read(&mut self, threads: &[u64]) -> Vec<(Executes, Account)> {
        let sessions = self.sessions(threads);
        let accounts = self.accounts(&sessions);
        self.read_sessions(sessions).into_iter().zip(accounts).collect()
    }

    /// Returns for whom sessions work.
    fn accounts(&mut self, sessions: &[Option<u64>]) -> Vec<Account> {
        let AccountAt { schema, user } = self.place.account;
        let in_session = |offset: Option<u64>| {
            let at = move |session: &Option<u64>| Some(session.filter(|session| *session != 0)?.wrapping_add(offset?));
            sessions.iter().map(at)
        };
        // Few calls: each takes as long as reading some names.
        let first = user.map(|user| user.context.unwrap_or(user.name));
        let at: Vec<Option<u64>> = in_session(schema).chain(in_session(first)).collect();
        let mut schemas = self.texts_if(&at);
        let mut users = schemas.split_off(sessions.len());
        if let Some(UserAt { context: Some(_), name, .. }) = user {
            let in_context = |context: &Option<Text>| Some(context.filter(|(at, _)| *at != 0)?.0.wrapping_add(name));
            users = self.texts_if(&users.iter().map(in_context).collect::<Vec<Option<u64>>>());
        }
        let has_length = user.is_some_and(|user| user.has_length);
        let mut names =
            self.names(schemas.iter().map(|at| (*at, true)).chain(users.iter().map(|at| (*at, has_length))));
        let users = names.split_off(sessions.len());
        users.into_iter().zip(names).map(|(user, schema)| Account { user, schema }).collect()
    }

    /// Reads where texts are and how long, as far as that is known.
    fn texts_if(&self, at: &[Option<u64>]) -> Vec<Option<Text>> {
        let known: Vec<u64> = at.iter().flatten().copied().collect();
        let mut texts = self.texts(&known).into_iter();
        at.iter().map(|at| at.and_then(|_| texts.next().flatten())).collect()
    }

    /// Reads names, of which each has the given length only if it says so. Returns an empty one where there is none, or
    /// where it is not certain to be a name as a whole.
    fn names(&mut self, at: impl Iterator<Item = (Option<Text>, bool)>) -> Vec<String> {
        let piece = |(text, has_length): (Option<Text>, bool)| match text {
            Some((at, length)) if has_length && (1..=LONGEST_NAME).contains(&length) => (at, length as usize + 1, true),
            Some((at, _)) if !has_length && at != 0 => (at, (LONGEST_NAME + 1).min(PAGE - at % PAGE) as usize, false),
            _ => (0, 0, false),
        };
        let pieces: Vec<(u64, usize, bool)> = at.map(piece).collect();
        let there: Vec<(u64, usize)> =
            pieces.iter().filter(|piece| piece.1 > 0).map(|piece| (piece.0, piece.1)).collect();
        let mut is_copied = self.memory.read_ranges(&there, &mut self.copies).into_iter();
        let mut left = &self.copies[..];
        let mut name = |(_, length, as_a_whole): &(u64, usize, bool)| {
            let (bytes, rest) = left.split_at(*length);
            left = rest;
            let is_there = *length > 0 && is_copied.next().unwrap_or_default();
            is_there.then(|| name_of(bytes, *as_a_whole)).flatten().unwrap_or_default()
        };
        pieces.iter().map(&mut name).collect()
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
        let at = AccountAt::default();
        read_with(sessions, at).into_iter().map(|(executes, _)| executes).collect()
    }

    fn read_with(sessions: &[u64], account: AccountAt) -> Vec<(Executes, Account)> {
        let threads: Vec<[u64; 3]> = sessions.iter().map(|session| [*session, 8, 9]).collect();
        let pointers: Vec<u64> = threads.iter().map(|thread| std::ptr::from_ref(&thread[2]) as u64).collect();
        let memory = Memory::new(std::process::id() as i32);
        let place = Place { session: SESSION, text: TEXT, account };
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

    /// The first words of a session are where its security context is, and its schema.
    #[test]
    fn accounts_are_read_as_a_whole() {
        let (user, schema, text) = (*b"app\0", *b"shop\0left", *b"COMMIT");
        let context = [9, at(&user), 3];
        let session = |context: u64, schema: u64, length: u64| [context, schema, length, at(&text), text.len() as u64];
        let sessions = [
            session(at(&context), at(&schema), 4),
            session(at(&context), at(&schema), 3),
            session(at(&context), at(&schema), 6),
            session(0, 0, 0),
            session(16, 16, 4),
        ];
        for has_length in [true, false] {
            let user = Some(UserAt { context: Some(0), name: 8, has_length });
            let read = read_with(&sessions.each_ref().map(at), AccountAt { schema: Some(8), user });
            let shown: Vec<(&str, &str)> = read.iter().map(|(_, a)| (&*a.user, &*a.schema)).collect();
            assert_eq!(shown, [("app", "shop"), ("app", ""), ("app", ""), ("", ""), ("", "")]);
            assert!(read.iter().all(|(executes, _)| *executes == Executes::Statement("COMMIT".to_owned())));
        }
        // The name of the schema, as if it were that of a user in the session itself
        let user = Some(UserAt { context: None, name: 8, has_length: false });
        let read = read_with(&sessions.each_ref().map(at), AccountAt { schema: None, user });
        assert_eq!(read.iter().map(|(_, a)| &*a.user).collect::<Vec<&str>>(), ["shop", "shop", "shop", "", ""]);
        let read = read_with(&[at(&sessions[0]), 0], AccountAt::default());
        assert!(read.iter().all(|(_, account)| account.is_empty()), "{read:?}");
    }

    #[test]
    fn names_end_where_they_should() {
        let cases: [(&[u8], [Option<&str>; 2]); 5] = [
            (b"shop\0", [Some("shop"), Some("shop")]),
            (b"a\0shop\0", [None, Some("a")]),
            (b"shop", [None, None]),
            (b"a\x1b[1m\0", [None, None]),
            (b"\xff\0", [None, None]),
        ];
        for (bytes, expected) in cases {
            assert_eq!([true, false].map(|whole| name_of(bytes, whole)).each_ref().map(Option::as_deref), expected);
        }
    }
}

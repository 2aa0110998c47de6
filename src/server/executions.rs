//! Asks a server which statements its threads execute, and have executed of late.

use std::collections::HashSet;
use std::time::Duration;

use mysql::prelude::{FromRow, Queryable};
use mysql::Conn;
use procfs::process::Process;

use super::client::Client;
use super::ClientError;

/// How much of a statement is asked for, in characters.
const PREFIX: u64 = 1024;

/// What `performance_schema` ends a statement with that it keeps in part.
const CUT: &[u8] = b"...";

/// The longest name of a user or schema, in bytes, as in what is read from memory.
const LONGEST_NAME: usize = 127;

/// Where a server shows what its threads execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionsIn {
    /// `performance_schema`, which also has each thread's last statements.
    PerformanceSchema,
    /// The process list, which has the IDs of threads in MariaDB only.
    ProcessList,
}

/// What a thread executed, or that it executed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The thread, by the ID by which the server knows it.
    pub thread: u32,
    /// The beginning of the statement; `None` if it was none.
    pub text: Option<Vec<u8>>,
    /// Whether there may be more of it, or something else than this in it.
    pub is_cut: bool,
    /// The user's name, without the host.
    pub user: String,
    /// The schema that was chosen; empty if none was.
    pub schema: String,
    /// When it began, in nanoseconds after the server began to answer: mostly negative. `i64::MAX` if the server does
    /// not say what this thread executes.
    pub began_ns: i64,
    /// When it ended, in the same way; `None` if it had not ended.
    pub ended_ns: Option<i64>,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executions {
    /// What threads executed, in no order.
    pub list: Vec<Execution>,
    /// How long the server had taken for its answer so far when it looked at the thread that answers, in nanoseconds.
    pub asked_ns: u64,
    /// When the server began to answer, in nanoseconds by a clock of its own, if it has one.
    pub began_at_ns: Option<u64>,
    /// The thread that answers.
    thread: u32,
}

/// The reason why a server does not show what its threads execute.
#[derive(Debug, thiserror::Error)]
pub enum NotShown {
    /// It gives no answer.
    #[error("{}", plain(.0))]
    Client(#[from] ClientError),
    /// Its answer makes no sense.
    #[error("the server's answer is not understood")]
    Strange,
    /// It has no statements of any thread.
    #[error("performance_schema is off, or keeps no statements")]
    NotKept,
    /// It shows its user no sessions of others.
    #[error("the user of --mysql or --defaults-file does not have the privilege PROCESS, and sees only own sessions")]
    OwnOnly,
    /// Its threads work for many sessions each, and `performance_schema` does not follow that.
    #[error("the server has a thread pool, and performance_schema does not show for whom its threads work")]
    Pool,
    /// It is another server.
    #[error("the server of --mysql or --defaults-file is not process {0}")]
    Another(i32),
}

impl NotShown {
    /// Whether a later attempt may succeed.
    pub fn may_pass(&self) -> bool {
        // Queries and connections that were killed, took too long, or were idle for too long.
        const ENDED: [u16; 6] = [1053, 1317, 1927, 1969, 3024, 4031];
        match self {
            NotShown::Client(ClientError::Server(mysql::Error::MySqlError(why))) if ENDED.contains(&why.code) => true,
            NotShown::Client(why) => why.may_pass(),
            _ => false,
        }
    }
}

impl From<mysql::Error> for NotShown {
    fn from(why: mysql::Error) -> NotShown {
        NotShown::Client(why.into())
    }
}

/// What the server said; the error's own words are about its counters.
fn plain(error: &ClientError) -> String {
    match error {
        ClientError::Server(why) => why.to_string(),
        error => error.to_string(),
    }
}

impl Client {
    /// Returns where process `pid` shows this user what all threads execute.
    ///
    /// # Errors
    /// Fails if it does not, or if another process answers.
    pub fn shows_executions_in(&mut self, pid: i32) -> Result<ExecutionsIn, NotShown> {
        let first = self.may_see_executions(ExecutionsIn::PerformanceSchema, pid);
        let Err(why) = first else { return Ok(ExecutionsIn::PerformanceSchema) };
        if why.may_pass() || matches!(why, NotShown::Another(_)) {
            return Err(why);
        }
        match self.may_see_executions(ExecutionsIn::ProcessList, pid) {
            Ok(()) => Ok(ExecutionsIn::ProcessList),
            // In MySQL, the process list does not have the threads.
            Err(second) if matches!(second, NotShown::Client(_)) && !second.may_pass() => Err(why),
            Err(second) => Err(second),
        }
    }

    /// Checks that process `pid` answers, and shows this user what all threads execute.
    fn may_see_executions(&mut self, from: ExecutionsIn, pid: i32) -> Result<(), NotShown> {
        let answer = self.executions(from, &[])?;
        if !own_ids(pid).contains(&answer.thread) {
            return Err(NotShown::Another(pid));
        }
        match from {
            ExecutionsIn::PerformanceSchema => {
                let handling: Vec<(String,)> = self.ask(|connection| rows(connection, "SELECT @@thread_handling"))?;
                let is_plain = handling.iter().any(|(handling,)| handling == "one-thread-per-connection");
                is_plain.then_some(()).ok_or(NotShown::Pool)
            }
            ExecutionsIn::ProcessList => {
                let grants: Vec<(String,)> = self.ask(|connection| rows(connection, "SHOW GRANTS"))?;
                let is_enough = grants.iter().any(|(grant,)| shows_all(grant));
                is_enough.then_some(()).ok_or(NotShown::OwnOnly)
            }
        }
    }

    /// Returns what these threads execute, or have executed of late.
    ///
    /// # Errors
    /// Fails if the server does not answer, does not allow it, or does not know.
    pub fn executions(&mut self, from: ExecutionsIn, threads: &[u32]) -> Result<Executions, NotShown> {
        let answer: Option<Executions> = self.ask(|connection| match from {
            ExecutionsIn::PerformanceSchema => Ok::<_, NotShown>(of_events(rows(connection, &events_query(threads))?)),
            ExecutionsIn::ProcessList => Ok(of_sessions(rows(connection, &sessions_query(threads))?)),
        })?;
        answer.ok_or(NotShown::NotKept)
    }

    /// Returns for how long the statement of another client has been running that has been for longest; zero if none
    /// is.
    ///
    /// # Errors
    /// Fails if the server does not answer, does not allow it, or does not know.
    pub fn longest_statement(&mut self, from: ExecutionsIn) -> Result<Duration, NotShown> {
        let (query, unit) = longest_query(from);
        let longest: Vec<(Option<f64>,)> = self.ask(|connection| rows(connection, &query))?;
        let longest = longest.first().and_then(|(longest,)| *longest).ok_or(NotShown::NotKept)?;
        Duration::try_from_secs_f64(longest * unit).map_err(|_| NotShown::Strange)
    }
}

/// How a client's statement reaches the server. Other commands last as long as a session, or belong to replication.
const STATEMENTS: &str = "'Query', 'Execute'";

/// The user of the server's own threads, in the process list.
const SYSTEM_USER: &str = "system user";

/// Returns the question for how long statements of clients have been running: a number in this part of a second. The
/// session that asks counts as 0, so that there is an answer if no other executes anything.
fn longest_query(from: ExecutionsIn) -> (String, f64) {
    match from {
        // Not PROCESSLIST_TIME, which MySQL counts from what a session says is the time (SET TIMESTAMP).
        ExecutionsIn::PerformanceSchema => {
            let query = format!(
                "SELECT MAX(IF(t.PROCESSLIST_ID = CONNECTION_ID(), 0, e.TIMER_WAIT)) FROM performance_schema.threads t \
                 JOIN performance_schema.events_statements_current e USING (THREAD_ID) WHERE e.END_EVENT_ID IS NULL \
                 AND t.PROCESSLIST_COMMAND IN ({STATEMENTS}) AND t.PROCESSLIST_USER <> '{SYSTEM_USER}'"
            );
            (query, 1e-12)
        }
        ExecutionsIn::ProcessList => {
            let query = format!(
                "SELECT MAX(IF(ID = CONNECTION_ID(), 0, TIME_MS)) FROM information_schema.PROCESSLIST \
                 WHERE COMMAND IN ({STATEMENTS}) AND USER <> '{SYSTEM_USER}'"
            );
            (query, 1e-3)
        }
    }
}

/// Returns the IDs by which a process knows its threads, in a container too.
fn own_ids(pid: i32) -> HashSet<u32> {
    let tasks = Process::new(pid).and_then(|process| process.tasks());
    let statuses = tasks.into_iter().flatten().flatten().filter_map(|task| task.status().ok());
    statuses.filter_map(|status| status.nspid?.last().map(|id| *id as u32)).collect()
}

/// Whether a line of `SHOW GRANTS` lets a user see the sessions of others.
fn shows_all(grant: &str) -> bool {
    let Some((privileges, _)) = grant.split_once(" ON *.*") else { return false };
    let privileges = privileges.trim_start_matches("GRANT ").split(", ");
    privileges.into_iter().any(|privilege| ["ALL PRIVILEGES", "PROCESS"].contains(&privilege))
}

type Text = Option<Vec<u8>>;

/// A thread's ID, what it is, the user, the schema, when a statement began and how long it took, in picoseconds,
/// whether it goes on, its beginning and its length.
type Event = (u32, String, Text, Text, Option<u64>, Option<u64>, bool, Text, Option<u64>);

/// What a thread is that works for the server itself, and the one that answers.
const BACKGROUND: &str = "BACKGROUND";
const OWN: &str = "OWN";

/// The thread that answers comes last too: when it looks at itself, the answer is nearly complete.
fn events_query(threads: &[u32]) -> String {
    let columns = format!(
        "SELECT t.THREAD_OS_ID, IF(t.PROCESSLIST_ID <=> CONNECTION_ID(), '{OWN}', t.TYPE), t.PROCESSLIST_USER, \
         e.CURRENT_SCHEMA, e.TIMER_START, e.TIMER_WAIT, e.END_EVENT_ID IS NULL, LEFT(e.SQL_TEXT, {PREFIX}), \
         CHAR_LENGTH(e.SQL_TEXT) FROM performance_schema.threads t"
    );
    let (now, past) = ("performance_schema.events_statements_current", "performance_schema.events_statements_history");
    let ids = list(threads);
    format!(
        "{columns} LEFT JOIN {now} e USING (THREAD_ID) WHERE t.THREAD_OS_ID IN ({ids}) \
         UNION ALL {columns} JOIN {past} e USING (THREAD_ID) WHERE t.THREAD_OS_ID IN ({ids}) \
         UNION ALL {columns} JOIN {now} e USING (THREAD_ID) WHERE t.PROCESSLIST_ID = CONNECTION_ID()"
    )
}

/// Returns what events are. `None` if the one that asked is not among them, or has no text.
fn of_events(events: Vec<Event>) -> Option<Executions> {
    let (asked_at, asked_ns, thread) = events.iter().rev().find_map(|event| match event {
        (thread, what, _, _, Some(began), lasted, true, Some(text), _) if what == OWN && !text.is_empty() => {
            Some((*began, lasted.unwrap_or(0) / 1000, *thread))
        }
        _ => None,
    })?;
    let execution = |(thread, what, user, schema, began, lasted, goes_on, mut text, length): Event| {
        let began_ns = match (what.as_str(), began) {
            (BACKGROUND, _) => i64::MIN,
            (_, Some(began)) => (began as i64).wrapping_sub(asked_at as i64) / 1000,
            // The server keeps no statements of this session.
            (_, None) => i64::MAX,
        };
        let goes_on = goes_on || what == BACKGROUND;
        let ended_ns = (!goes_on).then(|| began_ns.saturating_add((lasted.unwrap_or(0) / 1000) as i64));
        let is_cut = text.as_ref().is_some_and(|text| text.ends_with(CUT));
        text.iter_mut().filter(|_| is_cut).for_each(|text| text.truncate(text.len() - CUT.len()));
        let is_cut = is_cut || is_longer(length) || is_damaged(&text);
        let text = text.filter(|_| what != BACKGROUND);
        let (user, schema) = (name(user), name(schema));
        (what != OWN).then_some(Execution { thread, text, is_cut, user, schema, began_ns, ended_ns })
    };
    let list = events.into_iter().filter_map(execution).collect();
    Some(Executions { list, asked_ns, began_at_ns: Some(asked_at / 1000), thread })
}

/// A thread's ID, whether it is the one that answers, the user, the schema, how long ago it began what it does, in
/// milliseconds, and the beginning and length of its statement.
type Session = (u32, bool, Text, Text, f64, Text, Option<u64>);

fn sessions_query(threads: &[u32]) -> String {
    let ids = list(threads);
    format!(
        "SELECT TID, ID = CONNECTION_ID(), USER, DB, TIME_MS, LEFT(INFO, {PREFIX}), CHAR_LENGTH(INFO) \
         FROM information_schema.PROCESSLIST WHERE TID IN ({ids}) OR ID = CONNECTION_ID()"
    )
}

/// Returns what sessions execute. `None` if the one that asked is not among them.
fn of_sessions(sessions: Vec<Session>) -> Option<Executions> {
    let ns = |ms: f64| (ms * 1e6) as i64;
    let (thread, asked_ns) = sessions.iter().find_map(|session| session.1.then_some((session.0, ns(session.4))))?;
    let execution = |(thread, _, user, schema, ms, text, length): Session| Execution {
        thread,
        is_cut: is_longer(length) || is_damaged(&text),
        began_ns: match (&text, user.as_deref()) {
            (Some(_), _) => asked_ns.saturating_sub(ns(ms)),
            // A thread of the server's own, which began nothing.
            (None, Some(user)) if user == SYSTEM_USER.as_bytes() => i64::MIN,
            // Its time counts from the beginning of a statement that has ended since, or its text is being changed.
            (None, _) => i64::MAX,
        },
        text,
        user: name(user),
        schema: name(schema),
        ended_ns: None,
    };
    let list = sessions.into_iter().filter(|session| !session.1).map(execution).collect();
    Some(Executions { list, asked_ns: asked_ns.max(0) as u64, began_at_ns: None, thread })
}

/// Returns the rows of an answer.
fn rows<T: FromRow>(connection: &mut Conn, query: &str) -> Result<Vec<T>, NotShown> {
    let rows = connection.query_opt(query)?;
    rows.into_iter().map(|row| row.map_err(|_| NotShown::Strange)).collect()
}

/// Returns a list in SQL, which must not be empty there.
fn list(threads: &[u32]) -> String {
    let ids: Vec<String> = threads.iter().map(u32::to_string).collect();
    if ids.is_empty() {
        return "0".to_owned();
    }
    ids.join(",")
}

fn is_longer(length: Option<u64>) -> bool {
    length.is_some_and(|length| length > PREFIX)
}

/// Whether a character may have been replaced that ended with a backslash, which then seems to escape what follows.
fn is_damaged(text: &Text) -> bool {
    text.as_ref().is_some_and(|text| text.windows(2).any(|two| two == br"?\"))
}

/// Returns a name that can be shown; an empty one if it cannot.
fn name(bytes: Text) -> String {
    let name = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
    if name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return String::new();
    }
    name
}

#[cfg(test)]
impl Executions {
    /// Returns an answer that took no time.
    pub fn at_once(list: Vec<Execution>) -> Executions {
        Executions { list, asked_ns: 0, began_at_ns: None, thread: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text {
        Some(text.as_bytes().to_vec())
    }

    #[test]
    fn events_have_times_after_the_question() {
        const US: u64 = 1_000_000;
        let event = |thread, what: &str, began: Option<u64>, lasted: Option<u64>, goes_on, sql: &str| {
            let (began, lasted) = (began.map(|us| us * US), lasted.map(|us| us * US));
            let sql = text(sql).filter(|_| began.is_some());
            let length = sql.as_ref().map(|sql| sql.len() as u64);
            (thread, what.to_owned(), text("app"), text("shop"), began, lasted, goes_on, sql, length)
        };
        let own = |lasted| event(9, OWN, Some(500), Some(lasted), true, "SELECT");
        let past = event(5, "FOREGROUND", Some(100), Some(50), false, "SELECT 1");
        let long = event(5, "FOREGROUND", Some(400), None, true, "SELECT 'a...");
        let never = event(6, "FOREGROUND", None, None, true, "");
        let background = event(7, BACKGROUND, None, None, true, "");
        let all = vec![past, long, never.clone(), own(5), background, own(20)];
        let found = of_events(all).expect("an answer");
        assert_eq!((found.asked_ns, found.began_at_ns, found.thread), (20_000, Some(500_000), 9));
        let seen = found.list.iter().map(|e| (e.thread, e.text.clone(), e.is_cut, e.began_ns, e.ended_ns));
        let expected = [
            (5, text("SELECT 1"), false, -400_000, Some(-350_000)),
            (5, text("SELECT 'a"), true, -100_000, None),
            (6, None, false, i64::MAX, None),
            (7, None, false, i64::MIN, None),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert_eq!((found.list[0].user.as_str(), found.list[0].schema.as_str()), ("app", "shop"));
        assert_eq!(of_events(vec![never]), None, "nobody keeps statements");
        let mut without_texts = own(20);
        without_texts.7 = text("");
        assert_eq!(of_events(vec![without_texts]), None, "their texts are not kept");
    }

    #[test]
    fn sessions_have_times_after_the_question() {
        let session = |thread, user: &str, ms, sql: Option<&str>, length| {
            (thread, user == OWN, text(user), text("shop"), ms, sql.and_then(text), length)
        };
        let own = session(9, OWN, 0.02, Some("SELECT"), Some(6));
        let busy = session(5, "app", 1.5, Some("SELECT 1"), Some(8));
        let long = session(6, "app", 0.01, Some("SELECT"), Some(4000));
        let idle = session(7, "app", 250.0, None, None);
        let purge = session(4, "system user", 0.0, None, None);
        let found = of_sessions(vec![busy, long, idle, purge, own]).expect("an answer");
        assert_eq!((found.asked_ns, found.thread), (20_000, 9));
        let seen: Vec<_> = found.list.iter().map(|e| (e.thread, e.text.is_some(), e.is_cut, e.began_ns)).collect();
        let expected = [
            (5, true, false, -1_480_000),
            (6, true, true, 10_000),
            (7, false, false, i64::MAX),
            (4, false, false, i64::MIN),
        ];
        assert_eq!(seen, expected);
        assert_eq!(of_sessions(Vec::new()), None);
    }

    #[test]
    fn lists_are_never_empty() {
        assert_eq!((list(&[]).as_str(), list(&[7, 8]).as_str()), ("0", "7,8"));
    }

    #[test]
    fn names_can_be_shown() {
        let long = "a".repeat(200);
        assert_eq!([text("caf\u{e9}"), text("a\x1bb"), text(&long), None].map(name), ["caf\u{e9}", "", "", ""]);
    }

    #[test]
    fn others_are_seen_with_one_privilege() {
        assert!(shows_all("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"));
        assert!(shows_all("GRANT SELECT, PROCESS ON *.* TO `a`@`%`"));
        assert!(!shows_all("GRANT SELECT ON *.* TO `PROCESS`@`%`"));
        assert!(!shows_all("GRANT ALL PRIVILEGES ON `shop`.* TO `a`@`%`"));
    }

    #[test]
    fn a_backslash_after_a_replaced_character_is_suspicious() {
        assert!(is_damaged(&text(r"SELECT '?\'")) && !is_damaged(&text(r"SELECT '\?'")) && !is_damaged(&None));
    }

    #[test]
    fn own_ids_are_those_of_this_process() {
        assert!(own_ids(std::process::id() as i32).contains(&(rustix::thread::gettid().as_raw_nonzero().get() as u32)));
    }
}

//! Asks the server what waiting threads execute, where its memory does not show it.
//!
//! A look shows which threads wait for which latch. Right after it, the server is asked what these threads have
//! executed at that moment.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::reader::Executes;
use crate::host::clock::now_ns;
use crate::measure::latch::figures::Account;
use crate::measure::latch::keys::MapKey;
use crate::measure::latch::texts::Texts;
use crate::server::{Client, Execution, Executions, ExecutionsIn, NotShown};
use crate::worker::{Stop, Worker};

/// The shortest time between questions, and the part of the time in which the server answers: 1 / so much. Most of what
/// an answer takes is the wait for a CPU, if they are all busy.
const SHORTEST: Duration = Duration::from_millis(500);
const TIMES_ANSWER: u32 = 100;

/// The time until the next question to a server that did not answer.
const AFTER_ERROR: Duration = Duration::from_secs(10);

/// A thread that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingThread {
    /// The ID by which the server knows it.
    pub own_id: u32,
    pub latch: MapKey,
    /// For how many threads it stands.
    pub weight: u64,
}

/// Which threads waited at a moment, by `CLOCK_MONOTONIC`.
struct Question {
    time_ns: u64,
    waiting: Vec<WaitingThread>,
}

/// Asks a server in a separate thread, which ends when this is dropped.
pub(super) struct Asker {
    questions: Sender<Question>,
    is_free: Arc<AtomicBool>,
    _worker: Worker,
}

impl Asker {
    /// Starts to ask process `pid`. What threads execute is added to `texts`.
    ///
    /// # Errors
    /// Fails when the system starts no more threads.
    pub fn start(client: Client, pid: i32, texts: Arc<Mutex<Texts<MapKey>>>) -> io::Result<Asker> {
        let (questions, asked) = mpsc::channel();
        let is_free = Arc::new(AtomicBool::new(false));
        let free = Arc::clone(&is_free);
        let worker = Worker::start("asker", move |stop| answer(client, pid, &asked, &free, &texts, stop))?;
        Ok(Asker { questions, is_free, _worker: worker })
    }

    /// Whether it is time for the next question.
    pub fn is_free(&self) -> bool {
        self.is_free.load(Ordering::Relaxed)
    }

    /// Asks what these threads executed at this time.
    pub fn ask(&self, time_ns: u64, waiting: Vec<WaitingThread>) {
        self.is_free.store(false, Ordering::Relaxed);
        // If the thread has ended, it has said why.
        _ = self.questions.send(Question { time_ns, waiting });
    }
}

/// Answers questions until there are no more, or until the server refuses.
fn answer(
    mut client: Client,
    pid: i32,
    questions: &Receiver<Question>,
    is_free: &AtomicBool,
    texts: &Mutex<Texts<MapKey>>,
    stop: &Stop,
) {
    let from = loop {
        match client.shows_executions_in(pid) {
            Ok(from) => break from,
            Err(why) if why.may_pass() => tracing::debug!("it is not known yet which statements wait: {why}"),
            Err(why) => return tracing::warn!("it is not known which statements wait: {why}"),
        }
        if !stop.wait(AFTER_ERROR) {
            return;
        }
    };
    tracing::debug!("the server says in {from:?} what threads execute");
    is_free.store(true, Ordering::Relaxed);
    let mut clock = ServerClock::default();
    while let Ok(question) = questions.recv() {
        let mut ask = || ask(&mut client, from, &mut clock, &question, texts);
        // A server closes a connection that was idle for long. The next attempt opens another.
        let answered = ask().or_else(|why| if why.may_pass() { ask() } else { Err(why) });
        let pause = match answered {
            Ok(took) => (TIMES_ANSWER * took).max(SHORTEST),
            Err(why) if why.may_pass() => {
                tracing::debug!("it is not known which statements waited: {why}");
                AFTER_ERROR
            }
            // Another attempt might lock the account.
            Err(why) => return tracing::warn!("it is no longer known which statements wait: {why}"),
        };
        if !stop.wait(pause) {
            return;
        }
        is_free.store(true, Ordering::Relaxed);
    }
}

/// Adds what threads executed. Returns what the answer took.
fn ask(
    client: &mut Client,
    from: ExecutionsIn,
    clock: &mut ServerClock,
    question: &Question,
    texts: &Mutex<Texts<MapKey>>,
) -> Result<Duration, NotShown> {
    let ids: Vec<u32> = question.waiting.iter().map(|waiting| waiting.own_id).collect();
    let before = now_ns(libc::CLOCK_MONOTONIC);
    let answer = client.executions(from, &ids)?;
    let after = now_ns(libc::CLOCK_MONOTONIC);
    // It began after it was asked, and so long before the answer was here as it had taken for it.
    let latest = after.saturating_sub(answer.asked_ns).max(before);
    let began_ns = clock.began_ns(answer.began_at_ns, before, latest);
    let at_ns = (question.time_ns as i64).wrapping_sub(began_ns as i64);
    let mut texts = texts.lock();
    for waiting in &question.waiting {
        let (executes, account) = executed(&answer, waiting.own_id, at_ns);
        executes.add_to(&account, &mut texts, waiting.latch, waiting.weight);
    }
    Ok(Duration::from_nanos(after - before))
}

/// By how much the server's clock is ahead of `CLOCK_MONOTONIC`: by as much in all answers, so that each limits it, and
/// together they know it better than one, which may have waited for a CPU.
#[derive(Default)]
struct ServerClock {
    /// The least and the most of the last answers, in nanoseconds.
    limits: VecDeque<(i64, i64)>,
}

impl ServerClock {
    /// The most answers: the clocks may run differently.
    const MOST: usize = 16;

    /// Returns when the server began an answer, by `CLOCK_MONOTONIC`: between `earliest` and `latest`, and at
    /// `server_ns` by its own clock, if it has one.
    fn began_ns(&mut self, server_ns: Option<u64>, earliest: u64, latest: u64) -> u64 {
        let Some(server_ns) = server_ns else { return earliest + (latest - earliest) / 2 };
        let ahead_of = |time: u64| (server_ns as i64).wrapping_sub(time as i64);
        self.limits.push_back((ahead_of(latest), ahead_of(earliest)));
        self.limits.drain(..self.limits.len().saturating_sub(Self::MOST));
        let ahead = loop {
            let least = self.limits.iter().map(|limits| limits.0).max().unwrap_or_default();
            let most = self.limits.iter().map(|limits| limits.1).min().unwrap_or_default();
            if least <= most {
                break least + (most - least) / 2;
            }
            // Older answers were by another time: the clock was set.
            self.limits.pop_front();
        };
        (server_ns as i64).wrapping_sub(ahead) as u64
    }
}

/// Returns what a thread executed at a time, in nanoseconds after the server began to answer.
fn executed(answer: &Executions, thread: u32, at_ns: i64) -> (Executes, Account) {
    let of_thread = || answer.list.iter().filter(|execution| execution.thread == thread);
    let begun = || of_thread().filter(|execution| execution.began_ns <= at_ns);
    let lasted = |execution: &&Execution| execution.ended_ns.is_none_or(|ended| ended >= at_ns);
    // A procedure executes statements of its own, which began last.
    let Some(execution) = begun().filter(lasted).max_by_key(|execution| execution.began_ns) else {
        // Between two statements, it was none.
        let executes = if begun().next().is_none() { Executes::Unread } else { Executes::Nothing };
        return (executes, Account::default());
    };
    let executes = execution.text.as_ref().map(|text| Executes::of(text, execution.is_cut));
    let account = Account { user: execution.user.clone(), schema: execution.schema.clone() };
    (executes.unwrap_or(Executes::Nothing), account)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(thread: u32, text: Option<&str>, began_ns: i64, ended_ns: Option<i64>) -> Execution {
        let text = text.map(|text| text.as_bytes().to_vec());
        let (user, schema) = ("app".to_owned(), "shop".to_owned());
        Execution { thread, text, is_cut: false, user, schema, began_ns, ended_ns }
    }

    #[test]
    fn threads_executed_what_had_begun_and_not_ended() {
        let list = vec![
            execution(5, Some("SELECT 1 + 1"), -900, Some(-700)),
            execution(5, Some("COMMIT"), -500, Some(-100)),
            execution(5, Some("BEGIN"), -50, None),
            execution(6, Some("CALL p(7)"), -900, None),
            execution(6, Some("DELETE FROM t"), -400, Some(-300)),
            execution(7, None, -900, None),
            execution(8, None, i64::MAX, None),
            execution(9, Some("hello"), -900, None),
            execution(10, None, i64::MIN, None),
        ];
        let answer = Executions::at_once(list);
        let at = |thread, at_ns| executed(&answer, thread, at_ns).0;
        let statement = |text: &str| Executes::Statement(text.to_owned());
        assert_eq!(at(5, -800), statement("SELECT ? + ?"));
        assert_eq!(at(5, -600), Executes::Nothing, "between two statements");
        assert_eq!([at(5, -500), at(5, -100)], [statement("COMMIT"), statement("COMMIT")]);
        assert_eq!(at(5, 0), statement("BEGIN"));
        assert_eq!(at(5, -1000), Executes::Unread, "what came before is forgotten");
        assert_eq!([at(6, -500), at(6, -350)], [statement("CALL p (?)"), statement("DELETE FROM t")]);
        assert_eq!(at(7, -500), Executes::Nothing, "the session is idle");
        assert_eq!([at(8, -500), at(9, -500)], [Executes::Unread, Executes::Unread]);
        assert_eq!(at(10, -500), Executes::Nothing, "a thread of the server's own");
        assert_eq!(at(11, -500), Executes::Unread, "the server does not know it");
        let (_, account) = executed(&answer, 5, -500);
        assert_eq!(account.to_string(), "app in shop");
    }

    #[test]
    fn without_a_clock_the_server_began_between_question_and_answer() {
        assert_eq!(ServerClock::default().began_ns(None, 1_000, 1_600), 1_300);
    }

    /// The server's clock is ahead by 50,000.
    #[test]
    fn a_quick_answer_sets_the_servers_clock() {
        let mut clock = ServerClock::default();
        assert_eq!(clock.began_ns(Some(51_900), 1_000, 2_000), 1_500);
        assert_eq!(clock.began_ns(Some(52_905), 2_900, 2_910), 2_905);
        assert_eq!(clock.began_ns(Some(54_900), 4_000, 5_000), 4_900);
        // Now it is behind.
        assert_eq!(clock.began_ns(Some(100), 6_000, 6_200), 6_100);
        assert_eq!(clock.limits.len(), 1);
        for answer in 0..40 {
            clock.began_ns(Some(1_000 + answer), 7_000 + answer, 7_100 + answer);
        }
        assert_eq!(clock.limits.len(), ServerClock::MOST);
    }
}

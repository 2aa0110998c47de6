//! Threads that work in the background, mostly at intervals, until they are told to stop, and work that is shared among
//! threads. A system may refuse to start one at any time (`TasksMax=`, `ulimit -u`): that is an error, never a panic.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

/// A thread that works in the background. Dropping it tells the thread to stop, which wakes it if it waits for its next
/// turn, but does not wait for its end: the thread may be blocked, as by a server that does not answer.
pub struct Worker {
    /// Nothing is ever sent. Dropping it is the request to stop.
    told: Sender<()>,
    thread: JoinHandle<()>,
}

/// The thread's end of the request to stop.
pub struct Stop(Receiver<()>);

impl Worker {
    /// Starts a thread of this name, at most 15 bytes long, which does this work.
    ///
    /// # Errors
    /// Fails when the system starts no more threads. Then nothing is done.
    pub fn start(name: &str, work: impl FnOnce(&Stop) + Send + 'static) -> io::Result<Worker> {
        let (told, stop) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&Stop(stop)))?;
        Ok(Worker { told, thread })
    }

    /// Tells the thread to stop, and returns when it has ended.
    pub fn end(self) {
        drop(self.told);
        // A panic in there has been reported already.
        _ = self.thread.join();
    }
}

impl Stop {
    /// Waits this long, and returns true. Returns false at once when the thread is told to stop.
    pub fn wait(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }

    /// Whether the thread is told to stop.
    pub fn is_told(&self) -> bool {
        self.0.try_recv() == Err(TryRecvError::Disconnected)
    }
}

/// Does `work` on each item in a thread of its own, and returns the results in order. What the system starts no thread
/// for, this thread does.
///
/// # Panics
/// Panics if `work` does.
pub fn side_by_side<T: Send, R: Send>(items: impl IntoIterator<Item = T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    // A thread that is refused takes its work along, but not what is in here.
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let take = |item: &Mutex<Option<T>>| item.lock().take().map(&work);
    thread::scope(|scope| {
        let start = |item| thread::Builder::new().spawn_scoped(scope, move || take(item)).ok();
        let take = &take;
        let started: Vec<_> = items.iter().map(|item| (item, start(item))).collect();
        let done = |(item, thread): (_, Option<ScopedJoinHandle<'_, _>>)| match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => take(item),
        };
        started.into_iter().filter_map(done).collect()
    })
}

/// Checks that the system starts this many threads now, for code of others that panics if it does not.
///
/// # Errors
/// Fails with the reason why it does not.
pub fn can_start(threads: usize) -> io::Result<()> {
    let start = |_| Worker::start("trial", |stop| _ = stop.0.recv());
    let started: io::Result<Vec<Worker>> = (0..threads).map(start).collect();
    started.map(|threads| threads.into_iter().for_each(Worker::end))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn work_is_repeated_until_the_end() {
        let rounds = Arc::new(AtomicUsize::new(0));
        let (count, (done, enough)) = (Arc::clone(&rounds), mpsc::channel());
        let worker = Worker::start("rounds", move |stop| {
            while stop.wait(Duration::from_millis(1)) {
                if count.fetch_add(1, Ordering::Relaxed) == 2 {
                    _ = done.send(());
                }
            }
        });
        enough.recv_timeout(LONG).expect("three rounds");
        worker.expect("a thread").end();
        let ended = rounds.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(rounds.load(Ordering::Relaxed), ended, "it has ended");
    }

    #[test]
    fn the_end_does_not_wait_for_the_next_turn() {
        let began = Instant::now();
        let (after, waited) = mpsc::channel();
        let worker = Worker::start("sleeper", move |stop| _ = after.send(stop.wait(LONG)));
        worker.expect("a thread").end();
        assert_eq!(waited.try_recv(), Ok(false), "the thread ends before `end` returns");
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn a_dropped_worker_is_told_but_not_waited_for() {
        let (go, told_to_go) = mpsc::channel::<()>();
        let (after, seen) = mpsc::channel();
        let worker = Worker::start("blocked", move |stop| {
            _ = after.send(stop.is_told());
            _ = told_to_go.recv();
            _ = after.send(stop.is_told());
        });
        assert_eq!(seen.recv_timeout(LONG), Ok(false));
        drop(worker);
        // If dropping waited, it would wait for this.
        go.send(()).expect("the thread still runs");
        assert_eq!(seen.recv_timeout(LONG), Ok(true));
    }

    #[test]
    fn a_panic_stays_in_the_thread() {
        Worker::start("panics", |_| panic!("in there")).expect("a thread").end();
    }

    /// Calls `act` in a thread that may start no other: a filter of its system calls says what a limit on threads does.
    pub(crate) fn without_threads<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
        let refused = [libc::SYS_clone, libc::SYS_clone3].map(|call| (call, Vec::new())).into();
        let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(libc::EAGAIN as u32));
        let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
        let filter = SeccompFilter::new(refused, allow, refuse, arch).expect("a filter");
        let filter: BpfProgram = filter.try_into().expect("a program");
        let limited = thread::spawn(move || {
            seccompiler::apply_filter(&filter).expect("a filter of this thread");
            act()
        });
        limited.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    #[test]
    fn shared_work_is_done_with_and_without_threads() {
        let squares = || side_by_side(1..=5, |n| (n * n, thread::current().id()));
        for (done, threads) in [(squares(), 5), (without_threads(squares), 1)] {
            let (squares, mut by): (Vec<i32>, Vec<thread::ThreadId>) = done.into_iter().unzip();
            assert_eq!(squares, [1, 4, 9, 16, 25]);
            by.dedup();
            assert_eq!(by.len(), threads);
        }
    }

    #[test]
    fn a_panic_of_shared_work_goes_on_where_it_was_asked_for() {
        let work = |n: i32| assert_ne!(n, 2, "two");
        assert!(std::panic::catch_unwind(|| side_by_side(1..=3, work)).is_err());
    }

    #[test]
    fn a_refused_thread_is_an_error() {
        can_start(3).expect("three threads");
        assert_eq!(without_threads(|| can_start(1)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_thread_has_its_name() {
        let (tell, name) = mpsc::channel();
        let worker = Worker::start("samples", move |_| _ = tell.send(thread::current().name().map(str::to_owned)));
        worker.expect("a thread").end();
        assert_eq!(name.try_recv(), Ok(Some("samples".to_owned())));
    }
}

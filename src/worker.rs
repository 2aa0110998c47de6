//! Threads that work in the background, mostly at intervals, until they are told to stop.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_thread_has_its_name() {
        let (tell, name) = mpsc::channel();
        let worker = Worker::start("samples", move |_| _ = tell.send(thread::current().name().map(str::to_owned)));
        worker.expect("a thread").end();
        assert_eq!(name.try_recv(), Ok(Some("samples".to_owned())));
    }
}

//! Allowances for the machine that the tests run on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{sleep, spawn, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use armtrace::host::clock::now_ns;

/// Returns whether the machine is emulated (`tests/vm/live` sets the variable). Timings are meaningless there, and
/// every step takes many times longer.
pub fn is_emulated() -> bool {
    std::env::var_os("ARMTRACE_EMULATED").is_some()
}

/// Returns how long to wait for something that takes at most `usual` on real hardware.
pub fn patience(usual: Duration) -> Duration {
    usual * if is_emulated() { 10 } else { 1 }
}

/// Light work, as an agent does it: a thread wakes up twenty times a second and asks the kernel for a little. Its CPU
/// time is what a limit on an agent's is measured by, because it takes longer where and while the machine is slow.
pub struct LightWork {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl LightWork {
    const PAUSE: Duration = Duration::from_millis(50);
    const READS: usize = 5;

    /// Starts it.
    pub fn start() -> LightWork {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..Self::READS {
                    fs::read("/proc/self/stat")?;
                }
                sleep(Self::PAUSE);
            }
            Ok(Duration::from_nanos(now_ns(libc::CLOCK_THREAD_CPUTIME_ID)))
        });
        LightWork { stop, thread }
    }

    /// Ends it. Returns the CPU time that it took.
    pub fn stop(self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

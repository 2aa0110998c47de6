//! Runs changes to another process's code so that they cannot be cut short.
//!
//! A thread that is being killed cannot change another process's code. The kernel gives up (`get_user_pages` fails with
//! `EINTR`, and nothing retries `uprobe_unregister` in `kernel/events/uprobes.c`), logs "failed to unregister, leaking
//! uprobe", and the breakpoint stays in the server until it exits. So a separate process attaches and detaches probes.
//! It shares memory and files with this one, as a thread would, but is not killed along with it.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI32, Ordering};

/// The stack size, in bytes: much more than libbpf needs, which keeps some paths on its stack.
const STACK: usize = 256 << 10;

/// The time limit, in seconds, for work that cannot finish: a killed process may leave a lock locked, for example
/// malloc's, that the work then waits for. When the helper process ends, the kernel detaches the probes.
const PATIENCE: u32 = 60;

/// The descriptor of the socket that this process listens on, which the helper process has too; -1 if there is none.
static LISTENER: AtomicI32 = AtomicI32::new(-1);

/// Lets nobody connect to a socket any more once this process is killed, even if a helper process still finishes its
/// work. Otherwise the port would be taken that long. The socket is to stay open as long as this process runs.
pub fn close_if_killed(listener: &impl AsFd) {
    LISTENER.store(listener.as_fd().as_raw_fd(), Ordering::Relaxed);
}

struct Job<F, T> {
    /// The process that wants it done.
    client: libc::pid_t,
    work: Option<F>,
    outcome: Option<std::thread::Result<T>>,
}

/// Runs `work` in a helper process while this thread waits, so that the work finishes even if this process is killed
/// meanwhile. A kill of the whole process group or cgroup still ends both.
///
/// Returns `None` if the helper process alone was killed. Where no process can be created, the work runs in this one.
pub fn shielded<T>(work: impl FnOnce() -> T) -> Option<T> {
    // SAFETY: has no arguments, and cannot fail.
    let mut job = Job { client: unsafe { libc::getpid() }, work: Some(work), outcome: None };
    run(&mut job);
    if let Some(work) = job.work.take() {
        return Some(work());
    }
    job.outcome.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Returns when the job is done. The job still has its work if the work could not be started.
fn run<F: FnOnce() -> T, T>(job: &mut Job<F, T>) {
    let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(STACK / size_of::<u128>());
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK;
    let before = block_signals();
    // SAFETY: the stack is aligned and belongs to the new process alone. This thread, whose thread-local data and job
    // the new process uses, waits for its end (CLONE_VFORK). If this thread is killed instead, nothing frees what the
    // new process still uses.
    let child = unsafe { libc::clone(perform::<F, T>, top.cast(), flags, (&raw mut *job).cast()) };
    if child > 0 {
        // SAFETY: waits for a child that nothing else waits for, and does not ask for its status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    }
    // SAFETY: restores the mask that this thread had before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
}

/// The main function of the helper process.
extern "C" fn perform<F: FnOnce() -> T, T>(job: *mut c_void) -> c_int {
    // SAFETY: `run` passes a job that outlives this call and that nothing else uses meanwhile.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    // SAFETY: sets a timer of this process.
    unsafe { libc::alarm(PATIENCE) };
    expect_death_of(job.client);
    job.outcome = job.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    0
}

/// The signal that the helper process gets when the other one has been killed. Nothing else uses it.
fn orphaned() -> c_int {
    libc::SIGRTMAX() - 1
}

/// Gives up what the helper process does not need once `client` has been killed.
fn expect_death_of(client: libc::pid_t) {
    // SAFETY: installs a handler that only calls what a handler may call. This process has signal handlers of its own.
    unsafe {
        libc::signal(orphaned(), close_listener as *const () as libc::sighandler_t);
        libc::prctl(libc::PR_SET_PDEATHSIG, orphaned());
        if libc::getppid() != client {
            close_listener(0);
        }
    }
}

extern "C" fn close_listener(_: c_int) {
    // SAFETY: takes a number. If it is no socket's descriptor, nothing happens.
    unsafe { libc::shutdown(LISTENER.load(Ordering::Relaxed), libc::SHUT_RDWR) };
}

/// Blocks all signals in this thread, and so in the process that it starts, because Ctrl-C is sent to both; except the
/// alarm and the one that tells that process of this one's death. Returns the previous mask.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first two calls fill `all`; the last one reads it and fills `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGALRM);
        libc::sigdelset(all.as_mut_ptr(), orphaned());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_by_another_process_in_the_same_memory() {
        let mut list = vec![1];
        let pid = shielded(|| {
            list.extend(2..1000);
            std::process::id()
        });
        assert_ne!(pid, Some(std::process::id()));
        assert!(pid.is_some());
        assert_eq!(list.len(), 999);
    }

    #[test]
    fn files_that_work_opens_are_this_processs() {
        let file = shielded(|| std::fs::File::open("/proc/self/stat").unwrap()).unwrap();
        assert!(file.metadata().unwrap().is_file());
    }

    #[test]
    fn a_panic_goes_on_where_the_work_was_asked_for() {
        let panic = catch_unwind(|| shielded(|| panic!("in there"))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"in there"));
    }

    #[test]
    fn work_that_is_killed_has_no_result() {
        let killed = shielded(|| {
            // SAFETY: kills the process that does the work.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(killed, None);
    }

    #[test]
    fn threads_may_ask_for_work_side_by_side() {
        let sum = std::sync::Mutex::new(0);
        std::thread::scope(|scope| {
            for number in 1..=20 {
                let sum = &sum;
                scope.spawn(move || shielded(|| *sum.lock().unwrap() += number));
            }
        });
        assert_eq!(sum.into_inner().unwrap(), 210);
    }

    #[test]
    fn the_signal_mask_is_as_it_was() {
        let mask = || {
            std::fs::read_to_string("/proc/thread-self/status")
                .unwrap()
                .lines()
                .find(|l| l.starts_with("SigBlk"))
                .map(str::to_owned)
        };
        let before = mask();
        shielded(|| ());
        assert_eq!(mask(), before);
    }

    /// Listens, and is killed while it waits for its helper process. The test below runs it in a process of its own.
    #[test]
    #[ignore = "runs in a process that is killed"]
    fn listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        close_if_killed(&listener);
        shielded(|| {
            println!("\nport {}", listener.local_addr().unwrap().port());
            std::thread::sleep(std::time::Duration::from_secs(10));
        });
    }

    #[test]
    fn the_port_of_a_killed_process_is_free_at_once() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};

        let this = std::env::current_exe().unwrap();
        let mut child = Command::new(this)
            .args(["--exact", "attach::shield::tests::listener", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port: u16 = lines.find_map(|line| line.strip_prefix("port ")?.parse().ok()).unwrap();
        let listen = || std::net::TcpListener::bind(("127.0.0.1", port));
        assert!(listen().is_err(), "the port is not taken, so this test could not fail");
        child.kill().unwrap();
        child.wait().unwrap();
        let is_free = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            listen().is_ok()
        });
        assert!(is_free);
    }
}

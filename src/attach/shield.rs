//! Work on another process's code that must not be cut short.
//!
//! A thread that is being killed cannot change another process's code. The kernel gives up (`get_user_pages` fails with
//! `EINTR`, and `uprobe_unregister` in `kernel/events/uprobes.c` has nobody to try again), logs "failed to unregister, leaking
//! uprobe", and the breakpoint stays in the server for as long as that runs. So probes are put on and taken off in a process of
//! their own: it shares this one's memory and files, as a thread would, but is not killed with it.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Much more than libbpf takes, which keeps some paths on its stack.
const STACK: usize = 256 << 10;

/// Seconds until work ends that cannot end: who is killed may leave a lock behind, malloc's for one, that the work then waits
/// for. Its end as a process takes the probes off.
const PATIENCE: u32 = 60;

struct Job<F, T> {
    work: Option<F>,
    outcome: Option<std::thread::Result<T>>,
}

/// Runs `work`, which this thread waits for, so that it comes to its end even if this process is killed meanwhile. What kills
/// all processes of a group or cgroup kills it too.
///
/// `None` if that happened to the work alone. Where there can be no other process it is done in this one.
pub fn shielded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let mut job = Job { work: Some(work), outcome: None };
    run(&mut job);
    if let Some(work) = job.work.take() {
        return Some(work());
    }
    job.outcome.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Returns when the job is done; it still has its work if it could not be begun.
fn run<F: FnOnce() -> T, T>(job: &mut Job<F, T>) {
    let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(STACK / size_of::<u128>());
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK;
    let before = block_signals();
    // SAFETY: the stack is aligned and is the new process's alone. This thread, whose thread-local data and job it uses, waits for
    // its end (CLONE_VFORK); if it is killed instead, nobody frees what the other still uses.
    let child = unsafe { libc::clone(perform::<F, T>, top.cast(), flags, (&raw mut *job).cast()) };
    if child > 0 {
        // SAFETY: waits for a child that nobody else waits for; its status is not asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    }
    // SAFETY: the mask is the one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
}

/// What the new process does.
extern "C" fn perform<F: FnOnce() -> T, T>(job: *mut c_void) -> c_int {
    // SAFETY: `run` passes a job that outlives this call and that nothing else uses meanwhile.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    // SAFETY: sets a timer of this process.
    unsafe { libc::alarm(PATIENCE) };
    job.outcome = job.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    0
}

/// Keeps all signals but the alarm's from this thread, and so from the process that it starts: Ctrl-C goes to both. The mask
/// before.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first two calls fill `all`, the last one reads it and fills `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGALRM);
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
            // SAFETY: ends the process that does the work.
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
}

//! Reads what /proc says about a process. A process is given by its ID and may end at any time.

use procfs::process::{Process, Status, Syscall};

/// Returns the CPU time, user and system, that process `pid` has used so far, in nanoseconds; `None` if it has ended.
pub fn cpu_time_ns(pid: i32) -> Option<u64> {
    let stat = Process::new(pid).ok()?.stat().ok()?;
    Some((stat.utime + stat.stime) * (1_000_000_000 / procfs::ticks_per_second()))
}

/// Returns when process `pid` started, in clock ticks since boot; `None` if it has ended. With the ID, it tells a
/// process from a later one.
pub fn started_at(pid: i32) -> Option<u64> {
    Some(Process::new(pid).ok()?.stat().ok()?.starttime)
}

/// Returns the CPUs on which process `pid` may run, by number; `None` if the kernel does not say.
pub fn cpus_allowed(pid: i32) -> Option<Vec<i32>> {
    let ranges = status(pid)?.cpus_allowed_list?;
    Some(ranges.into_iter().flat_map(|(first, last)| first as i32..=last as i32).collect())
}

/// Returns the threads of process `pid`, the first one first, the others by id; empty if it has ended.
pub fn threads(pid: i32) -> Vec<i32> {
    let tasks = Process::new(pid).and_then(|process| process.tasks());
    let mut threads: Vec<i32> = tasks.into_iter().flatten().flatten().map(|task| task.tid).collect();
    threads.sort_by_key(|thread| (*thread != pid, *thread));
    threads
}

/// Returns the stack pointer of thread `tid`, which sleeps until another one wakes it; `None` if it does something
/// else.
pub fn sleeps_at(tid: i32) -> Option<u64> {
    match Process::new(tid).ok()?.syscall().ok()? {
        Syscall::Blocked { syscall_number, stack_pointer, .. } if syscall_number == libc::SYS_futex => {
            Some(stack_pointer)
        }
        _ => None,
    }
}

/// Returns whether process `pid` filters system calls (seccomp); `None` if the kernel does not say.
pub fn has_seccomp_filter(pid: i32) -> Option<bool> {
    status(pid)?.seccomp.map(|mode| mode != 0)
}

/// Returns whether process `pid` has a shadow stack, which older kernels do not update when they emulate a probed call.
pub fn has_shadow_stack(pid: i32) -> bool {
    // `procfs` does not read this field.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let features = status.lines().find_map(|line| line.strip_prefix("x86_Thread_features:"));
    features.is_some_and(|features| features.split_whitespace().any(|feature| feature == "shstk"))
}

/// Returns whether process `pid` runs this program, whatever its threads are called.
fn is_armtrace(pid: i32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with(env!("CARGO_PKG_NAME")))
}

/// Returns whether another process runs this program, other than those that this one has started.
pub fn is_another_armtrace() -> bool {
    let own = std::process::id() as i32;
    let is_other = |process: &Process| process.pid != own && process.stat().is_ok_and(|stat| stat.ppid != own);
    let all = procfs::process::all_processes().into_iter().flatten().flatten();
    all.filter(|process| is_armtrace(process.pid)).any(|process| is_other(&process))
}

/// Returns the process to which thread `tid` belongs: itself if it is a process.
pub(super) fn of_thread(tid: i32) -> Option<i32> {
    status(tid).map(|status| status.tgid)
}

/// Returns the process's own name, for messages.
pub(super) fn name(pid: i32) -> Option<String> {
    status(pid).map(|status| status.name)
}

fn status(pid: i32) -> Option<Status> {
    Process::new(pid).ok()?.status().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn this_process_is_described() {
        assert!(cpus_allowed(own()).is_some_and(|cpus| !cpus.is_empty()));
        assert!(cpu_time_ns(own()).is_some());
        assert_eq!(threads(own()).first(), Some(&own()));
        assert!(!has_shadow_stack(own()));
    }

    #[test]
    fn a_process_says_whether_its_calls_are_filtered() {
        let status = std::fs::read_to_string("/proc/self/status").expect("the status");
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
        assert_eq!(has_seccomp_filter(own()), mode.map(|mode| mode != "0"));
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let thread = std::thread::spawn(|| of_thread(rustix::thread::gettid().as_raw_nonzero().get()));
        assert_eq!(thread.join().unwrap(), Some(own()));
    }

    #[test]
    fn no_process_says_nothing() {
        assert_eq!((cpus_allowed(i32::MAX), cpu_time_ns(i32::MAX), name(i32::MAX)), (None, None, None));
        assert!(threads(i32::MAX).is_empty());
        assert_eq!(has_seccomp_filter(i32::MAX), None);
    }
}

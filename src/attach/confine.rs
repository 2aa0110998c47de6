//! Gives up the privileges that this process does not need, before it reads what it should not trust.
//!
//! Probes come and go to keep the budget, so those that attaching needs are kept. Landlock is of no use here: the
//! kernel does not let a process that is confined by it read the memory of one that is not.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::{shield, uprobe_multi_works};

/// What is of use while the agent runs, besides what it requires.
const USEFUL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH // files of the server's user, tracefs
    .union(CapabilitySet::CHECKPOINT_RESTORE) // /proc/PID/map_files
    .union(CapabilitySet::SYSLOG) // addresses in /proc/kallsyms
    .union(CapabilitySet::SYS_NICE) // sampling in time
    .union(CapabilitySet::SYS_RESOURCE); // descriptors, and on old kernels the memory of maps

/// The capabilities without which nothing can be traced.
const REQUIRED: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON).union(CapabilitySet::SYS_PTRACE);

/// System calls that armtrace never makes, and that whoever has taken it over might: they change other processes, the
/// kernel or the host, or start programs.
const REFUSED: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_setuid,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// What a command still has to do when it is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It writes nothing but its output.
    Nothing,
    /// It creates a file, maybe in a folder of somebody else.
    File,
}

/// Gives up privileges for good. Call it while this process has one thread: others would keep theirs.
///
/// # Errors
/// Fails if the kernel refuses, as one without seccomp does. What was given up until then stays given up.
pub fn confine(writes: Writes) -> io::Result<()> {
    let done = give_up(writes);
    // What attaches and detaches for this process needs no more than this process does.
    shield::start_anew();
    done
}

fn give_up(writes: Writes) -> io::Result<()> {
    keep_capabilities(kept(writes))?;
    // This also keeps programs that are started from having more privileges.
    seccompiler::apply_filter(&filter()?).map_err(io::Error::other)
}

fn kept(writes: Writes) -> CapabilitySet {
    let mut kept = REQUIRED | USEFUL;
    if writes == Writes::File {
        kept |= CapabilitySet::DAC_OVERRIDE;
    }
    // Some kernels without such links let nobody else attach a uprobe (since 6.17, and in updates of older ones).
    if !uprobe_multi_works() || perf_needs_admin() {
        kept |= CapabilitySet::SYS_ADMIN;
    }
    kept
}

/// Returns whether the kernel lets only CAP_SYS_ADMIN count and sample events, as those of Debian and Ubuntu do from
/// this level of `kernel.perf_event_paranoid` on.
fn perf_needs_admin() -> bool {
    const ADMIN_ONLY: i32 = 3;
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    level.is_ok_and(|level| level.trim().parse().is_ok_and(|level: i32| level >= ADMIN_ONLY))
}

fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let held = thread::capabilities(None)?;
    // Programs that it starts would get what is in the bounding set. Only who may change that set has more.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            // The kernel may be older than the capability.
            _ = thread::remove_capability_from_bounding_set(capability);
        }
    }
    thread::clear_ambient_capability_set()?;
    let left = held.permitted & kept;
    thread::set_capabilities(
        None,
        CapabilitySets { effective: held.effective & kept, permitted: left, inheritable: CapabilitySet::empty() },
    )?;
    Ok(())
}

/// The filter that lets the refused system calls fail with `EPERM`.
fn filter() -> io::Result<BpfProgram> {
    let refused: BTreeMap<_, _> = REFUSED.iter().map(|number| (*number, vec![])).collect();
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refuse, arch).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

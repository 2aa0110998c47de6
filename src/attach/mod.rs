//! Attaches programs to a live server, detaches them, and measures what each hit costs.

mod clock;
mod confine;
mod cost;
mod counter;
mod features;
mod futex;
mod governor;
mod leftovers;
mod perf;
mod shield;
mod sites;
mod skipped;
mod uprobe;

pub use clock::{attach_clock, clock_sees_threads, open_clock, open_own_clock};
pub use confine::{confine, Writes};
pub use cost::{calibrate, thread_time_ns, uprobe_multi_works, Costs, ProbeClass};
pub use counter::{Countable, Counter, Reading, Whose};
pub use features::{attach_cookies, capabilities, features, Feature};
pub use futex::{
    attach_futex, function_is_traceable, futex_wait_is_traceable, futex_wake_is_traceable, stacks_are_shown,
    FutexPrograms,
};
pub use governor::{Budget, Governor, Limit, Turn, Usage, PERIOD};
pub use leftovers::{breakpoints, take_out_leftovers};
pub(crate) use perf::{control, event, open_event, Control, Event, Scope};
pub use shield::helper_pid;
pub use sites::{attach_sites, uretprobes_are_safe, SiteAddress, SitePrograms};
pub use skipped::Skipped;

#[cfg(test)]
pub(crate) use counter::tests as counter_tests;

use shield::CodeLink;

use crate::worker::side_by_side;

/// A probe that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("probe {probe} was refused: {why}")]
pub struct Refusal<P> {
    /// What identifies the probe.
    pub probe: P,
    /// What the kernel said.
    pub why: String,
}

/// Sends libbpf's messages to the log instead of standard error.
pub fn log_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| {
        tracing::debug!(target: "libbpf", "{}", text.trim_end());
    })));
}

/// Keeps a program attached. Dropping it detaches the program, and returns when the kernel has finished.
#[derive(Debug)]
pub struct Link {
    _kept: Kept,
}

/// What is only there to be dropped.
#[derive(Debug)]
enum Kept {
    /// A program at code of another process, whose removal must not be cut short.
    Code { _link: CodeLink },
    /// A program in the kernel.
    Kernel { _link: libbpf_rs::Link },
}

impl From<CodeLink> for Link {
    fn from(link: CodeLink) -> Link {
        Link { _kept: Kept::Code { _link: link } }
    }
}

impl From<libbpf_rs::Link> for Link {
    fn from(link: libbpf_rs::Link) -> Link {
        Link { _kept: Kept::Kernel { _link: link } }
    }
}

/// Detaches many links concurrently, because each removal waits for the kernel.
pub fn detach_all(links: Vec<Link>) {
    side_by_side(links, drop);
}

/// A privilege or a property of the host that this process lacks for loading and attaching programs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingPrivilege {
    /// The process does not have these capabilities.
    #[error(
        "missing privilege ({}): run armtrace as root (sudo armtrace …), or give it these capabilities",
        .0.join(", ")
    )]
    Capabilities(Vec<&'static str>),
    /// The process is not in the PID namespace in which the kernel counts process IDs.
    #[error(
        "armtrace runs in its own PID namespace, where process ids differ from those in the kernel: \
         run it on the host, or in a container with the host's PID namespace (docker run --pid=host …)"
    )]
    HostPidNamespace,
    /// The kernel has no BTF, without which it loads no program.
    #[error(
        "this kernel has no type information (/sys/kernel/btf/vmlinux): use a kernel built with \
         CONFIG_DEBUG_INFO_BTF, as distribution kernels from 5.10 on are"
    )]
    TypeInformation,
}

/// Checks that this process may load and attach programs, before it touches anything.
///
/// # Errors
/// Fails with what is missing, and how to get it.
pub fn require_privilege() -> Result<(), MissingPrivilege> {
    let missing = capabilities().into_iter().filter(|held| !held.works);
    let missing: Vec<&str> = missing.map(|capability| capability.name).collect();
    if !missing.is_empty() {
        return Err(MissingPrivilege::Capabilities(missing));
    }
    if !in_host_pid_namespace() {
        return Err(MissingPrivilege::HostPidNamespace);
    }
    if !features::has_type_information() {
        return Err(MissingPrivilege::TypeInformation);
    }
    Ok(())
}

/// Returns whether process ids mean the same here as in the kernel.
fn in_host_pid_namespace() -> bool {
    /// The kernel's `PROC_PID_INIT_INO`: the inode of the initial PID namespace.
    const HOST: u64 = 0xefff_fffc;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| std::os::unix::fs::MetadataExt::ino(&m) == HOST)
}

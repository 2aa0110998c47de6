//! Probes what this kernel and this process's privileges allow by trying each feature.

use std::sync::OnceLock;

use libbpf_rs::{libbpf_sys, MapType, ProgramType};
use rustix::thread::CapabilitySet;

use super::counter::{Countable, Counter, Whose};
use crate::host::{Domains, Machine};

/// Whether a feature works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It works.
    Yes,
    /// It does not work; the text says what the user loses, or what to do about it.
    No(String),
}

/// A feature of the host that armtrace can use.
#[derive(Clone, Debug)]
pub struct Feature {
    /// The name, as users see it.
    pub name: &'static str,
    /// Whether armtrace cannot trace at all without it.
    pub required: bool,
    /// The result of trying it.
    pub verdict: Availability,
}

/// The numbers of `BPF_FUNC_get_attach_cookie` and `BPF_FUNC_task_storage_get` among the kernel's helpers.
const GET_ATTACH_COOKIE: u32 = 174;
const TASK_STORAGE_GET: u32 = 156;

/// Tries every feature that armtrace uses or could use.
pub fn features() -> Vec<Feature> {
    let feature = |name, required, works: bool, without: &str| Feature {
        name,
        required,
        verdict: if works { Availability::Yes } else { Availability::No(without.to_owned()) },
    };
    let machine = Machine::this();
    let tracepoint = |path: &str| {
        ["sys/kernel/tracing", "sys/kernel/debug/tracing"]
            .iter()
            .any(|root| machine.has(&format!("{root}/events/{path}/id")))
    };
    vec![
        feature(
            "kernel type information (BTF)",
            true,
            has_type_information(),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF",
        ),
        feature(
            "uprobes",
            true,
            machine.has("sys/bus/event_source/devices/uprobe/type"),
            "use a kernel with CONFIG_UPROBE_EVENTS",
        ),
        feature(
            "programs on the kernel's futex_wait",
            false,
            super::futex::futex_wait_can_be_traced(),
            "sleeps are measured with tracepoints, which slow every system call on the host by about 10 ns",
        ),
        feature(
            "futex tracepoints",
            false,
            tracepoint("syscalls/sys_enter_futex"),
            "without programs on futex_wait, sleeping cannot be distinguished from spinning: mount tracefs \
             (mount -t tracefs tracefs /sys/kernel/tracing) or use a kernel with CONFIG_FTRACE_SYSCALLS",
        ),
        feature(
            "uprobe_multi links",
            false,
            super::cost::uprobe_multi_works(),
            "sites are attached one by one, and detaching takes longer (available from Linux 6.6)",
        ),
        feature(
            "attach cookies",
            false,
            attach_cookies(),
            "sites are identified by address, and no uretprobes are used (available from Linux 5.15)",
        ),
        feature(
            "ring buffer",
            false,
            MapType::RingBuf.is_supported().unwrap_or(false),
            "not needed by any current measurement",
        ),
        feature("task storage", false, has_helper(TASK_STORAGE_GET), "not needed: threads are kept in a hash map"),
        feature(
            "hardware performance counters",
            false,
            hardware_counters(),
            "this CPU or virtual machine does not count cycles, so hardware events are absent",
        ),
        feature("software clock events", false, clock_events(), "CPU time is not sampled"),
        feature(
            "more than one NUMA node or last-level cache",
            false,
            machine.topology(Domains::Auto).is_some(),
            "latch handoffs are not measured, unless --handoffs core is given to measure those between cores",
        ),
    ]
}

/// Returns whether the kernel has type information (BTF), without which it loads no program.
pub(super) fn has_type_information() -> bool {
    Machine::this().has("sys/kernel/btf/vmlinux")
}

/// Returns whether a program can tell which of its sites was hit.
pub fn attach_cookies() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| has_helper(GET_ATTACH_COOKIE))
}

pub(super) fn has_helper(id: u32) -> bool {
    ProgramType::Kprobe.is_helper_supported(id).unwrap_or(false)
}

/// Returns the capabilities that loading and attaching need, and whether this process has each. Root has them all;
/// `CAP_SYS_ADMIN` implies the first two, as in the kernel.
pub fn capabilities() -> Vec<(&'static str, bool)> {
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let is_admin = held.contains(CapabilitySet::SYS_ADMIN);
    vec![
        ("CAP_BPF", held.contains(CapabilitySet::BPF) || is_admin),
        ("CAP_PERFMON", held.contains(CapabilitySet::PERFMON) || is_admin),
        ("CAP_SYS_PTRACE", held.contains(CapabilitySet::SYS_PTRACE)),
    ]
}

fn hardware_counters() -> bool {
    counts(libbpf_sys::PERF_TYPE_HARDWARE, u64::from(libbpf_sys::PERF_COUNT_HW_CPU_CYCLES))
}

fn clock_events() -> bool {
    counts(libbpf_sys::PERF_TYPE_SOFTWARE, u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK))
}

/// Returns whether an event can be opened on this thread and really advances while the thread works.
fn counts(kind: u32, config: u64) -> bool {
    let Ok(counter) = Counter::open(Countable { kind, config, config1: 0 }, Whose::Own) else { return false };
    let work: u64 = (0..200_000u64).map(std::hint::black_box).sum();
    std::hint::black_box(work);
    counter.read().is_ok_and(|reading| reading.count > 0)
}

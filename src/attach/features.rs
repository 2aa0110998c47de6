//! Probes what this kernel and this process's privileges allow by trying each feature.

use std::sync::OnceLock;

use libbpf_rs::{libbpf_sys, ProgramType};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use super::counter::{Countable, Counter, Whose};
use crate::host::{Domains, Machine};

/// A feature of the host that armtrace uses.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Feature {
    /// The name, as users see it.
    pub name: &'static str,
    /// Whether armtrace cannot trace at all without it.
    pub required: bool,
    /// Whether it works here.
    pub works: bool,
    /// What the user loses without it, or how to get it; absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
}

impl Feature {
    /// Returns a feature that works or not; `without` says what follows if it does not.
    pub fn new(name: &'static str, required: bool, works: bool, without: &str) -> Feature {
        Feature { name, required, works, without: (!works).then(|| without.to_owned()) }
    }
}

/// How to try a feature.
struct Trial {
    name: &'static str,
    required: bool,
    works: fn() -> bool,
    without: &'static str,
}

const TRIALS: &[Trial] = &[
    Trial {
        name: "kernel type information (BTF)",
        required: true,
        works: has_type_information,
        without: "use a kernel built with CONFIG_DEBUG_INFO_BTF",
    },
    Trial {
        name: "uprobes",
        required: true,
        works: || Machine::this().has("sys/bus/event_source/devices/uprobe/type"),
        without: "use a kernel with CONFIG_UPROBE_EVENTS",
    },
    Trial {
        name: "programs on the kernel's futex_wait",
        required: false,
        works: super::futex::futex_wait_can_be_traced,
        without: "sleeps are measured with tracepoints, which slow every system call on the host by about 10 ns",
    },
    Trial {
        name: "programs on the kernel's fsync, or kprobes",
        required: false,
        works: || super::futex::futex_wait_can_be_traced() || Machine::this().has("sys/bus/event_source/devices/kprobe/type"),
        without: "flushes of files are timed on ext4 only",
    },
    Trial {
        name: "futex tracepoints",
        required: false,
        works: has_futex_tracepoints,
        without: "without programs on futex_wait, sleeping cannot be distinguished from spinning: mount tracefs \
                  (mount -t tracefs tracefs /sys/kernel/tracing), grant CAP_DAC_READ_SEARCH where only root may read it, \
                  or use a kernel with CONFIG_FTRACE_SYSCALLS",
    },
    Trial {
        name: "uprobe_multi links",
        required: false,
        works: super::cost::uprobe_multi_works,
        without: "sites are attached one by one, and detaching takes longer (available from Linux 6.6)",
    },
    Trial {
        name: "attach cookies",
        required: false,
        works: attach_cookies,
        without: "sites are identified by address, and no uretprobes are used (available from Linux 5.15)",
    },
    Trial {
        name: "threads sampled while probes are off",
        required: false,
        works: super::futex::stacks_are_shown,
        without: "what probes on a duty cycle miss is estimated from the waits seen of late, which is far less exact, \
                  and --no-probes is refused (available from Linux 5.15)",
    },
    Trial {
        name: "threads sampled in clock interrupts",
        required: false,
        works: super::clock::clock_sees_threads,
        without: "threads are sampled some tens of times a second instead of some hundreds, so estimates are less exact \
                  (available from Linux 6.12)",
    },
    Trial {
        name: "hardware performance counters",
        required: false,
        works: hardware_counters,
        without: "this CPU or virtual machine does not count cycles, so hardware events are absent",
    },
    Trial { name: "software clock events", required: false, works: clock_events, without: "CPU time is not sampled" },
    Trial {
        name: "more than one NUMA node or last-level cache",
        required: false,
        works: || Machine::this().topology(Domains::Auto).is_some(),
        without: "latch handoffs are not measured, unless --handoffs core is given to measure those between cores",
    },
];

/// The number of `BPF_FUNC_get_attach_cookie` among the kernel's helpers.
const GET_ATTACH_COOKIE: u32 = 174;

/// Tries every feature that armtrace uses.
pub fn features() -> Vec<Feature> {
    TRIALS.iter().map(|trial| Feature::new(trial.name, trial.required, (trial.works)(), trial.without)).collect()
}

fn has_futex_tracepoints() -> bool {
    let machine = Machine::this();
    let has = |root: &&str| machine.has(&format!("{root}/events/syscalls/sys_enter_futex/id"));
    ["sys/kernel/tracing", "sys/kernel/debug/tracing"].iter().any(has)
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
pub fn capabilities() -> Vec<Feature> {
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let is_admin = held.contains(CapabilitySet::SYS_ADMIN);
    let capability = |name, is_held| Feature::new(name, true, is_held, "run as root (sudo armtrace …), or grant it");
    vec![
        capability("CAP_BPF", held.contains(CapabilitySet::BPF) || is_admin),
        capability("CAP_PERFMON", held.contains(CapabilitySet::PERFMON) || is_admin),
        capability("CAP_SYS_PTRACE", held.contains(CapabilitySet::SYS_PTRACE)),
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

//! What this kernel and this process's privileges allow, found out by trying.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use libbpf_rs::{libbpf_sys, MapType, ProgramType};

use super::counter::{Countable, Counter, Whose};
use super::places::{Division, Places, SYSTEM};

/// Whether something works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Yes,
    /// And what that costs the user, or what to do about it.
    No(String),
}

/// One thing that armtrace can make use of.
#[derive(Clone, Debug)]
pub struct Feature {
    pub name: &'static str,
    /// Without it armtrace cannot trace at all.
    pub required: bool,
    pub verdict: Verdict,
}

/// `BPF_FUNC_get_attach_cookie` and `BPF_FUNC_task_storage_get` in the kernel's helper numbering.
const GET_ATTACH_COOKIE: u32 = 174;
const TASK_STORAGE_GET: u32 = 156;

/// Tries everything that armtrace uses or could use.
pub fn features() -> Vec<Feature> {
    let feature = |name, required, works: bool, without: &str| Feature {
        name,
        required,
        verdict: if works { Verdict::Yes } else { Verdict::No(without.to_owned()) },
    };
    let tracepoint = |path: &str| {
        ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .any(|root| Path::new(root).join("events").join(path).join("id").exists())
    };
    vec![
        feature(
            "kernel type information (BTF)",
            true,
            Path::new("/sys/kernel/btf/vmlinux").exists(),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF",
        ),
        feature(
            "uprobes",
            true,
            Path::new("/sys/bus/event_source/devices/uprobe/type").exists(),
            "use a kernel with CONFIG_UPROBE_EVENTS",
        ),
        feature(
            "programs on the kernel's futex_wait",
            false,
            super::futex::futex_wait_can_be_traced(),
            "sleeps are seen by tracepoints, which take 10 ns or so from every system call on the host",
        ),
        feature(
            "futex tracepoints",
            false,
            tracepoint("syscalls/sys_enter_futex"),
            "without programs on futex_wait sleeping is not told from spinning: mount tracefs \
             (mount -t tracefs tracefs /sys/kernel/tracing) or use a kernel with CONFIG_FTRACE_SYSCALLS",
        ),
        feature(
            "uprobe_multi links",
            false,
            super::cost::uprobe_multi_works(),
            "sites are attached one by one, detaching takes longer (Linux 6.6 has them)",
        ),
        feature(
            "attach cookies",
            false,
            attach_cookies(),
            "a site is told by its address, and no uretprobes are used (Linux 5.15 has them)",
        ),
        feature(
            "ring buffer",
            false,
            MapType::RingBuf.is_supported().unwrap_or(false),
            "not needed by any measurement of today",
        ),
        feature("task storage", false, has_helper(TASK_STORAGE_GET), "not needed: threads are kept in a hash map"),
        feature(
            "hardware performance counters",
            false,
            hardware_counters(),
            "this CPU or virtual machine counts no cycles: hardware events are absent",
        ),
        feature("software clock events", false, clock_events(), "no sampling of CPU time"),
        feature(
            "more than one NUMA node or last-level cache",
            false,
            Places::of(Division::Auto, Path::new(SYSTEM)).is_some(),
            "no handoffs of latches between them, unless --handoffs core asks for those between cores",
        ),
    ]
}

/// Whether a program learns at which of its sites it was hit.
pub fn attach_cookies() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| has_helper(GET_ATTACH_COOKIE))
}

pub(super) fn has_helper(id: u32) -> bool {
    ProgramType::Kprobe.is_helper_supported(id).unwrap_or(false)
}

/// The capabilities that loading and attaching need, and whether this process has each; root has them all.
/// `CAP_SYS_ADMIN` stands for the first two, as it does in the kernel.
pub fn capabilities() -> Vec<(&'static str, bool)> {
    const SYS_PTRACE: u32 = 19;
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    let effective = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|s| s.lines().find_map(|l| l.strip_prefix("CapEff:").map(|v| v.trim().to_owned())))
        .and_then(|v| u64::from_str_radix(&v, 16).ok())
        .unwrap_or(0);
    let has = |bit: u32| effective >> bit & 1 == 1;
    vec![
        ("CAP_BPF", has(BPF) || has(SYS_ADMIN)),
        ("CAP_PERFMON", has(PERFMON) || has(SYS_ADMIN)),
        ("CAP_SYS_PTRACE", has(SYS_PTRACE)),
    ]
}

fn hardware_counters() -> bool {
    counts(libbpf_sys::PERF_TYPE_HARDWARE, u64::from(libbpf_sys::PERF_COUNT_HW_CPU_CYCLES))
}

fn clock_events() -> bool {
    counts(libbpf_sys::PERF_TYPE_SOFTWARE, u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK))
}

/// Whether an event opens on this thread and really advances while it works.
fn counts(kind: u32, config: u64) -> bool {
    let Ok(counter) = Counter::open(Countable { kind, config, config1: 0 }, Whose::Own) else { return false };
    let work: u64 = (0..200_000u64).map(std::hint::black_box).sum();
    std::hint::black_box(work);
    counter.read().is_ok_and(|reading| reading.count > 0)
}

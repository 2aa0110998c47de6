//! Hardware events by CPU model: how to request each one, and what proves that the CPU counts it.
//!
//! Numbers and names come from the vendors' event lists and from Linux 6.12 (`tools/perf/pmu-events`, `arm_pmuv3.h`,
//! `drivers/perf/hisilicon`). Many virtual machines and some CPUs accept an event number and then count nothing, or
//! something else. A number is therefore only a hint: no event is published unless it passes its proof.

use crate::host::CpuId;

/// A CPU and its events.
#[derive(Debug)]
pub struct Cpu {
    /// The model, as the CPU identifies itself.
    pub id: CpuId,
    /// The name; `None` if the catalog does not know the CPU.
    pub name: Option<&'static str>,
    /// The events to try on this CPU. Each has yet to pass its proof.
    pub events: Vec<&'static HardwareEvent>,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub struct HardwareEvent {
    /// The value of the `event` label: the vendor's name, in lower case.
    pub name: &'static str,
    /// What it counts, as users see it.
    pub meaning: &'static str,
    /// How the kernel is asked for the event.
    pub code: EventCode,
    /// The condition for publishing the event.
    pub proof: Proof,
}

impl HardwareEvent {
    /// Returns whether it matters which of the server's functions cause the event: whether a change of the code or of
    /// memory placement can reduce it.
    pub fn has_culprits(&self) -> bool {
        let is_far =
            matches!(self.proof, Proof::Memory(RelativeNode::Other, _) | Proof::DirtyLines(RelativeNode::Other, _));
        let is_of_code = matches!(self.proof, Proof::BranchMisses | Proof::OrderingClears);
        (is_far || is_of_code) && !matches!(self.code, EventCode::Uncore(_))
    }
}

/// How an event is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventCode {
    /// `PERF_COUNT_HW_…`: the kernel knows the CPU's number.
    Generic(u32),
    /// A core event.
    Core {
        /// The number of the event, with its unit mask on x86.
        config: u64,
        /// The second configuration word, which offcore events need; otherwise 0.
        config1: u64,
    },
    /// An event of devices that all CPUs of the host share.
    Uncore(Uncore),
}

/// An event of devices named `hisi_scclNUMBER_UNITNUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncore {
    /// The kind of device, the UNIT in its name: `hha`, `l3c` or `ddrc`.
    pub unit: &'static str,
    /// Its name in the device's `events` directory, which gives its number.
    pub event: &'static str,
    /// A field of `config1` that the device's `format` directory must list, as name, bit position and value.
    pub field: Option<(&'static str, u8, u64)>,
}

/// What an event must be seen to count before it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The cycles of a loop: at least one per iteration.
    Cycles,
    /// The instructions of a loop.
    Instructions,
    /// A loop that executes this instruction once per iteration, compared with the same loop without it.
    Instruction(Instruction),
    /// Branches on random bits, compared with the same branches on a constant.
    BranchMisses,
    /// Loads of lines that another thread constantly writes, compared with the same loads without that thread.
    OrderingClears,
    /// Accesses to uncached memory of such a node, compared with accesses to memory in the CPU's own cache.
    Memory(RelativeNode, Access),
    /// Accesses to lines that a CPU of such a node has just written, compared with accesses to lines in the CPU's own
    /// cache.
    DirtyLines(RelativeNode, Access),
}

/// A NUMA node, relative to the CPU that accesses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelativeNode {
    /// The node that the CPU belongs to.
    Own,
    /// A node that the CPU does not belong to.
    Other,
}

/// What a memory access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the memory.
    Load,
    /// Writes the memory.
    Store,
}

/// An instruction that armtrace can execute a known number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    // aarch64
    /// A data memory barrier, for the inner shareable domain.
    Dmb,
    /// A data synchronization barrier, for the inner shareable domain.
    Dsb,
    /// An instruction synchronization barrier, which MySQL uses as a spin hint.
    Isb,
    /// A load with acquire ordering.
    LoadAcquire,
    /// A store with release ordering.
    StoreRelease,
    /// A load-exclusive with its store-exclusive.
    Exclusives,
    /// A store-exclusive that fails because it has no load.
    FailedExclusive,
    /// A compare-and-swap in one instruction (LSE).
    CompareAndSwap,
    // x86_64
    /// An atomic addition, as an example of instructions with a `lock` prefix.
    LockedAdd,
    /// The spin hint.
    Pause,
    /// A load fence.
    Lfence,
}

impl Instruction {
    /// Returns its assembly text.
    pub fn text(self) -> &'static str {
        match self {
            Instruction::Dmb => "dmb ish",
            Instruction::Dsb => "dsb ish",
            Instruction::Isb => "isb",
            Instruction::LoadAcquire => "ldar",
            Instruction::StoreRelease => "stlr",
            Instruction::Exclusives => "ldxr, stxr",
            Instruction::FailedExclusive => "clrex, stxr",
            Instruction::CompareAndSwap => "cas",
            Instruction::LockedAdd => "lock add",
            Instruction::Pause => "pause",
            Instruction::Lfence => "lfence",
        }
    }
}

const fn generic(name: &'static str, number: u32, proof: Proof, meaning: &'static str) -> HardwareEvent {
    HardwareEvent { name, meaning, code: EventCode::Generic(number), proof }
}

const fn core(name: &'static str, config: u64, proof: Proof, meaning: &'static str) -> HardwareEvent {
    offcore(name, config, 0, proof, meaning)
}

const fn offcore(name: &'static str, config: u64, config1: u64, proof: Proof, meaning: &'static str) -> HardwareEvent {
    HardwareEvent { name, meaning, code: EventCode::Core { config, config1 }, proof }
}

const fn counts(instruction: Instruction) -> Proof {
    Proof::Instruction(instruction)
}

const NEAR_MEMORY: Proof = Proof::Memory(RelativeNode::Own, Access::Load);
const FAR_MEMORY: Proof = Proof::Memory(RelativeNode::Other, Access::Load);
const NEAR_LINES: Proof = Proof::DirtyLines(RelativeNode::Own, Access::Load);
const FAR_LINES: Proof = Proof::DirtyLines(RelativeNode::Other, Access::Load);
const TAKEN_LINES: Proof = Proof::DirtyLines(RelativeNode::Other, Access::Store);

/// Events of every CPU: branch misses, and those with which other events are compared. (The kernel's generic
/// `node-loads` and `node-load-misses` are left out: on most CPUs they do not exist, and on some they count something
/// else.)
const EVERYWHERE: &[HardwareEvent] = &[
    generic("cycles", 0, Proof::Cycles, "CPU cycles"),
    generic("instructions", 1, Proof::Instructions, "instructions executed"),
    generic("branch-misses", 5, Proof::BranchMisses, "mispredicted branches"),
];

/// The numbers that the Arm architecture recommends for barriers.
const ARM_ORDERING: &[HardwareEvent] = &[
    core("dmb_spec", 0x7e, counts(Instruction::Dmb), "`dmb`: data memory barriers"),
    core("dsb_spec", 0x7d, counts(Instruction::Dsb), "`dsb`: data synchronization barriers"),
    core("isb_spec", 0x7c, counts(Instruction::Isb), "`isb`: MySQL's spin hint on arm64"),
    core("rc_ld_spec", 0x90, counts(Instruction::LoadAcquire), "`ldar`: acquire loads"),
    core("rc_st_spec", 0x91, counts(Instruction::StoreRelease), "`stlr`: release stores"),
];

/// The same for atomics that consist of a load and a store. Builds that use LSE have next to none.
const ARM_EXCLUSIVES: &[HardwareEvent] = &[
    core("ldrex_spec", 0x6c, counts(Instruction::Exclusives), "load-exclusives: attempts at an atomic"),
    core("strex_pass_spec", 0x6d, counts(Instruction::Exclusives), "successful store-exclusives"),
];

const ARM_STORE_EXCLUSIVES: &[HardwareEvent] = &[
    core("strex_fail_spec", 0x6e, counts(Instruction::FailedExclusive), "failed store-exclusives: retried atomics"),
    core("strex_spec", 0x6f, counts(Instruction::Exclusives), "store-exclusives"),
];

const ARM_COMPARE_AND_SWAP: &[HardwareEvent] = &[
    core("cas_near_pass", 0x8171, counts(Instruction::CompareAndSwap), "successful `cas` in the CPU's own cache"),
    core("cas_near_spec", 0x8172, counts(Instruction::CompareAndSwap), "`cas` in the CPU's own cache"),
];

const ARM_REMOTE: &[HardwareEvent] = &[
    core("remote_access", 0x31, FAR_MEMORY, "accesses served by another socket"),
    core("ll_cache_miss_rd", 0x37, NEAR_MEMORY, "reads that missed the last-level cache visible to the core"),
];

/// Kunpeng's home agents, L3 caches and memory controllers. They count for the host, not for the server.
const HISILICON: &[HardwareEvent] = &[
    uncore("hha_rx_ops_num", "hha", "rx_ops_num", None, NEAR_MEMORY, "requests to home agents"),
    uncore("hha_rx_outer", "hha", "rx_outer", None, FAR_MEMORY, "requests to home agents from the other socket"),
    uncore("hha_rx_sccl", "hha", "rx_sccl", None, FAR_MEMORY, "requests to home agents from another die of the socket"),
    uncore(
        "l3c_dat_access_other_die",
        "l3c",
        "dat_access",
        Some(("datasrc_cfg", 11, 0x08)),
        FAR_LINES,
        "data served by the L3 cache of another die",
    ),
    uncore(
        "l3c_dat_access_other_socket",
        "l3c",
        "dat_access",
        Some(("datasrc_cfg", 11, 0x09)),
        FAR_LINES,
        "data served by an L3 cache of the other socket",
    ),
    uncore("ddrc_flux_rd", "ddrc", "flux_rd", None, NEAR_MEMORY, "memory reads"),
    uncore("ddrc_flux_wr", "ddrc", "flux_wr", None, Proof::Memory(RelativeNode::Own, Access::Store), "memory writes"),
];

const fn uncore(
    name: &'static str,
    unit: &'static str,
    event: &'static str,
    field: Option<(&'static str, u8, u64)>,
    proof: Proof,
    meaning: &'static str,
) -> HardwareEvent {
    HardwareEvent { name, meaning, code: EventCode::Uncore(Uncore { unit, event, field }), proof }
}

const INTEL_ORDERING_CLEARS: HardwareEvent = core(
    "machine_clears.memory_ordering",
    0x2c3,
    Proof::OrderingClears,
    "pipeline flushes because another CPU wrote data that was being read",
);
const LOCK_LOADS: &str = "locked instructions";
const LOCAL_DRAM: &str = "loads served by memory of the same socket";
const REMOTE_DRAM: &str = "loads served by memory of another socket";
const REMOTE_HITM: &str = "loads of a line modified by a CPU of another socket";
const REMOTE_FWD: &str = "loads of a line cached by a CPU of another socket";
const XSNP_HITM: &str = "loads of a line modified by another core of the socket";
const REMOTE_RFO: &str = "stores to a line modified by a CPU of another socket";

const INTEL_BROADWELL: &[HardwareEvent] = &[
    core("mem_uops_retired.lock_loads", 0x21d0, counts(Instruction::LockedAdd), LOCK_LOADS),
    INTEL_ORDERING_CLEARS,
    core("mem_load_uops_l3_miss_retired.local_dram", 0x1d3, NEAR_MEMORY, LOCAL_DRAM),
    core("mem_load_uops_l3_miss_retired.remote_dram", 0x4d3, FAR_MEMORY, REMOTE_DRAM),
    core("mem_load_uops_l3_miss_retired.remote_hitm", 0x10d3, FAR_LINES, REMOTE_HITM),
    core("mem_load_uops_l3_miss_retired.remote_fwd", 0x20d3, FAR_LINES, REMOTE_FWD),
    core("mem_load_uops_l3_hit_retired.xsnp_hitm", 0x4d2, NEAR_LINES, XSNP_HITM),
    offcore("offcore_response.demand_rfo.llc_miss.remote_hitm", 0x1b7, 0x10_3fc0_0002, TAKEN_LINES, REMOTE_RFO),
];

/// Skylake servers and newer.
const INTEL_SERVER: &[HardwareEvent] = &[
    core("mem_inst_retired.lock_loads", 0x21d0, counts(Instruction::LockedAdd), LOCK_LOADS),
    INTEL_ORDERING_CLEARS,
    core("mem_load_l3_miss_retired.local_dram", 0x1d3, NEAR_MEMORY, LOCAL_DRAM),
    core("mem_load_l3_miss_retired.remote_dram", 0x2d3, FAR_MEMORY, REMOTE_DRAM),
    core("mem_load_l3_miss_retired.remote_hitm", 0x4d3, FAR_LINES, REMOTE_HITM),
    core("mem_load_l3_miss_retired.remote_fwd", 0x8d3, FAR_LINES, REMOTE_FWD),
    core("mem_load_l3_hit_retired.xsnp_hitm", 0x4d2, NEAR_LINES, XSNP_HITM),
];

const INTEL_SKYLAKE_STORES: &[HardwareEvent] =
    &[offcore("offcore_response.demand_rfo.l3_miss.remote_hitm", 0x1b7, 0x10_3fc0_0002, TAKEN_LINES, REMOTE_RFO)];

const PAUSE: &str = "`pause` in spin loops, except those that trap to the hypervisor";
const INTEL_PAUSE: &[HardwareEvent] = &[core("pause_inst", 0x40cc, counts(Instruction::Pause), PAUSE)];

const INTEL_SAPPHIRE_RAPIDS: &[HardwareEvent] = &[
    core("cpu_clk_unhalted.pause_inst", 0x104_40ec, counts(Instruction::Pause), PAUSE),
    core("misc2_retired.lfence", 0x20e0, counts(Instruction::Lfence), "`lfence`"),
];

const INTEL_SIERRA_FOREST: &[HardwareEvent] = &[
    core("mem_load_uops_l3_miss_retired.remote_dram", 0x2d3, FAR_MEMORY, REMOTE_DRAM),
    core("mem_load_uops_l3_miss_retired.remote_fwd", 0x4d3, FAR_LINES, REMOTE_FWD),
    core("mem_load_uops_l3_miss_retired.remote_hitm", 0x8d3, FAR_LINES, REMOTE_HITM),
];

const FAR_CACHE: &str = "data from a cache, at addresses in another node's memory";
const FAR_DRAM: &str = "data from another node's memory";

const AMD_ZEN2: &[HardwareEvent] = &[
    core("ls_refills_from_sys.ls_mabresp_rmt_cache", 0x1043, FAR_LINES, FAR_CACHE),
    core("ls_refills_from_sys.ls_mabresp_rmt_dram", 0x4043, FAR_MEMORY, FAR_DRAM),
];

const AMD_ZEN3: &[HardwareEvent] = &[
    core("ls_dmnd_fills_from_sys.ext_cache_remote", 0x1043, FAR_LINES, FAR_CACHE),
    core("ls_dmnd_fills_from_sys.mem_io_remote", 0x4043, FAR_MEMORY, FAR_DRAM),
];

const AMD_ZEN4: &[HardwareEvent] = &[
    core("ls_dmnd_fills_from_sys.far_cache", 0x1043, FAR_LINES, FAR_CACHE),
    core("ls_dmnd_fills_from_sys.dram_io_far", 0x4043, FAR_MEMORY, FAR_DRAM),
];

/// Three unit masks of the event combined: not speculative, and speculative with low and with high confidence.
const AMD_LOCKS: &[HardwareEvent] =
    &[core("ls_locks.cacheable", 0xe25, counts(Instruction::LockedAdd), "locked instructions on cacheable memory")];

const AMD_ZEN5_LOCKS: &[HardwareEvent] = &[core("ls_locks.all", 0x1f25, counts(Instruction::LockedAdd), LOCK_LOADS)];

/// Returns what is known of a CPU. An unknown CPU has the events of every CPU and, on arm64, those that the
/// architecture recommends.
pub fn cpu(id: CpuId) -> Cpu {
    const ARM: [&[HardwareEvent]; 4] = [ARM_ORDERING, ARM_EXCLUSIVES, ARM_STORE_EXCLUSIVES, ARM_REMOTE];
    const KUNPENG: [&[HardwareEvent]; 5] = [ARM_ORDERING, ARM_EXCLUSIVES, ARM_STORE_EXCLUSIVES, ARM_REMOTE, HISILICON];
    const ARM_NO_REMOTE: [&[HardwareEvent]; 3] = [ARM_ORDERING, ARM_EXCLUSIVES, ARM_STORE_EXCLUSIVES];
    const NEOVERSE_N3: [&[HardwareEvent]; 4] = [ARM_ORDERING, ARM_STORE_EXCLUSIVES, ARM_COMPARE_AND_SWAP, ARM_REMOTE];
    let (name, own): (&str, &[&'static [HardwareEvent]]) = match id {
        CpuId::Arm { implementer: 0x41, part } => match part {
            0xd0c => ("Neoverse N1", &ARM),
            0xd40 => ("Neoverse V1", &ARM),
            0xd49 => ("Neoverse N2", &ARM),
            0xd4f => ("Neoverse V2", &ARM),
            0xd84 => ("Neoverse V3", &ARM),
            0xd8e => ("Neoverse N3", &NEOVERSE_N3),
            _ => ("", &ARM),
        },
        CpuId::Arm { implementer: 0xc0, part: 0xac3 } => ("AmpereOne", &ARM_NO_REMOTE),
        CpuId::Arm { implementer: 0xc0, part: 0xac4 } => ("AmpereOneX", &ARM_NO_REMOTE),
        CpuId::Arm { implementer: 0x48, part: 0xd01 } => ("Kunpeng 920", &KUNPENG),
        CpuId::Arm { implementer: 0x48, part: 0xd02 } => ("Kunpeng HIP09", &KUNPENG),
        CpuId::Arm { .. } => ("", &ARM),
        CpuId::Intel { family: 6, model } => match model {
            0x4f => ("Broadwell-EP", &[INTEL_BROADWELL]),
            0x55 => ("Skylake-SP, Cascade Lake", &[INTEL_SERVER, INTEL_PAUSE, INTEL_SKYLAKE_STORES]),
            0x6a | 0x6c => ("Ice Lake-SP", &[INTEL_SERVER, INTEL_PAUSE]),
            0x8f => ("Sapphire Rapids", &[INTEL_SERVER, INTEL_SAPPHIRE_RAPIDS]),
            0xcf => ("Emerald Rapids", &[INTEL_SERVER, INTEL_SAPPHIRE_RAPIDS]),
            0xad | 0xae => ("Granite Rapids", &[INTEL_SERVER, INTEL_SAPPHIRE_RAPIDS]),
            0xaf => ("Sierra Forest", &[INTEL_SIERRA_FOREST]),
            _ => ("", &[]),
        },
        CpuId::Intel { .. } => ("", &[]),
        CpuId::Amd { family, model } => match (family, model >> 4) {
            (0x17, 0x3..) => ("Zen 2", &[AMD_LOCKS, AMD_ZEN2]),
            (0x19, 0x0 | 0x2 | 0x4 | 0x5) => ("Zen 3", &[AMD_LOCKS, AMD_ZEN3]),
            (0x19, _) => ("Zen 4", &[AMD_ZEN4]),
            (0x1a, _) => ("Zen 5", &[AMD_ZEN5_LOCKS, AMD_ZEN4]),
            _ => ("", &[]),
        },
    };
    let events = EVERYWHERE.iter().chain(own.iter().copied().flatten()).collect();
    Cpu { id, name: Some(name).filter(|name| !name.is_empty()), events }
}

/// Amazon's instance families, without the first letter, with the smallest size that has all hardware events. From the
/// Graviton guide (`aws-graviton-getting-started`, `perfrunbook/debug_hw_perf.md`).
const AMAZON: &[(&str, u32)] =
    &[("6g", 16), ("7g", 16), ("6i", 16), ("8g", 24), ("6a", 24), ("7a", 24), ("7i", 24), ("8i", 48), ("9g", 48)];

/// Returns how a virtual machine without counters could get them, judging by its firmware's `sys_vendor` and
/// `product_name`.
pub fn where_counters_are(vendor: &str, product: &str) -> String {
    if vendor != "Amazon EC2" {
        return "A virtual machine has counters if its host exposes them: on bare metal and dedicated hosts, with QEMU's `-cpu host,pmu=on`, \
                or with VMware's \"virtualized CPU performance counters\""
            .to_owned();
    }
    let family = product.split('.').next().unwrap_or_default();
    let generation = family.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    match AMAZON.iter().find(|(begin, _)| generation.starts_with(begin)) {
        Some((_, size)) => format!("{family} has all counters from size {family}.{size}xlarge on, and on bare metal"),
        None => format!("{family} has counters on bare metal, and may have them in its largest sizes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cpu_has_two_events_of_one_name_or_number() {
        let arm = (0..=u8::MAX).flat_map(|implementer| {
            [0xd0c, 0xd40, 0xd49, 0xd4f, 0xd84, 0xd8e, 0xac3, 0xac4, 0xd01, 0xd02]
                .map(|part| CpuId::Arm { implementer, part })
        });
        let intel = (0..=u8::MAX).map(|model| CpuId::Intel { family: 6, model });
        let amd = (0..=u8::MAX).flat_map(|model| [0x17, 0x19, 0x1a].map(|family| CpuId::Amd { family, model }));
        for id in arm.chain(intel).chain(amd) {
            let cpu = cpu(id);
            for (at, event) in cpu.events.iter().enumerate() {
                let twin = cpu.events[..at].iter().find(|e| e.name == event.name || e.code == event.code);
                assert_eq!(twin, None, "{id:?}: {}", event.name);
            }
        }
    }

    /// One CPU of each kind, with its name and an event that only its kind has.
    #[test]
    fn a_cpu_is_known_by_its_numbers() {
        let arm = |implementer, part| CpuId::Arm { implementer, part };
        let intel = |model| CpuId::Intel { family: 6, model };
        let amd = |family, model| CpuId::Amd { family, model };
        for (id, name, event) in [
            (arm(0x41, 0xd0c), "Neoverse N1", "remote_access"),
            (arm(0x41, 0xd40), "Neoverse V1", "remote_access"),
            (arm(0x41, 0xd49), "Neoverse N2", "remote_access"),
            (arm(0x41, 0xd4f), "Neoverse V2", "remote_access"),
            (arm(0x41, 0xd84), "Neoverse V3", "remote_access"),
            (arm(0x41, 0xd8e), "Neoverse N3", "remote_access"),
            (arm(0xc0, 0xac3), "AmpereOne", "branch-misses"),
            (arm(0xc0, 0xac4), "AmpereOneX", "branch-misses"),
            (arm(0x48, 0xd01), "Kunpeng 920", "remote_access"),
            (arm(0x48, 0xd02), "Kunpeng HIP09", "remote_access"),
            (intel(0x4f), "Broadwell-EP", "machine_clears.memory_ordering"),
            (intel(0x55), "Skylake-SP, Cascade Lake", "machine_clears.memory_ordering"),
            (intel(0x6a), "Ice Lake-SP", "machine_clears.memory_ordering"),
            (intel(0x6c), "Ice Lake-SP", "machine_clears.memory_ordering"),
            (intel(0x8f), "Sapphire Rapids", "machine_clears.memory_ordering"),
            (intel(0xcf), "Emerald Rapids", "machine_clears.memory_ordering"),
            (intel(0xad), "Granite Rapids", "machine_clears.memory_ordering"),
            (intel(0xae), "Granite Rapids", "machine_clears.memory_ordering"),
            (intel(0xaf), "Sierra Forest", "mem_load_uops_l3_miss_retired.remote_dram"),
            (amd(0x17, 0x31), "Zen 2", "ls_locks.cacheable"),
            (amd(0x19, 0x01), "Zen 3", "ls_dmnd_fills_from_sys.ext_cache_remote"),
            (amd(0x19, 0x21), "Zen 3", "ls_dmnd_fills_from_sys.ext_cache_remote"),
            (amd(0x19, 0x11), "Zen 4", "ls_dmnd_fills_from_sys.far_cache"),
            (amd(0x1a, 0x02), "Zen 5", "ls_locks.all"),
        ] {
            let cpu = cpu(id);
            assert_eq!(cpu.name, Some(name), "{id:?}");
            assert!(cpu.events.iter().any(|e| e.name == event), "{name}: {:?}", cpu.events);
        }
        for id in [arm(0x41, 0), arm(0, 0xd0c), intel(0), amd(0x17, 0x01), CpuId::Intel { family: 5, model: 0x6a }] {
            assert_eq!(cpu(id).name, None, "{id:?}");
            assert!(cpu(id).events.len() >= EVERYWHERE.len());
        }
        let has = |id, name: &str| cpu(id).events.iter().any(|event| event.name == name);
        assert!(!has(arm(0xc0, 0xac3), "remote_access") && !has(intel(0), "machine_clears.memory_ordering"));
    }

    #[test]
    fn events_that_code_or_placement_causes_have_culprits() {
        let culprits = |id| -> Vec<&str> {
            let events = cpu(id).events.into_iter();
            events.filter(|event| event.has_culprits()).map(|event| event.name).collect()
        };
        assert_eq!(culprits(CpuId::Arm { implementer: b'A', part: 0xd40 }), ["branch-misses", "remote_access"]);
        // Events of shared devices cannot be attributed to a function.
        assert_eq!(culprits(CpuId::Arm { implementer: b'H', part: 0xd01 }), ["branch-misses", "remote_access"]);
        let intel = culprits(CpuId::Intel { family: 6, model: 106 });
        assert!(intel.contains(&"machine_clears.memory_ordering"), "{intel:?}");
        assert!(intel.contains(&"mem_load_l3_miss_retired.remote_hitm"), "{intel:?}");
        assert!(!intel.contains(&"mem_load_l3_miss_retired.local_dram"), "{intel:?}");
    }

    #[test]
    fn advice_for_small_instances_names_the_size_with_counters() {
        let advice = |product| where_counters_are("Amazon EC2", product);
        assert!(advice("m7g.2xlarge").contains("m7g.16xlarge"));
        assert!(advice("c8gd.large").contains("c8gd.24xlarge"));
        assert!(advice("r7iz.large").contains("r7iz.24xlarge"));
        assert!(advice("r8i-flex.large").contains("r8i-flex.48xlarge"));
        assert!(!advice("t4g.small").contains("xlarge"));
        assert!(where_counters_are("QEMU", "Standard PC").contains("pmu=on"));
    }
}

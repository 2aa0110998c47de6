//! The devices of a host that count events (PMUs), and how to request each event of its CPU from them.

use crate::attach::{Countable, Whose};
use crate::catalog::{where_counters_are, Cpu, EventCode, HardwareEvent, Uncore};
use crate::host::{cpu_list, hexadecimal, Machine};
use crate::measure::hardware::Scope;

/// `PERF_TYPE_HARDWARE`: events by the kernel's generic numbers.
const GENERIC: u32 = libbpf_rs::libbpf_sys::PERF_TYPE_HARDWARE;

/// The directory of a machine's counting devices.
const PMUS: &str = "sys/bus/event_source/devices";

/// The counting devices of a machine.
pub struct Pmus<'m> {
    machine: &'m Machine,
    /// The names of all devices.
    names: Vec<String>,
}

/// The reason why an event cannot be requested on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The cores have no counters.
    #[error("there are no counters")]
    NoCounters,
    /// The host has none of the devices that count it.
    #[error("no device hisi_scclNUMBER_{unit}NUMBER: load the module hisi_uncore_{unit}_pmu")]
    NoDevice {
        /// What the devices' names contain.
        unit: &'static str,
    },
    /// The devices do not have it.
    #[error("{device} has no event {event}, or cannot filter it by data source")]
    NoEvent {
        /// The first of the devices.
        device: String,
        /// The event's name there.
        event: &'static str,
    },
}

/// An event, and the devices that provide it on this host.
#[derive(Debug)]
pub struct Planned {
    /// The event, as the catalog describes it.
    pub event: &'static HardwareEvent,
    /// One event for core events, or one per device for shared devices.
    pub asked: Result<Asked, Unavailable>,
}

/// How an event is requested on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A core event, which is counted by thread.
    OfThreads(Countable),
    /// An event of shared devices: each device with the CPU through which it is read.
    OfDevices(Vec<(Countable, i32)>),
}

impl Planned {
    /// Returns the scope of the event.
    pub fn scope(&self) -> Scope {
        match self.event.code {
            EventCode::Uncore(_) => Scope::Host,
            EventCode::Generic(_) | EventCode::Core { .. } => Scope::Process,
        }
    }
}

impl Asked {
    /// Returns the counters to open: for a thread, or for shared devices, which have no threads.
    pub fn of(&self, thread: Whose) -> Vec<(Countable, Whose)> {
        match self {
            Asked::OfThreads(countable) => vec![(*countable, thread)],
            Asked::OfDevices(devices) => devices.iter().map(|(what, cpu)| (*what, Whose::Device(*cpu))).collect(),
        }
    }
}

impl Pmus<'_> {
    /// Returns the devices of this machine.
    pub fn of(machine: &Machine) -> Pmus<'_> {
        Pmus { machine, names: machine.entries(PMUS) }
    }

    /// Returns whether its cores have any counters.
    pub fn has_counters(&self) -> bool {
        self.core_pmu().is_some()
    }

    /// Returns all events of this CPU.
    pub fn plan(&self, cpu: &Cpu) -> Vec<Planned> {
        let core = self.core_pmu();
        let of_core = |config, config1| {
            let kind = core.ok_or(Unavailable::NoCounters)?;
            Ok(Asked::OfThreads(Countable { kind, config, config1 }))
        };
        let ask = |event: &HardwareEvent| match event.code {
            EventCode::Generic(number) => of_core(u64::from(number), 0)
                .map(|_| Asked::OfThreads(Countable { kind: GENERIC, config: u64::from(number), config1: 0 })),
            EventCode::Core { config, config1 } => of_core(config, config1),
            EventCode::Uncore(uncore) => self.devices(&uncore).map(Asked::OfDevices),
        };
        cpu.events.iter().map(|&event| Planned { event, asked: ask(event) }).collect()
    }

    /// Returns how to get counters, for a host that has none.
    pub fn advice(&self) -> String {
        let dmi = |name| self.machine.line(&format!("sys/class/dmi/id/{name}")).unwrap_or_default();
        where_counters_are(&dmi("sys_vendor"), &dmi("product_name"))
    }

    /// Returns the feature of this host, if any, that can tell for single loads which memory served them.
    pub fn data_source_sampler(&self) -> Option<&'static str> {
        let has = |begin: &str| self.names.iter().any(|name| name.starts_with(begin));
        // If Intel CPUs can sample loads by latency, the kernel names the event for it.
        let samples_loads =
            || ["cpu", "cpu_core"].iter().any(|cpu| self.machine.has(&format!("{PMUS}/{cpu}/events/mem-loads")));
        if has("arm_spe_") {
            Some("Arm SPE")
        } else if has("ibs_op") {
            Some("AMD IBS")
        } else {
            samples_loads().then_some("Intel PEBS")
        }
    }

    /// Returns the number of the device for core events.
    fn core_pmu(&self) -> Option<u32> {
        let is_core = |name: &str| {
            name == "cpu" || name == "cpu_core" || name.starts_with("armv8_") || name.starts_with("armv9_")
        };
        let device = self.names.iter().find(|name| is_core(name))?;
        self.machine.line(&format!("{PMUS}/{device}/type"))?.parse().ok()
    }

    /// Returns the devices that have this event, with the CPU through which to read each.
    fn devices(&self, event: &Uncore) -> Result<Vec<(Countable, i32)>, Unavailable> {
        let infix = format!("_{}", event.unit);
        let is_of_unit = |name: &&String| name.starts_with("hisi_sccl") && name.contains(&infix);
        let devices: Vec<&String> = self.names.iter().filter(is_of_unit).collect();
        let first = *devices.first().ok_or(Unavailable::NoDevice { unit: event.unit })?;
        let found: Vec<_> = devices.iter().filter_map(|device| self.device(device, event)).collect();
        if found.is_empty() {
            return Err(Unavailable::NoEvent { device: first.clone(), event: event.event });
        }
        Ok(found)
    }

    fn device(&self, name: &str, event: &Uncore) -> Option<(Countable, i32)> {
        let file = |path: &str| self.machine.line(&format!("{PMUS}/{name}/{path}"));
        let number = file(&format!("events/{}", event.event))?;
        let config = hexadecimal(number.strip_prefix("config=")?)?;
        let config1 = match event.field {
            None => 0,
            Some((field, bit, value)) => {
                let place = file(&format!("format/{field}"))?;
                place.strip_prefix(&format!("config1:{bit}-")).map(|_| value << bit)?
            }
        };
        let cpu = *cpu_list(&file("cpumask")?)?.first()?;
        Some((Countable { kind: file("type")?.parse().ok()?, config, config1 }, cpu))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::catalog::hardware_cpu;

    /// Returns a recorded machine.
    fn machine(name: &str) -> Machine {
        Machine::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hosts").join(name))
    }

    fn cpu(machine: &Machine) -> Cpu {
        hardware_cpu(machine.cpu_id().unwrap())
    }

    /// Returns the CPU's name and all events beyond those of every CPU: `dmb_spec 8:7e`, with the device's number.
    fn planned(name: &str) -> (Option<&'static str>, Vec<String>) {
        let machine = machine(name);
        let cpu = cpu(&machine);
        let plan = Pmus::of(&machine).plan(&cpu);
        assert_eq!(
            plan[..3].iter().map(|p| p.event.name).collect::<Vec<_>>(),
            ["cycles", "instructions", "branch-misses"]
        );
        (cpu.name, plan[3..].iter().map(written).collect())
    }

    #[test]
    fn what_samples_data_sources_is_told_by_the_devices() {
        let sampler = |files: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            for file in files {
                let file = dir.path().join("sys/bus/event_source/devices").join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            Pmus::of(&Machine::at(dir.path())).data_source_sampler()
        };
        assert_eq!(sampler(&["arm_spe_0/type", "armv8_pmuv3_0/type"]), Some("Arm SPE"));
        assert_eq!(sampler(&["ibs_op/type", "cpu/type"]), Some("AMD IBS"));
        assert_eq!(sampler(&["cpu/events/mem-loads"]), Some("Intel PEBS"));
        assert_eq!(sampler(&["cpu_core/events/mem-loads", "cpu_atom/type"]), Some("Intel PEBS"));
        assert_eq!(sampler(&["cpu/events/cycles", "software/type"]), None);
        assert_eq!(sampler(&[]), None);
    }

    fn written(planned: &Planned) -> String {
        let number = |what: &Countable| match what.config1 {
            0 => format!("{}:{:x}", what.kind, what.config),
            config1 => format!("{}:{:x}:{config1:x}", what.kind, what.config),
        };
        let asked = match &planned.asked {
            Err(why) => why.to_string(),
            Ok(Asked::OfThreads(what)) => number(what),
            Ok(Asked::OfDevices(devices)) => {
                devices.iter().map(|(what, cpu)| format!("{}@{cpu}", number(what))).collect::<Vec<_>>().join(" ")
            }
        };
        format!("{} {asked}", planned.event.name)
    }

    fn arm(device: u32, events: &[(&str, u32)]) -> Vec<String> {
        events.iter().map(|(name, number)| format!("{name} {device}:{number:x}")).collect()
    }

    const BARRIERS: [(&str, u32); 5] =
        [("dmb_spec", 0x7e), ("dsb_spec", 0x7d), ("isb_spec", 0x7c), ("rc_ld_spec", 0x90), ("rc_st_spec", 0x91)];
    const LOAD_EXCLUSIVES: [(&str, u32); 2] = [("ldrex_spec", 0x6c), ("strex_pass_spec", 0x6d)];
    const STORE_EXCLUSIVES: [(&str, u32); 2] = [("strex_fail_spec", 0x6e), ("strex_spec", 0x6f)];
    const REMOTE: [(&str, u32); 2] = [("remote_access", 0x31), ("ll_cache_miss_rd", 0x37)];

    #[test]
    fn arm_cpus_have_their_events() {
        let all = [&BARRIERS[..], &LOAD_EXCLUSIVES, &STORE_EXCLUSIVES, &REMOTE].concat();
        let no_remote = [&BARRIERS[..], &LOAD_EXCLUSIVES, &STORE_EXCLUSIVES].concat();
        let swaps = [("cas_near_pass", 0x8171), ("cas_near_spec", 0x8172)];
        let n3 = [&BARRIERS[..], &STORE_EXCLUSIVES, &swaps, &REMOTE].concat();
        for (tree, name, device, events) in [
            ("neoverse-n1", Some("Neoverse N1"), 8, &all),
            ("neoverse-v1", Some("Neoverse V1"), 8, &all),
            ("neoverse-n2", Some("Neoverse N2"), 8, &all),
            ("neoverse-v2", Some("Neoverse V2"), 8, &all),
            ("neoverse-v3", Some("Neoverse V3"), 8, &all),
            ("neoverse-n3", Some("Neoverse N3"), 8, &n3),
            ("ampereone", Some("AmpereOne"), 8, &no_remote),
            ("cortex-a72", None, 10, &all),
            ("qemu-max", None, 8, &all),
        ] {
            assert_eq!(planned(tree), (name, arm(device, events)), "{tree}");
        }
    }

    #[test]
    fn kunpeng_has_the_events_of_its_devices() {
        let (name, events) = planned("kunpeng-920");
        assert_eq!(name, Some("Kunpeng 920"));
        assert_eq!(
            events[11..],
            [
                "hha_rx_ops_num 20:0@0 23:0@32 26:0@64 29:0@96",
                "hha_rx_outer 20:1@0 23:1@32 26:1@64 29:1@96",
                "hha_rx_sccl 20:2@0 23:2@32 26:2@64 29:2@96",
                "l3c_dat_access_other_die hisi_sccl1_l3c4 has no event dat_access, or cannot filter it by data source",
                "l3c_dat_access_other_socket hisi_sccl1_l3c4 has no event dat_access, or cannot filter it by data source",
                "ddrc_flux_rd 22:1@0 25:1@32 28:1@64 31:1@96",
                "ddrc_flux_wr 22:0@0 25:0@32 28:0@64 31:0@96",
            ]
        );
        let (name, events) = planned("kunpeng-hip09");
        assert_eq!(name, Some("Kunpeng HIP09"));
        assert_eq!(
            events[11..],
            [
                "hha_rx_ops_num 30:0@0",
                "hha_rx_outer 30:1@0",
                "hha_rx_sccl 30:2@0",
                "l3c_dat_access_other_die 31:b9:4000@0",
                "l3c_dat_access_other_socket 31:b9:4800@0",
                "ddrc_flux_rd 32:84@0",
                "ddrc_flux_wr 32:83@0",
            ]
        );
    }

    #[test]
    fn intel_cpus_have_their_events() {
        let server = [
            "mem_inst_retired.lock_loads 4:21d0",
            "machine_clears.memory_ordering 4:2c3",
            "mem_load_l3_miss_retired.local_dram 4:1d3",
            "mem_load_l3_miss_retired.remote_dram 4:2d3",
            "mem_load_l3_miss_retired.remote_hitm 4:4d3",
            "mem_load_l3_miss_retired.remote_fwd 4:8d3",
            "mem_load_l3_hit_retired.xsnp_hitm 4:4d2",
        ];
        let with = |more: &[&str]| [&server[..], more].concat().iter().map(ToString::to_string).collect::<Vec<_>>();
        let skylake = with(&["pause_inst 4:40cc", "offcore_response.demand_rfo.l3_miss.remote_hitm 4:1b7:103fc00002"]);
        let sapphire_rapids = with(&["cpu_clk_unhalted.pause_inst 4:10440ec", "misc2_retired.lfence 4:20e0"]);
        assert_eq!(planned("cascade-lake"), (Some("Skylake-SP, Cascade Lake"), skylake));
        assert_eq!(planned("ice-lake"), (Some("Ice Lake-SP"), with(&["pause_inst 4:40cc"])));
        assert_eq!(planned("sapphire-rapids"), (Some("Sapphire Rapids"), sapphire_rapids.clone()));
        assert_eq!(planned("emerald-rapids"), (Some("Emerald Rapids"), sapphire_rapids.clone()));
        assert_eq!(planned("granite-rapids"), (Some("Granite Rapids"), sapphire_rapids));
        let (name, events) = planned("broadwell-ep");
        assert_eq!(name, Some("Broadwell-EP"));
        assert_eq!(
            events,
            [
                "mem_uops_retired.lock_loads 4:21d0",
                "machine_clears.memory_ordering 4:2c3",
                "mem_load_uops_l3_miss_retired.local_dram 4:1d3",
                "mem_load_uops_l3_miss_retired.remote_dram 4:4d3",
                "mem_load_uops_l3_miss_retired.remote_hitm 4:10d3",
                "mem_load_uops_l3_miss_retired.remote_fwd 4:20d3",
                "mem_load_uops_l3_hit_retired.xsnp_hitm 4:4d2",
                "offcore_response.demand_rfo.llc_miss.remote_hitm 4:1b7:103fc00002",
            ]
        );
        let (name, events) = planned("sierra-forest");
        assert_eq!((name, events.len()), (Some("Sierra Forest"), 3));
    }

    #[test]
    fn amd_cpus_have_their_events() {
        let of = |tree| {
            let (name, events) = planned(tree);
            (name.unwrap(), events)
        };
        for (tree, name, events) in [
            (
                "zen2",
                "Zen 2",
                &[
                    "ls_locks.cacheable 4:e25",
                    "ls_refills_from_sys.ls_mabresp_rmt_cache 4:1043",
                    "ls_refills_from_sys.ls_mabresp_rmt_dram 4:4043",
                ][..],
            ),
            (
                "zen3",
                "Zen 3",
                &[
                    "ls_locks.cacheable 4:e25",
                    "ls_dmnd_fills_from_sys.ext_cache_remote 4:1043",
                    "ls_dmnd_fills_from_sys.mem_io_remote 4:4043",
                ],
            ),
            (
                "zen4",
                "Zen 4",
                &["ls_dmnd_fills_from_sys.far_cache 4:1043", "ls_dmnd_fills_from_sys.dram_io_far 4:4043"],
            ),
            (
                "zen5",
                "Zen 5",
                &[
                    "ls_locks.all 4:1f25",
                    "ls_dmnd_fills_from_sys.far_cache 4:1043",
                    "ls_dmnd_fills_from_sys.dram_io_far 4:4043",
                ],
            ),
        ] {
            assert_eq!(of(tree), (name, events.iter().map(ToString::to_string).collect()));
        }
    }

    #[test]
    fn a_machine_without_counters_is_told_where_there_are_some() {
        let small = machine("graviton3-small");
        let plan = Pmus::of(&small).plan(&cpu(&small));
        assert!(plan.iter().all(|p| p.asked == Err(Unavailable::NoCounters)), "{plan:?}");
        assert!(!Pmus::of(&small).has_counters());
        let advice = |machine| Pmus::of(machine).advice();
        assert!(advice(&small).contains("m7g.16xlarge"), "{}", advice(&small));
        let other = machine("no-pmu");
        assert_eq!(Pmus::of(&other).plan(&cpu(&other)).len(), 3, "this CPU is not in the catalog");
        assert!(advice(&other).contains("pmu=on"), "{}", advice(&other));
    }
}

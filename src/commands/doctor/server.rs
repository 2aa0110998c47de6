//! What is known of a server, and what would be measured on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use crate::agent;
use crate::attach::{self, Costs, ProbeClass};
use crate::host::{Domains, Machine};
use crate::measure::checksum::{checksums, Checksum};
use crate::measure::cpu::{self, Getcpu};
use crate::measure::latch::{self, Gap, Plan, PlannedProbe, PlannedSite};
use crate::measure::locks::{self, PlannedLockSite};
use crate::measure::spin::{SpinReader, SpinSettings};
use crate::server::{nodes_allowed, NumaMemory, NumaThreads, Target};

#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Server {
    pub pid: i32,
    pub flavor: String,
    pub version: String,
    pub arch: String,
    pub build_id: String,
    pub symbol_source: String,
    /// A description of the symbols.
    pub symbols: String,
    /// What is wrong with the program's file, if it is damaged but readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// A description of what is measured.
    pub measured: String,
    /// The file that the symbols are from, if it is not the program itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_file: Option<String>,
    /// Where symbols that the program itself lacks were looked for.
    pub symbols_tried: Vec<String>,
    /// How to get symbols that are still missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols_advice: Option<String>,
    /// Whether the program was deleted or replaced on disk since it was started.
    pub program_deleted: bool,
    /// Whether uretprobes are safe to use. They are not if the process runs under a seccomp filter, or with a shadow
    /// stack on a kernel before 6.11.
    pub uretprobes_safe: bool,
    /// The number of breakpoints in its code, of tracers that are at work, or that were killed and left them; absent
    /// if its memory cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breakpoints: Option<usize>,
    pub probes: Vec<Probe>,
    /// What is measured only in part.
    pub limits: Vec<String>,
    pub not_measured: Vec<Gap>,
    pub checksums: Vec<Checksum>,
    /// Why it cannot be seen which statements wait; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statements_not_read: Option<String>,
    /// Absent if the spin settings are not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spin: Option<Spin>,
    /// How its C library finds a thread's CPU; absent for servers that do not ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub getcpu: Option<Getcpu>,
    /// Absent on machines with one node, and if the kernel does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryByNode>,
    /// Threads by NUMA node; absent on machines with one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<NumaThreads>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Probe {
    pub name: String,
    /// The link-time address of the site, or the number of sites if the probe has several.
    pub address: String,
    pub instruction: String,
    pub emulated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_hit: Option<f64>,
}

/// How waiters spin, with times in nanoseconds.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Spin {
    /// The spin hint; absent if this build's loop has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    pub ns_per_turn: f64,
    pub spin_wait_delay: u32,
    pub sync_spin_loops: u32,
    /// The mean time of a round.
    pub ns_per_round: f64,
    /// The time of all rounds before a sleep.
    pub ns_before_sleep: f64,
}

/// Resident memory by NUMA node, and what to do about it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct MemoryByNode {
    #[serde(flatten)]
    pub memory: NumaMemory,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Server {
    pub fn examine(target: &Arc<Target>, costs: &Costs, max_overhead: f64) -> Server {
        let plan: Plan = latch::plan(&target.image, target.family, agent::allowed(target.pid, max_overhead));
        let locks = locks::planned(target);
        let info = target.info();
        let spin = SpinReader::new(target, &plan).and_then(|reader| reader.read());
        Server {
            pid: target.pid,
            flavor: info.flavor,
            version: info.version,
            arch: info.arch,
            build_id: info.build_id,
            symbol_source: info.symbol_source,
            symbols: target.image.symbols_in_words(),
            damage: target.image.damage().map(|damage| damage.to_string()),
            measured: measured(&plan),
            symbol_file: target.image.symbol_file().map(|p| p.display().to_string()),
            symbols_tried: target.symbol_trials.iter().map(ToString::to_string).collect(),
            symbols_advice: target.symbols_advice(),
            program_deleted: target.is_deleted,
            uretprobes_safe: attach::uretprobes_are_safe(target.pid),
            breakpoints: attach::breakpoints(target.pid).ok(),
            probes: plan
                .probes
                .iter()
                .map(|probe| Probe::of(&plan, probe, costs))
                .chain(locks.sites().map(|(name, site)| Probe::of_lock(name, site, costs)))
                .collect(),
            limits: plan.limits,
            not_measured: plan.gaps.into_iter().chain(locks.gaps.iter().cloned()).collect(),
            checksums: checksums(target),
            statements_not_read: latch::find_statements(target).err().map(|why| why.advice()),
            spin: spin.map(Spin::from),
            getcpu: cpu::getcpu(target),
            memory: MemoryByNode::read(target.pid),
            threads: Machine::this().topology(Domains::Node).and_then(|_| NumaThreads::read(target.pid)),
        }
    }
}

impl Probe {
    fn of(plan: &Plan, probe: &PlannedProbe, costs: &Costs) -> Probe {
        let sites: Vec<&PlannedSite> = probe.sites.iter().map(|&i| &plan.sites[i]).collect();
        let (address, instruction) = match sites[..] {
            [site] => (format!("{:#x}", site.addr), site.instruction.clone()),
            _ => (format!("{} sites", sites.len()), String::new()),
        };
        Probe {
            name: probe.name.clone(),
            address,
            instruction,
            emulated: sites.iter().all(|site| site.emulated),
            ns_per_hit: costs.of(probe.class),
        }
    }

    /// Describes a site at which waits for locks begin or end.
    fn of_lock(name: String, site: &PlannedLockSite, costs: &Costs) -> Probe {
        Probe {
            name,
            address: format!("{:#x}", site.addr),
            instruction: site.instruction.clone(),
            emulated: site.class != ProbeClass::Stepped,
            ns_per_hit: costs.of(site.class),
        }
    }
}

impl From<SpinSettings> for Spin {
    fn from(spin: SpinSettings) -> Spin {
        Spin {
            ns_per_round: spin.round_ns(),
            ns_before_sleep: spin.budget_ns(),
            ns_per_turn: spin.turn_ns,
            spin_wait_delay: spin.delay,
            sync_spin_loops: spin.rounds,
            instruction: spin.instruction,
        }
    }
}

impl MemoryByNode {
    /// Reads the memory of process `pid`. On a machine with one node the kernel is not asked, and this is `None`.
    fn read(pid: i32) -> Option<MemoryByNode> {
        let nodes = Machine::this().topology(Domains::Node)?;
        let memory = NumaMemory::read(pid)?;
        Some(MemoryByNode { advice: memory.advice(nodes_allowed(pid, &nodes.of_cpu)), memory })
    }
}

/// Describes what this plan measures.
fn measured(plan: &Plan) -> String {
    const SQL_LAYER: &str = "for the SQL layer's locks, waits in which threads sleep";
    let functions = plan.functions.iter().map(|f| &*f.label).collect::<BTreeSet<_>>().len();
    if plan.sites.is_empty() {
        return format!("sleeps only: InnoDB's latches have no names; {SQL_LAYER}");
    }
    let missing = match plan.gaps.len() {
        0 => String::new(),
        1 => " (1 kind is missing, see below)".to_owned(),
        gaps => format!(" ({gaps} kinds are missing, see below)"),
    };
    let inlined = if plan.limits.is_empty() { "" } else { " and where mutexes are inlined" };
    let sites = plan.sites.len();
    format!("waits for InnoDB's latches, at {sites} sites in {functions} functions{inlined}{missing}; {SQL_LAYER}")
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::measure::checksum::Implementation;
    use crate::measure::cpu::GetcpuPath;
    use crate::server::Balancing;

    /// A server of which everything is known.
    pub fn server() -> Server {
        let text = || Some("known".to_owned());
        Server {
            damage: text(),
            breakpoints: Some(0),
            symbol_file: text(),
            symbols_advice: text(),
            probes: vec![Probe {
                name: "a latch".to_owned(),
                address: "0x1000".to_owned(),
                instruction: "push %rbp".to_owned(),
                emulated: true,
                ns_per_hit: Some(500.0),
            }],
            not_measured: vec![Gap { function: "f".to_owned(), why: "it has no end".to_owned() }],
            checksums: vec![Checksum {
                purpose: "crc32c of pages".to_owned(),
                function: "crc32c".to_owned(),
                implementation: Implementation::Hardware,
                instruction: text(),
                cpu_has_instruction: true,
            }],
            statements_not_read: text(),
            spin: Some(Spin::from(SpinSettings {
                instruction: text(),
                turn_ns: 9.0,
                delay: 6,
                rounds: 30,
                turns: 150.0,
            })),
            getcpu: Some(Getcpu { glibc: text(), path: GetcpuPath::SystemCall }),
            memory: Some(MemoryByNode {
                memory: NumaMemory {
                    all: BTreeMap::from([(0, 4096)]),
                    large: BTreeMap::from([(0, 4096)]),
                    policies: BTreeSet::from(["default".to_owned()]),
                },
                advice: text(),
            }),
            threads: Some(NumaThreads {
                by_node: BTreeMap::from([(0, 40)]),
                cpu_migrations: 7,
                balancing: Some(Balancing::default()),
            }),
            ..Server::default()
        }
    }

    #[test]
    fn values_are_what_scripts_know() {
        let json = serde_json::to_value(server()).unwrap();
        assert_eq!(json["getcpu"]["path"], "syscall");
        assert_eq!(json["checksums"][0]["implementation"], "hardware");
        assert_eq!(
            (&json["spin"]["ns_per_round"], &json["spin"]["ns_before_sleep"]),
            (&1350.0.into(), &40500.0.into())
        );
    }
}

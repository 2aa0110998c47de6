//! `armtrace doctor`: shows what this host and a server support, what would be attached, and what each hit costs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use strum::IntoEnumIterator;

use super::output::Format;
use super::values::{share, MAX_OVERHEAD};
use super::Failure;
use crate::agent;
use crate::attach::{self, Availability, Costs, ProbeClass};
use crate::catalog::hardware_cpu;
use crate::host::{Domains, Machine};
use crate::measure::checksum::checksums;
use crate::measure::checksum::Checksum;
use crate::measure::latch::{self, Gap, Plan, PlannedProbe, PlannedSite};
use crate::measure::spin::SpinReader;
use crate::measure::spin::SpinSettings;
use crate::measure::{cpu, hardware, watchpoint};
use crate::server::{nodes_allowed, NumaMemory, NumaThreads, Target};
use crate::symbols::{Arch, Settings};

#[derive(Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    /// Process ID of a server to examine too
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Read the server's symbols from this file: a debug file, or the output of `armtrace symbols export`
    #[arg(long, value_name = "FILE", requires = "pid")]
    symbols: Option<PathBuf>,
    /// Show what would be attached with this --max-overhead: some probes need a large budget
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share, requires = "pid")]
    pub(super) max_overhead: f64,
    /// Output format
    #[arg(long, default_value = "text")]
    format: Format,
}

/// Everything that doctor finds. Its JSON output has this structure.
#[derive(Serialize)]
struct Findings {
    host: Host,
    capabilities: Vec<Check>,
    features: Vec<Check>,
    /// Nanoseconds per hit on this machine, by probe class.
    costs: Vec<Cost>,
    hardware: Hardware,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Server>,
    /// Whether armtrace can trace on this host.
    ready: bool,
}

#[derive(Serialize)]
struct Host {
    kernel: String,
    arch: &'static str,
    cpus: usize,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    required: bool,
    works: bool,
    /// What is missing without it, or how to get it; absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    without: Option<String>,
}

#[derive(Serialize)]
struct Cost {
    class: &'static str,
    /// Absent if it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    ns_per_hit: Option<f64>,
}

/// The hardware events that the CPU counts.
#[derive(Serialize)]
struct Hardware {
    /// The CPU's name; absent if it does not identify itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
    has_counters: bool,
    events: Vec<HardwareEvent>,
    /// How to get events that do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// Why it is not known which memory served individual loads.
    numa_accesses: String,
}

#[derive(Serialize)]
struct HardwareEvent {
    event: &'static str,
    scope: &'static str,
    meaning: &'static str,
    counts: bool,
    /// Why it does not count here.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Default, Serialize)]
struct Server {
    pid: i32,
    flavor: String,
    version: String,
    arch: String,
    build_id: String,
    symbol_source: String,
    /// A description of the symbols.
    symbols: String,
    /// What is wrong with the program's file, if it is damaged but readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    /// A description of what is measured.
    measured: String,
    /// The file that the symbols are from, if it is not the program itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol_file: Option<String>,
    /// Where symbols that the program itself lacks were looked for.
    symbols_tried: Vec<String>,
    /// How to get symbols that are still missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbols_advice: Option<String>,
    /// Whether the program was deleted or replaced on disk since it was started.
    program_deleted: bool,
    /// Whether uretprobes are safe to use. They are not if the process runs under a seccomp filter.
    uretprobes_safe: bool,
    probes: Vec<Probe>,
    /// What is measured only in part.
    limits: Vec<String>,
    not_measured: Vec<Gap>,
    checksums: Vec<ChosenChecksum>,
    /// Absent if the spin settings are not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    spin: Option<Spin>,
    /// How its C library finds a thread's CPU; absent for servers that do not ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    getcpu: Option<Getcpu>,
    /// Resident memory by NUMA node; absent on machines with one node, and if the kernel does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryByNode>,
    /// Threads by NUMA node; absent on machines with one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<NumaThreads>,
}

/// Resident memory in bytes, by node number.
#[derive(Serialize)]
struct MemoryByNode {
    all: BTreeMap<u32, u64>,
    /// Memory in mappings as large as the buffer pool's chunks.
    large: BTreeMap<u32, u64>,
    policies: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// The implementation that the server has chosen for a checksum.
#[derive(Serialize)]
struct ChosenChecksum {
    purpose: String,
    function: String,
    implementation: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instruction: Option<String>,
    cpu_has_instruction: bool,
}

/// How waiters spin, with times in nanoseconds.
#[derive(Serialize)]
struct Spin {
    /// The spin hint; absent if this build's loop has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    instruction: Option<String>,
    ns_per_turn: f64,
    spin_wait_delay: u32,
    sync_spin_loops: u32,
    /// The mean time of a round.
    ns_per_round: f64,
    /// The time of all rounds before a sleep.
    ns_before_sleep: f64,
}

#[derive(Serialize)]
struct Getcpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    glibc: Option<String>,
    /// `rseq`, `vdso` or `syscall`.
    path: &'static str,
}

#[derive(Serialize)]
struct Probe {
    name: String,
    /// The link-time address of the site, or the number of sites if the probe has several.
    address: String,
    instruction: String,
    emulated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ns_per_hit: Option<f64>,
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
}

pub(super) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let settings = Settings::from_env(args.symbols.clone());
    let target = args.pid.map(|pid| Target::open_with(pid, &settings)).transpose()?.map(Arc::new);
    let findings = find_out(target.as_ref(), args.max_overhead);
    match args.format {
        Format::Json => {
            let json = serde_json::to_string_pretty(&findings)?;
            println!("{json}");
        }
        Format::Text => print!("{}", text(&findings)),
    }
    if findings.ready {
        Ok(())
    } else {
        Err(Failure::NotReady)
    }
}

fn find_out(target: Option<&Arc<Target>>, max_overhead: f64) -> Findings {
    let capabilities: Vec<Check> = attach::capabilities()
        .into_iter()
        .map(|(name, held)| Check {
            name,
            required: true,
            works: held,
            without: (!held).then(|| "run as root (sudo armtrace …), or grant it".to_owned()),
        })
        .collect();
    let features: Vec<Check> = attach::features()
        .into_iter()
        .map(|f| Check {
            name: f.name,
            required: f.required,
            works: f.verdict == Availability::Yes,
            without: match f.verdict {
                Availability::Yes => None,
                Availability::No(why) => Some(why),
            },
        })
        .collect();
    let watchpoint = watchpoint::Allowance::of_share(1.0);
    let watchpoints = Check {
        name: "hardware watchpoints",
        required: false,
        works: watchpoint.is_ok(),
        without: watchpoint.as_ref().err().map(|why| format!("no --watch: {why}")),
    };
    let features: Vec<Check> = features.into_iter().chain([watchpoints]).collect();
    let costs = attach::calibrate().unwrap_or_default();
    let ready = capabilities.iter().chain(&features).all(|c| c.works || !c.required);
    Findings {
        host: Host {
            kernel: Machine::this().kernel_release().unwrap_or_default(),
            arch: Arch::HOST.as_str(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        },
        capabilities,
        features,
        costs: ProbeClass::iter()
            .map(|class| Cost { class: class.title(), ns_per_hit: costs.of(class) })
            .chain([Cost {
                class: "access to a watched word (--watch)",
                ns_per_hit: watchpoint.ok().map(|a| a.hit_ns),
            }])
            .collect(),
        hardware: hardware_events(),
        server: target.map(|t| look_at(t, &costs, max_overhead)),
        ready,
    }
}

fn hardware_events() -> Hardware {
    let machine = Machine::this();
    let pmus = hardware::Pmus::of(&machine);
    let Some(cpu) = machine.cpu_id().map(hardware_cpu) else {
        return Hardware {
            cpu: None,
            has_counters: pmus.has_counters(),
            events: Vec::new(),
            advice: None,
            numa_accesses: numa_accesses(&pmus),
        };
    };
    let verdicts = hardware::examine(&machine, &cpu);
    let advice = verdicts.iter().any(hardware::Examined::is_for_lack_of_counters).then(|| pmus.advice());
    let event = |verdict: hardware::Examined| HardwareEvent {
        event: verdict.planned.event.name,
        scope: verdict.planned.scope().as_str(),
        meaning: verdict.planned.event.meaning,
        counts: verdict.proven.is_ok(),
        why: verdict.proven.err().map(|why| why.to_string()),
    };
    Hardware {
        cpu: Some(cpu.name.map_or_else(|| format!("not in the catalog: {}", cpu.id), str::to_owned)),
        has_counters: pmus.has_counters(),
        events: verdicts.into_iter().map(event).collect(),
        advice,
        numa_accesses: numa_accesses(&pmus),
    }
}

/// Returns why there is no `armtrace_numa_accesses_total`.
fn numa_accesses(pmus: &hardware::Pmus<'_>) -> String {
    let sampler = pmus.data_source_sampler().map_or_else(
        || {
            "and this host has no hardware for it. Most bare-metal hosts do: Arm CPUs with SPE and the arm_spe_pmu driver, \
             AMD CPUs with IBS, and Intel CPUs with PEBS"
                .to_owned()
        },
        |sampler| format!("although this host's {sampler} could"),
    );
    format!(
        "this version does not sample which memory served individual loads, {sampler}. Remote accesses are counted as \
         hardware events on hosts with counters and several NUMA nodes"
    )
}

fn look_at(target: &Arc<Target>, costs: &Costs, max_overhead: f64) -> Server {
    let plan: Plan = latch::plan(&target.image, target.family, agent::allowed(target.pid, max_overhead));
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
        probes: plan.probes.iter().map(|probe| Probe::of(&plan, probe, costs)).collect(),
        limits: plan.limits,
        not_measured: plan.gaps,
        checksums: checksums(target).into_iter().map(ChosenChecksum::from).collect(),
        spin: spin.map(Spin::from),
        getcpu: cpu::getcpu(target).map(|found| Getcpu { glibc: found.glibc, path: found.path.as_str() }),
        memory: memory_by_node(target.pid),
        threads: Machine::this().topology(Domains::Node).and_then(|_| NumaThreads::read(target.pid)),
    }
}

/// Returns the resident memory by node. On a machine with one node the kernel is not asked, and this is `None`.
fn memory_by_node(pid: i32) -> Option<MemoryByNode> {
    let nodes = Machine::this().topology(Domains::Node)?;
    let memory = NumaMemory::read(pid)?;
    let advice = memory.advice(nodes_allowed(pid, &nodes.of_cpu));
    Some(MemoryByNode { advice, all: memory.all, large: memory.large, policies: memory.policies })
}

impl From<Checksum> for ChosenChecksum {
    fn from(checksum: Checksum) -> ChosenChecksum {
        ChosenChecksum {
            purpose: checksum.purpose,
            function: checksum.function,
            implementation: checksum.implementation.as_str(),
            instruction: checksum.instruction,
            cpu_has_instruction: checksum.cpu_has_instruction,
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

/// Returns a line for each hardware event, or one that says that there are no counters.
fn hardware_lines(hardware: &Hardware) -> Vec<String> {
    let cpu = hardware.cpu.as_deref().unwrap_or("unknown");
    let mut lines = vec![format!("hardware events of this CPU ({cpu})")];
    if hardware.has_counters {
        lines.extend(hardware.events.iter().map(|event| match &event.why {
            None => format!("  yes {} ({}): {}", event.event, event.scope, event.meaning),
            Some(why) => format!("  no  {}: {why}", event.event),
        }));
    } else {
        lines.push("  none: this host has no counters".to_owned());
    }
    lines.extend(hardware.advice.iter().map(|advice| format!("  {advice}")));
    lines.push(format!("  no  armtrace_numa_accesses_total: {}", hardware.numa_accesses));
    lines
}

/// Advice on how to make `sched_getcpu` cheaper.
const NEEDS_RSEQ: &str = ". It is cheaper with rseq, which needs Linux 4.18 and glibc 2.35 or newer, without \
                          GLIBC_TUNABLES=glibc.pthread.rseq=0";

/// Returns what is known of where the server's time can go: checksums, spinning, `sched_getcpu` and NUMA nodes.
fn cpu_lines(server: &Server) -> Vec<String> {
    let checksum = |c: &ChosenChecksum| match (&c.instruction, c.cpu_has_instruction) {
        (Some(instruction), _) => format!("{}: {} ({instruction})", c.purpose, c.function),
        (None, true) => format!("{}: {}, in software: hardware CRC available, not used", c.purpose, c.function),
        (None, false) => format!("{}: {}, in software", c.purpose, c.function),
    };
    let spin = server.spin.iter().map(|spin| {
        format!(
            "spinning: {} a turn ({}), {} a round on average, {} before a sleep (innodb_spin_wait_delay {}, \
             innodb_sync_spin_loops {})",
            nanoseconds(Some(spin.ns_per_turn)),
            spin.instruction.as_deref().unwrap_or("no spin hint"),
            nanoseconds(Some(spin.ns_per_round)),
            nanoseconds(Some(spin.ns_before_sleep)),
            spin.spin_wait_delay,
            spin.sync_spin_loops,
        )
    });
    let getcpu = server.getcpu.iter().map(|getcpu| {
        let glibc = getcpu.glibc.as_deref().unwrap_or("an unknown version");
        let (how, advice) = match getcpu.path {
            "rseq" => ("reads it from memory (rseq)", ""),
            "vdso" => ("asks the vDSO", NEEDS_RSEQ),
            "elsewhere" => ("is bypassed: a preloaded library answers (LD_PRELOAD)", ""),
            _ => ("makes a system call each time", NEEDS_RSEQ),
        };
        format!("sched_getcpu: glibc {glibc} {how}{advice}")
    });
    let memory = server.memory.iter().flat_map(memory_lines);
    let threads = server.threads.iter().map(thread_line);
    server.checksums.iter().map(checksum).chain(spin).chain(getcpu).chain(memory).chain(threads).collect()
}

/// Returns where the server's memory is and what to do about it, or no lines on a machine with one node.
fn memory_lines(memory: &MemoryByNode) -> Vec<String> {
    const MIB: u64 = 1 << 20;
    if memory.all.len() < 2 {
        return Vec::new();
    }
    let nodes = |bytes: &BTreeMap<u32, u64>| {
        let parts: Vec<String> = bytes.iter().map(|(node, bytes)| format!("node {node} {} MiB", bytes / MIB)).collect();
        parts.join(", ")
    };
    let policies: Vec<&str> = memory.policies.iter().map(String::as_str).collect();
    let large = (!memory.large.is_empty()).then(|| {
        format!("; in large mappings such as the buffer pool: {} ({})", nodes(&memory.large), policies.join(", "))
    });
    let line = format!("memory: {}{}", nodes(&memory.all), large.unwrap_or_default());
    std::iter::once(line).chain(memory.advice.clone()).collect()
}

/// Returns on which nodes the server's threads run, and whether they use those nodes' memory.
fn thread_line(threads: &NumaThreads) -> String {
    let nodes: Vec<String> = threads.by_node.iter().map(|(node, n)| format!("{n} on node {node}")).collect();
    let balancing = threads.balancing.as_ref().map_or_else(
        || "NUMA balancing has not scanned their memory (kernel.numa_balancing)".to_owned(),
        |seen| match seen.local_faults + seen.remote_faults {
            0 => format!("NUMA balancing saw no recent accesses, and moved {} pages", seen.pages_moved),
            all => format!(
                "{:.0}% of the recent accesses that NUMA balancing saw were to another node's memory; it moved {} pages",
                100.0 * seen.remote_faults as f64 / all as f64,
                seen.pages_moved
            ),
        },
    );
    format!("threads: {}; moved to another CPU {} times; {balancing}", nodes.join(", "), threads.cpu_migrations)
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

/// Returns the lines that describe the server: its build, its symbols, what is measured, and anything unusual.
fn head(server: &Server) -> Vec<String> {
    let build = if server.build_id.is_empty() { "none" } else { &server.build_id };
    let Server { flavor, version, arch, pid, .. } = server;
    let mut lines = vec![
        format!("server    {flavor} {version}, {arch}, process {pid}, build id {build}"),
        format!("  symbols   {}", server.symbols),
        format!("  measured  {}", server.measured),
    ];
    lines.extend(server.damage.iter().map(|why| format!("  damaged   {why}; only what the loader needs was read")));
    if server.program_deleted {
        lines.push(
            "  its program was deleted or replaced on disk after it started; the running one was read".to_owned(),
        );
    }
    // If no symbols are missing, it does not matter where else they were looked for.
    if let Some(advice) = &server.symbols_advice {
        lines.push(format!("  InnoDB's functions have no names. {advice}"));
        lines.extend(server.symbols_tried.iter().map(|trial| format!("  tried     {trial}")));
    }
    if !server.uretprobes_safe {
        lines.push("  it runs under a seccomp filter, so no uretprobes are used".to_owned());
    }
    lines
}

fn text(findings: &Findings) -> String {
    let mut out = String::new();
    let mut line = |s: String| {
        out.push_str(s.trim_end());
        out.push('\n');
    };
    findings.server.iter().flat_map(head).for_each(&mut line);
    line(format!("host      Linux {} {}, {} CPUs", findings.host.kernel, findings.host.arch, findings.host.cpus));
    for check in findings.capabilities.iter().chain(&findings.features) {
        let mark = match (check.works, check.required) {
            (true, _) => "yes",
            (false, true) => "NO",
            (false, false) => "no",
        };
        let without = check.without.as_deref().map(|w| format!(": {w}")).unwrap_or_default();
        line(format!("  {mark:<4}{}{without}", check.name));
    }
    line("cost of one hit on this machine".to_owned());
    for cost in &findings.costs {
        line(format!("  {:<40} {}", cost.class, nanoseconds(cost.ns_per_hit)));
    }
    hardware_lines(&findings.hardware).into_iter().for_each(&mut line);
    if let Some(server) = &findings.server {
        line("would be attached".to_owned());
        for probe in &server.probes {
            let how = if probe.emulated { "emulated" } else { "stepped" };
            line(format!(
                "  {:<34} {:>10}  {:<9} {:>9}  {}",
                probe.name,
                probe.address,
                how,
                nanoseconds(probe.ns_per_hit),
                probe.instruction
            ));
        }
        for found in cpu_lines(server) {
            line(format!("  {found}"));
        }
        for limit in &server.limits {
            line(format!("  {limit}"));
        }
        for gap in &server.not_measured {
            line(format!("  not measured: {}: {}", gap.function, gap.why));
        }
    }
    out
}

fn nanoseconds(ns: Option<f64>) -> String {
    ns.map_or_else(|| "unknown".to_owned(), |ns| format!("{ns:.0} ns"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_say_what_the_server_is_and_has() {
        let server = Server {
            pid: 4242,
            flavor: "mysql".to_owned(),
            version: "8.0.31".to_owned(),
            arch: "x86_64".to_owned(),
            symbols: "no .symtab, .dynsym with 84789 functions and variables".to_owned(),
            measured: "sleeps only".to_owned(),
            damage: Some("its section headers were stripped off".to_owned()),
            symbols_tried: vec!["build-id: the program has no build id".to_owned()],
            symbols_advice: Some("Install them".to_owned()),
            uretprobes_safe: true,
            ..Server::default()
        };
        let expected = "\
server    mysql 8.0.31, x86_64, process 4242, build id none
  symbols   no .symtab, .dynsym with 84789 functions and variables
  measured  sleeps only
  damaged   its section headers were stripped off; only what the loader needs was read
  InnoDB's functions have no names. Install them
  tried     build-id: the program has no build id";
        assert_eq!(head(&server).join("\n"), expected);
        let lines = head(&Server { symbols_advice: None, damage: None, ..server });
        assert_eq!(lines.len(), 3, "{lines:?}");
    }
}

//! What doctor finds, as text.

use std::collections::BTreeMap;
use std::fmt;

use super::hardware::Hardware;
use super::server::{MemoryByNode, Probe, Server, Spin};
use super::Findings;
use crate::advice;
use crate::attach::Feature;
use crate::measure::checksum::Checksum;
use crate::measure::cpu::{Getcpu, GetcpuPath};
use crate::server::NumaThreads;

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<String> = self.server.iter().flat_map(head).collect();
        lines.push(format!("host      Linux {} {}, {} CPUs", self.host.kernel, self.host.arch, self.host.cpus));
        lines.extend(self.capabilities.iter().chain(&self.features).map(feature_line));
        lines.push("cost of one hit on this machine".to_owned());
        lines.extend(self.costs.iter().map(|cost| format!("  {:<40} {}", cost.class, nanoseconds(cost.ns_per_hit))));
        lines.extend(hardware_lines(&self.hardware));
        lines.extend(self.server.iter().flat_map(tail));
        lines.iter().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
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
    if let Some(breakpoints @ 1..) = server.breakpoints {
        lines.push(format!(
            "  breakpoints in its code: {breakpoints}. A tracer is at work, or was killed and left them; then attaching \
             armtrace takes them out"
        ));
    }
    if !server.uretprobes_safe {
        lines.push(
            "  it runs under a seccomp filter, or with a shadow stack on this kernel, so no uretprobes are used"
                .to_owned(),
        );
    }
    lines
}

fn feature_line(feature: &Feature) -> String {
    let mark = match (feature.works, feature.required) {
        (true, _) => "yes",
        (false, true) => "NO",
        (false, false) => "no",
    };
    let without = feature.without.as_deref().map(|w| format!(": {w}")).unwrap_or_default();
    format!("  {mark:<4}{}{without}", feature.name)
}

/// Returns a line for each hardware event, or one that says that there are no counters.
fn hardware_lines(hardware: &Hardware) -> Vec<String> {
    let cpu = hardware.cpu.as_deref().unwrap_or("unknown");
    let mut lines = vec![format!("hardware events of this CPU ({cpu})")];
    if hardware.has_counters {
        lines.extend(hardware.events.iter().map(|examined| {
            let event = examined.planned.event;
            match &examined.proven {
                Ok(()) => format!("  yes {} ({}): {}", event.name, examined.planned.scope().as_str(), event.meaning),
                Err(why) => format!("  no  {}: {why}", event.name),
            }
        }));
    } else {
        lines.push("  none: this host has no counters".to_owned());
    }
    lines.extend(hardware.advice.iter().map(|advice| format!("  {advice}")));
    lines.push(format!("  no  armtrace_numa_accesses_total: {}", hardware.numa_accesses));
    lines
}

/// Returns the lines on what would be attached to the server, where its time can go, and what is not measured.
fn tail(server: &Server) -> Vec<String> {
    let mut lines = vec!["would be attached".to_owned()];
    lines.extend(server.probes.iter().map(probe_line));
    lines.extend(server.checksums.iter().map(checksum_line));
    lines.extend(server.spin.iter().map(spin_line));
    lines.extend(server.getcpu.iter().map(getcpu_line));
    lines.extend(server.memory.iter().flat_map(memory_lines));
    lines.extend(server.threads.iter().map(thread_line));
    lines.extend(server.limits.iter().map(|limit| format!("  {limit}")));
    lines.extend(server.not_measured.iter().map(|gap| format!("  not measured: {}: {}", gap.function, gap.why)));
    lines.push(match &server.statements_not_read {
        Some(why) => format!("  not measured: the statements that wait: {why}"),
        None => "  the statements that wait are read from its memory, without their values".to_owned(),
    });
    lines
}

fn probe_line(probe: &Probe) -> String {
    let how = if probe.emulated { "emulated" } else { "stepped" };
    let Probe { name, address, instruction, .. } = probe;
    format!("  {name:<34} {address:>10}  {how:<9} {:>9}  {instruction}", nanoseconds(probe.ns_per_hit))
}

fn checksum_line(checksum: &Checksum) -> String {
    let hint = if checksum.is_slow() {
        format!(": hardware CRC available, not used; see {}#checksums-in-software", advice::PAGE)
    } else {
        String::new()
    };
    format!("  {}: {checksum}{hint}", checksum.purpose)
}

fn spin_line(spin: &Spin) -> String {
    format!(
        "  spinning: {} a turn ({}), {} a round on average, {} before a sleep (innodb_spin_wait_delay {}, \
         innodb_sync_spin_loops {})",
        nanoseconds(Some(spin.ns_per_turn)),
        spin.instruction.as_deref().unwrap_or("no spin hint"),
        nanoseconds(Some(spin.ns_per_round)),
        nanoseconds(Some(spin.ns_before_sleep)),
        spin.spin_wait_delay,
        spin.sync_spin_loops,
    )
}

fn getcpu_line(getcpu: &Getcpu) -> String {
    /// Advice on how to make `sched_getcpu` cheaper.
    const NEEDS_RSEQ: &str = ". It is cheaper with rseq, which needs Linux 4.18 and glibc 2.35 or newer, without \
                              GLIBC_TUNABLES=glibc.pthread.rseq=0";
    let glibc = getcpu.glibc.as_deref().unwrap_or("an unknown version");
    let (how, hint) = match getcpu.path {
        GetcpuPath::Rseq => ("reads it from memory (rseq)", ""),
        GetcpuPath::Vdso => ("asks the vDSO", NEEDS_RSEQ),
        GetcpuPath::SystemCall => ("makes a system call each time", NEEDS_RSEQ),
        GetcpuPath::Elsewhere => ("is bypassed: a preloaded library answers (LD_PRELOAD)", ""),
    };
    let link = if hint.is_empty() { String::new() } else { format!("; see {}#asking-for-the-cpu", advice::PAGE) };
    format!("  sched_getcpu: glibc {glibc} {how}{hint}{link}")
}

/// Returns where the server's memory is and what to do about it, or no lines on a machine with one node.
fn memory_lines(by_node: &MemoryByNode) -> Vec<String> {
    const MIB: u64 = 1 << 20;
    let MemoryByNode { memory, advice } = by_node;
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
    let line = format!("  memory: {}{}", nodes(&memory.all), large.unwrap_or_default());
    std::iter::once(line).chain(advice.iter().map(|advice| format!("  {advice}"))).collect()
}

/// Returns on which nodes the server's threads run, and whether they use those nodes' memory.
fn thread_line(threads: &NumaThreads) -> String {
    let nodes: Vec<String> = threads.by_node.iter().map(|(node, n)| format!("{n} on node {node}")).collect();
    let balancing = threads.balancing.as_ref().map_or_else(
        || "NUMA balancing has not scanned their memory (kernel.numa_balancing)".to_owned(),
        |seen| match seen.local_faults + seen.remote_faults {
            0 => format!("NUMA balancing saw no recent accesses, and moved {} pages", seen.pages_moved),
            all => format!(
                "{:.0}% of the recent accesses that NUMA balancing saw were to another node's memory; it moved {} \
                 pages",
                100.0 * seen.remote_faults as f64 / all as f64,
                seen.pages_moved
            ),
        },
    );
    format!("  threads: {}; moved to another CPU {} times; {balancing}", nodes.join(", "), threads.cpu_migrations)
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
        let traced = Server { uretprobes_safe: true, breakpoints: Some(2), ..Server::default() };
        assert!(head(&traced)[3].starts_with("  breakpoints in its code: 2."), "{:?}", head(&traced));
    }

    #[test]
    fn the_last_lines_say_what_is_measured_and_where_time_goes() {
        let server = super::super::server::tests::server();
        let expected = "\
would be attached
  a latch                                0x1000  emulated     500 ns  push %rbp
  crc32c of pages: crc32c (known)
  spinning: 9 ns a turn (known), 1350 ns a round on average, 40500 ns before a sleep (innodb_spin_wait_delay 6, \
        innodb_sync_spin_loops 30)
  sched_getcpu: glibc known makes a system call each time. It is cheaper with rseq, which needs Linux 4.18 and glibc \
        2.35 or newer, without GLIBC_TUNABLES=glibc.pthread.rseq=0; see docs/reference/latches.md#asking-for-the-cpu
  threads: 40 on node 0; moved to another CPU 7 times; NUMA balancing saw no recent accesses, and moved 0 pages
  not measured: f: it has no end
  not measured: the statements that wait: known";
        assert_eq!(tail(&server).join("\n"), expected);
    }
}

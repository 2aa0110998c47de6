//! Finds the NUMA nodes that hold a process's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Serialize;

use super::process::cpus_allowed;

/// The smallest size, in bytes, of mappings that count as large. They hold most of a server's memory: the buffer pool's
/// chunks.
const LARGE: u64 = 64 << 20;

/// The share of the large mappings on one node that counts as nearly all.
const NEARLY_ALL: f64 = 0.8;

/// A process's resident memory by node, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NumaMemory {
    /// The memory in all mappings.
    pub all: BTreeMap<u32, u64>,
    /// The memory in anonymous mappings of 64 MiB and more.
    pub large: BTreeMap<u32, u64>,
    /// The policies of those mappings: `default`, `interleave:0-1`.
    pub policies: BTreeSet<String>,
}

impl NumaMemory {
    /// Reads the memory of process `pid`; `None` if the kernel does not say. The kernel walks the process's page
    /// tables, which takes some tenths of a second per 10 GiB, so this must not be called all the time.
    pub fn read(pid: i32) -> Option<NumaMemory> {
        // `procfs` does not read this file.
        let memory = parse(&fs::read_to_string(format!("/proc/{pid}/numa_maps")).ok()?);
        (!memory.all.is_empty()).then_some(memory)
    }

    /// Returns what to do if nearly all of the large mappings are on one node although threads may run on `nodes`
    /// nodes; `None` if there is nothing to do.
    pub fn advice(&self, nodes: usize) -> Option<String> {
        // Integers could overflow.
        let total: f64 = self.large.values().map(|bytes| *bytes as f64).sum();
        let (node, most) = self.large.iter().max_by_key(|(_, bytes)| **bytes)?;
        let is_default = self.policies.iter().all(|policy| policy == "default");
        if nodes < 2 || !is_default || (*most as f64) < NEARLY_ALL * total {
            return None;
        }
        Some(format!(
            "nearly all of its buffer pool is on node {node}, while its threads may run on {nodes} nodes: \
             innodb_numa_interleave=ON spreads it, or numactl keeps the server on one node"
        ))
    }
}

/// Returns the number of nodes on which process `pid` may run, 0 if the kernel does not say. `of_cpu` holds each CPU's
/// node, 0 for none.
pub fn nodes_allowed(pid: i32, of_cpu: &[u8]) -> usize {
    let cpus = cpus_allowed(pid).unwrap_or_default();
    let nodes = cpus.into_iter().filter_map(|cpu| of_cpu.get(cpu as usize));
    nodes.filter(|node| **node > 0).collect::<BTreeSet<_>>().len()
}

/// Parses lines like `7f2c0a000000 interleave:0-1 anon=32768 dirty=32768 N0=16384 N1=16384 kernelpagesize_kB=4`.
pub(crate) fn parse(text: &str) -> NumaMemory {
    let mut memory = NumaMemory::default();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let policy = fields.next().unwrap_or_default();
        let values: BTreeMap<&str, u64> =
            fields.filter_map(|field| field.split_once('=')).filter_map(|(k, v)| Some((k, v.parse().ok()?))).collect();
        let page = values.get("kernelpagesize_kB").copied().unwrap_or(4).saturating_mul(1024);
        let on = |key: &str| key.strip_prefix('N')?.parse::<u32>().ok();
        let nodes: Vec<(u32, u64)> =
            values.iter().filter_map(|(key, pages)| Some((on(key)?, pages.saturating_mul(page)))).collect();
        let size = nodes.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let is_large = size >= LARGE && values.contains_key("anon") && !line.contains(" file=");
        for (node, bytes) in nodes {
            let add = |into: &mut BTreeMap<u32, u64>| {
                let sum = into.entry(node).or_default();
                *sum = sum.saturating_add(bytes);
            };
            add(&mut memory.all);
            if is_large {
                add(&mut memory.large);
            }
        }
        if is_large {
            memory.policies.insert(policy.to_owned());
        }
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const DEFAULT: &str = "\
555500000000 default file=/usr/sbin/mysqld mapped=8000 active=0 N0=6000 N1=2000 kernelpagesize_kB=4
7f0000000000 default anon=32768 dirty=32768 N0=32768 kernelpagesize_kB=4
7f1000000000 default anon=16384 dirty=16384 N0=15000 N1=1384 kernelpagesize_kB=4
7f2000000000 default heap anon=100 dirty=100 N1=100 kernelpagesize_kB=4
7ffc00000000 default stack anon=8 dirty=8 N1=8 kernelpagesize_kB=4
";

    #[test]
    fn memory_is_added_up_by_node() {
        let memory = parse(DEFAULT);
        assert_eq!(memory.large, BTreeMap::from([(0, 47768 * 4096), (1, 1384 * 4096)]));
        assert_eq!(memory.all[&1], (2000 + 1384 + 100 + 8) * 4096);
        assert_eq!(memory.policies, BTreeSet::from(["default".to_owned()]));
    }

    #[test]
    fn huge_pages_are_as_large_as_they_are() {
        let memory = parse("7f0000000000 interleave:0-1 anon=64 dirty=64 N0=32 N1=32 kernelpagesize_kB=2048\n");
        assert_eq!(memory.large, BTreeMap::from([(0, 64 * MIB), (1, 64 * MIB)]));
    }

    #[test]
    fn a_buffer_pool_on_one_node_is_pointed_out() {
        let advice = parse(DEFAULT).advice(2).unwrap();
        assert!(advice.contains("on node 0") && advice.contains("innodb_numa_interleave"), "{advice}");
        assert_eq!(parse(DEFAULT).advice(1), None, "a server that is kept on one node");
        let spread = DEFAULT.replace("N0=32768", "N0=16000 N1=16768");
        assert_eq!(parse(&spread).advice(2), None);
        assert_eq!(parse(&DEFAULT.replace(" default anon", " interleave:0-1 anon")).advice(2), None);
    }

    #[test]
    fn nodes_count_that_the_process_may_run_on() {
        let own = std::process::id() as i32;
        assert_eq!(nodes_allowed(own, &[0; 4096]), 0);
        assert_eq!(nodes_allowed(own, &[3; 4096]), 1);
        assert_eq!(nodes_allowed(i32::MAX, &[1; 4096]), 0);
    }

    #[test]
    fn garbage_says_nothing() {
        assert_eq!(parse("\n\nx\nx y N=1 Nx=2 N0=\n"), NumaMemory::default());
        let huge = parse("7f00 default anon=1 N0=18446744073709551615 kernelpagesize_kB=18446744073709551615\n");
        assert_eq!(huge.all[&0], u64::MAX);
        let both = "7f00 default anon=1 N0=18446744073709551615 N1=18446744073709551615 kernelpagesize_kB=4\n";
        assert_eq!(parse(both).advice(2), None, "half on each");
    }
}

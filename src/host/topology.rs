//! The domains of a machine: the parts between which handing over a latch is expensive.

use std::collections::BTreeMap;

use clap::ValueEnum;

use super::{cpu_list, Machine};

/// The largest number of domains that the programs can represent.
const MOST_DOMAINS: usize = u8::MAX as usize;

/// The domains into which to divide a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Domains {
    /// NUMA nodes, or last-level caches on a machine with one node
    Auto,
    /// NUMA nodes
    Node,
    /// Last-level caches
    Cache,
    /// Cores
    Core,
    /// Do not divide
    Off,
}

/// A machine's domains; there are at least two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The names: `0` for NUMA node 0, or `cpus 0-7` for CPUs that share a cache or form a core.
    pub names: Vec<String>,
    /// The number of each CPU's domain, counted from 1; 0 for a CPU without a domain.
    pub of_cpu: Vec<u8>,
}

impl Topology {
    /// Numbers the domains. Returns `None` where there is only one, or too many.
    fn new(domains: Vec<Domain>) -> Option<Topology> {
        if domains.len() < 2 || domains.len() > MOST_DOMAINS {
            return None;
        }
        let last_cpu = domains.iter().flat_map(|domain| &domain.cpus).max()?;
        let mut of_cpu = vec![0; *last_cpu as usize + 1];
        for (number, domain) in (1..).zip(&domains) {
            domain.cpus.iter().for_each(|&cpu| of_cpu[cpu as usize] = number);
        }
        Some(Topology { names: domains.into_iter().map(|domain| domain.name).collect(), of_cpu })
    }

    /// Returns the name of a domain by number, or `None` for 0.
    pub fn name(&self, number: u8) -> Option<&str> {
        self.names.get(usize::from(number).checked_sub(1)?).map(String::as_str)
    }
}

/// A part of a machine.
struct Domain {
    name: String,
    cpus: Vec<i32>,
}

impl Machine {
    /// Returns the machine's domains of this kind. Returns `None` where the machine is a single one, has too many, or
    /// is not described.
    pub fn topology(&self, domains: Domains) -> Option<Topology> {
        match domains {
            Domains::Auto => self.topology(Domains::Node).or_else(|| self.topology(Domains::Cache)),
            Domains::Node => Topology::new(self.nodes_with_cpus()),
            Domains::Cache => Topology::new(self.group_cpus(|cpu| self.last_cache(cpu))),
            Domains::Core => Topology::new(self.group_cpus(|cpu| self.line(&format!("{cpu}/topology/core_cpus_list")))),
            Domains::Off => None,
        }
    }

    fn nodes_with_cpus(&self) -> Vec<Domain> {
        let nodes = self.numa_nodes().into_iter().filter(|node| !node.cpus.is_empty());
        nodes.map(|node| Domain { name: node.number.to_string(), cpus: node.cpus }).collect()
    }

    /// Groups CPUs by a list that each CPU, given by its directory, has of the CPUs it shares something with.
    fn group_cpus(&self, list: impl Fn(&str) -> Option<String>) -> Vec<Domain> {
        const CPUS: &str = "sys/devices/system/cpu";
        let mut domains: BTreeMap<i32, Domain> = BTreeMap::new();
        for number in self.numbered(CPUS, "cpu") {
            let Some(list) = list(&format!("{CPUS}/cpu{number}")) else { continue };
            let Some(cpus) = cpu_list(&list) else { continue };
            domains.entry(cpus[0]).or_insert_with(|| Domain { name: format!("cpus {list}"), cpus });
        }
        domains.into_values().collect()
    }

    /// Returns the list of CPUs that share a CPU's last-level cache. `cpu` is the CPU's directory.
    fn last_cache(&self, cpu: &str) -> Option<String> {
        let caches = self.numbered(&format!("{cpu}/cache"), "index").into_iter();
        let caches = caches.map(|number| format!("{cpu}/cache/index{number}"));
        let level = |cache: &str| self.line(&format!("{cache}/level"))?.parse::<u32>().ok();
        let (_, last) = caches.filter_map(|cache| Some((level(&cache)?, cache))).max_by_key(|(level, _)| *level)?;
        self.line(&format!("{last}/shared_cpu_list"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;

    /// Two nodes with two cores each, and a third with only memory. Each core has two threads, and each node one
    /// last-level cache.
    fn two_nodes() -> (tempfile::TempDir, Machine) {
        let mut files = vec![
            ("node/node0/cpulist".to_owned(), "0-1,4-5"),
            ("node/node1/cpulist".to_owned(), "2-3,6-7"),
            ("node/node2/cpulist".to_owned(), ""),
            ("node/online".to_owned(), "0-2"),
        ];
        for (cpu, core, node) in
            [(0, "0,4", "0-1,4-5"), (1, "1,5", "0-1,4-5"), (2, "2,6", "2-3,6-7"), (3, "3,7", "2-3,6-7")]
        {
            for cpu in [cpu, cpu + 4] {
                files.push((format!("cpu/cpu{cpu}/topology/core_cpus_list"), core));
                files.push((format!("cpu/cpu{cpu}/cache/index0/level"), "1"));
                files.push((format!("cpu/cpu{cpu}/cache/index0/shared_cpu_list"), core));
                files.push((format!("cpu/cpu{cpu}/cache/index3/level"), "3"));
                files.push((format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), node));
            }
        }
        let files: Vec<_> = files.iter().map(|(name, text)| (format!("sys/devices/system/{name}"), *text)).collect();
        machine(&files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>())
    }

    #[test]
    fn nodes_come_first() {
        let (_dir, machine) = two_nodes();
        let topology = machine.topology(Domains::Auto).unwrap();
        assert_eq!(topology, Topology { names: vec!["0".into(), "1".into()], of_cpu: vec![1, 1, 2, 2, 1, 1, 2, 2] });
        assert_eq!((topology.name(0), topology.name(2), topology.name(3)), (None, Some("1"), None));
    }

    #[test]
    fn a_machine_can_be_divided_otherwise() {
        let (_dir, machine) = two_nodes();
        let cache = machine.topology(Domains::Cache).unwrap();
        assert_eq!(cache.names, ["cpus 0-1,4-5", "cpus 2-3,6-7"]);
        let core = machine.topology(Domains::Core).unwrap();
        assert_eq!(core.names, ["cpus 0,4", "cpus 1,5", "cpus 2,6", "cpus 3,7"]);
        assert_eq!(core.of_cpu, [1, 2, 3, 4, 1, 2, 3, 4]);
        assert_eq!(machine.topology(Domains::Off), None);
    }

    #[test]
    fn one_domain_is_none() {
        let (_dir, machine) = machine(&[
            ("sys/devices/system/node/online", "0"),
            ("sys/devices/system/node/node0/cpulist", "0-3"),
            ("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "garbage"),
        ]);
        for domains in [Domains::Auto, Domains::Node, Domains::Cache, Domains::Core] {
            assert_eq!(machine.topology(domains), None);
        }
    }
}

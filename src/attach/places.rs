//! The parts of a machine between which handing over a latch is expensive.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::ValueEnum;

use super::clock::cpu_list;

/// The directory in which the kernel describes the machine.
pub const SYSTEM: &str = "/sys/devices/system";

/// The largest number of places that the programs can represent.
const MOST_PLACES: usize = u8::MAX as usize;

/// A level of the hardware topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// NUMA nodes, which have their own memory
    Node,
    /// CPUs that share their last-level cache
    Cache,
    /// Cores
    Core,
}

/// How to divide a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Division {
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

/// The parts of this machine; there are at least two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The names: `0` for NUMA node 0, or `cpus 0-7` for CPUs that share a cache or form a core.
    pub names: Vec<String>,
    /// The number of each CPU's place, counted from 1; 0 for a CPU without a place.
    pub of_cpu: Vec<u8>,
}

impl Places {
    /// Divides the machine that the directory `system` ([`SYSTEM`]) describes. Returns `None` where the machine is a
    /// single place, has too many places, or is not described.
    pub fn of(division: Division, system: &Path) -> Option<Places> {
        let by = |unit| Places::by(unit, system);
        match division {
            Division::Auto => by(Unit::Node).or_else(|| by(Unit::Cache)),
            Division::Node => by(Unit::Node),
            Division::Cache => by(Unit::Cache),
            Division::Core => by(Unit::Core),
            Division::Off => None,
        }
    }

    fn by(unit: Unit, system: &Path) -> Option<Places> {
        let parts = match unit {
            Unit::Node => nodes(system),
            Unit::Cache => of_each_cpu(system, last_cache),
            Unit::Core => of_each_cpu(system, |cpu| read(&cpu.join("topology/core_cpus_list"))),
        };
        if parts.len() < 2 || parts.len() > MOST_PLACES {
            return None;
        }
        let cpus = parts.iter().flat_map(|(_, cpus)| cpus).max()?;
        let mut of_cpu = vec![0; *cpus as usize + 1];
        for (number, (_, cpus)) in (1..).zip(&parts) {
            cpus.iter().for_each(|&cpu| of_cpu[cpu as usize] = number);
        }
        Some(Places { names: parts.into_iter().map(|(name, _)| name).collect(), of_cpu })
    }

    /// Returns the name of a place by number, or `None` for 0.
    pub fn name(&self, number: u8) -> Option<&str> {
        self.names.get(usize::from(number).checked_sub(1)?).map(String::as_str)
    }
}

/// A place's name and CPUs.
type Part = (String, Vec<i32>);

fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// Returns the numbers of a directory's entries that begin with `prefix`.
fn numbered(folder: &Path, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.file_name())).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the NUMA nodes that have CPUs.
fn nodes(system: &Path) -> Vec<Part> {
    let cpus = |n: &u32| Some(cpu_list(&read(&system.join(format!("node/node{n}/cpulist")))?));
    let nodes = numbered(&system.join("node"), "node").into_iter();
    nodes.filter_map(|n| Some((n.to_string(), cpus(&n).filter(|cpus| !cpus.is_empty())?))).collect()
}

/// Groups CPUs by a list that each CPU has of the CPUs it shares something with.
fn of_each_cpu(system: &Path, list: impl Fn(&Path) -> Option<String>) -> Vec<Part> {
    let mut parts: BTreeMap<i32, Part> = BTreeMap::new();
    for number in numbered(&system.join("cpu"), "cpu") {
        let Some(list) = list(&system.join(format!("cpu/cpu{number}"))) else { continue };
        let cpus = cpu_list(&list);
        if let Some(&first) = cpus.first() {
            parts.entry(first).or_insert_with(|| (format!("cpus {list}"), cpus));
        }
    }
    parts.into_values().collect()
}

/// Returns the list of CPUs that share this CPU's last-level cache.
fn last_cache(cpu: &Path) -> Option<String> {
    let caches = numbered(&cpu.join("cache"), "index").into_iter().map(|n| cpu.join(format!("cache/index{n}")));
    let level = |cache: &std::path::PathBuf| read(&cache.join("level"))?.parse::<u32>().ok();
    let (_, last) = caches.filter_map(|cache| Some((level(&cache)?, cache))).max_by_key(|(level, _)| *level)?;
    read(&last.join("shared_cpu_list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a description of a machine from files and their contents.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        dir
    }

    /// Two nodes with two cores each, and a third with only memory. Each core has two threads, and each node one
    /// last-level cache.
    fn two_nodes() -> tempfile::TempDir {
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
        machine(&files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>())
    }

    #[test]
    fn nodes_come_first() {
        let machine = two_nodes();
        let places = Places::of(Division::Auto, machine.path()).unwrap();
        assert_eq!(places, Places { names: vec!["0".into(), "1".into()], of_cpu: vec![1, 1, 2, 2, 1, 1, 2, 2] });
        assert_eq!((places.name(0), places.name(2), places.name(3)), (None, Some("1"), None));
    }

    #[test]
    fn a_machine_can_be_divided_otherwise() {
        let machine = two_nodes();
        let cache = Places::of(Division::Cache, machine.path()).unwrap();
        assert_eq!(cache.names, ["cpus 0-1,4-5", "cpus 2-3,6-7"]);
        let core = Places::of(Division::Core, machine.path()).unwrap();
        assert_eq!(core.names, ["cpus 0,4", "cpus 1,5", "cpus 2,6", "cpus 3,7"]);
        assert_eq!(core.of_cpu, [1, 2, 3, 4, 1, 2, 3, 4]);
        assert_eq!(Places::of(Division::Off, machine.path()), None);
    }

    #[test]
    fn one_place_is_none() {
        let machine = machine(&[("node/node0/cpulist", "0-3"), ("cpu/cpu0/topology/core_cpus_list", "garbage")]);
        for division in [Division::Auto, Division::Node, Division::Cache, Division::Core] {
            assert_eq!(Places::of(division, machine.path()), None);
        }
    }
}

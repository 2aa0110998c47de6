//! The parts of a machine between which it is dear to hand a latch over.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::ValueEnum;

use super::clock::cpu_list;

/// Where the kernel describes the machine.
pub const SYSTEM: &str = "/sys/devices/system";

/// As many places as the programs can number.
const MOST_PLACES: usize = u8::MAX as usize;

/// What a machine is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// NUMA nodes: memory of their own
    Node,
    /// CPUs that share their last cache
    Cache,
    /// Cores
    Core,
}

/// What to divide a machine by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Division {
    /// By NUMA nodes, or on a machine with one node by last caches
    Auto,
    /// By NUMA nodes
    Node,
    /// By last caches
    Cache,
    /// By cores
    Core,
    /// Not at all
    Off,
}

/// The parts of this machine, of which there is more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `0` for the node of that number; `cpus 0-7` for those CPUs, which share a cache or are a core.
    pub names: Vec<String>,
    /// For each CPU the number of its place, counted from 1; 0: it has none.
    pub of_cpu: Vec<u8>,
}

impl Places {
    /// The machine whose description is in the folder `system` ([`SYSTEM`]); `None` where it is all one place, has too many, or
    /// does not say.
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

    /// The name of the place with this number; `None` for none.
    pub fn name(&self, number: u8) -> Option<&str> {
        self.names.get(usize::from(number).checked_sub(1)?).map(String::as_str)
    }
}

/// A place's name and CPUs.
type Part = (String, Vec<i32>);

fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// The numbers of the entries of a folder that begin so.
fn numbered(folder: &Path, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.file_name())).collect();
    numbers.sort_unstable();
    numbers
}

/// Nodes that have CPUs.
fn nodes(system: &Path) -> Vec<Part> {
    let cpus = |n: &u32| Some(cpu_list(&read(&system.join(format!("node/node{n}/cpulist")))?));
    let nodes = numbered(&system.join("node"), "node").into_iter();
    nodes.filter_map(|n| Some((n.to_string(), cpus(&n).filter(|cpus| !cpus.is_empty())?))).collect()
}

/// CPUs by the list that each has of those that share something with it.
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

/// The CPUs that share the largest cache of this one.
fn last_cache(cpu: &Path) -> Option<String> {
    let caches = numbered(&cpu.join("cache"), "index").into_iter().map(|n| cpu.join(format!("cache/index{n}")));
    let level = |cache: &std::path::PathBuf| read(&cache.join("level"))?.parse::<u32>().ok();
    let (_, last) = caches.filter_map(|cache| Some((level(&cache)?, cache))).max_by_key(|(level, _)| *level)?;
    read(&last.join("shared_cpu_list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's description: files and what is in them.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        dir
    }

    /// Two nodes of two cores, a third with memory alone; each core has two threads, and a node one last cache.
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

//! The NUMA nodes of a machine.

use super::{cpu_list, Machine};

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number of the node.
    pub number: i32,
    /// The numbers of its CPUs; empty for a node that only has memory.
    pub cpus: Vec<i32>,
    /// Whether the node has memory of its own.
    pub has_memory: bool,
}

impl Machine {
    /// Returns the numbers of the nodes that have memory or CPUs; `None` if the kernel does not say.
    pub fn numa_node_numbers(&self) -> Option<Vec<i32>> {
        cpu_list(&self.line("sys/devices/system/node/online")?)
    }

    /// Returns the nodes that have memory or CPUs, by number; empty if the kernel does not say.
    pub fn numa_nodes(&self) -> Vec<NumaNode> {
        let with_memory = self.cpu_list("sys/devices/system/node/has_memory");
        let node = |number: i32| NumaNode {
            number,
            cpus: self.cpu_list(&format!("sys/devices/system/node/node{number}/cpulist")),
            has_memory: with_memory.contains(&number),
        };
        self.numa_node_numbers().unwrap_or_default().into_iter().map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns a recorded machine.
    fn machine(name: &str) -> Machine {
        Machine::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hosts").join(name))
    }

    #[test]
    fn nodes_have_cpus_and_memory() {
        let nodes = machine("kunpeng-920").numa_nodes();
        assert_eq!(nodes.len(), 4);
        assert_eq!((nodes[2].number, nodes[2].cpus[0], nodes[2].has_memory), (2, 64, true));
        assert_eq!(machine("zen2").numa_nodes(), []);
        assert_eq!(machine("no-such-host").cpu_id(), None);
    }
}

//! Identifies this machine.

use super::schema::Host;
use crate::host::Machine;
use crate::server::cpus_allowed;

impl Host {
    /// Returns this machine, which has this CPU and runs process `pid`.
    pub fn here(pid: i32, cpu_model: &str) -> Host {
        let machine = Machine::this();
        let count = |list: Vec<i32>| u32::try_from(list.len()).unwrap_or(u32::MAX);
        Host {
            name: machine.name().unwrap_or_default(),
            kernel: machine.kernel_release().unwrap_or_default(),
            os: machine.distribution(),
            cpu_model: cpu_model.to_owned(),
            cpus: count(machine.online_cpus()),
            server_cpus: cpus_allowed(pid).map(count),
            ghz: machine.ghz(),
            numa_nodes: machine.numa_node_numbers().map(count),
            page_bytes: Some(rustix::param::page_size() as u64),
            memory_bytes: machine.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_and_a_kernel() {
        let host = Host::here(std::process::id() as i32, "a CPU");
        assert!(host.cpus > 0 && host.server_cpus.is_some_and(|n| n > 0), "{host:?}");
        assert!(!host.kernel.is_empty() && !host.name.is_empty(), "{host:?}");
    }
}

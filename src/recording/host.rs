//! Identifies this machine.

use super::schema::Host;
use crate::host::Machine;
use crate::model::TargetInfo;

impl Host {
    /// Returns this machine, on which this server runs.
    pub fn here(server: &TargetInfo) -> Host {
        let machine = Machine::this();
        let known = server.host.clone();
        Host {
            name: machine.name().unwrap_or_default(),
            kernel: known.kernel,
            os: machine.distribution(),
            cpu_model: server.cpu_model.clone(),
            cpus: u32::try_from(machine.online_cpus().len()).unwrap_or(u32::MAX),
            server_cpus: known.server_cpus,
            ghz: known.ghz,
            numa_nodes: known.numa_nodes,
            page_bytes: known.page_bytes,
            memory_bytes: machine.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_and_a_name() {
        let server = TargetInfo { cpu_model: "a CPU".to_owned(), ..TargetInfo::default() };
        let host = Host::here(&server);
        assert!(host.cpus > 0 && !host.name.is_empty() && host.cpu_model == "a CPU", "{host:?}");
    }
}

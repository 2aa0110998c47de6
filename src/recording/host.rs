//! Identifies this machine, and a server on it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::schema::{Host, Server, Start};
use crate::attach::stacks_are_shown;
use crate::host::Machine;
use crate::measure::Snapshot;
use crate::model::{TargetInfo, BUCKET_BOUNDS_NS};
use crate::server::Target;

impl Start {
    /// Returns what is known of a server with these settings before anything is measured. `sampled` says whether waits
    /// are read from the threads' stacks alone.
    pub fn here(target: &Target, settings: BTreeMap<String, String>, sampled: bool) -> Start {
        let info = target.info();
        Start {
            armtrace: env!("CARGO_PKG_VERSION").to_owned(),
            began_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            host: Host::here(&info),
            server: Server {
                pid: info.pid,
                flavor: info.flavor,
                version: info.version,
                arch: info.arch,
                build_id: info.build_id,
                symbol_source: info.symbol_source,
                settings,
            },
            labels: BTreeMap::new(),
            bounds_ns: BUCKET_BOUNDS_NS.to_vec(),
            sampled,
            sleeps_seen: false,
            reacquires_seen: stacks_are_shown(),
            places: Vec::new(),
        }
    }

    /// Returns the same for a recording that begins at this moment, of a server that is measured already.
    pub fn beginning(self, at: SystemTime, now: &Snapshot) -> Start {
        Start {
            began_ms: at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            sleeps_seen: now.latch.sleeps_seen,
            places: now.latch.domains.clone(),
            ..self
        }
    }
}

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

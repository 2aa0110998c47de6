//! `armtrace doctor`: shows what this host and a server support, what would be attached, and what each hit costs.

mod hardware;
mod server;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use strum::IntoEnumIterator;

use self::hardware::Hardware;
use self::server::Server;
use super::output::{self, Format, Output};
use super::schema::Document;
use super::values::{pid, share, MAX_OVERHEAD};
use super::Failure;
use crate::attach::{self, Costs, Feature, ProbeClass};
use crate::host::Machine;
use crate::measure::watchpoint::{self, CrashRisk};
use crate::server::Target;
use crate::symbols::{Arch, Settings};

#[derive(Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    /// Process ID of a server to examine too
    #[arg(long, value_name = "PID", value_parser = pid)]
    pid: Option<i32>,
    /// Debug file or symbol file of the server, if its program is stripped
    #[arg(long, value_name = "FILE", requires = "pid")]
    symbols: Option<PathBuf>,
    /// Show what would be attached with this --max-overhead: some probes need a large budget
    #[arg(long, default_value = MAX_OVERHEAD, value_name = "SHARE", value_parser = share, requires = "pid")]
    pub(super) max_overhead: f64,
    #[command(flatten)]
    output: Output<Format>,
}

/// Everything that doctor finds. Its JSON output has this structure.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Findings {
    host: Host,
    capabilities: Vec<Feature>,
    features: Vec<Feature>,
    /// Nanoseconds per hit on this machine, by probe class.
    costs: Vec<Cost>,
    hardware: Hardware,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Server>,
    /// Whether armtrace can trace on this host.
    ready: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Host {
    kernel: String,
    arch: &'static str,
    cpus: usize,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Cost {
    class: &'static str,
    /// Absent if it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    ns_per_hit: Option<f64>,
}

impl Document for Findings {
    const SCHEMA: &'static str = "armtrace-doctor/1";
}

pub(super) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let settings = Settings::from_env(args.symbols.clone());
    let target = args.pid.map(|pid| Target::open_with(pid, &settings)).transpose()?.map(Arc::new);
    let findings = Findings::of(target.as_ref(), args.max_overhead);
    output::print(&match args.output.format() {
        Format::Json => output::json(&findings)?,
        Format::Text => findings.to_string(),
    })?;
    if findings.ready {
        Ok(())
    } else {
        Err(Failure::NotReady)
    }
}

impl Findings {
    /// Examines this host and, if there is one, a server.
    fn of(target: Option<&Arc<Target>>, max_overhead: f64) -> Findings {
        let capabilities = attach::capabilities();
        let watchpoint = watchpoint::Allowance::of_share(1.0, CrashRisk::Refuse);
        let without = watchpoint.as_ref().err().map(|why| format!("no --watch: {why}"));
        let watchpoints = Feature { name: "hardware watchpoints", required: false, works: watchpoint.is_ok(), without };
        let features: Vec<Feature> = attach::features().into_iter().chain([watchpoints]).collect();
        let costs = attach::calibrate().unwrap_or_default();
        Findings {
            host: Host::this(),
            ready: capabilities.iter().chain(&features).all(|feature| feature.works || !feature.required),
            capabilities,
            features,
            costs: shown(&costs, watchpoint.ok().map(|allowance| allowance.hit_ns)),
            hardware: Hardware::examine(),
            server: target.map(|target| Server::examine(target, &costs, max_overhead)),
        }
    }
}

impl Host {
    fn this() -> Host {
        Host {
            kernel: Machine::this().kernel_release().unwrap_or_default(),
            arch: Arch::HOST.as_str(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Returns the cost of every class of probe, and that of a reported access to a watched word.
fn shown(costs: &Costs, watched: Option<f64>) -> Vec<Cost> {
    let probes = ProbeClass::iter().map(|class| Cost { class: class.title(), ns_per_hit: costs.of(class) });
    probes.chain([Cost { class: "access to a watched word (--watch)", ns_per_hit: watched }]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Returns the paths of all names in a value; elements of arrays are `[]`.
    fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => members.iter().for_each(|(name, value)| {
                let at = format!("{at}.{name}");
                paths(value, &at, found);
                found.insert(at);
            }),
            Value::Array(elements) => elements.iter().for_each(|element| paths(element, &format!("{at}[]"), found)),
            _ => {}
        }
    }

    /// Scripts read these names.
    #[test]
    fn json_keeps_its_names() {
        let feature = |works: bool| Feature::new("uprobes", true, works, "use another kernel");
        let findings = Findings {
            host: Host { kernel: "6.12.1".to_owned(), arch: "x86_64", cpus: 2 },
            capabilities: vec![feature(true)],
            features: vec![feature(false)],
            costs: vec![Cost { class: "futex wait, entry or exit", ns_per_hit: Some(90.0) }],
            hardware: hardware::tests::hardware(),
            server: Some(server::tests::server()),
            ready: true,
        };
        let mut found = BTreeSet::new();
        paths(&serde_json::to_value(&findings).unwrap(), "", &mut found);
        let expected = "
            .capabilities .capabilities[].name .capabilities[].required .capabilities[].works
            .costs .costs[].class .costs[].ns_per_hit
            .features .features[].name .features[].required .features[].without .features[].works
            .hardware .hardware.advice .hardware.cpu .hardware.events .hardware.events[].counts
            .hardware.events[].event .hardware.events[].meaning .hardware.events[].scope .hardware.events[].why
            .hardware.has_counters .hardware.numa_accesses
            .host .host.arch .host.cpus .host.kernel
            .ready
            .server .server.arch .server.breakpoints .server.build_id
            .server.checksums .server.checksums[].cpu_has_instruction .server.checksums[].function
            .server.checksums[].implementation .server.checksums[].instruction .server.checksums[].purpose
            .server.damage .server.flavor .server.getcpu .server.getcpu.glibc .server.getcpu.path .server.limits
            .server.measured .server.memory .server.memory.advice .server.memory.all .server.memory.all.0
            .server.memory.large .server.memory.large.0 .server.memory.policies
            .server.not_measured .server.not_measured[].function .server.not_measured[].why
            .server.pid .server.probes .server.probes[].address .server.probes[].emulated
            .server.probes[].instruction .server.probes[].name .server.probes[].ns_per_hit
            .server.program_deleted
            .server.spin .server.spin.instruction .server.spin.ns_before_sleep .server.spin.ns_per_round
            .server.spin.ns_per_turn .server.spin.spin_wait_delay .server.spin.sync_spin_loops
            .server.statements_not_read
            .server.symbol_file .server.symbol_source .server.symbols .server.symbols_advice .server.symbols_tried
            .server.threads .server.threads.balancing .server.threads.balancing.local_faults
            .server.threads.balancing.pages_moved .server.threads.balancing.remote_faults .server.threads.by_node
            .server.threads.by_node.0 .server.threads.cpu_migrations
            .server.uretprobes_safe .server.version";
        assert_eq!(found, expected.split_whitespace().map(str::to_owned).collect());
    }
}

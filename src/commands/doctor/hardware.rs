//! Which hardware events this host counts.

use serde::Serialize;

use crate::catalog::hardware_cpu;
use crate::host::Machine;
use crate::measure::hardware::{examine, Examined, Pmus};

/// The hardware events that the CPU counts.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Hardware {
    /// The CPU's name; absent if it does not identify itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    pub has_counters: bool,
    #[cfg_attr(test, schemars(with = "Vec<crate::measure::hardware::ExaminedEvent>"))]
    pub events: Vec<Examined>,
    /// How to get events that do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Why it is not known which memory served individual loads.
    pub numa_accesses: String,
}

impl Hardware {
    /// Tries all events of this CPU, which takes some tenths of a second.
    pub fn examine() -> Hardware {
        let machine = Machine::this();
        let pmus = Pmus::of(&machine);
        let cpu = machine.cpu_id().map(hardware_cpu);
        let events = cpu.as_ref().map(|cpu| examine(&machine, cpu)).unwrap_or_default();
        Hardware {
            has_counters: pmus.has_counters(),
            advice: events.iter().any(Examined::is_for_lack_of_counters).then(|| pmus.advice()),
            numa_accesses: numa_accesses(&pmus),
            cpu: cpu.map(|cpu| cpu.name.map_or_else(|| format!("not in the catalog: {}", cpu.id), str::to_owned)),
            events,
        }
    }
}

/// Returns why there is no `armtrace_numa_accesses_total`.
fn numa_accesses(pmus: &Pmus<'_>) -> String {
    let sampler = pmus.data_source_sampler().map_or_else(
        || {
            "and this host has no hardware for it. Most bare-metal hosts do: Arm CPUs with SPE and the arm_spe_pmu \
             driver, AMD CPUs with IBS, and Intel CPUs with PEBS"
                .to_owned()
        },
        |sampler| format!("although this host's {sampler} could"),
    );
    format!(
        "this version does not sample which memory served individual loads, {sampler}. Remote accesses are counted as \
         hardware events on hosts with counters and several NUMA nodes"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::host::CpuId;
    use crate::measure::hardware::{Planned, Unavailable};

    /// A CPU of which everything is known, with an event that does not count.
    pub fn hardware() -> Hardware {
        let cpu = hardware_cpu(CpuId::Amd { family: 0x19, model: 1 });
        Hardware {
            cpu: cpu.name.map(str::to_owned),
            has_counters: true,
            events: vec![Examined {
                planned: Planned { event: cpu.events[0], asked: Err(Unavailable::NoCounters) },
                proven: Err(Unavailable::NoCounters.into()),
            }],
            advice: Some("use a host with counters".to_owned()),
            numa_accesses: "they are not sampled".to_owned(),
        }
    }
}

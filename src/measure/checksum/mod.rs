//! Checksums: which implementation of each the server has chosen, and how often it calls it.

mod burst;
mod chosen;
pub mod compare;
mod figures;
mod metrics;
pub mod record;
pub mod report;

pub use figures::{Checksum, ChecksumCalls, Figures, Implementation};
pub use metrics::ChecksumMetrics;

pub(crate) use self::chosen::Chosen;

use std::sync::Arc;

use anyhow::Result;

use self::burst::Bursts;
use self::report::ChecksumsReport;
use super::{cost_ns, Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::Costs;
use crate::measure::address_space::AddressSpace;
use crate::measure::maps::add_skipped;
use crate::model::{ProbeState, ProbeStatus};
use crate::server::Target;

/// The name of the probes that count calls.
const PROBE: &str = "checksum_calls";

/// The checksums of one server. Dropping it stops the counting.
pub struct Checksums {
    chosen: Vec<Chosen>,
    bursts: Option<Bursts>,
    refused: Option<String>,
}

impl Checksums {
    /// Reads from the server's memory how it computes its checksums, as far as that is known, and counts calls from now
    /// on if `counts_calls`.
    pub fn attach(target: &Arc<Target>, counts_calls: bool) -> Checksums {
        let chosen = chosen::chosen(&mut AddressSpace::new(Arc::clone(target)));
        let bursts = counts_calls.then(|| Bursts::start(target, &chosen)).transpose();
        let (bursts, refused) = bursts.map_or_else(|why| (None, Some(format!("{why:#}"))), |bursts| (bursts, None));
        Checksums { chosen, bursts, refused }
    }

    /// Returns the implementations that the server has chosen.
    pub(crate) fn chosen(&self) -> &[Chosen] {
        &self.chosen
    }

    fn probe(&self, costs: Option<&Costs>) -> Option<ProbeStatus> {
        let bursts = self.bursts.as_ref()?;
        let figures = bursts.figures();
        let class = figures.class?;
        Some(ProbeStatus {
            probe: PROBE.to_owned(),
            state: if bursts.is_paused() { ProbeState::Detached } else { ProbeState::DutyCycle },
            hits: figures.hits,
            trap_ns: costs.and_then(|costs| costs.of(class)),
            program_ns: 0,
        })
    }
}

impl Room for Checksums {
    type Figures = Figures;
    type Metrics = ChecksumMetrics;
    type Report = ChecksumsReport;
    // Their cost is one figure, which every comparison has.
    type Comparison = Nothing;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Checksums>>> {
        let counts_calls = on.more?.sample_hz != Some(0) && !on.latches.are_without_probes();
        Some(Ok(Arc::new(Checksums::attach(on.target, counts_calls))))
    }
}

impl Measurement for Checksums {
    fn refused(&self) -> Vec<String> {
        self.refused.iter().map(|why| format!("checksum calls are not counted: {why}")).collect()
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.probe(Some(costs)))
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.checksum = Figures {
            chosen: self.chosen.iter().map(|chosen| chosen.checksum.clone()).collect(),
            calls: self.bursts.as_ref().map(|bursts| bursts.figures().calls).unwrap_or_default(),
        };
        snapshot.probes.extend(self.probe(costs));
        let skipped = self.bursts.as_ref().and_then(Bursts::skipped);
        skipped.map_or(Ok(()), |skipped| add_skipped(&mut snapshot.lost, skipped))
    }

    fn pause(&self) {
        self.bursts.iter().for_each(Bursts::pause);
    }

    fn resume(&self) {
        self.bursts.iter().for_each(Bursts::resume);
    }

    fn detach(&self) {
        self.bursts.iter().for_each(Bursts::stop);
    }
}

/// Reads from a server's memory how it computes its checksums, as far as that is known.
pub fn checksums(target: &Arc<Target>) -> Vec<Checksum> {
    chosen::chosen(&mut AddressSpace::new(Arc::clone(target))).into_iter().map(|chosen| chosen.checksum).collect()
}

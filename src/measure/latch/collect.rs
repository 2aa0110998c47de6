//! Reads what the programs counted and names it.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;

use super::files::FileTimes;
use super::holders::Site;
use super::keys::{identity, latch_key, pthread_kind, MapKey, PTHREAD};
use super::maps::{Counts, Maps, Tracepoint};
use super::missed::{Estimates, Missed};
use super::plan::MAX_FUNCTIONS;
use super::statements::SeenStatements;
use super::status::Status;
use super::tally::{mode_of, Ledgers, Names, SpinTimes, Tally};
use super::{Figures, LatchProbe, Plan};
use crate::attach::{Costs, ProbeClass};
use crate::bpf::latch::types;
use crate::host::Topology;
use crate::measure::holder::{BlockedBy, Holding};
use crate::model::ProbeStatus;
use crate::names::{LatchName, Namer, PageKey, PageName};
use crate::server::Target;

/// Turns the programs' maps into named figures.
pub struct LatchCollector {
    pub(super) maps: Arc<Maps>,
    pub(super) target: Arc<Target>,
    status: Arc<Status>,
    /// The names of the probes, in the plan's order, with their cost classes.
    sites: Vec<(String, ProbeClass)>,
    /// Whether each wait function spins before it sleeps, by index in the catalog.
    spins: [bool; MAX_FUNCTIONS],
    /// Whether both futex programs could be attached.
    sees_sleeps: bool,
    /// Whether waits are read from stacks instead of being counted.
    without_probes: bool,
    topology: Option<Topology>,
    statements: Option<Arc<SeenStatements>>,
    pub(super) caches: Mutex<Caches>,
    /// The names under which figures were shown until now.
    ledgers: Mutex<Ledgers>,
    /// CPU time that was sampled in waiters, in nanoseconds.
    spin_times: Mutex<SpinTimes>,
}

/// Names that were given before.
pub(super) struct Caches {
    pub(super) namer: Namer,
    callsites: HashMap<(u64, u64), String>,
}

impl LatchCollector {
    pub(super) fn new(target: Arc<Target>, namer: Namer, plan: &Plan, probe: &LatchProbe) -> LatchCollector {
        LatchCollector {
            maps: probe.maps(),
            status: probe.status(),
            target,
            sites: plan.probes.iter().map(|probe| (probe.name.clone(), probe.class)).collect(),
            spins: plan.spins(),
            sees_sleeps: probe.sees_sleeps,
            without_probes: probe.without_probes,
            topology: probe.topology.clone(),
            statements: probe.statements.clone(),
            caches: Mutex::new(Caches { namer, callsites: HashMap::new() }),
            ledgers: Mutex::default(),
            spin_times: Mutex::default(),
        }
    }

    /// Sets the CPU time that was sampled in waiters since attach.
    pub(in crate::measure) fn set_spin_times(&self, times: SpinTimes) {
        *self.spin_times.lock() = times;
    }

    /// Reads all maps.
    ///
    /// # Errors
    /// Fails when a map cannot be read.
    pub(super) fn collect(&self) -> Result<Figures> {
        let read = |missed: &Missed| match self.without_probes {
            true => Ok(missed.uncounted()),
            false => Counts::read(&self.maps),
        };
        let spin_times = self.spin_times.lock().clone();
        let statements = self.statements.as_ref().map(|seen| seen.samples()).unwrap_or_default();
        let call_stacks = self.status.call_stacks.samples();
        let tally = |counts, missed| Tally {
            counts,
            missed,
            spin_times: &spin_times,
            spins: &self.spins,
            sleeps_seen: self.sees_sleeps,
            sampled: self.without_probes,
            topology: self.topology.as_ref(),
            statements: &statements,
            call_stacks: &call_stacks,
        };
        let mut names = ServerNames { caches: &mut self.caches.lock(), target: &self.target };
        figures(&self.status, read, tally, &mut names, &mut self.ledgers.lock())
    }

    /// Takes for how long threads waited by what the latches' holders did, since the last call.
    pub(in crate::measure) fn take_holders(&self) -> Vec<BlockedBy> {
        let times = self.status.holders.lock().take();
        let mut names = ServerNames { caches: &mut self.caches.lock(), target: &self.target };
        let mut named: HashMap<MapKey, Option<LatchName>> = HashMap::new();
        let mut name_of = |key: &MapKey, names: &mut ServerNames<'_>| {
            let example = times.examples.get(key).copied().unwrap_or_default();
            named.entry(*key).or_insert_with(|| names.latch(&latch_key(key), example)).clone()
        };
        let mut rows = Vec::new();
        for (held, ns) in &times.rows {
            let Some(name) = name_of(&held.latch, &mut names) else {
                // It may get a name later.
                self.status.holders.lock().put_back(held, *ns, &times);
                continue;
            };
            let site = (held.site != Site::NONE).then(|| names.callsite(held.site.address, held.site.line));
            let waits_for = held.waits_for.and_then(|key| name_of(&key, &mut names)).map(|name| name.event);
            let mode = mode_of(&name, latch_key(&held.latch).mode);
            let holding = Holding { latch: name.event, mode, state: held.state, site, waits_for };
            rows.push(BlockedBy { holding, wait_ns: *ns });
        }
        rows
    }

    /// Takes for how long threads waited for files, since the last call.
    pub(in crate::measure) fn take_files(&self) -> FileTimes {
        self.status.files.lock().take()
    }

    /// Returns the probes. `costs` gives the cost of their hits, once it is known.
    pub(super) fn probes(&self, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let status = |probe: &str, class, state, index: u32| -> Result<ProbeStatus> {
            let hits = self.maps.hits_of(index)?;
            Ok(ProbeStatus {
                probe: probe.to_owned(),
                state,
                hits: hits.count,
                trap_ns: costs.and_then(|c| c.of(class)),
                program_ns: hits.program_ns(),
            })
        };
        let mut all = Vec::new();
        let states = self.status.probes.lock().clone();
        for (index, ((name, class), state)) in self.sites.iter().zip(states).enumerate() {
            all.push(status(name, *class, state, index as u32)?);
        }
        let states = self.status.tracepoints.lock().clone();
        for (tracepoint, state) in states {
            all.push(status(&tracepoint.to_string(), ProbeClass::Futex, state, tracepoint as u32)?);
        }
        if let Some(state) = *self.status.glances.lock() {
            let glances = Tracepoint::Glance;
            let probe = status(&glances.to_string(), ProbeClass::Clock, state, glances as u32)?;
            // The interrupt is that of a CPU sample, and counts there.
            all.push(ProbeStatus { trap_ns: probe.trap_ns.map(|_| 0.0), ..probe });
        }
        Ok(all)
    }

    /// Returns the numbers of events that are in no figure, by cause.
    pub(super) fn lost(&self) -> Result<Vec<(String, u64)>> {
        let mut lost = self.maps.lost()?;
        for (cause, more) in self.status.missed.lock().crowded() {
            lost.iter_mut().filter(|(known, _)| known == cause).for_each(|(_, events)| *events += more);
        }
        Ok(lost)
    }
}

/// Returns the figures of what `read` returns, under their names.
fn figures<'t>(
    status: &Status,
    read: impl FnOnce(&Missed) -> Result<Counts>,
    tally: impl FnOnce(Counts, Estimates) -> Tally<'t>,
    names: &mut impl Names,
    ledgers: &mut Ledgers,
) -> Result<Figures> {
    let tally = {
        // Held while the maps are read: what is settled in between would count twice. Not held while names are looked
        // for, which may take long: who keeps the probes within the budget, and detaches them, needs it too.
        let missed = status.missed.lock();
        let mut counts = read(&missed)?;
        missed.add_taken_out(&mut counts);
        tally(counts, missed.estimates())
    };
    Ok(tally.figures(names, ledgers))
}

/// Names found in the server's program and memory.
struct ServerNames<'a> {
    caches: &'a mut Caches,
    target: &'a Target,
}

impl Names for ServerNames<'_> {
    fn latch(&mut self, key: &types::latch_key, example: u64) -> Option<LatchName> {
        let namer = &mut self.caches.namer;
        if key.function == PTHREAD {
            namer.pthread_lock(&identity(key), pthread_kind(key.primitive))
        } else {
            Some(namer.name(&identity(key), example))
        }
    }

    fn callsite(&mut self, address: u64, line: u64) -> String {
        self.caches.callsite(self.target, address, line)
    }

    fn pages(&mut self, keys: &[PageKey]) -> Option<Vec<PageName>> {
        self.caches.namer.pages(keys)
    }
}

impl Caches {
    /// Returns `file.cc:123` if the server's code passes its location, else the waiting function's name.
    fn callsite(&mut self, target: &Target, address: u64, line: u64) -> String {
        if let Some(known) = self.callsites.get(&(address, line)) {
            return known.clone();
        }
        let name = if line > 0 {
            let file = self.namer.string_at(address).unwrap_or_else(|| "?".to_owned());
            let base = file.rsplit('/').next().unwrap_or("?");
            format!("{base}:{line}")
        } else if address > 0 {
            target.function_name(address)
        } else {
            "unknown".to_owned()
        };
        self.callsites.insert((address, line), name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names nothing, and looks whether others could go on meanwhile.
    struct Slow<'a>(&'a Status);

    impl Names for Slow<'_> {
        fn latch(&mut self, _key: &types::latch_key, _example: u64) -> Option<LatchName> {
            assert!(self.0.missed.try_lock().is_some(), "looking for a name holds up who detaches the probes");
            None
        }

        fn callsite(&mut self, _address: u64, _line: u64) -> String {
            unreachable!("there is no call site")
        }

        fn pages(&mut self, _keys: &[PageKey]) -> Option<Vec<PageName>> {
            assert!(self.0.missed.try_lock().is_some(), "looking for a table holds up who detaches the probes");
            None
        }
    }

    #[test]
    fn looking_for_names_holds_nobody_up() {
        let status = Status::default();
        let counts = Counts { latches: vec![Default::default()], pages: vec![Default::default()], ..Counts::default() };
        let spin_times = SpinTimes::new();
        let tally = |counts, missed| Tally {
            counts,
            missed,
            spin_times: &spin_times,
            spins: &[],
            sleeps_seen: true,
            sampled: false,
            topology: None,
            statements: &[],
            call_stacks: &[],
        };
        let read = |_: &Missed| Ok(counts);
        let all = figures(&status, read, tally, &mut Slow(&status), &mut Ledgers::default()).unwrap();
        assert!(all.waits.is_empty() && all.pages.is_empty());
    }
}

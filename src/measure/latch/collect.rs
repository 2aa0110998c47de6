//! Reads what the programs counted and names it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::Result;
use libbpf_rs::MapHandle;
use parking_lot::Mutex;

use super::keeper::Status;
use super::missed::{Estimate, Missed};
use super::plan::MAX_FUNCTIONS;
use super::{CallsiteWaits, Figures, Handoffs, LatchProbe, LatchWaits, Maps, PageWaits, Plan, Reacquires};
use crate::attach::{Costs, ProbeClass};
use crate::bpf::latch::types;
use crate::host::Topology;
use crate::measure::maps::{entries, of_cpus, sum_over_cpus};
use crate::model::{Histogram, Kind, Mode, ProbeStatus};
use crate::names::{Identity, LatchName, Namer, PageKey};
use crate::target::Target;

/// The names of the causes in `enum lost`, in its order.
const LOST: [&str; types::lost::LOST_CAUSES.0 as usize] = [
    "threads_full",
    "latches_full",
    "callsites_full",
    "latch_unreadable",
    "end_not_seen",
    "begin_not_seen",
    "unknown_site",
    "lock_unknown",
    "cut_off",
    "handoffs_full",
];

/// The number in place of the wait function in keys of waits in the C library.
pub(super) const LIBRARY: u8 = types::limit::LIBRARY_FUNCTION.0 as u8;

/// What is counted in addition to the sites, in the order of `enum tracepoint`.
pub(super) const TRACEPOINTS: [&str; 4] = ["futex_enter", "futex_exit", "thread_exit", "futex_wake"];

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
    topology: Option<Topology>,
    pub(super) caches: Mutex<Caches>,
    /// CPU time that was sampled in waiters, in nanoseconds.
    spin_times: Mutex<SpinTimes>,
}

/// The CPU time of waiters for each latch, in nanoseconds.
pub(in crate::measure) type SpinTimes = HashMap<LatchKey, u64>;

/// A name that was once given is kept.
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
            topology: probe.topology.clone(),
            caches: Mutex::new(Caches { namer, callsites: HashMap::new() }),
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
        let spin_times = self.spin_times.lock().clone();
        let mut caches = self.caches.lock();
        let mut latches: HashMap<(LatchName, Mode), LatchWaits> = HashMap::new();
        let mut reacquires = BTreeMap::new();
        let mut names = HashMap::new();
        let missed = self.status.missed.lock();
        for (key, waits) in entries::<types::latch_key, types::waits>(&self.maps.latches)? {
            let name = if key.function == LIBRARY {
                caches.namer.library_lock(&identity(&key), library_kind(key.primitive))
            } else {
                Some(caches.namer.name(&identity(&key), waits.example))
            };
            // Its name is not known yet; its waits appear once it is.
            let Some(name) = name else { continue };
            let id = bytes_of(&key);
            // Without a name, their call sites and handoffs are kept out of those of contended waits.
            if is_reacquire(key.primitive) {
                add_reacquires(&mut reacquires, name, &waits, missed.latch(&id));
                continue;
            }
            names.insert(id, name.clone());
            let mode = mode_of(&name, key.mode);
            let entry = add_waits(&mut latches, name, mode, &waits, missed.latch(&id));
            entry.spin_cpu_ns += spin_times.get(&id).copied().unwrap_or(0);
            if self.spins.get(usize::from(key.function)) == Some(&true) {
                add_spins(entry, &waits, missed.latch(&id));
            }
        }
        let mut callsites: HashMap<(String, Mode, String), CallsiteWaits> = HashMap::new();
        for (key, waits) in entries::<types::callsite_key, types::callsite_waits>(&self.maps.callsites)? {
            let latch = bytes_of(&key.latch);
            let Some(name) = names.get(&latch) else { continue };
            let callsite = caches.callsite(&self.target, key.r#where, key.line);
            let mode = mode_of(name, key.latch.mode);
            let entry = callsites.entry((name.event.clone(), mode, callsite.clone())).or_insert_with(|| {
                CallsiteWaits { latch: name.event.clone(), mode: Some(mode), callsite, wait_ns: 0, waits: 0 }
            });
            let estimate = missed.callsite(latch, key.r#where, key.line);
            entry.wait_ns += waits.sum_ns + estimate.sum_ns as u64;
            entry.waits += waits.count + estimate.count as u64;
        }
        let mut latches: Vec<LatchWaits> = latches.into_values().collect();
        latches.sort_by(|a, b| b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| a.latch.cmp(&b.latch)));
        let mut reacquires: Vec<Reacquires> = reacquires.into_values().collect();
        reacquires.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.latch.cmp(&b.latch)));
        let mut callsites: Vec<CallsiteWaits> = callsites.into_values().collect();
        callsites
            .sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| (&a.callsite, a.mode).cmp(&(&b.callsite, b.mode))));
        let pages = self.pages(&mut caches.namer, &missed)?;
        let handoffs = self.handoffs(&names, &missed)?;
        let domains = self.topology.as_ref().map(|topology| topology.names.clone()).unwrap_or_default();
        Ok(Figures { waits: latches, sleeps_seen: self.sees_sleeps, reacquires, callsites, pages, domains, handoffs })
    }

    /// Returns waits for pages by the object that the pages are part of, longest first. Empty if no page was
    /// recognized, because then this server's pages differ from the catalog's description.
    fn pages(&self, namer: &mut Namer, missed: &Missed) -> Result<Vec<PageWaits>> {
        let mut entries = entries::<types::page_key, types::page_waits>(&self.maps.pages)?;
        for (key, waits) in &mut entries {
            let estimate = missed.page(key);
            waits.count += estimate.count as u64;
            waits.sum_ns += estimate.sum_ns as u64;
        }
        let is_other = |key: &types::page_key| u32::from(key.r#type) == types::page_type::PAGE_OTHER.0;
        let (other, known): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(key, _)| is_other(key));
        let keys: Vec<PageKey> = known.iter().map(|(key, _)| page(key)).collect();
        let Some(names) = namer.pages(&keys).filter(|names| !names.is_empty()) else { return Ok(Vec::new()) };
        let mut pages: HashMap<_, PageWaits> = HashMap::new();
        let named = names.into_iter().map(Some).zip(known.iter().map(|(_, waits)| waits));
        let others = other.iter().map(|(_, waits)| (None, waits)).filter(|(_, waits)| waits.count > 0);
        for (name, waits) in named.chain(others) {
            let entry = pages.entry(name.clone()).or_insert_with(|| match name {
                Some(name) => {
                    PageWaits { table: name.table, index: name.index, level: name.level, waits: 0, wait_ns: 0 }
                }
                None => PageWaits::other(),
            });
            entry.waits += waits.count;
            entry.wait_ns += waits.sum_ns;
        }
        let mut pages: Vec<PageWaits> = pages.into_values().collect();
        pages.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.place().cmp(&b.place())));
        Ok(pages)
    }

    /// Returns handoffs by latch and domains; empty on a machine that is a single domain.
    fn handoffs(&self, names: &HashMap<LatchKey, LatchName>, missed: &Missed) -> Result<Vec<Handoffs>> {
        let Some(topology) = &self.topology else { return Ok(Vec::new()) };
        let mut all: BTreeMap<(&str, u8, u8), Handoffs> = BTreeMap::new();
        for (key, seen) in entries::<types::handoff_key, types::handoffs>(&self.maps.handoffs)? {
            let latch = bytes_of(&key.latch);
            // A thread that waits for a condition is not handed a latch.
            let Some(name) = names.get(&latch).filter(|name| name.kind != Kind::Cond) else { continue };
            let entry = all.entry((&name.event, key.from, key.to)).or_insert_with(|| Handoffs {
                latch: name.event.clone(),
                from: topology.name(key.from).map(str::to_owned),
                to: topology.name(key.to).map(str::to_owned),
                count: 0,
                wait_ns: 0,
                migrations: 0,
            });
            let estimate = missed.handoff(latch, key.from, key.to);
            entry.count += seen.count + estimate.count as u64;
            entry.wait_ns += seen.sum_ns + estimate.sum_ns as u64;
            entry.migrations += seen.migrations + missed.migrations(latch, key.from, key.to) as u64;
        }
        Ok(all.into_values().collect())
    }

    /// Returns the probes. `costs` gives the cost of their hits, once it is known.
    pub(super) fn probes(&self, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let status = |probe: &str, class, state, index: u32| -> Result<ProbeStatus> {
            let hits = hits(&self.maps.hits, index)?;
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
        for (i, (name, state)) in TRACEPOINTS.iter().zip(states).enumerate() {
            let index = types::tracepoint::HIT_FUTEX_ENTER.0 + i as u32;
            all.push(status(name, ProbeClass::Futex, state, index)?);
        }
        Ok(all)
    }

    /// Returns the numbers of events that are in no figure, by cause.
    pub(super) fn lost(&self) -> Result<Vec<(String, u64)>> {
        LOST.iter()
            .enumerate()
            .map(|(i, cause)| Ok(((*cause).to_owned(), sum_over_cpus(&self.maps.lost, i as u32)?)))
            .collect()
    }
}

impl Caches {
    /// Returns `file.cc:123` if the server's code passes its location, else the waiting function's name.
    fn callsite(&mut self, target: &Target, place: u64, line: u64) -> String {
        if let Some(known) = self.callsites.get(&(place, line)) {
            return known.clone();
        }
        let name = if line > 0 {
            let file = self.namer.string_at(place).unwrap_or_else(|| "?".to_owned());
            let base = file.rsplit('/').next().unwrap_or("?");
            format!("{base}:{line}")
        } else if place > 0 {
            target.function_name(place)
        } else {
            "unknown".to_owned()
        };
        self.callsites.insert((place, line), name.clone());
        name
    }
}

pub(super) fn identity(key: &types::latch_key) -> Identity {
    match types::identity(u32::from(key.identity)) {
        types::identity::IDENTITY_LATCH_ID => Identity::LatchId(key.id as u32),
        types::identity::IDENTITY_CREATED => Identity::Created { file: key.id, line: key.line },
        types::identity::IDENTITY_PSI_CLASS => Identity::PsiClass(key.id),
        types::identity::IDENTITY_STATIC => Identity::Static(key.id),
        types::identity::IDENTITY_METADATA_LOCK => Identity::MetadataLock,
        types::identity::IDENTITY_PAGE => Identity::Page,
        types::identity::IDENTITY_ALLOCATOR => Identity::Allocator,
        _ => Identity::Caller(key.id),
    }
}

fn page(key: &types::page_key) -> PageKey {
    // Only pages of indexes have an index number.
    if key.index != 0 {
        PageKey::Index { space: key.space, index: key.index, level: key.level }
    } else {
        PageKey::Plain { space: key.space, kind: key.r#type }
    }
}

/// Returns the kind of object that a thread waits for, as the C library's function implies it.
pub(super) fn library_kind(primitive: u8) -> Option<Kind> {
    match types::primitive(u32::from(primitive)) {
        types::primitive::PRIMITIVE_MUTEX
        | types::primitive::PRIMITIVE_REACQUIRE
        | types::primitive::PRIMITIVE_ALLOCATOR => Some(Kind::Mutex),
        types::primitive::PRIMITIVE_RWLOCK_READ | types::primitive::PRIMITIVE_RWLOCK_WRITE => Some(Kind::Rwlock),
        types::primitive::PRIMITIVE_COND => Some(Kind::Cond),
        _ => None,
    }
}

/// Returns whether a condition variable woke the waiting thread.
fn is_reacquire(primitive: u8) -> bool {
    types::primitive(u32::from(primitive)) == types::primitive::PRIMITIVE_REACQUIRE
}

/// The inverse of [`mode_code`](super::plan::mode_code).
fn mode(code: u8) -> Mode {
    [Mode::None, Mode::S, Mode::Sx, Mode::X].get(usize::from(code)).copied().unwrap_or(Mode::None)
}

/// Returns the mode under which waits for a latch of this name appear.
fn mode_of(name: &LatchName, code: u8) -> Mode {
    // A lock word serves plain mutexes and the writer side of rw-locks alike; only its name distinguishes them.
    if name.kind == Kind::Mutex {
        Mode::None
    } else {
        mode(code)
    }
}

/// Adds the waits that ended while spinning, and those that slept afterwards.
fn add_spins(entry: &mut LatchWaits, waits: &types::waits, missed: Option<&Estimate>) {
    let (more_slept, more_won) = missed.map_or((0.0, 0.0), |m| (m.slept, m.won));
    entry.spins_wasted += waits.slept + more_slept as u64;
    entry.spins_won += waits.watched.saturating_sub(waits.slept) + more_won as u64;
}

fn add_waits<'a>(
    latches: &'a mut HashMap<(LatchName, Mode), LatchWaits>,
    name: LatchName,
    mode: Mode,
    waits: &types::waits,
    missed: Option<&Estimate>,
) -> &'a mut LatchWaits {
    let entry = latches.entry((name.clone(), mode)).or_insert_with(|| LatchWaits {
        latch: name.event,
        kind: name.kind,
        mode,
        waits: Histogram::default(),
        sleep_ns: 0,
        sleeps: 0,
        spin_cpu_ns: 0,
        spins_won: 0,
        spins_wasted: 0,
        estimated_ns: 0,
    });
    let mut buckets = waits.buckets;
    if let Some(missed) = missed {
        buckets.iter_mut().zip(&missed.buckets).for_each(|(bucket, more)| *bucket += *more as u64);
        entry.estimated_ns += missed.sum_ns as u64;
        entry.sleep_ns += missed.sleep_ns as u64;
        entry.sleeps += missed.sleeps as u64;
    }
    entry.waits.merge(&Histogram {
        buckets,
        count: buckets.iter().sum(),
        sum_ns: waits.sum_ns + missed.map_or(0, |m| m.sum_ns as u64),
        max_ns: waits.max_ns,
    });
    entry.sleep_ns += waits.sleep_ns;
    entry.sleeps += waits.sleeps;
    entry
}

fn add_reacquires(
    reacquires: &mut BTreeMap<String, Reacquires>,
    name: LatchName,
    waits: &types::waits,
    missed: Option<&Estimate>,
) {
    let entry = reacquires.entry(name.event.clone()).or_insert(Reacquires { latch: name.event, waits: 0, wait_ns: 0 });
    let more = missed.map_or((0.0, 0.0), |m| (m.buckets.iter().sum(), m.sum_ns));
    entry.waits += waits.buckets.iter().sum::<u64>() + more.0 as u64;
    entry.wait_ns += waits.sum_ns + more.1 as u64;
}

/// A key of the programs' maps in comparable form.
pub type LatchKey = [u8; size_of::<types::latch_key>()];

pub(super) fn bytes_of(key: &types::latch_key) -> LatchKey {
    // SAFETY: a plain C structure without padding (16 bytes of fields in 16 bytes), read as bytes.
    let bytes = unsafe { plain::as_bytes(key) };
    bytes.try_into().expect("a key is as long as itself")
}

/// Returns how often a probe was hit, by its index.
pub(super) fn hits(map: &MapHandle, index: u32) -> Result<types::hits> {
    let all = of_cpus::<types::hits>(map, index)?;
    Ok(all.into_iter().fold(types::hits::default(), |sum, hits| types::hits {
        count: sum.count + hits.count,
        timed_ns: sum.timed_ns + hits.timed_ns,
    }))
}

impl types::hits {
    /// Returns for how long the program ran in all hits together, extrapolated from those that were timed.
    pub(super) fn program_ns(&self) -> u64 {
        self.timed_ns * u64::from(types::limit::TIMED_HITS.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: &str = "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_done";

    fn waits(count: u64, sum_ns: u64) -> types::waits {
        let mut waits = types::waits { sum_ns, ..Default::default() };
        (waits.buckets[3], waits.buckets[9]) = (count - 1, 1);
        waits
    }

    #[test]
    fn only_what_a_condition_woke_gets_its_mutex_back() {
        let primitives = 0..=types::primitive::PRIMITIVE_REACQUIRE.0 as u8;
        let woken: Vec<u8> = primitives.filter(|primitive| is_reacquire(*primitive)).collect();
        assert_eq!(woken, [types::primitive::PRIMITIVE_REACQUIRE.0 as u8]);
        assert_eq!(library_kind(woken[0]), Some(Kind::Mutex), "its name is the mutex's");
    }

    /// Locks of one name are summed, as are seen and estimated waits.
    #[test]
    fn wake_ups_of_one_mutex_add_up() {
        let name = || LatchName::from_event(DONE).unwrap();
        let mut missed = Estimate::default();
        (missed.sum_ns, missed.buckets[0]) = (500.0, 50.0);
        let mut all = BTreeMap::new();
        add_reacquires(&mut all, name(), &waits(10, 1000), None);
        add_reacquires(&mut all, name(), &waits(5, 200), Some(&missed));
        let expected = Reacquires { latch: DONE.to_owned(), waits: 15 + 50, wait_ns: 1700 };
        assert_eq!(all.into_values().collect::<Vec<_>>(), [expected]);
    }
}

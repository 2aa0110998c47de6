//! Measures how often checksums are computed, and over how many bytes: counted on every call, in short bursts, and
//! scaled up.

use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use super::Chosen;
use crate::analysis::Location;
use crate::attach::{attach_sites, detach_all, uprobe_multi_works, ProbeClass, SiteAddress, SitePrograms, Skipped};
use crate::bpf::checksum::{types, ChecksumSkel, ChecksumSkelBuilder};
use crate::host::clock::now_ns;
use crate::measure::checksum::{ChecksumCalls, Implementation};
use crate::measure::latch::{ip_offset, register_offset};
use crate::measure::maps::of_cpus;
use crate::server::{cpu_time_ns, Target};
use crate::worker::{Stop, Worker};

/// How long a burst sees every call.
const BURST: Duration = Duration::from_millis(20);
/// The pause between bursts, at least and at most.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The number of hits up to which the shortest pause is enough: a hit takes about a microsecond, or ten if it is
/// single-stepped.
const CHEAP_HITS: u64 = 1000;
const STEPPED_WEIGHT: u64 = 10;
/// The share of a CPU below which a server counts as idle and is left alone.
const IDLE: f64 = 0.01;

/// Takes bursts for as long as it exists.
pub(super) struct Bursts {
    worker: Mutex<Option<Worker>>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Held while probes are attached.
    attached: Mutex<()>,
    paused: AtomicBool,
    /// The beginning of the time for which the next burst accounts.
    since: Mutex<Instant>,
    figures: Mutex<BurstFigures>,
    /// The programs, once they are loaded.
    skipped: OnceLock<Skipped>,
}

/// The results of bursts.
#[derive(Clone, Default)]
pub(super) struct BurstFigures {
    pub calls: Vec<ChecksumCalls>,
    /// The hits of the probes, whether in a burst or not, and the most expensive class among them.
    pub hits: u64,
    pub class: Option<ProbeClass>,
}

/// A function whose calls are counted.
struct CountedFunction {
    function: String,
    implementation: Implementation,
    class: ProbeClass,
    /// The address in the process.
    address: u64,
    file_offset: u64,
    length_register: u16,
}

/// The calls that were counted, and those that they stand for.
#[derive(Clone, Copy, Default)]
struct Count {
    seen: types::checksum_calls,
    calls: f64,
    bytes: f64,
}

impl Bursts {
    /// Counts calls of these implementations.
    ///
    /// # Errors
    /// Fails when no thread can be started.
    pub fn start(target: &Arc<Target>, checksums: &[Chosen]) -> Result<Bursts> {
        let shared = Arc::new(Shared {
            attached: Mutex::default(),
            paused: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
            figures: Mutex::default(),
            skipped: OnceLock::new(),
        });
        let (sites, target, into) = (sites(target, checksums), Arc::clone(target), Arc::clone(&shared));
        let worker = Worker::start("bursts", move |stop| {
            if let Err(error) = take_bursts(&target, sites, &into, stop) {
                tracing::warn!("checksum calls are not counted: {error:#}");
            }
        })?;
        Ok(Bursts { worker: Mutex::new(Some(worker)), shared })
    }

    pub fn figures(&self) -> BurstFigures {
        self.shared.figures.lock().clone()
    }

    /// Returns the programs, once they are loaded.
    pub fn skipped(&self) -> Option<&Skipped> {
        self.shared.skipped.get()
    }

    /// Returns when no probe is attached, and none will be until [`Bursts::resume`].
    pub fn pause(&self) {
        self.shared.paused.store(true, Ordering::Relaxed);
        drop(self.shared.attached.lock());
    }

    pub fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::Relaxed)
    }

    pub fn resume(&self) {
        *self.shared.since.lock() = Instant::now();
        self.shared.paused.store(false, Ordering::Relaxed);
    }

    /// Returns when no probe is attached, and none will be.
    pub fn stop(&self) {
        self.worker.lock().take().into_iter().for_each(Worker::end);
    }
}

/// Returns the chosen implementations whose calls can all be seen.
fn sites(target: &Target, checksums: &[Chosen]) -> Vec<CountedFunction> {
    let mut sites: Vec<CountedFunction> = Vec::new();
    for chosen in checksums {
        let Some(site) = site(target, chosen) else { continue };
        // One function may be chosen for two checksums.
        if !sites.iter().any(|other| other.address == site.address) {
            sites.push(site);
        }
    }
    sites
}

fn site(target: &Target, chosen: &Chosen) -> Option<CountedFunction> {
    let entry = chosen.entry?;
    let Location::Register { register, .. } = entry.argument else { return None };
    Some(CountedFunction {
        function: chosen.checksum.function.clone(),
        implementation: chosen.checksum.implementation,
        class: if entry.emulated { ProbeClass::Emulated } else { ProbeClass::Stepped },
        address: entry.addr.wrapping_add(target.bias),
        file_offset: target.image.file_offset(entry.addr)?,
        length_register: register_offset(target.image.arch(), register),
    })
}

/// Takes bursts until told to stop.
fn take_bursts(target: &Target, sites: Vec<CountedFunction>, shared: &Shared, stop: &Stop) -> Result<()> {
    if sites.is_empty() {
        return Ok(());
    }
    let mut storage = MaybeUninit::uninit();
    let probes = Probes::load(&mut storage, target, sites)?;
    let programs = probes.skel.object().progs().filter(|program| program.autoload());
    _ = shared.skipped.set(Skipped::of(programs)?);
    let mut counts = vec![Count::default(); probes.sites.len()];
    let mut pause = SHORTEST_PAUSE;
    let mut cpu_ns = cpu_time_ns(target.pid);
    while stop.wait(pause) {
        let now_ns = cpu_time_ns(target.pid);
        let used_ns = now_ns.zip(cpu_ns).map_or(0, |(now, then)| now.saturating_sub(then));
        cpu_ns = now_ns;
        let since = *shared.since.lock();
        if (used_ns as f64) >= IDLE * since.elapsed().as_nanos() as f64 {
            pause = pause_after(probes.burst(shared, &mut counts, since)?);
        }
        *shared.since.lock() = Instant::now();
        *shared.figures.lock() = probes.figures(&counts);
    }
    Ok(())
}

/// Returns how long to wait after a burst with this many hits.
fn pause_after(hits: u64) -> Duration {
    SHORTEST_PAUSE.mul_f64((hits as f64 / CHEAP_HITS as f64).max(1.0)).min(LONGEST_PAUSE)
}

struct Probes<'obj> {
    skel: ChecksumSkel<'obj>,
    calls: MapHandle,
    has_multi: bool,
    pid: i32,
    exe: PathBuf,
    sites: Vec<CountedFunction>,
}

impl<'obj> Probes<'obj> {
    fn load(
        storage: &'obj mut MaybeUninit<libbpf_rs::OpenObject>,
        target: &Target,
        mut sites: Vec<CountedFunction>,
    ) -> Result<Probes<'obj>> {
        let mut open = ChecksumSkelBuilder::default().open(storage).context("opening the programs")?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
        rodata.target_tgid = target.pid as u32;
        rodata.ip_register = u32::from(ip_offset(target.image.arch()));
        sites.truncate(rodata.sites.len());
        for (into, site) in rodata.sites.iter_mut().zip(&sites) {
            into.address = site.address;
            into.length_register = u32::from(site.length_register);
        }
        let has_multi = uprobe_multi_works();
        open.progs.checksum_sites.set_autoload(has_multi);
        open.progs.checksum_site.set_autoload(!has_multi);
        let skel = open.load().context("loading the programs into the kernel")?;
        let calls = MapHandle::try_from(&skel.maps.calls)?;
        Ok(Probes { skel, calls, has_multi, pid: target.pid, exe: target.exe(), sites })
    }

    /// Counts for [`BURST`], and scales the counts to the whole time since `since`. Returns the hits, with expensive
    /// ones counted several times.
    fn burst(&self, shared: &Shared, counts: &mut [Count], since: Instant) -> Result<u64> {
        let held = shared.attached.lock();
        if shared.paused.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let programs = SitePrograms {
            multi: self.has_multi.then_some(&self.skel.progs.checksum_sites),
            single: (!self.has_multi).then_some(&self.skel.progs.checksum_site),
            retprobe: false,
        };
        let addresses: Vec<SiteAddress> =
            self.sites.iter().map(|site| SiteAddress { file_offset: site.file_offset, cookie: 0 }).collect();
        let attached = attach_sites(&programs, self.pid, &self.exe, &addresses);
        if let Some(refusal) = attached.refused.first() {
            detach_all(attached.links);
            anyhow::bail!("a probe was refused: {}", refusal.why);
        }
        self.set_end(now_ns(libc::CLOCK_MONOTONIC) + BURST.as_nanos() as u64)?;
        thread::sleep(BURST);
        detach_all(attached.links);
        self.set_end(0)?;
        drop(held);
        let scale = since.elapsed().as_secs_f64() / BURST.as_secs_f64();
        let mut weight = 0;
        for (index, (count, site)) in counts.iter_mut().zip(&self.sites).enumerate() {
            let seen = self.seen(index)?;
            let hits = seen.hits - count.seen.hits;
            weight += hits * if site.class == ProbeClass::Stepped { STEPPED_WEIGHT } else { 1 };
            count.add(seen, scale);
        }
        Ok(weight)
    }

    fn set_end(&self, ns: u64) -> Result<()> {
        Ok(self.skel.maps.burst_end.update(&0u32.to_ne_bytes(), &ns.to_ne_bytes(), MapFlags::ANY)?)
    }

    fn seen(&self, index: usize) -> Result<types::checksum_calls> {
        let all = of_cpus::<types::checksum_calls>(&self.calls, index as u32)?;
        Ok(all.into_iter().fold(types::checksum_calls::default(), |sum, one| types::checksum_calls {
            hits: sum.hits + one.hits,
            calls: sum.calls + one.calls,
            bytes: sum.bytes + one.bytes,
        }))
    }

    fn figures(&self, counts: &[Count]) -> BurstFigures {
        let calls = self.sites.iter().zip(counts).map(|(site, count)| ChecksumCalls {
            function: site.function.clone(),
            implementation: site.implementation,
            calls: count.calls as u64,
            bytes: count.bytes as u64,
        });
        let is_stepped = self.sites.iter().any(|site| site.class == ProbeClass::Stepped);
        BurstFigures {
            calls: calls.collect(),
            hits: counts.iter().map(|count| count.seen.hits).sum(),
            class: Some(if is_stepped { ProbeClass::Stepped } else { ProbeClass::Emulated }),
        }
    }
}

impl Count {
    /// Adds what a burst saw, which stands for `scale` times as much.
    fn add(&mut self, seen: types::checksum_calls, scale: f64) {
        self.calls += scale * (seen.calls - self.seen.calls) as f64;
        self.bytes += scale * (seen.bytes - self.seen.bytes) as f64;
        self.seen = seen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_in_a_burst_is_scaled_up() {
        let mut count = Count::default();
        count.add(types::checksum_calls { hits: 12, calls: 10, bytes: 5120 }, 250.0);
        count.add(types::checksum_calls { hits: 20, calls: 15, bytes: 7680 }, 100.0);
        assert_eq!((count.calls, count.bytes), (3000.0, 1_536_000.0));
    }

    #[test]
    fn the_more_a_burst_took_the_later_is_the_next() {
        assert_eq!(pause_after(0), Duration::from_secs(5));
        assert_eq!(pause_after(1000), Duration::from_secs(5));
        assert_eq!(pause_after(4000), Duration::from_secs(20));
        assert_eq!(pause_after(u64::MAX), Duration::from_secs(60));
    }
}

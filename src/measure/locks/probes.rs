//! The programs that measure waits for locks, attached to a server.

use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use super::objects::Waiter;
use super::plan::{LockPlan, PlannedLockSite, PlannedLockWait};
use crate::attach::{
    attach_sites, detach_all, uprobe_multi_works, Costs, Link, ProbeClass, SiteAddress, SitePrograms, Skipped,
};
use crate::bpf::latch;
use crate::bpf::lock::{types, LockSkel, LockSkelBuilder, OpenLockSkel};
use crate::catalog::LockKind;
use crate::host::clock::now_ns;
use crate::measure::latch::{ip_offset, location, register_offset, SHADOW};
use crate::measure::maps::{add_skipped, entries, hits_over_cpus, sum_over_cpus};
use crate::measure::rest::Probes;
use crate::measure::thread_pointers::{ServerThread, ThreadPointers};
use crate::model::{ProbeState, ProbeStatus, BUCKET_BOUNDS_NS};
use crate::server::Target;
use crate::symbols::Arch;

/// The names of the causes in `enum lock_lost`, in its order.
const LOST: [&str; types::lock_lost::LOCK_LOST_CAUSES.0 as usize] =
    ["lock_waiters_full", "lock_kinds_full", "lock_waits_busy", "lock_kind_unknown"];

/// The probes of `enum lock_probe`, in its order.
const PROBES: [&str; types::lock_probe::LOCK_PROBES.0 as usize] = ["lock_waits:begin", "lock_waits:end"];

/// The programs on one server.
pub(super) struct LockProbes {
    attached: Mutex<Attached>,
    /// The most expensive class of the begins, and of the ends.
    classes: [Option<ProbeClass>; 2],
    waiters: MapHandle,
    waits: MapHandle,
    hits: MapHandle,
    lost: MapHandle,
    skipped: Skipped,
    /// Lists the server's threads; `None` if the kernel does not show them.
    threads: Option<ThreadPointers>,
}

/// The links of the programs; none while they are detached.
struct Attached {
    skel: LockSkel<'static>,
    has_multi: bool,
    pid: i32,
    exe: PathBuf,
    plan: Arc<LockPlan>,
    links: Vec<Link>,
    /// How often they were attached.
    times: u32,
    /// What is measured: those whose probes the kernel has taken.
    measured: Vec<LockKind>,
    refused: Vec<String>,
}

/// What the programs have counted.
pub(super) struct Counted {
    pub waits: Vec<(types::lock_key, types::lock_waits)>,
    pub waiting: Vec<types::lock_wait>,
}

impl LockProbes {
    /// Loads the programs, and attaches them at the sites of `plan`.
    pub fn attach(target: &Target, plan: &Arc<LockPlan>) -> Result<LockProbes> {
        // This leaks a few bytes once per server, so that the programs can be attached again after a pause.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = LockSkelBuilder::default().open(storage).context("opening the programs")?;
        configure(&mut open, target, plan)?;
        let has_multi = uprobe_multi_works();
        open.progs.lock_begins.set_autoload(has_multi);
        open.progs.lock_ends.set_autoload(has_multi);
        open.progs.lock_begin.set_autoload(!has_multi);
        open.progs.lock_end.set_autoload(!has_multi);
        let skel = open.load().context("loading the programs into the kernel")?;
        let worst = |sites: fn(&PlannedLockWait) -> &[PlannedLockSite]| {
            let classes: Vec<ProbeClass> = plan.waits.iter().flat_map(sites).map(|site| site.class).collect();
            let by_cost = [ProbeClass::Return, ProbeClass::Stepped, ProbeClass::Emulated];
            by_cost.into_iter().find(|class| classes.contains(class))
        };
        let probes = LockProbes {
            classes: [worst(|wait| &wait.begins), worst(|wait| &wait.ends)],
            waiters: MapHandle::try_from(&skel.maps.lock_waiters)?,
            waits: MapHandle::try_from(&skel.maps.locks)?,
            hits: MapHandle::try_from(&skel.maps.hits)?,
            lost: MapHandle::try_from(&skel.maps.lost_locks)?,
            threads: ThreadPointers::new(target.pid).ok(),
            skipped: Skipped::of(skel.object().progs().filter(|program| program.autoload()))?,
            attached: Mutex::new(Attached {
                has_multi,
                pid: target.pid,
                exe: target.exe(),
                plan: Arc::clone(plan),
                links: Vec::new(),
                times: 0,
                measured: Vec::new(),
                refused: Vec::new(),
                skel,
            }),
        };
        probes.attach_again();
        Ok(probes)
    }

    /// Returns what is measured while the programs are attached.
    pub fn measured(&self) -> Vec<LockKind> {
        self.attached.lock().measured.clone()
    }

    /// Returns what the kernel refused, one line each.
    pub fn refused(&self) -> Vec<String> {
        self.attached.lock().refused.clone()
    }

    pub fn counted(&self) -> Result<Counted> {
        let waiting = self.waiters()?.into_iter().map(|waiter| waiter.wait).collect();
        Ok(Counted { waits: entries(&self.waits)?, waiting })
    }

    /// Returns the threads that wait. Forgets those that have given up between two calls.
    pub fn waiters(&self) -> Result<Vec<Waiter>> {
        // As a rule there are none, and room for all that there could be is a lot of memory.
        if self.waiters.keys().next().is_none() {
            return Ok(Vec::new());
        }
        let waiting: Vec<(u32, types::lock_wait)> = entries(&self.waiters)?;
        let now_ns = now_ns(libc::CLOCK_MONOTONIC);
        let gap_ns = u64::from(types::lock_limit::LOCK_GAP_NS.0);
        let has_left = |wait: &types::lock_wait| wait.left_ns != 0 && now_ns > wait.left_ns + gap_ns;
        let (left, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, wait)| has_left(wait));
        left.into_iter().for_each(|(thread, _)| self.forget_wait(thread));
        Ok(waiting.into_iter().map(|(thread, wait)| Waiter { thread, wait }).collect())
    }

    /// Returns whether a thread is still in the same wait.
    pub fn still_waits(&self, waiter: &Waiter) -> bool {
        let bytes = self.waiters.lookup(&waiter.thread.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let wait = bytes.as_deref().and_then(|bytes| plain::from_bytes::<types::lock_wait>(bytes).ok());
        wait.is_some_and(|wait| wait.begin_ns == waiter.wait.begin_ns)
    }

    /// Returns the server's threads; `None` if the kernel does not show them.
    pub fn threads(&self) -> Option<Vec<ServerThread>> {
        self.threads.as_ref()?.list().ok()
    }

    /// Returns how often the programs were attached so far.
    pub fn attachments(&self) -> u32 {
        self.attached.lock().times
    }

    /// Adds a wait that had begun before the programs were attached. Returns whether it was not known.
    pub fn add_wait(&self, waiter: &Waiter) -> bool {
        // SAFETY: the structure has no padding, and is only read.
        let value = unsafe { plain::as_bytes(&waiter.wait) };
        self.waiters.update(&waiter.thread.to_ne_bytes(), value, MapFlags::NO_EXIST).is_ok()
    }

    /// Forgets a thread's wait.
    pub fn forget_wait(&self, thread: u32) {
        // It may have ended.
        _ = self.waiters.delete(&thread.to_ne_bytes());
    }

    /// Returns the names, classes and hits of the probes that the plan has.
    fn hits(&self) -> Result<Vec<(&'static str, ProbeClass, latch::types::hits)>> {
        let probes = (0u32..).zip(PROBES).zip(self.classes);
        let planned = probes.filter_map(|((index, name), class)| Some((index, name, class?)));
        planned.map(|(index, name, class)| Ok((name, class, hits_over_cpus(&self.hits, index)?))).collect()
    }

    /// Adds what could not be counted, by cause.
    pub fn add_lost(&self, lost: &mut Vec<(String, u64)>) -> Result<()> {
        for (index, cause) in (0u32..).zip(LOST) {
            lost.push((cause.to_owned(), sum_over_cpus(&self.lost, index)?));
        }
        add_skipped(lost, &self.skipped)
    }
}

impl Probes for LockProbes {
    const FREQUENT: &'static str = "waits for row locks and metadata locks";
    const PART: f64 = 0.5;

    fn attach_again(&self) {
        let mut attached = self.attached.lock();
        if attached.links.is_empty() {
            attached.attach();
        }
    }

    fn detach(&self) {
        let mut attached = self.attached.lock();
        detach_all(std::mem::take(&mut attached.links));
        let threads: Vec<Vec<u8>> = self.waiters.keys().collect();
        threads.iter().for_each(|thread| _ = self.waiters.delete(thread));
    }

    fn are_attached(&self) -> bool {
        !self.attached.lock().links.is_empty()
    }

    fn status(&self, state: ProbeState, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let status = |(name, class, hits): (&str, ProbeClass, latch::types::hits)| ProbeStatus {
            probe: name.to_owned(),
            state,
            hits: hits.count,
            trap_ns: costs.and_then(|costs| costs.of(class)),
            program_ns: hits.program_ns(),
        };
        Ok(self.hits()?.into_iter().map(status).collect())
    }

    fn charged_ns(&self, costs: &Costs) -> Result<f64> {
        let of = |(_, class, hits): (_, ProbeClass, latch::types::hits)| {
            hits.count as f64 * costs.charge(class) + hits.program_ns() as f64
        };
        Ok((1.0 + SHADOW) * self.hits()?.into_iter().map(of).sum::<f64>())
    }
}

impl Attached {
    /// Attaches the ends before the begins: a wait that begins meanwhile must not miss its end. Of a function whose
    /// sites the kernel does not all take, none stays attached.
    fn attach(&mut self) {
        self.times += 1;
        self.refused.clear();
        self.measured.clear();
        let plan = Arc::clone(&self.plan);
        for wait in &plan.waits {
            let progs = &self.skel.progs;
            let ends = self.programs(&progs.lock_ends, &progs.lock_end, wait.at_return);
            let mut taken = attach_sites(&ends, self.pid, &self.exe, &addresses(&wait.ends));
            if taken.refused.is_empty() {
                let begins = self.programs(&progs.lock_begins, &progs.lock_begin, false);
                let begins = attach_sites(&begins, self.pid, &self.exe, &addresses(&wait.begins));
                taken.links.extend(begins.links);
                taken.refused.extend(begins.refused);
            }
            let refused = taken.refused.iter().map(|r| format!("a probe of {} was refused: {}", wait.label, r.why));
            self.refused.extend(refused);
            if taken.refused.is_empty() {
                self.links.extend(taken.links);
                self.measured.push(wait.waits_for);
            } else {
                detach_all(taken.links);
            }
        }
    }

    fn programs<'a>(
        &self,
        multi: &'a libbpf_rs::ProgramMut<'static>,
        single: &'a libbpf_rs::ProgramMut<'static>,
        retprobe: bool,
    ) -> SitePrograms<'a, 'static> {
        SitePrograms { multi: self.has_multi.then_some(multi), single: (!self.has_multi).then_some(single), retprobe }
    }
}

fn addresses(sites: &[PlannedLockSite]) -> Vec<SiteAddress> {
    sites.iter().map(|site| SiteAddress { file_offset: site.file_offset, cookie: 0 }).collect()
}

/// Sets the constants with which the programs are loaded.
fn configure(open: &mut OpenLockSkel<'_>, target: &Target, plan: &LockPlan) -> Result<()> {
    let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
    let arch = target.image.arch();
    rodata.target_tgid = target.pid as u32;
    rodata.bucket_bounds = BUCKET_BOUNDS_NS;
    rodata.ip_register = u32::from(ip_offset(arch));
    rodata.result_register = u32::from(register_offset(arch, 0));
    let begins = plan.waits.iter().flat_map(|wait| wait.begins.iter().map(|site| (kind(wait.waits_for), site)));
    for (into, (kind, site)) in rodata.begins.iter_mut().zip(begins) {
        into.address = site.addr.wrapping_add(target.bias);
        into.kind = kind;
        into.stage = site.stage.map(|stage| in_programs(arch, stage)).unwrap_or_default();
    }
    Ok(())
}

fn kind(waits_for: LockKind) -> u32 {
    match waits_for {
        LockKind::Row => types::lock_kind::LOCK_ROW.0,
        LockKind::Metadata { .. } => types::lock_kind::LOCK_METADATA.0,
    }
}

/// Returns in these programs' terms where a value is.
fn in_programs(arch: Arch, place: crate::analysis::Location) -> types::location {
    let latch::types::location { reg, kind, displacement } = location(arch, place);
    types::location { reg, kind, displacement }
}

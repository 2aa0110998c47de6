//! Latch waits: which sites to probe in this server's code, and what they counted.

mod collect;
mod library;
mod plan;

pub use collect::{LatchCollector, LatchFigures};
pub use library::rows_of as library_rows;
pub use plan::{plan, Allowed, Plan, PlannedSite};

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, TracepointCategory};
use plain::Plain;

use self::collect::TRACEPOINTS;
use crate::attach::{
    attach_futex, attach_sites, futex_wait_is_traceable, uprobe_multi_works, FutexPrograms, SiteAddress, SitePrograms,
};
use crate::bpf::latch::{types, LatchSkelBuilder, OpenLatchSkel};
use crate::catalog::{named, psi_places, tracked_id};
use crate::model::BUCKET_BOUNDS_NS;
use crate::target::Target;

// SAFETY: these are plain C structures without pointers or padding that could hold an invalid value; any
// bytes of the right length are a valid value of each.
unsafe impl Plain for types::site {}
// SAFETY: as above.
unsafe impl Plain for types::latch_key {}
// SAFETY: as above.
unsafe impl Plain for types::waits {}
// SAFETY: as above.
unsafe impl Plain for types::callsite_key {}
// SAFETY: as above.
unsafe impl Plain for types::callsite_waits {}
// SAFETY: as above.
unsafe impl Plain for types::library_frame {}

/// The programs attached to one server. Dropping it detaches them.
pub struct LatchProbe {
    links: Vec<Link>,
    /// Names of the sites that the kernel refused, and why.
    pub refused: Vec<(String, String)>,
    /// Which tracepoints are attached: a futex call's begin and end, a thread's end.
    tracepoints: [bool; 3],
    maps: Arc<Maps>,
}

/// The maps that outlive the loaded object because they are read at each scrape.
pub(crate) struct Maps {
    pub latches: MapHandle,
    pub callsites: MapHandle,
    pub hits: MapHandle,
    pub lost: MapHandle,
}

impl LatchProbe {
    /// Loads the programs and attaches them to `target` at the sites of `plan`.
    ///
    /// # Errors
    /// When the programs cannot be loaded, or no site at all could be attached.
    pub fn attach(target: &Target, plan: &Plan) -> Result<LatchProbe> {
        let mut storage = MaybeUninit::uninit();
        let mut open = LatchSkelBuilder::default().open(&mut storage).context("opening the latch programs")?;
        configure(&mut open, target, plan)?;
        let has_multi = uprobe_multi_works();
        open.progs.latch_sites.set_autoload(has_multi);
        open.progs.latch_returns.set_autoload(has_multi);
        open.progs.latch_site.set_autoload(!has_multi);
        open.progs.latch_return.set_autoload(!has_multi);
        let traceable = futex_wait_is_traceable();
        open.progs.futex_wait_enter.set_autoload(traceable);
        open.progs.futex_wait_exit.set_autoload(traceable);
        let skel = open.load().context("loading the latch programs into the kernel")?;
        write_sites(&skel.maps.sites, plan)?;
        for (address, index) in plan.site_addresses(target.bias) {
            skel.maps.site_at.update(&address.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)?;
        }
        for address in &plan.wrapper_returns {
            let address = address + target.bias;
            // One too many only makes a call site less exact.
            _ = skel.maps.wrappers.update(&address.to_ne_bytes(), &[1], MapFlags::ANY);
        }
        for (address, row) in library::rows(target.pid) {
            // SAFETY: `row` is a plain C structure (see above), read as bytes for as long as it is borrowed.
            let bytes = unsafe { plain::as_bytes(&row) };
            skel.maps.library_frames.update(&address.to_ne_bytes(), bytes, MapFlags::ANY)?;
        }
        let mut probe = LatchProbe {
            links: Vec::new(),
            refused: Vec::new(),
            tracepoints: [false; 3],
            maps: Arc::new(Maps {
                latches: MapHandle::try_from(&skel.maps.latches)?,
                callsites: MapHandle::try_from(&skel.maps.callsites)?,
                hits: MapHandle::try_from(&skel.maps.hits)?,
                lost: MapHandle::try_from(&skel.maps.lost)?,
            }),
        };
        // Sleeps first: a wait that begins before they are seen would count as spinning.
        let progs = &skel.progs;
        let [enter, exit] = attach_futex(&FutexPrograms {
            function: traceable.then_some([&progs.futex_wait_enter, &progs.futex_wait_exit]),
            system_call: [&progs.futex_enter, &progs.futex_exit],
        });
        let thread_exit = progs.thread_exit.attach_tracepoint(TracepointCategory::Sched, "sched_process_exit");
        for (name, attached) in TRACEPOINTS.into_iter().zip([enter, exit, thread_exit]) {
            match attached {
                Ok(link) => probe.links.push(link),
                Err(error) => probe.refused.push((name.to_owned(), error.to_string())),
            }
        }
        probe.tracepoints = TRACEPOINTS.map(|name| probe.refused.iter().all(|(refused, _)| refused != name));
        let loaded = |program| has_multi.then_some(program);
        let single = |program| (!has_multi).then_some(program);
        let ends =
            SitePrograms { multi: loaded(&progs.latch_returns), single: single(&progs.latch_return), retprobe: true };
        let sites =
            SitePrograms { multi: loaded(&progs.latch_sites), single: single(&progs.latch_site), retprobe: false };
        // Ends before begins: a wait that begins while they are attached must not miss its end.
        let exe = target.exe();
        probe.attach_kind(&ends, target.pid, &exe, plan, |s| s.at_return);
        probe.attach_kind(&sites, target.pid, &exe, plan, |s| !s.at_return && !s.is_begin());
        let unending = probe.functions_without_end(plan);
        probe.attach_kind(&sites, target.pid, &exe, plan, |s| s.is_begin() && !unending.contains(&s.function()));
        let is_refused = |s: &PlannedSite| probe.refused.iter().any(|(name, _)| *name == s.name);
        let sees_sleeps = probe.tracepoints[0] && probe.tracepoints[1];
        let is_useless = plan.sites.iter().filter(|s| s.is_begin()).all(is_refused);
        if is_useless && !(plan.sites.is_empty() && sees_sleeps) {
            let (site, why) = probe.refused.first().cloned().unwrap_or_default();
            anyhow::bail!("no probe could be attached; the first, {site}: {why}");
        }
        Ok(probe)
    }

    fn attach_kind(
        &mut self,
        programs: &SitePrograms<'_, '_>,
        pid: i32,
        exe: &Path,
        plan: &Plan,
        wanted: impl Fn(&PlannedSite) -> bool,
    ) {
        let wanted: Vec<SiteAddress> = plan
            .sites
            .iter()
            .enumerate()
            .filter(|(_, s)| wanted(s))
            .map(|(i, s)| SiteAddress { file_offset: s.file_offset, cookie: i as u64 })
            .collect();
        let attached = attach_sites(programs, pid, exe, &wanted);
        self.links.extend(attached.links);
        for (cookie, why) in attached.refused {
            self.refused.push((plan.sites[cookie as usize].name.clone(), why));
        }
    }

    /// Wait functions of which some end was refused: their begins must not be attached, or their waits would
    /// seem to last until the thread's next one. Their begins are noted as refused too.
    fn functions_without_end(&mut self, plan: &Plan) -> HashSet<u8> {
        let refused = |s: &&PlannedSite| self.refused.iter().any(|(name, _)| *name == s.name);
        let functions: HashSet<u8> = plan.sites.iter().filter(refused).map(PlannedSite::function).collect();
        for begin in plan.sites.iter().filter(|s| s.is_begin() && functions.contains(&s.function())) {
            self.refused.push((begin.name.clone(), "its end could not be probed".to_owned()));
        }
        functions
    }

    pub(crate) fn maps(&self) -> Arc<Maps> {
        Arc::clone(&self.maps)
    }

    /// Takes all probes off the server. Links are closed side by side: each close waits for a grace period
    /// of the kernel.
    pub fn detach(&mut self) {
        std::thread::scope(|scope| {
            for link in self.links.drain(..) {
                scope.spawn(move || drop(link));
            }
        });
    }
}

impl Drop for LatchProbe {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Sets the constants that the programs are loaded with.
fn configure(open: &mut OpenLatchSkel<'_>, target: &Target, plan: &Plan) -> Result<()> {
    let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
    rodata.target_tgid = target.pid as u32;
    rodata.bucket_bounds = BUCKET_BOUNDS_NS;
    rodata.ip_register = u32::from(plan::ip_offset(target.image.arch()));
    if let Some(text) = target.image.section(".text") {
        rodata.text_begin = text.start + target.bias;
        rodata.text_end = text.end + target.bias;
    }
    if let Some(range) = &plan.static_data {
        rodata.static_begin = range.start + target.bias;
        rodata.static_end = range.end + target.bias;
    }
    let library = target.family.library;
    rodata.psi_offset = target.family.psi_from_latch().unwrap_or(0);
    rodata.psi_class_offset = library.class.to_class;
    rodata.psi_name_offset = library.class.to_name;
    let arch = target.image.arch();
    let registers = plan::library_registers(arch);
    (rodata.op_register, rodata.sp_register, rodata.link_register) = registers;
    let tracked = named(&target.image, library.tracked).next().and_then(|s| target.image.function_at(s.addr));
    if let Some(range) = tracked {
        rodata.tracked_begin = range.start + target.bias;
        rodata.tracked_end = range.end + target.bias;
        rodata.tracked_id_offset = tracked_id(arch);
    }
    for (into, place) in rodata.psi_places.iter_mut().zip(psi_places(arch)) {
        // The kinds' names begin with different letters.
        let kind = place.kind.as_str().as_bytes()[0];
        *into = types::psi_place { offset: place.offset, plain_wait: u8::from(place.plain_wait), kind, unused: 0 };
    }
    Ok(())
}

fn write_sites(map: &impl MapCore, plan: &Plan) -> Result<()> {
    for (index, site) in plan.sites.iter().enumerate() {
        // SAFETY: `site` is a plain C structure (see above), read as bytes for as long as it is borrowed.
        let bytes = unsafe { plain::as_bytes(&site.site) };
        map.update(&(index as u32).to_ne_bytes(), bytes, MapFlags::ANY).context("writing the probe sites")?;
    }
    Ok(())
}

//! Latch waits: which sites to probe in this server's code, and what they counted.

mod collect;
mod figures;
mod keeper;
mod library;
mod missed;
mod plan;
mod waiting;

pub use collect::{LatchCollector, LatchKey};
pub use figures::{CallsiteWaits, Figures, Handoffs, LatchWaits, Locality, PageWaits, Reacquires};
pub use library::rows_of as library_rows;
pub(super) use plan::{ip_offset, register_offset};
pub use plan::{plan, Allowed, Plan, PlannedFunction, PlannedProbe, PlannedSite, EVERY_ROUND};
pub use waiting::{Counted, WaitedFor};

use std::mem::MaybeUninit;
use std::sync::mpsc::{self, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;
use plain::Plain;

use self::keeper::{Command, Keeper, Status};
use super::{cost_ns, Measurement, Snapshot};
use crate::attach::{Budget, Costs};
use crate::bpf::latch::{types, LatchSkel, OpenLatchSkel};
use crate::catalog::{psi_places, tracked_id, Family};
use crate::host::Topology;
use crate::model::BUCKET_BOUNDS_NS;
use crate::names::Namer;
use crate::target::Target;

// SAFETY: these are plain C structures without pointers or padding that could hold an invalid value; any
// bytes of the right length are a valid value of each.
unsafe impl Plain for types::site {}
// SAFETY: as above.
unsafe impl Plain for types::latch_kinds {}
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
// SAFETY: as above.
unsafe impl Plain for types::attachment {}
// SAFETY: as above.
unsafe impl Plain for types::hits {}
// SAFETY: as above.
unsafe impl Plain for types::page_key {}
// SAFETY: as above.
unsafe impl Plain for types::page_waits {}
// SAFETY: as above.
unsafe impl Plain for types::handoff_key {}
// SAFETY: as above.
unsafe impl Plain for types::handoffs {}

/// The latch waits of one server. Dropping it detaches the probes.
pub struct Latches {
    plan: Arc<Plan>,
    probe: LatchProbe,
    collector: Arc<LatchCollector>,
}

/// The programs attached to one server, held by a separate thread. Dropping it detaches them.
struct LatchProbe {
    /// The names of the sites that the kernel refused, with the reason.
    refused: Vec<(String, String)>,
    /// Whether sleeps are measured, that is, whether both futex programs could be attached.
    sees_sleeps: bool,
    /// The domains between which handoffs are counted; `None` if they are not.
    topology: Option<Topology>,
    maps: Arc<Maps>,
    status: Arc<Status>,
    commands: Sender<Command>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// The maps that are read at each scrape. They outlive the loaded programs.
pub(crate) struct Maps {
    pub latches: MapHandle,
    pub callsites: MapHandle,
    pub pages: MapHandle,
    pub handoffs: MapHandle,
    pub hits: MapHandle,
    pub lost: MapHandle,
    pub attachments: MapHandle,
    /// Held while an entry of `attachments` is changed, which several threads do.
    attachment_change: Mutex<()>,
    pub threads: MapHandle,
}

impl Maps {
    fn of(skel: &LatchSkel<'_>) -> libbpf_rs::Result<Maps> {
        Ok(Maps {
            latches: MapHandle::try_from(&skel.maps.latches)?,
            callsites: MapHandle::try_from(&skel.maps.callsites)?,
            pages: MapHandle::try_from(&skel.maps.pages)?,
            handoffs: MapHandle::try_from(&skel.maps.handoffs)?,
            hits: MapHandle::try_from(&skel.maps.hits)?,
            lost: MapHandle::try_from(&skel.maps.lost)?,
            attachments: MapHandle::try_from(&skel.maps.attachments)?,
            attachment_change: Mutex::default(),
            threads: MapHandle::try_from(&skel.maps.threads)?,
        })
    }

    /// Changes what the programs know about a wait function's probes. If this fails, for which there is no known
    /// reason, waits may be counted under another cause of loss.
    fn update_attachment(&self, function: u8, change: impl FnOnce(&mut types::attachment)) {
        let _held = self.attachment_change.lock();
        let key = u32::from(function).to_ne_bytes();
        let Ok(Some(bytes)) = self.attachments.lookup(&key, MapFlags::ANY) else { return };
        let Ok(mut attachment) = plain::from_bytes::<types::attachment>(&bytes).copied() else { return };
        change(&mut attachment);
        // SAFETY: a plain C structure without padding, read as bytes.
        _ = self.attachments.update(&key, unsafe { plain::as_bytes(&attachment) }, MapFlags::ANY);
    }
}

impl Latches {
    /// Attaches the programs to `target` at the sites of `plan`. Handoffs between the domains of `topology` are counted, and `namer`
    /// names what is waited for.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded, or when no site at all could be attached.
    pub fn attach(target: &Arc<Target>, plan: &Arc<Plan>, namer: Namer, topology: Option<Topology>) -> Result<Latches> {
        let probe = LatchProbe::attach(target, plan, topology)?;
        let collector = Arc::new(LatchCollector::new(Arc::clone(target), namer, plan, &probe));
        Ok(Latches { plan: Arc::clone(plan), probe, collector })
    }

    /// Returns what names the waits, and which latches threads wait for at a moment.
    pub fn collector(&self) -> Arc<LatchCollector> {
        Arc::clone(&self.collector)
    }

    /// Keeps the probes within a budget from now on.
    pub fn keep_within(&self, budget: Budget) {
        self.probe.send(Command::Govern(budget));
    }

    pub(super) fn maps(&self) -> Arc<Maps> {
        self.probe.maps()
    }
}

impl Measurement for Latches {
    fn refused(&self) -> Vec<String> {
        let gaps = self.plan.gaps.iter().map(|(name, why)| format!("{name} is not measured: {why}"));
        let refused = self.probe.refused.iter().map(|(site, why)| format!("probe {site} was refused: {why}"));
        gaps.chain(self.plan.limits.iter().cloned()).chain(refused).collect()
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.collector.probes(Some(costs)).unwrap_or_default())
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.latch = self.collector.collect()?;
        snapshot.probes.extend(self.collector.probes(costs)?);
        snapshot.lost.extend(self.collector.lost()?);
        Ok(())
    }

    fn pause(&self) {
        let (off, are_off) = mpsc::channel();
        self.probe.send(Command::Pause(off));
        _ = are_off.recv();
    }

    fn resume(&self) {
        self.probe.send(Command::Resume);
    }

    fn detach(&self) {
        self.probe.detach();
    }
}

impl LatchProbe {
    /// Loads the programs and attaches them to `target` at the sites of `plan`. Handoffs between the domains of `topology` are counted.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded, or when no site at all could be attached.
    fn attach(target: &Arc<Target>, plan: &Arc<Plan>, topology: Option<Topology>) -> Result<LatchProbe> {
        let status = Arc::new(Status::default());
        let (commands, orders) = mpsc::channel();
        let (done, attached) = mpsc::channel();
        let (target, plan, shared) = (Arc::clone(target), Arc::clone(plan), Arc::clone(&status));
        let wanted = topology.clone();
        let keeper = std::thread::Builder::new().name("probes".to_owned()).spawn(move || {
            let mut storage = MaybeUninit::uninit();
            let attempt = Keeper::attach(&mut storage, target, plan, wanted.as_ref(), shared);
            match attempt {
                Ok((keeper, attached)) => {
                    _ = done.send(Ok(attached));
                    keeper.run(&orders);
                }
                Err(error) => _ = done.send(Err(error)),
            }
        })?;
        let attached = attached.recv().context("the thread that attaches probes has ended")??;
        Ok(LatchProbe {
            refused: attached.refused,
            sees_sleeps: attached.sees_sleeps,
            topology: topology.filter(|_| attached.sees_wakes),
            maps: attached.maps,
            status,
            commands,
            keeper: Mutex::new(Some(keeper)),
        })
    }

    fn send(&self, command: Command) {
        // If the thread has ended, nothing is attached.
        _ = self.commands.send(command);
    }

    fn maps(&self) -> Arc<Maps> {
        Arc::clone(&self.maps)
    }

    fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Detaches all probes from the server, and returns when they are detached.
    fn detach(&self) {
        self.send(Command::Detach);
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            _ = keeper.join();
        }
    }
}

impl Drop for LatchProbe {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Sets the constants with which the programs are loaded.
fn configure(open: &mut OpenLatchSkel<'_>, target: &Target, plan: &Plan, topology: Option<&Topology>) -> Result<()> {
    let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
    rodata.target_tgid = target.pid as u32;
    rodata.bucket_bounds = BUCKET_BOUNDS_NS;
    rodata.ip_register = u32::from(plan::ip_offset(target.image.arch()));
    if let Some(topology) = topology {
        rodata.has_places = 1;
        rodata.place_of_cpu.iter_mut().zip(&topology.of_cpu).for_each(|(into, domain)| *into = *domain);
    }
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
    let class = target.psi_class();
    (rodata.psi_class_offset, rodata.psi_name_offset) = (class.to_class, class.to_name);
    rodata.page_layout = page_layout(target.family);
    let arch = target.image.arch();
    let registers = plan::library_registers(arch);
    (rodata.op_register, rodata.sp_register, rodata.link_register) = registers;
    let functions = |names: &'static [&'static str]| {
        let symbols = names.iter().flat_map(|name| target.image.functions_named(name));
        symbols.filter_map(|s| target.image.function_at(s.addr))
    };
    if let Some(range) = functions(library.tracked).next() {
        rodata.tracked_begin = range.start + target.bias;
        rodata.tracked_end = range.end + target.bias;
        rodata.tracked_id_offset = tracked_id(arch);
    }
    for (into, place) in rodata.psi_places.iter_mut().zip(psi_places(arch, library)) {
        // The kinds' names begin with different letters.
        let kind = place.kind.as_str().as_bytes()[0];
        let (plain_wait, is_prlock) = (u8::from(place.plain_wait), u8::from(place.is_prlock));
        *into = types::psi_place { offset: place.offset, plain_wait, kind, is_prlock, unused: 0 };
    }
    for (into, range) in rodata.prlock_functions.iter_mut().zip(functions(library.prlock)) {
        *into = types::code_range { begin: range.start + target.bias, end: range.end + target.bias };
    }
    rodata.metadata_instance_offset = library.metadata_instance(arch);
    rodata.metadata_text_offset = library.metadata_lock.text;
    Ok(())
}

/// Returns what the programs need in order to recognize a page by its latch.
fn page_layout(family: &Family) -> types::page_layout {
    let Some(pages) = family.pages else { return types::page_layout::default() };
    let latch = &pages.latch;
    types::page_layout {
        space: latch.space,
        page_no: latch.page_no,
        frame: latch.frame,
        flag: latch.flag.unwrap_or(0),
        index_type: latch.index_type.unwrap_or(0),
        is_known: 1,
    }
}

/// Creates the entry for pages without an entry of their own, before the map can be full.
fn write_other_pages(map: &impl MapCore) -> Result<()> {
    let key = types::page_key { r#type: types::page_type::PAGE_OTHER.0 as u16, ..Default::default() };
    let waits = types::page_waits::default();
    // SAFETY: both are plain C structures (see above), read as bytes for as long as they are borrowed.
    let (key, waits) = unsafe { (plain::as_bytes(&key), plain::as_bytes(&waits)) };
    map.update(key, waits, MapFlags::ANY).context("preparing the map of pages")
}

/// Writes the planned sites and kinds to the maps. The sites depend on where the program lies in the process.
fn write_sites(map: &impl MapCore, plan: &Plan, bias: u64) -> Result<()> {
    for (index, site) in plan.sites.iter().enumerate() {
        let moved = |place| plan::moved(place, bias);
        let site = types::site { latch: moved(site.site.latch), file: moved(site.site.file), ..site.site };
        // SAFETY: `site` is a plain C structure (see above), read as bytes for as long as it is borrowed.
        let bytes = unsafe { plain::as_bytes(&site) };
        map.update(&(index as u32).to_ne_bytes(), bytes, MapFlags::ANY).context("writing the probe sites")?;
    }
    Ok(())
}

fn write_kinds(map: &impl MapCore, plan: &Plan) -> Result<()> {
    for (index, kinds) in (0u32..).zip(&plan.kinds) {
        // SAFETY: `kinds` is a plain C structure (see above), read as bytes for as long as it is borrowed.
        let bytes = unsafe { plain::as_bytes(kinds) };
        map.update(&index.to_ne_bytes(), bytes, MapFlags::ANY).context("writing the kinds of waits")?;
    }
    Ok(())
}

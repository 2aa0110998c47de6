//! What the programs are loaded with: constants, and maps that are filled before the first of them is attached.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};

use super::taken_out::other_pages;
use super::{holders, plan, pthread, Plan};
use crate::bpf::bytes_of;
use crate::bpf::latch::{types, LatchSkel, OpenLatchSkel};
use crate::catalog::{psi_pointers, tracked_id, Family};
use crate::discovery::prlock_kind;
use crate::host::Topology;
use crate::model::BUCKET_BOUNDS_NS;
use crate::server::Target;

/// Sets the constants with which the programs are loaded.
pub(super) fn configure(
    open: &mut OpenLatchSkel<'_>,
    target: &Target,
    plan: &Plan,
    topology: Option<&Topology>,
) -> Result<()> {
    let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
    rodata.target_tgid = target.pid as u32;
    rodata.bucket_bounds = BUCKET_BOUNDS_NS;
    rodata.ip_register = u32::from(plan::ip_offset(target.image.arch()));
    if let Some(topology) = topology {
        rodata.has_domains = 1;
        rodata.domain_of_cpu.iter_mut().zip(&topology.of_cpu).for_each(|(into, domain)| *into = *domain);
    }
    if let Some(text) = target.image.section(".text") {
        rodata.text_begin = text.start + target.bias;
        rodata.text_end = text.end + target.bias;
    }
    if let Some(range) = &plan.static_data {
        rodata.static_begin = range.start + target.bias;
        rodata.static_end = range.end + target.bias;
    }
    let library = target.family.pthread;
    rodata.psi_offset = target.family.psi_from_latch().unwrap_or(0);
    let class = target.psi_class();
    (rodata.psi_class_offset, rodata.psi_name_offset) = (class.to_class, class.to_name);
    rodata.page_layout = page_layout(target.family);
    let arch = target.image.arch();
    let registers = plan::library_registers(arch);
    (rodata.op_register, rodata.sp_register, rodata.link_register) = registers;
    let call = plan::futex_call(arch);
    (rodata.futex_nr, rodata.nr_register, rodata.word_register) = (call.nr, call.nr_register, call.word_register);
    rodata.yield_nr = call.yield_nr;
    rodata.descriptor_register = plan::descriptor_register(arch);
    rodata.registers_bytes = plan::registers_bytes(arch);
    for number in holders::io_calls() {
        rodata.io_calls[number] = 1;
    }
    let functions = |names: &'static [&'static str]| {
        let symbols = names.iter().flat_map(|name| target.image.functions_named(name));
        symbols.filter_map(|s| target.image.function_at(s.addr))
    };
    if let Some(range) = functions(library.tracked).next() {
        rodata.tracked_begin = range.start + target.bias;
        rodata.tracked_end = range.end + target.bias;
        rodata.tracked_id_offset = tracked_id(arch);
    }
    let pointers = psi_pointers(arch, library, prlock_kind(&target.image));
    for (into, pointer) in rodata.psi_pointers.iter_mut().zip(pointers) {
        // The kinds' names begin with different letters.
        let kind = pointer.kind.as_str().as_bytes()[0];
        let (plain_wait, is_prlock) = (u8::from(pointer.plain_wait), u8::from(pointer.is_prlock));
        *into = types::psi_pointer { offset: pointer.offset, plain_wait, kind, is_prlock, unused: 0 };
    }
    for (into, range) in rodata.prlock_functions.iter_mut().zip(functions(library.prlock)) {
        *into = types::code_range { begin: range.start + target.bias, end: range.end + target.bias };
    }
    rodata.metadata_instance_offset = library.metadata_instance(arch);
    rodata.metadata_text_offset = library.metadata_lock.text;
    set_own_entries(open, u32::try_from(libbpf_rs::num_possible_cpus()?)?, topology.is_some())
}

/// Makes room for the entries in which one CPU counts alone. Their keys with few waits have none.
fn set_own_entries(open: &mut OpenLatchSkel<'_>, cpus: u32, has_domains: bool) -> Result<()> {
    let entries = own_entries(cpus);
    open.maps.own_latches.set_max_entries(entries)?;
    open.maps.own_callsites.set_max_entries(entries)?;
    open.maps.own_pages.set_max_entries(entries)?;
    open.maps.own_handoffs.set_max_entries(if has_domains { entries } else { 1 })?;
    Ok(())
}

/// Returns how many entries of their own the CPUs have in each map.
fn own_entries(cpus: u32) -> u32 {
    // With more CPUs than this, they share more. It bounds the memory.
    const MOST_CPUS: u32 = 256;
    types::limit::OWN_ENTRIES.0 * cpus.min(MOST_CPUS)
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
    let waits = types::page_waits::default();
    map.update(bytes_of(&other_pages()), bytes_of(&waits), MapFlags::ANY).context("preparing the map of pages")
}

/// Writes the planned sites and kinds to the maps. The sites depend on where the program lies in the process.
fn write_sites(map: &impl MapCore, plan: &Plan, bias: u64) -> Result<()> {
    for (index, site) in plan.sites.iter().enumerate() {
        let moved = |location| plan::moved(location, bias);
        let site = types::site { latch: moved(site.site.latch), file: moved(site.site.file), ..site.site };
        map.update(&(index as u32).to_ne_bytes(), bytes_of(&site), MapFlags::ANY).context("writing the probe sites")?;
    }
    Ok(())
}

fn write_kinds(map: &impl MapCore, plan: &Plan) -> Result<()> {
    for (index, kinds) in (0u32..).zip(&plan.kinds) {
        map.update(&index.to_ne_bytes(), bytes_of(kinds), MapFlags::ANY).context("writing the kinds of waits")?;
    }
    Ok(())
}

/// Writes what the programs need before the first of them is attached.
pub(super) fn fill(skel: &LatchSkel<'_>, target: &Target, plan: &Plan) -> Result<()> {
    write_sites(&skel.maps.sites, plan, target.bias)?;
    write_kinds(&skel.maps.kinds, plan)?;
    write_other_pages(&skel.maps.pages)?;
    for (address, index) in plan.site_addresses(target.bias) {
        skel.maps.site_at.update(&address.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)?;
    }
    for address in &plan.wrapper_returns {
        let address = address + target.bias;
        // A missing entry only makes a call site less precise.
        _ = skel.maps.wrappers.update(&address.to_ne_bytes(), &[1], MapFlags::ANY);
    }
    for (address, row) in pthread::rows(target.pid) {
        skel.maps.library_frames.update(&address.to_ne_bytes(), bytes_of(&row), MapFlags::ANY)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use libbpf_rs::MapType;

    use super::*;
    use crate::bpf::latch::LatchSkelBuilder;
    use crate::measure::latch::statements::ROOM;

    /// Returns how many bytes a map takes, from the kernel's source (kernel/bpf/hashtab.c and arraymap.c).
    fn bytes(kind: MapType, key: u32, value: u32, entries: u32, cpus: u32) -> u64 {
        const ELEMENT: u64 = 48;
        const BUCKET: u64 = 16;
        let [key, value] = [key, value].map(|size| u64::from(size.next_multiple_of(8)));
        let (entries, cpus) = (u64::from(entries), u64::from(cpus));
        match kind {
            MapType::Hash | MapType::LruHash => {
                (entries + cpus) * (ELEMENT + key + value) + entries.next_power_of_two() * BUCKET
            }
            MapType::PercpuArray => entries * value * cpus,
            _ => entries * value,
        }
    }

    #[test]
    fn memory_is_bounded() {
        let all = |cpus: u32| {
            let mut storage = MaybeUninit::uninit();
            let mut open = LatchSkelBuilder::default().open(&mut storage).unwrap();
            set_own_entries(&mut open, cpus, true).unwrap();
            open.maps.waiting_statements.set_max_entries(ROOM).unwrap();
            let maps = open.open_object().maps();
            maps.map(|map| bytes(map.map_type(), map.key_size(), map.value_size(), map.max_entries(), cpus))
                .sum::<u64>()
        };
        let mib = [2, 256, 1024].map(|cpus| all(cpus) as f64 / f64::from(1 << 20));
        assert!(mib[0] < 16.0 && mib[1] < 48.0 && mib[2] < 64.0, "{mib:.1?} MiB");
    }
}

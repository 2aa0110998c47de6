//! Finds code with a known purpose by what it does or what calls it, where names do not show it, as in stripped
//! programs.

use std::collections::BTreeMap;

use super::code_map::Known;
use crate::analysis;
use crate::catalog::MEMORY_FUNCTIONS;
use crate::isa::decode;
use crate::measure::address_space::AddressSpace;
use crate::measure::checksum::Chosen;
use crate::measure::latch::Plan;
use crate::model::CpuClass;
use crate::server::Memory;

/// Returns all known code of a server; `plan` has its wait functions, `checksums` the implementations that it has
/// chosen.
pub(super) fn known_code(files: &mut AddressSpace, plan: &Plan, checksums: &[Chosen]) -> Vec<Known> {
    let bias = files.target.bias;
    let waits = plan.functions.iter().map(|function| Known {
        range: function.range.start + bias..function.range.end + bias,
        class: if function.has_loop { CpuClass::Spin } else { CpuClass::Latch },
        name: Some(function.label.clone()),
    });
    let checksums = checksums.iter();
    let checksums = checksums.map(|c| Known { range: c.range.clone(), class: CpuClass::Checksum, name: None });
    waits.chain(checksums).chain(memory_functions(files)).collect()
}

/// Returns the targets of the server's calls of `memcpy` and the like, as the dynamic linker has resolved them.
fn memory_functions(files: &mut AddressSpace) -> Vec<Known> {
    let memory = Memory::new(files.target.pid);
    let mut names: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (slot, import) in files.target.image.imports() {
        let Some(name) = MEMORY_FUNCTIONS.iter().find(|name| **name == import) else { continue };
        let Some(function) = memory.u64(slot.wrapping_add(files.target.bias)) else { continue };
        names.entry(function).or_default().push(name);
    }
    names.into_iter().filter_map(|(function, names)| memory_function(files, function, names)).collect()
}

/// Returns the function at this address of the process, which is called by these names.
fn memory_function(files: &mut AddressSpace, address: u64, mut names: Vec<&str>) -> Option<Known> {
    let (image, bias) = files.library(address)?;
    let linked = address.wrapping_sub(bias);
    let range = image.function_at(linked)?;
    // The library's own names say which variant it is.
    let own = image.symbol_at(linked).filter(|symbol| symbol.is_function && symbol.name.starts_with("__mem"));
    names.sort_unstable();
    names.dedup();
    let name = own.map_or_else(
        || match analysis::widest_registers(&decode(image, range.clone())) {
            Some(registers) => format!("{} ({registers})", names.join(", ")),
            None => names.join(", "),
        },
        |symbol| symbol.name.to_owned(),
    );
    let range = range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
    Some(Known { range, class: CpuClass::Memcpy, name: Some(name) })
}

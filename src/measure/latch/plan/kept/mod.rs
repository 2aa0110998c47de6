//! Plans that are kept on disk. What is read is compared with the program, and nothing in it may refer to what is not
//! there.

use std::ops::Range;

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use super::{plan, Allowed, Plan, PlannedFunction, PlannedSite, MAX_FUNCTIONS, MAX_PROBES, MAX_SITES};
use crate::bpf::latch::types;
use crate::catalog::Family;
use crate::kept::Cache;
use crate::symbols::Image;

/// The most bytes of an instruction.
const INSTRUCTION: usize = 16;

/// The name of the analysis.
const SITES: &str = "sites";

/// A plan as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// [`code`], when it was analysed.
    code: u32,
    plan: Plan,
}

/// Returns the plan for the server in `image`: the kept one, or else a new one, which is kept.
pub fn kept_plan(cache: &Cache, image: &Image, family: &Family, allowed: Allowed) -> Plan {
    let find = || Kept::new(plan(image, family, allowed), image);
    cache.get(image, (SITES, allowed), |kept: &Kept| kept.fits(image, family), find).plan
}

impl Kept {
    fn new(plan: Plan, image: &Image) -> Kept {
        Kept { code: code(&plan, image), plan }
    }

    /// Returns whether the plan fits the program.
    fn fits(&self, image: &Image, family: &Family) -> bool {
        is_sound(&self.plan, image, family) && self.code == code(&self.plan, image)
    }
}

/// Returns a checksum of the code at the sites and of the wait functions.
fn code(plan: &Plan, image: &Image) -> u32 {
    let mut sum = Hasher::new();
    let sites = plan.sites.iter().map(|site| (site.addr, INSTRUCTION));
    let functions = plan.functions.iter().map(|function| (function.range.start, length(&function.range)));
    for (address, bytes) in sites.chain(functions) {
        sum.update(image.bytes(address, bytes).unwrap_or_default());
    }
    sum.finalize()
}

fn length(range: &Range<u64>) -> usize {
    range.end.saturating_sub(range.start) as usize
}

/// Returns whether a plan refers only to what there is in the program, in the catalog and in the plan itself.
fn is_sound(plan: &Plan, image: &Image, family: &Family) -> bool {
    let functions = family.wait_functions.len().min(MAX_FUNCTIONS);
    let is_function = |index: u8| usize::from(index) < functions;
    let has_code = |f: &PlannedFunction| length(&f.range) > 0 && image.bytes(f.range.start, length(&f.range)).is_some();
    let is_site = |site: &PlannedSite| {
        image.file_offset(site.addr) == Some(site.file_offset)
            && is_function(site.function())
            && usize::from(site.site.probe) < plan.probes.len()
            && u32::from(site.site.role) <= types::role::ROLE_MAYBE_END.0
    };
    plan.sites.len() <= MAX_SITES
        && plan.probes.len() <= MAX_PROBES
        && plan.sites.iter().all(is_site)
        && has_all(plan.groups.iter().flatten(), plan.sites.len())
        && has_all(plan.probes.iter().flat_map(|probe| &probe.sites), plan.sites.len())
        && plan.functions.iter().all(|function| is_function(function.index) && has_code(function))
        && plan.inlined.iter().all(|&index| is_function(index))
        && plan.kinds.iter().all(|kinds| kinds.count as usize <= kinds.kinds.len())
        && plan.wrapper_returns.iter().all(|address| image.extent().contains(address))
        && plan.static_data == image.static_data()
}

/// Returns whether these are all numbers below `count`, each once.
fn has_all<'a>(numbers: impl Iterator<Item = &'a usize>, count: usize) -> bool {
    let mut numbers: Vec<usize> = numbers.copied().collect();
    numbers.sort_unstable();
    numbers.into_iter().eq(0..count)
}

/// Reads a file, and its contents as if the checksum were right, and checks what is read against a program. For
/// fuzzing, which finds neither checksums nor keys.
#[cfg(any(test, fuzzing))]
pub(crate) fn examine(file: &[u8], image: &Image, family: &Family) {
    use crate::kept::{in_any_file, in_file};
    for bytes in [file, &in_file(file)] {
        let Some(Kept { plan, .. }) = in_any_file(bytes) else { continue };
        let kept = Kept::new(plan, image);
        if !kept.fits(image, family) {
            continue;
        }
        let plan = kept.plan;
        _ = (plan.spins(), plan.wait_functions().count(), plan.site_addresses(1 << 40).count());
        (0..plan.groups.len()).for_each(|group| _ = plan.functions_of(group));
        plan.probes.iter().for_each(|probe| _ = plan.group_of(probe));
    }
}

#[cfg(test)]
mod tests;

//! Plans the sites of waits that the compiler inlined into the functions that take a latch.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::{constant, types, PlannedSite, Planner, Variant, EVERY_ROUND};
use crate::analysis::{self, EndKind, Inlined, InlinedCalls, Region};
use crate::catalog::{IdentityIn, Shape};

/// The most sites of this kind that are planned where sites are attached one by one, because detaching each takes a
/// tenth of a second.
const FEW_SITES: usize = 64;

impl Planner<'_> {
    /// Plans the waits that are inlined around calls of some of the wait functions. If that does not succeed for all
    /// calls, plans those functions themselves too.
    pub(super) fn add_inlined(&mut self, found: &[Variant]) {
        let callees: HashSet<u64> = found.iter().filter(|v| v.is_around()).map(|v| v.range.start).collect();
        if callees.is_empty() {
            return;
        }
        let callers = self.callers(&callees);
        for variant in found.iter().filter(|v| v.is_around()) {
            let ranges = callers.get(&variant.range.start).map_or(&[][..], Vec::as_slice);
            if !ranges.is_empty() {
                let is_own_too = |v: &Variant| !v.is_around() && v.range.start == variant.range.start;
                self.add_around(variant, ranges, found.iter().any(is_own_too));
            }
        }
        for variant in found.iter().filter(|v| matches!(v.function.shape, Shape::Rest)) {
            if self.resisting.contains(&variant.range.start) {
                self.add(variant);
            }
        }
    }

    /// Returns the functions that call each of `callees`, except the wait functions and the callees themselves.
    fn callers(&self, callees: &HashSet<u64>) -> BTreeMap<u64, Vec<Range<u64>>> {
        let mut callers: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for (call, callee) in analysis::direct_calls(self.image, callees) {
            let Some(range) = self.image.function_at(call) else { continue };
            let ranges = callers.entry(callee).or_default();
            let is_own = self.entries.contains(&range.start) || callees.contains(&range.start);
            if !is_own && !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        callers
    }

    /// Plans the waits around the calls of one function. `has_rest` says whether the function itself is probed for the
    /// remaining waits.
    fn add_around(&mut self, variant: &Variant, ranges: &[Range<u64>], has_rest: bool) {
        if let Err(why) = self.identify(variant) {
            return self.gap(&variant.label, why);
        }
        self.has_inlined = true;
        let found = analysis::inlined_waits(self.image, ranges, &self.inlined_calls(variant));
        let recognised: Vec<&Inlined> = found.iter().filter_map(|(_, wait)| wait.as_ref().ok()).collect();
        let fits = |wait: &&&Inlined| self.allowed.every_round || wait.region == Region::Closed;
        let costs_too_much = !recognised.iter().all(|wait| fits(&wait));
        let waits: Vec<Vec<PlannedSite>> =
            recognised.iter().filter(fits).filter_map(|wait| self.inlined_sites(variant, wait)).collect();
        let many: usize = waits.iter().map(Vec::len).sum();
        let is_too_many = !self.allowed.many_sites && many > FEW_SITES;
        let mut planned = 0;
        for sites in waits.into_iter().filter(|_| !is_too_many) {
            planned += usize::from(self.keep(sites).is_ok());
        }
        let all = found.len();
        if planned < all {
            self.resisting.insert(variant.range.start);
        }
        let others = match (planned < all, has_rest) {
            (false, _) => "",
            (true, true) => ", the others from where spinning is given up",
            (true, false) => ", the others not at all",
        };
        let why = match (is_too_many, costs_too_much) {
            (true, _) => ": this kernel would attach their probes one by one".to_owned(),
            (false, true) => format!(
                ": {} would be hit in every round of spinning, which requires --max-overhead {EVERY_ROUND:.0}% or more",
                recognised.len()
            ),
            (false, false) => String::new(),
        };
        self.limits.push(format!(
            "{}: of {all} inlined mutexes, {planned} are measured from the beginning of a wait{others}{why}",
            variant.label
        ));
    }

    fn inlined_calls(&self, variant: &Variant) -> InlinedCalls {
        let spin = match variant.function.shape {
            Shape::Inlined { spin } => self.addresses(spin),
            _ => HashSet::new(),
        };
        let of = &self.kinds[usize::from(variant.index)];
        let kinds = of.kinds.iter().take(of.count as usize);
        let (other, looked_at) = match variant.function.identity {
            IdentityIn::LookedAt { argument, .. } => {
                (Some(argument), kinds.map(|kind| i64::from(kind.id_offset)).collect())
            }
            _ => (None, Vec::new()),
        };
        let latch = variant.function.latch_argument;
        InlinedCalls { callee: variant.range.start, latch, other, spin, looked_at }
    }

    /// Plans the sites of one wait; `None` if one of them cannot be used.
    pub(super) fn inlined_sites(&self, variant: &Variant, wait: &Inlined) -> Option<Vec<PlannedSite>> {
        let mut base = self.site(variant, &wait.begin).ok()?;
        if let Some(offset) = wait.looked_at {
            base.kind = constant(offset as u64);
        }
        // The path back to the first attempt is part of every round of spinning, and no other place shows the end.
        let is_round = wait.region == Region::Retries;
        let may_probe = |site: &analysis::Site| (self.allowed.calls || !site.is_call) && (is_round || !site.per_round);
        if !may_probe(&wait.begin) || !wait.ends.iter().all(|end| may_probe(&end.site)) {
            return None;
        }
        let role = if wait.begin.repeats { types::role::ROLE_BEGIN_AGAIN } else { types::role::ROLE_BEGIN };
        let name = |what: &str, site: &analysis::Site| {
            let stepped = if site.emulated { "" } else { "_stepped" };
            format!("{what}{stepped}")
        };
        let begin = self.planned(variant, &name("begin", &wait.begin), &wait.begin, role, base).ok()?;
        let ends = wait.ends.iter().map(|end| {
            let what = if end.kind == EndKind::Maybe { "maybe_end" } else { "end" };
            let mut planned = self.end(variant, &name(what, &end.site), end, base).ok()?;
            planned.site.latch = self.site(variant, &end.site).map(|at| at.latch).unwrap_or_default();
            Some(planned)
        });
        std::iter::once(Some(begin)).chain(ends).collect()
    }
}

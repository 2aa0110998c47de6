//! Plans which sites to probe: the catalog's wait functions, found in this binary by analysis of its code.

mod inlined;
mod kept;
mod packed;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

#[cfg(any(test, fuzzing))]
pub(crate) use self::kept::examine;
pub use self::kept::kept_plan;
use crate::analysis::{self, Condition, EndKind, Location, Site, Slow, WaitSites};
use crate::attach::ProbeClass;
use crate::audit::spin_hint;
use crate::bpf::latch::types;
use crate::catalog::{
    Callsite, Family, Found, Function, FutexShape, IdentifiedBy, IdentityIn, Member, Shape, WaitFunction,
};
use crate::discovery::{find_wait_function, location_arguments, wrapper_returns, Layout};
use crate::isa::{decode, Flow, Test};
use crate::model::Mode;
use crate::symbols::{stack_pointer, Arch, Image};

/// The capacity of the programs' map of sites.
const MAX_SITES: usize = types::limit::MAX_SITES.0 as usize;
/// The number of probes whose hits the programs can count.
const MAX_PROBES: usize = types::limit::MAX_PROBES.0 as usize;
/// The capacity of the programs' map of wait functions.
pub(super) const MAX_FUNCTIONS: usize = types::limit::MAX_FUNCTIONS.0 as usize;

/// A wait function whose waits are not measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[error("{function} is not measured: {why}")]
pub struct Gap {
    /// The function's label in the catalog, or what is not measured.
    pub function: String,
    /// The reason.
    pub why: String,
}

/// What will be attached to a server, and what could not be planned.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    /// The sites to attach to.
    pub sites: Vec<PlannedSite>,
    /// The wait functions of this binary, including those that cannot be probed.
    pub functions: Vec<PlannedFunction>,
    /// Groups of sites that must be attached and detached together, by index in `sites`.
    pub groups: Vec<Vec<usize>>,
    /// Link-time return addresses in code that all latches share; for these, the actual caller is one frame further up.
    pub wrapper_returns: Vec<u64>,
    /// The link-time address range of the server's writable static data.
    pub static_data: Option<Range<u64>>,
    /// The wait functions that are missing from this binary or could not be analyzed.
    pub gaps: Vec<Gap>,
    /// What is measured only in part, one sentence each.
    pub limits: Vec<String>,
    /// The probes under which hits are counted, indexed by [`PlannedSite::probe`].
    pub probes: Vec<PlannedProbe>,
    /// Whether waits are inlined into code that takes latches, be they probed or not.
    pub(super) has_inlined: bool,
    /// The wait functions that are inlined, including their spinning, by index in the catalog.
    inlined: Vec<u8>,
    /// What each wait function's waits are for, by index in the catalog.
    #[serde(with = "packed::each")]
    pub(super) kinds: [types::latch_kinds; MAX_FUNCTIONS],
    /// What threads with a cell of the sync array wait for: the kinds by number, and all others.
    pub(super) cells: Cells,
}

/// The kinds of wait that cells of the sync array distinguish.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Cells {
    #[serde(with = "packed::each")]
    pub kinds: Vec<types::latch_kind>,
    #[serde(with = "packed::optional")]
    pub rest: Option<types::latch_kind>,
}

impl Cells {
    /// Returns what a kind of wait is for.
    pub fn kind(&self, number: u64) -> Option<types::latch_kind> {
        self.kinds.iter().find(|kind| u64::from(kind.number) == number).copied().or(self.rest)
    }
}

/// Sites that are counted together: one site of a wait function, or those of all inlined waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedProbe {
    /// The name, for example `mutex_enter_inline:begin`.
    pub name: String,
    /// The cost class of a hit.
    pub class: ProbeClass,
    /// Their indices in [`Plan::sites`].
    pub sites: Vec<usize>,
    pub(super) is_begin: bool,
}

/// A wait function.
#[derive(Serialize, Deserialize)]
pub struct PlannedFunction {
    /// A short and stable name.
    pub label: String,
    /// The link-time address range.
    pub range: Range<u64>,
    /// Whether it spins before it sleeps, itself or in a function that it calls.
    pub spins: bool,
    /// Whether it contains the spin loop itself.
    pub has_loop: bool,
    /// The index in the catalog.
    index: u8,
}

/// One probe site.
#[derive(Serialize, Deserialize)]
pub struct PlannedSite {
    /// The name, for example `mutex_enter_inline:begin`.
    pub name: String,
    /// The link-time address of the probed instruction, or of the function whose return is probed.
    pub addr: u64,
    /// The offset of `addr` in the file, in bytes.
    pub file_offset: u64,
    /// The disassembled instruction.
    pub instruction: String,
    /// Whether the kernel emulates the instruction rather than single-stepping it.
    pub emulated: bool,
    /// Whether the probe is on the function's return rather than on an instruction.
    pub at_return: bool,
    /// Sites with the same number are the beginnings and ends of the same waits; none is useful without the others.
    pub(super) wait: usize,
    #[serde(with = "packed")]
    pub(super) site: types::site,
}

impl PlannedSite {
    pub(super) fn is_begin(&self) -> bool {
        u32::from(self.site.role) <= types::role::ROLE_BEGIN_AGAIN.0
    }

    /// Returns the wait function that it belongs to, by index in the catalog.
    pub(super) fn function(&self) -> u8 {
        self.site.function
    }

    /// Returns the cost class of a hit of this site.
    pub fn class(&self) -> ProbeClass {
        match (self.at_return, self.emulated) {
            (true, _) => ProbeClass::Return,
            (false, true) => ProbeClass::Emulated,
            (false, false) => ProbeClass::Stepped,
        }
    }
}

impl Plan {
    /// Returns whether each wait function spins before it sleeps, by index in the catalog.
    pub(super) fn spins(&self) -> [bool; MAX_FUNCTIONS] {
        let mut spins = [false; MAX_FUNCTIONS];
        for function in self.functions.iter().filter(|function| function.spins) {
            spins[usize::from(function.index)] = true;
        }
        self.inlined.iter().for_each(|&index| spins[usize::from(index)] = true);
        spins
    }

    /// Returns the wait functions that have code of their own, by index in the catalog, with their link-time addresses.
    pub(super) fn wait_functions(&self) -> impl Iterator<Item = (u8, Range<u64>)> + '_ {
        self.functions.iter().map(|function| (function.index, function.range.clone()))
    }

    /// Returns the wait functions whose probes are in a group.
    pub(super) fn functions_of(&self, group: usize) -> HashSet<u8> {
        self.groups[group].iter().map(|&i| self.sites[i].function()).collect()
    }

    /// Returns the group that contains a probe's sites.
    pub(super) fn group_of(&self, probe: &PlannedProbe) -> usize {
        let first = probe.sites.first();
        self.groups.iter().position(|group| first.is_some_and(|site| group.contains(site))).unwrap_or_default()
    }

    /// Returns addresses in the process, with the index of the site at each.
    pub(super) fn site_addresses(&self, bias: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.sites.iter().enumerate().map(move |(i, s)| (s.addr + bias, i as u32))
    }
}

/// The share of the server's CPU time, in percent, from which on probes may be hit in every round of spinning. With a
/// smaller budget they would be off nearly all the time, and estimates of what they miss would be worthless.
pub const EVERY_ROUND: f64 = 20.0;

/// What may be used on a process, beyond probes on plain instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// Return probes, where no better end of a wait is found.
    pub uretprobes: bool,
    /// Probes on calls. On kernels that emulate a call without writing the shadow stack, a process that has one would
    /// fault when the function returns.
    pub calls: bool,
    /// Hundreds of sites, which are attached and detached at once.
    pub many_sites: bool,
    /// Sites of mutexes that run in every round of spinning.
    pub every_round: bool,
}

/// Plans the latch-wait probes for the server in `image`.
pub fn plan(image: &Image, family: &Family, allowed: Allowed) -> Plan {
    let found: Vec<Variant> = (0..).zip(family.wait_functions).flat_map(|(i, f)| variants(image, i, f)).collect();
    let mut planner = Planner {
        image,
        allowed,
        layout: Layout::of(image, family),
        system_calls: Slow {
            syscall: analysis::imported_calls(image, "syscall").into_iter().collect(),
            ..Default::default()
        },
        entries: found.iter().filter(|v| !v.is_inlined()).map(|v| v.range.start).collect(),
        resisting: HashSet::new(),
        taken: Taken::default(),
        has_inlined: false,
        sites: Vec::new(),
        waits: 0,
        gaps: Vec::new(),
        limits: Vec::new(),
        kinds: [types::latch_kinds::default(); MAX_FUNCTIONS],
    };
    for function in family.wait_functions.iter().filter(|f| matches!(f.found, Found::Futex(..))) {
        if !found.iter().any(|v| std::ptr::eq(v.function, function)) {
            planner.gap(function.label, "this build has no separate function for it");
        }
    }
    for variant in found.iter().filter(|v| !v.is_inlined()) {
        planner.add(variant);
    }
    planner.add_inlined(&found);
    if family.wait_functions.is_empty() {
        planner.gap(
            "InnoDB's latches by name",
            "armtrace knows no function for them in this build; all sleeps on InnoDB's events (for latches and row locks, and of idle \
             threads) are in armtrace_cond_wait_seconds, latch unnamed:os_event",
        );
    }
    let cells = planner.cells(family);
    let planned: HashSet<u8> = planner.sites.iter().map(PlannedSite::function).collect();
    let active: Vec<&Variant> = found.iter().filter(|v| planned.contains(&v.index)).collect();
    let groups = groups(&planner.sites, &nesting(image, &active));
    let probes = probes(&mut planner.sites);
    Plan {
        functions: found.iter().filter(|v| !v.is_inlined()).map(|v| v.planned(image)).collect(),
        has_inlined: planner.has_inlined,
        inlined: active.iter().filter(|v| v.is_around()).map(|v| v.index).collect(),
        groups,
        sites: planner.sites,
        gaps: planner.gaps,
        limits: planner.limits,
        probes,
        kinds: planner.kinds,
        cells,
        wrapper_returns: wrapper_returns(image, family),
        static_data: image.static_data(),
    }
}

/// Assigns the sites to the probes under which their hits are counted: sites of the same name share one.
fn probes(sites: &mut [PlannedSite]) -> Vec<PlannedProbe> {
    let mut probes: Vec<PlannedProbe> = Vec::new();
    for (i, site) in sites.iter_mut().enumerate() {
        let known = probes.iter().position(|p| p.name == site.name);
        // There are a few probes per wait function. Any beyond the limit are counted under the last.
        let full = (probes.len() == MAX_PROBES).then_some(MAX_PROBES - 1);
        let probe = known.or(full).unwrap_or_else(|| {
            let (name, class, is_begin) = (site.name.clone(), site.class(), site.is_begin());
            probes.push(PlannedProbe { name, class, sites: Vec::new(), is_begin });
            probes.len() - 1
        });
        probes[probe].sites.push(i);
        site.site.probe = probe as u16;
    }
    probes
}

/// A wait function in this binary.
struct Variant {
    function: &'static WaitFunction,
    /// The index in the catalog.
    index: u8,
    /// The function's label, with a number if the binary has several of it.
    label: String,
    range: Range<u64>,
}

impl Variant {
    /// Returns whether its waits begin in the functions that call it.
    fn is_around(&self) -> bool {
        matches!(self.function.shape, Shape::Inlined { .. })
    }

    /// Returns whether its waits begin in the functions that call it, or may do so.
    fn is_inlined(&self) -> bool {
        matches!(self.function.shape, Shape::Inlined { .. } | Shape::Rest)
    }

    fn planned(&self, image: &Image) -> PlannedFunction {
        let has_loop = matches!(self.function.found, Found::Futex(_, FutexShape { spins: true, .. }));
        let spins = has_loop || spin_hint(image, self.range.clone()).is_some();
        PlannedFunction { label: self.label.clone(), range: self.range.clone(), spins, has_loop, index: self.index }
    }
}

fn variants(image: &Image, index: u8, function: &'static WaitFunction) -> Vec<Variant> {
    let label = |n: usize| if n == 0 { function.label.to_owned() } else { format!("{}_{}", function.label, n + 1) };
    let found = find_wait_function(image, function).into_iter().enumerate();
    found.map(|(n, range)| Variant { function, index, label: label(n), range }).collect()
}

/// Returns, for each wait function, the lowest of those that it is nested with, directly or through others. Nested
/// functions call one another, so their waits are parts of each other.
fn nesting(image: &Image, found: &[&Variant]) -> [u8; MAX_FUNCTIONS] {
    let mut lowest: [u8; MAX_FUNCTIONS] = std::array::from_fn(|i| i as u8);
    let mut nest = |caller: &Variant, callee: u64| {
        let Some(callee) = found.iter().find(|v| !v.is_around() && v.range.start == callee) else { return };
        let (a, b) = (lowest[usize::from(caller.index)], lowest[usize::from(callee.index)]);
        lowest.iter_mut().filter(|l| **l == a.max(b)).for_each(|l| *l = a.min(b));
    };
    for caller in found {
        if caller.is_around() {
            nest(caller, caller.range.start);
            continue;
        }
        for insn in decode(image, caller.range.clone()) {
            if let Flow::Call(Some(to)) | Flow::Jump(to) = insn.flow {
                nest(caller, to);
            }
        }
    }
    lowest
}

fn groups(sites: &[PlannedSite], lowest: &[u8; MAX_FUNCTIONS]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
    for (i, site) in sites.iter().enumerate() {
        groups.entry(lowest[usize::from(site.function())]).or_default().push(i);
    }
    groups.into_values().collect()
}

/// The addresses of sites: of instructions, and of functions whose return is probed. Kernels without attach cookies
/// identify sites by address alone, so no two sites may share one. The first of two waits gets it.
#[derive(Default)]
struct Taken(HashSet<(u64, bool)>);

impl Taken {
    /// Takes the addresses of a wait's sites: all of them, or none if another site has one of them.
    fn take(&mut self, sites: &[PlannedSite]) -> bool {
        let wanted: HashSet<(u64, bool)> = sites.iter().map(|site| (site.addr, site.at_return)).collect();
        let is_free = wanted.len() == sites.len() && wanted.is_disjoint(&self.0);
        if is_free {
            self.0.extend(wanted);
        }
        is_free
    }
}

struct Planner<'a> {
    image: &'a Image,
    allowed: Allowed,
    layout: Layout,
    /// The stubs of the C library's `syscall`, through which futexes are called.
    system_calls: Slow,
    /// The entries of the wait functions.
    entries: HashSet<u64>,
    /// The functions that are called from inlined waits that could not be used.
    resisting: HashSet<u64>,
    taken: Taken,
    has_inlined: bool,
    sites: Vec<PlannedSite>,
    /// The number of waits that have been planned.
    waits: usize,
    gaps: Vec<Gap>,
    limits: Vec<String>,
    kinds: [types::latch_kinds; MAX_FUNCTIONS],
}

impl Planner<'_> {
    fn add(&mut self, variant: &Variant) {
        let planned = self.identify(variant).and_then(|()| self.plan_function(variant));
        match planned {
            Ok(sites) => {
                if let Err(why) = self.keep(sites) {
                    self.gap(&variant.label, why);
                }
            }
            Err(_) if self.waits_elsewhere(variant) => {}
            Err(why) => self.gap(&variant.label, why),
        }
    }

    /// Adds the sites of a wait, all or none.
    fn keep(&mut self, sites: Vec<PlannedSite>) -> Result<(), &'static str> {
        if self.sites.len() + sites.len() > MAX_SITES {
            return Err("this build has more probe sites than armtrace supports");
        }
        if !self.taken.take(&sites) {
            return Err("one of its instructions is already probed for another wait");
        }
        let wait = self.waits;
        self.waits += 1;
        self.sites.extend(sites.into_iter().map(|site| PlannedSite { wait, ..site }));
        Ok(())
    }

    /// Records what the waits of a function are for.
    fn identify(&mut self, variant: &Variant) -> Result<(), &'static str> {
        let function = variant.function;
        let read = |mode, identity| self.latch_kind(mode, identity);
        let kinds: Vec<types::latch_kind> = match function.identity {
            IdentityIn::ByKind { kinds, .. } => {
                let known = kinds.iter().filter_map(|kind| Some((kind, read(kind.mode, kind.identity)?)));
                known.map(|(kind, read)| types::latch_kind { number: kind.number, ..read }).collect()
            }
            IdentityIn::Always(identity) => read(function.mode, identity).into_iter().collect(),
            IdentityIn::LookedAt { ids, .. } => {
                let known = ids.iter().filter_map(|id| read(function.mode, *id));
                known.map(|read| types::latch_kind { number: read.id_offset, ..read }).collect()
            }
        };
        if kinds.is_empty() {
            return Err("this build's code does not show how its latches are identified");
        }
        let of = &mut self.kinds[usize::from(variant.index)];
        if kinds.len() > of.kinds.len() {
            return Err("it waits for more kinds of latches than armtrace can distinguish");
        }
        of.count = kinds.len() as u32;
        of.kinds.iter_mut().zip(kinds).for_each(|(into, kind)| *into = kind);
        Ok(())
    }

    /// Returns what cells of the sync array are for, as far as this build shows how the latches are identified.
    fn cells(&self, family: &Family) -> Cells {
        let Some(cells) = family.cells else { return Cells::default() };
        let known = cells.kinds.iter().filter_map(|kind| {
            Some(types::latch_kind { number: kind.number, ..self.latch_kind(kind.mode, kind.identity)? })
        });
        Cells { kinds: known.collect(), rest: self.latch_kind(Mode::None, cells.rest) }
    }

    /// Returns whether the function leaves the waiting to others: to a wait function, which is probed itself, or
    /// entirely, as each layer of a template does in a debug build.
    fn waits_elsewhere(&self, variant: &Variant) -> bool {
        let Some(function) = analysis::Function::new(self.image, variant.range.clone()) else { return false };
        let calls = |to: &HashSet<u64>| {
            function.insns().iter().any(|i| matches!(i.flow, Flow::Call(Some(at)) | Flow::Jump(at) if to.contains(&at)))
        };
        match variant.function.shape {
            _ if calls(&self.entries) => true,
            Shape::Contended { spin, sleep } => !calls(&self.addresses(spin)) && !calls(&self.addresses(sleep)),
            Shape::Whole | Shape::Until { .. } | Shape::Inlined { .. } | Shape::Rest => false,
        }
    }

    /// Returns the entries of the functions with these names.
    fn addresses(&self, names: &[Function]) -> HashSet<u64> {
        names.iter().flat_map(|name| self.image.functions_named(name)).map(|s| s.addr).collect()
    }

    fn gap(&mut self, label: &str, why: &str) {
        self.gaps.push(Gap { function: label.to_owned(), why: why.to_owned() });
    }

    fn plan_function(&self, variant: &Variant) -> Result<Vec<PlannedSite>, &'static str> {
        let function = variant.function;
        let Some(found) = self.analyse(function, variant.range.clone()) else {
            return self.plan_loops(variant).ok_or("its contended part was not recognized");
        };
        let base = self.site(variant, &found.begin)?;
        let mut sites = Vec::new();
        for (n, begin) in std::iter::once(&found.begin).chain(&found.begins).enumerate() {
            sites.push(self.begin(variant, &numbered("begin", n), begin)?);
        }
        if let Shape::Until { end } = function.shape {
            sites.push(self.until(variant, end, base)?);
            return Ok(sites);
        }
        let usable: Vec<_> =
            found.ends.iter().filter(|e| !e.site.per_round && (self.allowed.calls || !e.site.is_call)).collect();
        let complete = !usable.is_empty() && usable.len() == found.ends.len();
        if complete {
            for (n, end) in usable.iter().enumerate() {
                sites.push(self.end(variant, &numbered("end", n), end, base)?);
            }
        } else if self.allowed.uretprobes && matches!(function.shape, Shape::Whole | Shape::Rest) {
            sites.push(self.at_return(variant, base)?);
        }
        if sites.iter().all(PlannedSite::is_begin) {
            return Err("not all ends of its waits can be probed");
        }
        Ok(sites)
    }

    /// Plans a function that waits in several loops.
    fn plan_loops(&self, variant: &Variant) -> Option<Vec<PlannedSite>> {
        let Shape::Contended { spin, sleep } = variant.function.shape else { return None };
        let function = analysis::Function::new(self.image, variant.range.clone())?;
        let mut sites = Vec::new();
        for wait in analysis::wait_loops(&function, &self.addresses(sleep), &self.addresses(spin))? {
            sites.extend(self.inlined_sites(variant, &wait)?);
        }
        Some(sites)
    }

    fn analyse(&self, function: &WaitFunction, range: Range<u64>) -> Option<WaitSites> {
        match function.shape {
            Shape::Inlined { .. } => None,
            Shape::Whole | Shape::Until { .. } | Shape::Rest => {
                analysis::whole_function(self.image, range, &self.system_calls)
            }
            Shape::Contended { spin, sleep } => {
                let slow = Slow { spin: self.addresses(spin), sleep: self.addresses(sleep), ..Default::default() };
                analysis::contended(self.image, range, &slow)
            }
        }
    }

    /// Plans one of the sites at which its waits begin.
    fn begin(&self, variant: &Variant, name: &str, begin: &Site) -> Result<PlannedSite, &'static str> {
        if begin.per_round {
            return Err("the beginning of its waits cannot be distinguished from a round of spinning");
        }
        if begin.is_call && !self.allowed.calls {
            return Err("its waits begin at a call, which must not be probed in a process with a shadow stack");
        }
        let role = if begin.repeats { types::role::ROLE_BEGIN_AGAIN } else { types::role::ROLE_BEGIN };
        self.planned(variant, name, begin, role, self.site(variant, begin)?)
    }

    /// Returns what the program needs to know at this site, except for the role.
    fn site(&self, variant: &Variant, at: &Site) -> Result<types::site, &'static str> {
        let (arch, function) = (self.image.arch(), variant.function);
        let argument = |n: usize| at.args.get(n).copied().flatten().map(|p| location(arch, p));
        let latch = argument(function.latch_argument).ok_or("the latch's address is not known there")?;
        let mut site = types::site { function: variant.index, latch, ..Default::default() };
        match (function.callsite, location_arguments(self.image, function, variant.range.start)) {
            (Callsite::FileLine, Some([file, line])) => {
                site.file = argument(file).unwrap_or_default();
                site.line = argument(line).unwrap_or_default();
            }
            _ => {
                site.caller = at.return_address.map(|p| location(arch, p)).unwrap_or_default();
                site.frame = location(arch, Location::Register { register: frame_pointer(arch), bytes: 8 });
            }
        }
        if let IdentityIn::ByKind { argument: number, .. } = function.identity {
            site.kind = argument(number).ok_or("the kind of wait is not known there")?;
        }
        Ok(site)
    }

    /// Returns what the program reads in a latch of this kind; `None` if this build does not show where that is.
    fn latch_kind(&self, mode: Mode, identity: IdentifiedBy) -> Option<types::latch_kind> {
        let kind = types::latch_kind { mode: mode_code(mode), ..Default::default() };
        let kept = |member: &Member| self.layout.kept(member);
        let offset = |member: &Member| u16::try_from(kept(member)?.offset).ok();
        let (identity, kind) = match identity {
            IdentifiedBy::LatchId(id) => {
                (types::identity::IDENTITY_LATCH_ID, types::latch_kind { id_offset: offset(id)?, ..kind })
            }
            IdentifiedBy::Created { file, line } => {
                let (id_offset, line_offset, line_mask) = (offset(file)?, offset(line)?, kept(line)?.mask);
                let kind = types::latch_kind { id_offset, line_offset, line_mask, ..kind };
                (types::identity::IDENTITY_CREATED, kind)
            }
            IdentifiedBy::Word => (types::identity::IDENTITY_WORD, kind),
        };
        Some(types::latch_kind { identity: identity.0 as u8, ..kind })
    }

    fn end(
        &self,
        variant: &Variant,
        name: &str,
        end: &analysis::EndSite,
        base: types::site,
    ) -> Result<PlannedSite, &'static str> {
        let role = match end.kind {
            EndKind::Maybe => types::role::ROLE_MAYBE_END,
            EndKind::Final => types::role::ROLE_END,
        };
        let condition = end.when.map(|c| encode_condition(self.image.arch(), &c)).unwrap_or_default();
        // The latch's location at the beginning does not apply here.
        let latch = types::location::default();
        self.planned(variant, name, &end.site, role, types::site { condition, latch, ..base })
    }

    /// Plans the end of a wait at the entry of another function.
    fn until(&self, variant: &Variant, end: Function, base: types::site) -> Result<PlannedSite, &'static str> {
        let entry = self.image.functions_named(end).next().and_then(|s| self.image.function_at(s.addr));
        let found = entry.and_then(|range| analysis::whole_function(self.image, range, &self.system_calls));
        let found = found.ok_or("the function that ends its waits was not found")?;
        let base = types::site { latch: types::location::default(), ..base };
        self.planned(variant, "end", &found.begin, types::role::ROLE_END, base)
    }

    fn planned(
        &self,
        variant: &Variant,
        name: &str,
        at: &Site,
        role: types::role,
        site: types::site,
    ) -> Result<PlannedSite, &'static str> {
        Ok(PlannedSite {
            name: format!("{}:{name}", variant.label),
            addr: at.addr,
            file_offset: self.image.file_offset(at.addr).ok_or("its code is not in the file")?,
            instruction: at.text.clone(),
            emulated: at.emulated,
            at_return: false,
            wait: 0,
            site: types::site { role: role.0 as u8, ..site },
        })
    }

    fn at_return(&self, variant: &Variant, base: types::site) -> Result<PlannedSite, &'static str> {
        let entry = variant.range.start;
        Ok(PlannedSite {
            name: format!("{}:return", variant.label),
            addr: entry,
            file_offset: self.image.file_offset(entry).ok_or("its code is not in the file")?,
            instruction: "(return)".to_owned(),
            emulated: true,
            at_return: true,
            wait: 0,
            site: types::site { role: types::role::ROLE_END.0 as u8, latch: types::location::default(), ..base },
        })
    }
}

/// Returns `begin`, `begin2`, `begin3`, and so on.
fn numbered(what: &str, n: usize) -> String {
    if n == 0 {
        what.to_owned()
    } else {
        format!("{what}{}", n + 1)
    }
}

/// Returns the number that represents a mode in the kernel.
pub(super) fn mode_code(mode: Mode) -> u8 {
    let code = match mode {
        Mode::None => types::mode::MODE_NONE,
        Mode::S => types::mode::MODE_S,
        Mode::Sx => types::mode::MODE_SX,
        Mode::X => types::mode::MODE_X,
    };
    code.0 as u8
}

/// Returns the offset of register `number` in the registers that the kernel saves at a probe: `struct pt_regs` on
/// x86_64, `struct user_pt_regs` on aarch64, both part of the kernel's user-space interface.
pub(in crate::measure) fn register_offset(arch: Arch, number: u8) -> u16 {
    /// In the order rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    const X86_64: [u16; 16] = [80, 88, 96, 40, 152, 32, 104, 112, 72, 64, 56, 48, 24, 16, 8, 0];
    match arch {
        Arch::X86_64 => X86_64[usize::from(number & 15)],
        Arch::Aarch64 => u16::from(number & 31) * 8,
    }
}

/// Returns the offset of the flags: `eflags` on x86_64, `pstate` on aarch64.
fn flags_offset(arch: Arch) -> u16 {
    match arch {
        Arch::X86_64 => 144,
        Arch::Aarch64 => 264,
    }
}

/// Returns the offset of the instruction pointer: `ip` on x86_64, `pc` on aarch64.
pub(in crate::measure) fn ip_offset(arch: Arch) -> u16 {
    match arch {
        Arch::X86_64 => 128,
        Arch::Aarch64 => 256,
    }
}

/// Returns the offsets of a system call's second argument, of the stack pointer and, on aarch64, of the link register.
/// x86_64 has no link register; the offset returned for it is never read.
/// The system call in which threads sleep, as the programs recognize it in a thread's saved registers.
pub(super) struct FutexCall {
    /// Its number, and that of `sched_yield`.
    pub nr: u32,
    pub yield_nr: u32,
    /// The byte offsets of the number and of the first argument.
    pub nr_register: u32,
    pub word_register: u32,
}

pub(super) fn futex_call(arch: Arch) -> FutexCall {
    match arch {
        // `orig_ax` follows the general registers and the instruction pointer's predecessor.
        Arch::X86_64 => {
            FutexCall { nr: 202, yield_nr: 24, nr_register: 15 * 8, word_register: register_offset(arch, 7).into() }
        }
        // `orig_x0` and `syscallno` follow the 31 registers, the stack pointer, the instruction pointer and the state.
        Arch::Aarch64 => {
            FutexCall { nr: 98, yield_nr: 124, nr_register: 35 * 8, word_register: register_offset(arch, 0).into() }
        }
    }
}

/// Returns the byte offset of a system call's first argument, which stays there after the call too.
pub(in crate::measure) fn descriptor_register(arch: Arch) -> u32 {
    match arch {
        Arch::X86_64 => register_offset(arch, 7).into(),
        // `orig_x0`: the register itself gets the result.
        Arch::Aarch64 => 34 * 8,
    }
}

pub(super) fn library_registers(arch: Arch) -> (u32, u32, u32) {
    let (op, sp, link) = match arch {
        Arch::X86_64 => (register_offset(arch, 6), register_offset(arch, 4), 0),
        Arch::Aarch64 => (register_offset(arch, 1), register_offset(arch, 31), register_offset(arch, 30)),
    };
    (op.into(), sp.into(), link.into())
}

/// Returns how many bytes of the saved registers hold the general registers and the instruction pointer.
pub(super) fn registers_bytes(arch: Arch) -> u32 {
    let stack_pointer = register_offset(arch, stack_pointer(arch));
    u32::from(stack_pointer.max(ip_offset(arch))) + 8
}

fn frame_pointer(arch: Arch) -> u8 {
    match arch {
        Arch::X86_64 => 5,
        Arch::Aarch64 => 29,
    }
}

/// Returns in the programs' terms where a value is.
pub(in crate::measure) fn location(arch: Arch, place: Location) -> types::location {
    let at = |register, kind: u32, displacement| types::location {
        reg: register_offset(arch, register),
        kind: kind as u16,
        displacement,
    };
    match place {
        Location::Register { register, .. } => at(register, types::location_kind::LOCATION_SUM.0, 0),
        Location::Sum { register, offset } => at(register, types::location_kind::LOCATION_SUM.0, offset),
        Location::Constant(value) => constant(value),
        // The kinds of values in memory are their sizes.
        Location::Stack { base, offset, bytes } => at(base, bytes.into(), offset),
    }
}

/// The kind of location of a value that is known.
const CONSTANT: u16 = types::location_kind::LOCATION_CONSTANT.0 as u16;

/// Addresses of programs have at most 48 bits.
fn constant(value: u64) -> types::location {
    types::location { reg: (value >> 32) as u16, kind: CONSTANT, displacement: value as i32 }
}

/// Returns the location of an address in a process whose program is loaded `bias` bytes higher.
pub(super) fn moved(location: types::location, bias: u64) -> types::location {
    match location.kind {
        CONSTANT => {
            let linked = u64::from(location.reg) << 32 | u64::from(location.displacement as u32);
            constant(linked.wrapping_add(bias))
        }
        _ => location,
    }
}

fn encode_condition(arch: Arch, condition: &Condition) -> types::condition {
    use types::condition_kind as kinds;
    let (kind, code, wide, reg) = match (condition.test, arch) {
        (Test::Flags(code), Arch::X86_64) => (kinds::CONDITION_X86, code, false, flags_offset(arch)),
        (Test::Flags(code), Arch::Aarch64) => (kinds::CONDITION_A64, code, false, flags_offset(arch)),
        (Test::Zero { register, bits }, _) => (kinds::CONDITION_ZERO, 0, bits == 64, register_offset(arch, register)),
        (Test::Bit { register, bit }, _) => (kinds::CONDITION_BIT_SET, bit, true, register_offset(arch, register)),
    };
    types::condition {
        kind: kind.0 as u8,
        code,
        ends_when: u8::from(condition.holds),
        wide: u8::from(wide),
        reg: u32::from(reg),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(addresses: &[(u64, bool)]) -> Vec<PlannedSite> {
        let site = |&(addr, at_return)| PlannedSite {
            name: String::new(),
            addr,
            file_offset: addr,
            instruction: String::new(),
            emulated: true,
            at_return,
            wait: 0,
            site: types::site::default(),
        };
        addresses.iter().map(site).collect()
    }

    #[test]
    fn an_address_is_one_sites_only() {
        let mut taken = Taken::default();
        assert!(taken.take(&sites(&[(0x1000, false), (0x1010, false)])));
        assert!(!taken.take(&sites(&[(0x2000, false), (0x1010, false)])), "another wait's");
        assert!(!taken.take(&sites(&[(0x3000, false), (0x3000, false)])), "twice in one wait");
        assert!(taken.take(&sites(&[(0x1000, true), (0x2000, false)])), "a return, and what was refused before");
    }

    fn fields(location: types::location) -> (u16, u32, i32) {
        (location.reg, location.kind.into(), location.displacement)
    }

    #[test]
    fn values_are_found_in_the_registers_that_the_kernel_saves() {
        let sum = types::location_kind::LOCATION_SUM.0;
        let stack = location(Arch::X86_64, Location::Stack { base: 5, offset: -0x20, bytes: 8 });
        assert_eq!(fields(stack), (32, 8, -0x20));
        let register = location(Arch::Aarch64, Location::Register { register: 19, bytes: 8 });
        assert_eq!(fields(register), (19 * 8, sum, 0));
        assert_eq!(fields(location(Arch::X86_64, Location::Sum { register: 7, offset: 0x40 })), (112, sum, 0x40));
    }

    #[test]
    fn an_address_moves_with_its_program() {
        let linked = location(Arch::X86_64, Location::Constant(0x1234_5678_9abc));
        assert_eq!(fields(moved(linked, 0x1_0000_1000)), fields(constant(0x1235_5678_aabc)));
        let register = location(Arch::X86_64, Location::Sum { register: 0, offset: 8 });
        assert_eq!(fields(moved(register, 0x1_0000_1000)), fields(register));
    }

    #[test]
    fn conditions_say_what_is_tested_where() {
        use types::condition_kind as kinds;
        let encoded = |arch, test, holds| {
            let condition = encode_condition(arch, &Condition { test, holds });
            (u32::from(condition.kind), condition.code, condition.ends_when, condition.wide, condition.reg)
        };
        assert_eq!(encoded(Arch::X86_64, Test::Flags(4), true), (kinds::CONDITION_X86.0, 4, 1, 0, 144));
        assert_eq!(encoded(Arch::Aarch64, Test::Flags(1), false), (kinds::CONDITION_A64.0, 1, 0, 0, 264));
        let zero = |bits| Test::Zero { register: 3, bits };
        assert_eq!(encoded(Arch::Aarch64, zero(64), true), (kinds::CONDITION_ZERO.0, 0, 1, 1, 24));
        assert_eq!(encoded(Arch::Aarch64, zero(32), true), (kinds::CONDITION_ZERO.0, 0, 1, 0, 24));
        let bit = Test::Bit { register: 2, bit: 7 };
        assert_eq!(encoded(Arch::Aarch64, bit, false), (kinds::CONDITION_BIT_SET.0, 7, 0, 1, 16));
    }
}

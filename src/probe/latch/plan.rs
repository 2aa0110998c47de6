//! Which sites to probe: the catalog's wait functions, found in this binary by analysis of its code.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::attach::ProbeClass;
use crate::audit::spin_hint;
use crate::bpf::latch::types;
use crate::catalog::{named, Callsite, Family, Found, FutexShape, Identity, IdentityIn, Shape, WaitFunction};
use crate::code::{self, Condition, EndKind, Flow, Insn, Place, Site, Slow, Test, WaitSites};
use crate::model::Mode;
use crate::symbols::{Arch, Image};

/// As many sites as the programs' map holds (`MAX_SITES` in `bpf/latch.h`).
const MAX_SITES: usize = types::tracepoint::HIT_FUTEX_ENTER.0 as usize;
/// As many wait functions as the programs' map holds.
pub(super) const MAX_FUNCTIONS: usize = types::limit::MAX_FUNCTIONS.0 as usize;

/// What will be attached to a server, and what could not be planned.
pub struct Plan {
    pub sites: Vec<PlannedSite>,
    /// The wait functions of this binary, also those that cannot be probed.
    pub functions: Vec<PlannedFunction>,
    /// Sites that can only be off together, by their places in `sites`.
    pub groups: Vec<Vec<usize>>,
    /// Link-time addresses after calls in code that all latches share, behind which the caller proper lies.
    pub wrapper_returns: Vec<u64>,
    /// Link-time addresses of the server's writable static data.
    pub static_data: Option<Range<u64>>,
    /// Wait functions that are missing from this binary or resisted analysis, and why.
    pub gaps: Vec<(String, String)>,
}

/// A wait function.
pub struct PlannedFunction {
    /// Short and stable.
    pub label: String,
    /// Link-time addresses.
    pub range: Range<u64>,
    /// Whether it spins before it sleeps, in itself or in a function that it calls.
    pub spins: bool,
    /// Whether the spin loop is in it.
    pub has_loop: bool,
    /// In the catalog.
    index: u8,
}

/// One probe site.
pub struct PlannedSite {
    /// `mutex_enter_inline:begin`
    pub name: String,
    /// Link-time address of the probed instruction, or of the function whose return is probed.
    pub addr: u64,
    pub file_offset: u64,
    /// The instruction, as a disassembler shows it.
    pub instruction: String,
    pub emulated: bool,
    /// Probed when the function returns rather than at an instruction.
    pub at_return: bool,
    pub(super) site: types::site,
}

impl PlannedSite {
    pub(super) fn is_begin(&self) -> bool {
        u32::from(self.site.role) <= types::role::ROLE_BEGIN_AGAIN.0
    }

    /// The wait function that it belongs to, by its index in the catalog.
    pub(super) fn function(&self) -> u8 {
        self.site.function
    }

    /// What a hit of this site costs.
    pub fn class(&self) -> ProbeClass {
        match (self.at_return, self.emulated) {
            (true, _) => ProbeClass::Return,
            (false, true) => ProbeClass::Emulated,
            (false, false) => ProbeClass::Stepped,
        }
    }
}

impl Plan {
    /// Whether each wait function spins before it sleeps, by its place in the catalog.
    pub(super) fn spins(&self) -> [bool; MAX_FUNCTIONS] {
        let mut spins = [false; MAX_FUNCTIONS];
        for function in self.functions.iter().filter(|function| function.spins) {
            spins[usize::from(function.index)] = true;
        }
        spins
    }

    /// The wait functions whose probes are in a group.
    pub(super) fn functions_of(&self, group: usize) -> HashSet<u8> {
        self.groups[group].iter().map(|&i| self.sites[i].function()).collect()
    }

    /// Addresses in the process, and the index of the site at each.
    pub(super) fn site_addresses(&self, bias: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.sites.iter().enumerate().map(move |(i, s)| (s.addr + bias, i as u32))
    }
}

/// What may be used on a process, beyond probes on plain instructions.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Return probes, where no better end of a wait is found.
    pub uretprobes: bool,
    /// Probes on calls. Kernels that emulate a call without writing the shadow stack would make the process fault when the
    /// function returns, if it has one.
    pub calls: bool,
}

/// Plans the latch-wait probes for the server in `image`.
pub fn plan(image: &Image, family: &Family, allowed: Allowed) -> Plan {
    let found: Vec<Variant> = (0..).zip(family.wait_functions).flat_map(|(i, f)| variants(image, i, f)).collect();
    let mut planner = Planner {
        image,
        allowed,
        system_calls: Slow {
            syscall: code::imported_calls(image, "syscall").into_iter().collect(),
            ..Default::default()
        },
        entries: found.iter().map(|v| v.range.start).collect(),
        sites: Vec::new(),
        gaps: Vec::new(),
    };
    for function in family.wait_functions.iter().filter(|f| matches!(f.found, Found::Futex(..))) {
        if !found.iter().any(|v| std::ptr::eq(v.function, function)) {
            planner.gap(function.label, "no function of this build does only this");
        }
    }
    for variant in &found {
        planner.add(variant);
    }
    if family.wait_functions.is_empty() {
        planner.gap(
            "InnoDB's latches by name",
            "this build has no function for them that armtrace knows; all sleeps for InnoDB's events (latches, row locks and idle \
             threads alike) are in armtrace_cond_wait_seconds, latch unnamed:os_event",
        );
    }
    let groups = groups(&planner.sites, &nesting(image, &found));
    Plan {
        functions: found.iter().map(|variant| variant.planned(image)).collect(),
        groups,
        sites: planner.sites,
        gaps: planner.gaps,
        wrapper_returns: family.wrapper_returns(image),
        static_data: image.static_data(),
    }
}

/// A wait function in this binary.
struct Variant {
    function: &'static WaitFunction,
    /// In the catalog.
    index: u8,
    /// The function's label, with a number where the binary has several of it.
    label: String,
    range: Range<u64>,
}

impl Variant {
    fn planned(&self, image: &Image) -> PlannedFunction {
        let has_loop = matches!(self.function.found, Found::Futex(_, FutexShape { spins: true, .. }));
        let spins = has_loop || spin_hint(image, self.range.clone()).is_some();
        PlannedFunction { label: self.label.clone(), range: self.range.clone(), spins, has_loop, index: self.index }
    }
}

fn variants(image: &Image, index: u8, function: &'static WaitFunction) -> Vec<Variant> {
    let label = |n: usize| if n == 0 { function.label.to_owned() } else { format!("{}_{}", function.label, n + 1) };
    let found = function.find(image).into_iter().enumerate();
    found.map(|(n, range)| Variant { function, index, label: label(n), range }).collect()
}

/// For each wait function the lowest of those that it is nested with, directly or by way of others: one calls the other, so
/// that their waits are parts of each other.
fn nesting(image: &Image, found: &[Variant]) -> [u8; MAX_FUNCTIONS] {
    let mut lowest: [u8; MAX_FUNCTIONS] = std::array::from_fn(|i| i as u8);
    for caller in found {
        for insn in code::decode(image, caller.range.clone()) {
            let (Flow::Call(Some(to)) | Flow::Jump(to)) = insn.flow else { continue };
            let Some(callee) = found.iter().find(|v| v.range.start == to) else { continue };
            let (a, b) = (lowest[usize::from(caller.index)], lowest[usize::from(callee.index)]);
            lowest.iter_mut().filter(|l| **l == a.max(b)).for_each(|l| *l = a.min(b));
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

struct Planner<'a> {
    image: &'a Image,
    allowed: Allowed,
    /// Stubs of the C library's `syscall`, through which futexes are called.
    system_calls: Slow,
    /// Where the wait functions begin.
    entries: HashSet<u64>,
    sites: Vec<PlannedSite>,
    gaps: Vec<(String, String)>,
}

impl Planner<'_> {
    fn add(&mut self, variant: &Variant) {
        match self.plan_function(variant) {
            Ok(sites) if self.sites.len() + sites.len() <= MAX_SITES => self.sites.extend(sites),
            Ok(_) => self.gap(&variant.label, "this build has more probe sites than armtrace keeps"),
            Err(_) if self.waits_elsewhere(variant.range.clone()) => {}
            Err(why) => self.gap(&variant.label, why),
        }
    }

    /// Whether the function leaves the waiting to another wait function, which is probed itself.
    fn waits_elsewhere(&self, range: Range<u64>) -> bool {
        let calls =
            |insn: &Insn| matches!(insn.flow, Flow::Call(Some(to)) | Flow::Jump(to) if self.entries.contains(&to));
        code::decode(self.image, range).iter().any(calls)
    }

    fn gap(&mut self, label: &str, why: &str) {
        self.gaps.push((label.to_owned(), why.to_owned()));
    }

    fn plan_function(&self, variant: &Variant) -> Result<Vec<PlannedSite>, &'static str> {
        let function = variant.function;
        let found = self.analyse(function, variant.range.clone()).ok_or("its contended part was not recognised")?;
        let base = self.site(function, variant.index, &found.begin).ok_or("the latch's address is not known there")?;
        let role = if found.begin.repeats { types::role::ROLE_BEGIN_AGAIN } else { types::role::ROLE_BEGIN };
        let mut sites = vec![self.planned(variant, "begin", &found.begin, role, base)?];
        if found.begin.per_round {
            return Err("its begin cannot be told from a round of spinning");
        }
        if found.begin.is_call && !self.allowed.calls {
            return Err("it begins with a call, which may not be probed in a process with a shadow stack");
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
                let name = if n == 0 { "end".to_owned() } else { format!("end{}", n + 1) };
                sites.push(self.end(variant, &name, end, base)?);
            }
        } else if self.allowed.uretprobes && matches!(function.shape, Shape::Whole) {
            sites.push(self.at_return(variant, base)?);
        }
        if sites.len() < 2 {
            return Err("not every end of a wait can be probed here");
        }
        Ok(sites)
    }

    fn analyse(&self, function: &WaitFunction, range: Range<u64>) -> Option<WaitSites> {
        match function.shape {
            Shape::Whole | Shape::Until { .. } => code::whole_function(self.image, range, &self.system_calls),
            Shape::Contended { spin, sleep } => {
                let addresses = |names| named(self.image, names).map(|s| s.addr).collect();
                let slow = Slow { spin: addresses(spin), sleep: addresses(sleep), ..Default::default() };
                code::contended(self.image, range, &slow)
            }
        }
    }

    /// What the program needs to know at this site, but for the role.
    fn site(&self, function: &WaitFunction, index: u8, at: &Site) -> Option<types::site> {
        let arch = self.image.arch();
        let argument = |n: usize| at.args.get(n).copied().flatten().map(|p| place(arch, p));
        let mut site = types::site { function: index, latch: argument(function.latch_argument)?, ..Default::default() };
        match function.callsite {
            Callsite::FileLine { file, line } => {
                site.file = argument(file).unwrap_or_default();
                site.line = argument(line).unwrap_or_default();
            }
            Callsite::Caller => {
                site.caller = at.return_address.map(|p| place(arch, p)).unwrap_or_default();
                site.frame = place(arch, Place::Register { register: frame_pointer(arch), bytes: 8 });
            }
        }
        match function.identity {
            IdentityIn::ByKind { argument: number, kinds } => {
                site.kind = argument(number)?;
                site.kind_count = kinds.len().min(site.kinds.len()) as u16;
                for (into, kind) in site.kinds.iter_mut().zip(kinds) {
                    *into = types::latch_kind { number: kind.number, ..latch_kind(kind.mode, kind.identity) };
                }
            }
            IdentityIn::Always(identity) => {
                site.kind_count = 1;
                site.kinds[0] = latch_kind(function.mode, identity);
            }
        }
        Some(site)
    }

    fn end(
        &self,
        variant: &Variant,
        name: &str,
        end: &code::EndSite,
        base: types::site,
    ) -> Result<PlannedSite, &'static str> {
        let role = match end.kind {
            EndKind::Maybe => types::role::ROLE_MAYBE_END,
            EndKind::Final => types::role::ROLE_END,
        };
        let condition = end.when.map(|c| encode_condition(self.image.arch(), &c)).unwrap_or_default();
        self.planned(variant, name, &end.site, role, types::site { condition, ..base })
    }

    /// The end of a wait where another function is entered.
    fn until(&self, variant: &Variant, names: &[&str], base: types::site) -> Result<PlannedSite, &'static str> {
        let entry = named(self.image, names).next().and_then(|s| self.image.function_at(s.addr));
        let found = entry.and_then(|range| code::whole_function(self.image, range, &self.system_calls));
        let found = found.ok_or("the function that ends its waits was not found")?;
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
            site: types::site { role: types::role::ROLE_END.0 as u8, ..base },
        })
    }
}

/// What the program reads in a latch of this kind.
fn latch_kind(mode: Mode, identity: Identity) -> types::latch_kind {
    let kind = types::latch_kind { mode: mode_code(mode), ..Default::default() };
    let (identity, kind) = match identity {
        Identity::LatchId { offset } => {
            (types::identity::IDENTITY_LATCH_ID, types::latch_kind { id_offset: offset, ..kind })
        }
        Identity::Created { file_offset, line_offset, line_bits } => {
            let line_mask = u32::MAX >> (32 - line_bits.clamp(1, 32));
            let kind = types::latch_kind { id_offset: file_offset, line_offset, line_mask, ..kind };
            (types::identity::IDENTITY_CREATED, kind)
        }
        Identity::Word => (types::identity::IDENTITY_WORD, kind),
    };
    types::latch_kind { identity: identity.0 as u8, ..kind }
}

/// The number that stands for a mode in the kernel.
pub(super) fn mode_code(mode: Mode) -> u8 {
    match mode {
        Mode::None => 0,
        Mode::S => 1,
        Mode::Sx => 2,
        Mode::X => 3,
    }
}

/// Where register `number` is in the registers that the kernel saves at a probe: `struct pt_regs` on
/// x86_64, `struct user_pt_regs` on aarch64, both part of the kernel's user-space interface.
pub(in crate::probe) fn register_offset(arch: Arch, number: u8) -> u16 {
    /// In the order rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    const X86_64: [u16; 16] = [80, 88, 96, 40, 152, 32, 104, 112, 72, 64, 56, 48, 24, 16, 8, 0];
    match arch {
        Arch::X86_64 => X86_64[usize::from(number & 15)],
        Arch::Aarch64 => u16::from(number & 31) * 8,
    }
}

/// Where the flags are: `eflags` on x86_64, `pstate` on aarch64.
fn flags_offset(arch: Arch) -> u16 {
    match arch {
        Arch::X86_64 => 144,
        Arch::Aarch64 => 264,
    }
}

/// Where the instruction pointer is: `ip` on x86_64, `pc` on aarch64.
pub(in crate::probe) fn ip_offset(arch: Arch) -> u16 {
    match arch {
        Arch::X86_64 => 128,
        Arch::Aarch64 => 256,
    }
}

/// Where the second argument of a system call, the stack pointer and, on aarch64, the link register are; x86_64 has no
/// link register, and what stands for it is never read.
pub(super) fn library_registers(arch: Arch) -> (u32, u32, u32) {
    let (op, sp, link) = match arch {
        Arch::X86_64 => (register_offset(arch, 6), register_offset(arch, 4), 0),
        Arch::Aarch64 => (register_offset(arch, 1), register_offset(arch, 31), register_offset(arch, 30)),
    };
    (op.into(), sp.into(), link.into())
}

fn frame_pointer(arch: Arch) -> u8 {
    match arch {
        Arch::X86_64 => 5,
        Arch::Aarch64 => 29,
    }
}

fn place(arch: Arch, place: Place) -> types::place {
    match place {
        Place::Register { register, .. } => {
            types::place { reg: register_offset(arch, register), kind: 1, displacement: 0 }
        }
        Place::Stack { base, offset, bytes } => {
            types::place { reg: register_offset(arch, base), kind: u16::from(bytes), displacement: offset }
        }
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

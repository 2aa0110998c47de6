//! Plans where waits for locks begin and end in this binary.

use std::collections::HashSet;
use std::ops::Range;

use crate::analysis::{imported_calls, Function, Location, Site, Slow};
use crate::attach::ProbeClass;
use crate::bpf::lock::types;
use crate::catalog::{LockKind, LockWait, LOCK_WAITS, ROW_LOCK_SLEEPS, ROW_LOCK_SLEEPS_IN_LIBRARY};
use crate::isa::Flow;
use crate::measure::latch::Gap;
use crate::symbols::Image;

/// The most instructions at which waits begin.
const MOST_BEGINS: usize = types::lock_limit::MAX_LOCK_BEGINS.0 as usize;

/// The waits for locks that can be measured in a binary, and what is missing.
#[derive(Debug, Default)]
pub struct LockPlan {
    /// The wait functions.
    pub waits: Vec<PlannedLockWait>,
    /// What is not measured, and why.
    pub gaps: Vec<Gap>,
}

/// A function in which threads wait for locks.
#[derive(Debug)]
pub struct PlannedLockWait {
    /// A short, stable name.
    pub label: &'static str,
    /// What its callers wait for.
    pub waits_for: LockKind,
    /// Where waits begin. While one goes on, it may come by here again.
    pub begins: Vec<PlannedLockSite>,
    /// Where the function returns; with `at_return`, this is the function itself.
    pub ends: Vec<PlannedLockSite>,
    /// Whether the ends are return probes, because not all instructions that return can be probed.
    pub at_return: bool,
}

/// An instruction to probe.
#[derive(Clone, Debug)]
pub struct PlannedLockSite {
    /// The link-time address.
    pub addr: u64,
    /// The offset of `addr` in the file, in bytes.
    pub file_offset: u64,
    /// The disassembled instruction.
    pub instruction: String,
    /// The cost class of a hit.
    pub class: ProbeClass,
    /// Where the pointer to the stage is; `None` at ends, and for row locks.
    pub(super) stage: Option<Location>,
}

impl LockPlan {
    /// Returns all sites by name: `lock_wait:begin`, `lock_wait:end`, `lock_wait:end2`.
    pub fn sites(&self) -> impl Iterator<Item = (String, &PlannedLockSite)> {
        self.waits.iter().flat_map(|wait| {
            let named = |what: &'static str, sites: &'_ [PlannedLockSite]| -> Vec<String> {
                let number = |n: usize| if n == 0 { String::new() } else { (n + 1).to_string() };
                (0..sites.len()).map(|n| format!("{}:{what}{}", wait.label, number(n))).collect()
            };
            let names = [named("begin", &wait.begins), named(wait.end(), &wait.ends)].concat();
            names.into_iter().zip(wait.begins.iter().chain(&wait.ends))
        })
    }
}

impl PlannedLockWait {
    fn end(&self) -> &'static str {
        if self.at_return {
            "return"
        } else {
            "end"
        }
    }
}

/// Plans the probes for the server in `image`: with return probes if `uretprobes`, and with probes on calls if `calls`.
pub fn lock_plan(image: &Image, uretprobes: bool, calls: bool) -> LockPlan {
    let planner = Planner { image, uretprobes, calls };
    let mut plan = LockPlan::default();
    for (name, is_wanted) in [
        ("waits for row locks", (|kind| kind == LockKind::Row) as fn(LockKind) -> bool),
        ("waits for metadata locks", |kind| kind != LockKind::Row),
    ] {
        let waits = LOCK_WAITS.iter().filter(|wait| is_wanted(wait.waits_for));
        match planner.first_found(waits) {
            Ok(wait) => plan.waits.push(wait),
            Err(why) => plan.gaps.push(Gap { function: name.to_owned(), why: why.to_owned() }),
        }
    }
    plan
}

struct Planner<'a> {
    image: &'a Image,
    uretprobes: bool,
    calls: bool,
}

impl Planner<'_> {
    /// Plans the first of these functions that this binary has.
    fn first_found(&self, waits: impl Iterator<Item = &'static LockWait>) -> Result<PlannedLockWait, &'static str> {
        for wait in waits {
            let symbol = self.image.functions_named(wait.function).next();
            if let Some(range) = symbol.and_then(|symbol| self.image.function_at(symbol.addr)) {
                return self.plan(wait, range);
            }
        }
        Err("this build has no name for the function in which threads wait for them")
    }

    fn plan(&self, wait: &'static LockWait, range: Range<u64>) -> Result<PlannedLockWait, &'static str> {
        let function = Function::new(self.image, range).ok_or("their wait function is too large to analyze")?;
        let begins = match wait.waits_for {
            LockKind::Row => self.row_begins(&function)?,
            LockKind::Metadata { stage } => vec![self.metadata_begin(&function, stage)?],
        };
        let ends = self.ends(&function, wait.waits_for);
        let at_return = ends.is_none();
        let ends = match ends {
            Some(ends) => ends,
            None if self.uretprobes => vec![self.entry(&function)?],
            None => return Err("not all instructions that end their waits can be probed"),
        };
        Ok(PlannedLockWait { label: wait.label, waits_for: wait.waits_for, begins, ends, at_return })
    }

    /// Plans where a thread can no longer get a row lock without a sleep.
    fn row_begins(&self, function: &Function) -> Result<Vec<PlannedLockSite>, &'static str> {
        const NOT_FOUND: &str = "where threads sleep in their wait function was not recognized";
        let slow = Slow { sleep: self.sleeps(), ..Slow::default() };
        let found = function.contended(&slow).ok_or(NOT_FOUND)?;
        let begins = std::iter::once(&found.begin).chain(&found.begins);
        if !self.calls && begins.clone().any(|site| site.is_call) {
            return Err("their waits begin at a call, which must not be probed in a process with a shadow stack");
        }
        let begins = begins.map(|site| self.site(site, None)).collect::<Option<Vec<_>>>();
        begins.filter(|begins| begins.len() <= MOST_BEGINS / 2).ok_or(NOT_FOUND)
    }

    fn sleeps(&self) -> HashSet<u64> {
        let own = ROW_LOCK_SLEEPS.iter().flat_map(|name| self.image.functions_named(name)).map(|symbol| symbol.addr);
        own.chain(ROW_LOCK_SLEEPS_IN_LIBRARY.iter().flat_map(|name| imported_calls(self.image, name))).collect()
    }

    fn metadata_begin(&self, function: &Function, stage: usize) -> Result<PlannedLockSite, &'static str> {
        const NOT_FOUND: &str = "the beginning of their wait function was not recognized";
        let begin = function.whole_function(&Slow::default()).ok_or(NOT_FOUND)?.begin;
        let stage = begin.args.get(stage).copied().flatten().ok_or("it is not known there which lock is waited for")?;
        self.site(&begin, Some(stage)).filter(|_| !begin.repeats).ok_or(NOT_FOUND)
    }

    /// Returns where the function returns; for metadata locks, with the result in its register. `None` if not all of
    /// these can be probed.
    fn ends(&self, function: &Function, waits_for: LockKind) -> Option<Vec<PlannedLockSite>> {
        let exits = function.exits()?;
        let returns = |site: &Site| function.insns().iter().any(|i| i.addr == site.addr && i.flow == Flow::Return);
        let are_wanted = waits_for == LockKind::Row || exits.iter().all(returns);
        are_wanted.then(|| exits.iter().map(|site| self.site(site, None)).collect())?
    }

    fn entry(&self, function: &Function) -> Result<PlannedLockSite, &'static str> {
        let addr = function.entry();
        Ok(PlannedLockSite {
            addr,
            file_offset: self.image.file_offset(addr).ok_or("its code is not in the file")?,
            instruction: "(return)".to_owned(),
            class: ProbeClass::Return,
            stage: None,
        })
    }

    fn site(&self, site: &Site, stage: Option<Location>) -> Option<PlannedLockSite> {
        let may_be = !site.is_call || self.calls;
        may_be.then_some(PlannedLockSite {
            addr: site.addr,
            file_offset: self.image.file_offset(site.addr)?,
            instruction: site.text.clone(),
            class: if site.emulated { ProbeClass::Emulated } else { ProbeClass::Stepped },
            stage,
        })
    }
}

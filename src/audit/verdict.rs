//! Verdicts: what the counts mean, with evidence. No verdict claims more than its evidence shows.

use serde::Serialize;

use super::classes;
use super::count::Counted;
use super::report::FunctionRow;
use super::spin::SpinLoop;
use super::structures::{Structure, UnknownStructures};
use crate::discovery;
use crate::isa::{Class, Group};
use crate::symbols::{Arch, Image};

/// The number of functions that a verdict names.
const NAMED: usize = 5;

/// The number of functions that its evidence lists.
const LISTED: usize = 12;

/// The number of ordered stores that a function needs before they can be said to dominate in it.
const MANY_STORES: u64 = 8;

/// One statement about a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// A stable identifier for scripts.
    pub id: &'static str,
    /// Whether it reports a cost, rather than something that is as it should be.
    pub is_finding: bool,
    /// The statement, in words.
    pub text: String,
    /// What the statement rests on, one line each.
    pub evidence: Vec<String>,
}

pub(super) fn verdicts(
    image: &Image,
    counted: &Counted,
    spins: &[SpinLoop],
    structures: Result<&[Structure], &UnknownStructures>,
    functions: &[FunctionRow],
) -> Vec<Verdict> {
    let totals = Totals { classes: classes(image.arch()), counted };
    let mut verdicts = Vec::new();
    if image.arch() == Arch::Aarch64 {
        verdicts.extend(atomics(&totals, functions));
    }
    verdicts.extend(full_fences(image.arch(), functions));
    verdicts.extend(ordered_stores(image.arch(), functions));
    verdicts.extend(spin_hints(spins));
    let is_server = discovery::family(image).is_ok();
    if is_server {
        verdicts.push(crc32c(image.arch(), &totals, functions));
    }
    match structures {
        Ok(structures) => verdicts.extend(short_lines(image.arch(), structures)),
        Err(why) if is_server => verdicts.push(unknown_structures(why)),
        Err(_) => {}
    }
    // Findings come first.
    verdicts.sort_by_key(|v| !v.is_finding);
    verdicts
}

struct Totals<'c> {
    classes: &'c [Class],
    counted: &'c Counted,
}

impl Totals<'_> {
    fn of_group(&self, group: Group) -> u64 {
        self.counted.totals.of_group(self.classes, group)
    }

    fn sum(&self, is: impl FnMut(&Class) -> bool) -> u64 {
        self.counted.totals.sum(self.classes, is)
    }
}

/// Returns how arm64 atomics are implemented.
fn atomics(totals: &Totals, functions: &[FunctionRow]) -> Option<Verdict> {
    let pairs = totals.counted.exclusives.pairs;
    let inline_pairs = pairs - totals.counted.exclusives.pairs_in_helpers;
    let calls: u64 = totals.counted.helper_calls.values().sum();
    let lse = totals.sum(|c| c.group == Group::Atomic) - calls;
    // Each helper contains one LSE atomic.
    let helpers = totals.counted.helpers.len() as u64;
    let inline_lse = lse.saturating_sub(helpers);
    let (id, is_finding, text) = match (helpers, inline_lse, pairs) {
        (0, 0, 0) => return None,
        (0, 0, _) => (
            "ll-sc-only",
            true,
            format!("LL/SC only: built without LSE or outline atomics. All {pairs} atomics use exclusive loads and stores"),
        ),
        (0, _, _) => (
            "lse-inline",
            false,
            format!("inline atomics: {inline_lse} LSE atomics and {inline_pairs} LL/SC pairs. The program requires a CPU with LSE"),
        ),
        _ => (
            "outline-atomics",
            false,
            format!(
                "outline atomics: {calls} calls of {helpers} helpers, which use LSE if the CPU has it. \
                 {inline_lse} LSE atomics and {inline_pairs} LL/SC pairs are inline"
            ),
        ),
    };
    let exclusive = |f: &FunctionRow| f.groups.get(&Group::StoreExclusive).copied().unwrap_or_default();
    let called = |f: &FunctionRow| {
        f.instructions.iter().filter(|(name, _)| name.starts_with("call ")).map(|(_, n)| n).sum::<u64>()
    };
    let evidence = if helpers > 0 { top(functions, called) } else { top(functions, exclusive) };
    let what = if helpers > 0 { "calls" } else { "exclusive stores" };
    Some(Verdict { id, is_finding, text, evidence: lines(&evidence, what) })
}

fn full_fences(arch: Arch, functions: &[FunctionRow]) -> Option<Verdict> {
    let fences = |f: &FunctionRow| f.groups.get(&Group::FullFence).copied().unwrap_or_default();
    let what = match arch {
        Arch::X86_64 => "`mfence` or an empty `lock` operation",
        Arch::Aarch64 => "`dmb ish` or stronger",
    };
    let with = top(functions, fences);
    let total: u64 = with.iter().map(|(_, n)| n).sum();
    (total > 0).then(|| Verdict {
        id: "full-fences",
        is_finding: true,
        text: format!("full fences ({what}): {total}, in {}", some_names(&with)),
        evidence: lines(&with, "full fences"),
    })
}

/// Returns the functions in which ordered stores are more than half of the ordering instructions.
fn ordered_stores(arch: Arch, functions: &[FunctionRow]) -> Option<Verdict> {
    let stores = |f: &FunctionRow| f.groups.get(&Group::OrderedStore).copied().unwrap_or_default();
    let dominate = |f: &FunctionRow| if stores(f) >= MANY_STORES && stores(f) * 2 > f.ordering { stores(f) } else { 0 };
    let with = top(functions, dominate);
    let (name, what) = match arch {
        Arch::X86_64 => ("xchg", "`xchg` with memory, each a full barrier"),
        Arch::Aarch64 => ("stlr", "`stlr`, also used for release stores"),
    };
    (!with.is_empty()).then(|| Verdict {
        id: "ordered-stores",
        is_finding: true,
        text: format!("sequentially consistent stores ({what}) dominate in {}", some_names(&with)),
        evidence: lines(&with, &format!("`{name}`")),
    })
}

fn spin_hints(spins: &[SpinLoop]) -> Vec<Verdict> {
    let (with, without): (Vec<&SpinLoop>, Vec<&SpinLoop>) = spins.iter().partition(|s| s.hint.is_some());
    let names = |spins: &[&SpinLoop]| join(spins.iter().map(|s| &*s.function));
    let mut verdicts = Vec::new();
    if !without.is_empty() {
        verdicts.push(Verdict {
            id: "no-spin-hint",
            is_finding: true,
            text: format!("no spin hint in the spin loop of {}", names(&without)),
            evidence: without.iter().map(|s| format!("{} at {:#x}", s.function, s.address)).collect(),
        });
    }
    if !with.is_empty() {
        let shown = |s: &&SpinLoop| {
            s.hint.as_ref().map(|(at, text)| format!("{} at {:#x}: `{text}` at {at:#x}", s.function, s.address))
        };
        verdicts.push(Verdict {
            id: "spin-hint",
            is_finding: false,
            text: format!("a spin hint in the spin loop of {}", names(&with)),
            evidence: with.iter().filter_map(shown).collect(),
        });
    }
    verdicts
}

/// Returns how the server's own code computes CRC-32C, which InnoDB uses for its checksums.
fn crc32c(arch: Arch, totals: &Totals, functions: &[FunctionRow]) -> Verdict {
    let name = match arch {
        Arch::X86_64 => "crc32",
        Arch::Aarch64 => "crc32c",
    };
    let in_hardware = totals.sum(|c| c.name == name);
    let checksums = |f: &FunctionRow| f.groups.get(&Group::Checksum).copied().unwrap_or_default();
    let evidence = lines(&top(functions, checksums), "CRC and carry-less multiply instructions");
    let (id, is_finding, text) = if in_hardware > 0 {
        ("hardware-crc32c", false, format!("crc32c in hardware: {in_hardware} `{name}` instructions"))
    } else if totals.of_group(Group::Checksum) > 0 {
        (
            "multiply-crc32c",
            false,
            format!("no `{name}` instruction: crc32c uses carry-less multiplication or software"),
        )
    } else {
        ("software-crc32c", true, "crc32c in software only: no CRC or carry-less multiply instructions".to_owned())
    };
    Verdict { id, is_finding, text, evidence }
}

/// Returns the structures laid out for 64-byte lines. That is the line size of all x86_64 CPUs, but not of all aarch64
/// CPUs.
fn short_lines(arch: Arch, structures: &[Structure]) -> Option<Verdict> {
    let why = match arch {
        Arch::X86_64 => "the line size of x86_64",
        Arch::Aarch64 => "so neighbours share a line on CPUs with 128-byte lines",
    };
    let names = join(structures.iter().map(|s| &*s.name));
    (!structures.is_empty()).then(|| Verdict {
        id: "64-byte-lines",
        is_finding: arch == Arch::Aarch64,
        text: format!("{} structures are laid out for 64-byte cache lines, {why}: {names}", structures.len()),
        evidence: structures.iter().take(LISTED).map(Structure::summary).collect(),
    })
}

/// Returns a verdict that the structures are unknown; `why` says what is wrong with the debug information.
fn unknown_structures(why: &UnknownStructures) -> Verdict {
    Verdict {
        id: "no-debug-information",
        is_finding: false,
        text: format!("structures not checked: {why}"),
        evidence: Vec::new(),
    }
}

/// Returns the functions for which `n` is not 0, largest first.
fn top(functions: &[FunctionRow], n: impl Fn(&FunctionRow) -> u64) -> Vec<(&FunctionRow, u64)> {
    let mut with: Vec<_> = functions.iter().map(|f| (f, n(f))).filter(|(_, n)| *n > 0).collect();
    with.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    with
}

fn some_names(functions: &[(&FunctionRow, u64)]) -> String {
    join(functions.iter().map(|(f, _)| &*f.name))
}

/// Joins the first names and adds how many more there are.
fn join<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let shown: Vec<&str> = names.take(NAMED).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn lines(functions: &[(&FunctionRow, u64)], what: &str) -> Vec<String> {
    let shown = |(f, n): &(&FunctionRow, u64)| match &f.source {
        Some(source) => format!("{n} {what} in {} ({source})", f.name),
        None => format!("{n} {what} in {} at {}", f.name, f.address),
    };
    functions.iter().take(LISTED).map(shown).collect()
}

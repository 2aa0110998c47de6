//! Verdicts: what the counts mean, each with its evidence. None goes further than the evidence does.

use serde::Serialize;

use super::class::Group;
use super::count::Counted;
use super::report::FunctionRow;
use super::spin::SpinLoop;
use super::structures::Structure;
use super::{classes, Class};
use crate::catalog;
use crate::symbols::{Arch, Image};

/// Functions that a verdict names.
const NAMED: usize = 5;

/// Functions that its evidence lists.
const LISTED: usize = 12;

/// Ordered stores that a function must have before they are said to dominate in it.
const MANY_STORES: u64 = 8;

/// One statement about a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Stable, for scripts.
    pub id: &'static str,
    /// Whether it is something that costs, rather than something that is as it should be.
    pub is_finding: bool,
    pub text: String,
    pub evidence: Vec<String>,
}

pub(super) fn verdicts(
    image: &Image,
    counted: &Counted,
    spins: &[SpinLoop],
    structures: Result<&[Structure], &str>,
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
    let is_server = catalog::family(image).is_ok();
    if is_server {
        verdicts.push(crc32c(image.arch(), &totals, functions));
    }
    match structures {
        Ok(structures) => verdicts.extend(short_lines(image.arch(), structures)),
        Err(why) if is_server => verdicts.push(unknown_structures(why)),
        Err(_) => {}
    }
    // What costs comes first.
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

/// How arm64 atomics are made.
fn atomics(totals: &Totals, functions: &[FunctionRow]) -> Option<Verdict> {
    let pairs = totals.counted.exclusives.pairs;
    let inline_pairs = pairs - totals.counted.exclusives.pairs_in_helpers;
    let calls: u64 = totals.counted.helper_calls.values().sum();
    let lse = totals.sum(|c| c.group == Group::Atomic) - calls;
    // One is in each helper.
    let helpers = totals.counted.helpers.len() as u64;
    let inline_lse = lse.saturating_sub(helpers);
    let (id, is_finding, text) = match (helpers, inline_lse, pairs) {
        (0, 0, 0) => return None,
        (0, 0, _) => (
            "ll-sc-only",
            true,
            format!("LL/SC only: built without LSE or outline atomics. All {pairs} atomics are exclusive loads and stores"),
        ),
        (0, _, _) => (
            "lse-inline",
            false,
            format!("LSE atomics inline: {inline_lse}, with {inline_pairs} LL/SC pairs beside them. It runs on CPUs with LSE only"),
        ),
        _ => (
            "outline-atomics",
            false,
            format!(
                "outline atomics: {calls} calls of {helpers} helpers, which use LSE where the CPU has it. \
                 Inline are {inline_lse} LSE atomics and {inline_pairs} LL/SC pairs"
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

/// Where stores that order are more than half of what orders.
fn ordered_stores(arch: Arch, functions: &[FunctionRow]) -> Option<Verdict> {
    let stores = |f: &FunctionRow| f.groups.get(&Group::OrderedStore).copied().unwrap_or_default();
    let dominate = |f: &FunctionRow| if stores(f) >= MANY_STORES && stores(f) * 2 > f.ordering { stores(f) } else { 0 };
    let with = top(functions, dominate);
    let (name, what) = match arch {
        Arch::X86_64 => ("xchg", "`xchg` with memory, a full barrier each"),
        Arch::Aarch64 => ("stlr", "`stlr`, which release stores compile to as well"),
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

/// How the server's own code computes CRC-32C, which is what InnoDB's checksums are.
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
            format!("no `{name}` instruction: crc32c by carry-less multiplication, or in software"),
        )
    } else {
        ("software-crc32c", true, "software crc32c only: neither CRC nor carry-less multiply instructions".to_owned())
    };
    Verdict { id, is_finding, text, evidence }
}

/// Structures that are laid out for lines of 64 bytes: all that x86_64 has, and not all that aarch64 has.
fn short_lines(arch: Arch, structures: &[Structure]) -> Option<Verdict> {
    let why = match arch {
        Arch::X86_64 => "as x86_64 has them",
        Arch::Aarch64 => "so that on CPUs with lines of 128 bytes neighbours share one",
    };
    let names = join(structures.iter().map(|s| &*s.name));
    (!structures.is_empty()).then(|| Verdict {
        id: "64-byte-lines",
        is_finding: arch == Arch::Aarch64,
        text: format!("{} structures laid out for cache lines of 64 bytes, {why}: {names}", structures.len()),
        evidence: structures.iter().take(LISTED).map(Structure::summary).collect(),
    })
}

/// `why` is said of the debug information.
fn unknown_structures(why: &str) -> Verdict {
    Verdict {
        id: "no-debug-information",
        is_finding: false,
        text: format!("structures not looked at, for lack of debug information in the program: {why}"),
        evidence: Vec::new(),
    }
}

/// The functions of which this is not 0, largest first.
fn top(functions: &[FunctionRow], n: impl Fn(&FunctionRow) -> u64) -> Vec<(&FunctionRow, u64)> {
    let mut with: Vec<_> = functions.iter().map(|f| (f, n(f))).filter(|(_, n)| *n > 0).collect();
    with.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    with
}

fn some_names(functions: &[(&FunctionRow, u64)]) -> String {
    join(functions.iter().map(|(f, _)| &*f.name))
}

/// The first names, and how many there are beside.
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

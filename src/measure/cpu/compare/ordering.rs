//! Compares the CPU time of barriers and atomics.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use maud::{html, Markup};
use serde::Serialize;

use super::{cpu_line, used, CpuUse};
use crate::audit;
use crate::html::{table, table_of_words};
use crate::isa::Group;
use crate::measure::cpu::CpuTime;
use crate::present::format::NOTHING;
use crate::recording::compare::{Comparison, Per, Section, Side};
use crate::recording::{CountsDelta, Recording};
use crate::symbols::Arch;

/// The number of functions listed. JSON has all.
const TEXT_FUNCTIONS: usize = 8;
const HTML_FUNCTIONS: usize = 100;

/// CPU time of the instructions that order memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ordering {
    /// The CPU time of all of them.
    pub all: CpuUse,
    /// By what the instructions do, which architectures have in common; the largest difference first.
    pub groups: Vec<GroupRow>,
    /// By function, the largest difference first; only functions that have a row of their own in either.
    pub functions: Vec<FunctionRow>,
}

/// The CPU time of instructions that do the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupRow {
    /// What the instructions do: `atomic`, `full fence`.
    pub group: &'static str,
    /// The instruction that takes the most of it, on A and on B.
    pub most: [Option<String>; 2],
    /// Their CPU time.
    #[serde(flatten)]
    pub used: CpuUse,
}

/// The CPU time of such instructions in one function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionRow {
    /// The function's name.
    pub function: String,
    /// Their CPU time.
    #[serde(flatten)]
    pub used: CpuUse,
}

/// CPU seconds in each second.
type Seconds = Vec<f64>;

/// One system's CPU time of the instructions that order memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct OrderingSide {
    all: Seconds,
    groups: BTreeMap<&'static str, Seconds>,
    functions: BTreeMap<String, Seconds>,
    /// CPU seconds of the whole recording, by group and instruction.
    instructions: BTreeMap<(&'static str, String), f64>,
}

impl OrderingSide {
    /// Returns `None` if none was seen.
    pub(crate) fn new(recording: &Recording) -> Option<OrderingSide> {
        (!recording.rows.ordering.is_empty()).then_some(())?;
        let none = || vec![0.0; recording.seconds.len()];
        let mut side = OrderingSide { all: none(), ..OrderingSide::default() };
        for (i, second) in recording.seconds.iter().enumerate() {
            for &CountsDelta { row, counts: [ns] } in &second.ordering {
                let (key, cpu) = (&recording.rows.ordering[row], ns as f64 / 1e9);
                let group = group(&key.instruction);
                side.all[i] += cpu;
                side.groups.entry(group).or_insert_with(none)[i] += cpu;
                side.functions.entry(key.function.clone()).or_insert_with(none)[i] += cpu;
                *side.instructions.entry((group, key.instruction.clone())).or_default() += cpu;
            }
        }
        Some(side)
    }

    fn most(&self, group: &str) -> Option<String> {
        let of_group = self.instructions.iter().filter(|((of, _), _)| *of == group);
        of_group.max_by(|a, b| a.1.total_cmp(b.1)).map(|((_, instruction), _)| instruction.clone())
    }
}

/// Returns what an instruction does. Each half of an atomic that is made of two instructions is an atomic.
fn group(instruction: &str) -> &'static str {
    let classes = [Arch::X86_64, Arch::Aarch64].into_iter().flat_map(audit::classes);
    match classes.into_iter().find(|class| class.name == instruction).map(|class| class.group) {
        Some(Group::LoadExclusive | Group::StoreExclusive) => Group::Atomic.title(),
        Some(group) => group.title(),
        None => "other",
    }
}

/// Compares the two; returns `None` unless both systems have any.
pub(crate) fn ordering(sides: [&Side; 2], ranked_by: Per) -> Option<Ordering> {
    let seen = [sides[0].ordering.as_ref()?, sides[1].ordering.as_ref()?];
    let used = |of: &dyn Fn(&OrderingSide) -> Option<&Seconds>| {
        CpuUse::new(sides, seen.map(|side| of(side).map(Vec::as_slice)), ranked_by)
    };
    let groups = names(seen, |side| &side.groups).map(|group| GroupRow {
        group,
        most: seen.map(|side| side.most(group)),
        used: used(&|side| side.groups.get(group)),
    });
    let functions = names(seen, |side| &side.functions)
        .filter(|function| function != CpuTime::OTHER)
        .map(|function| FunctionRow { used: used(&|side| side.functions.get(&function)), function });
    let mut ordering =
        Ordering { all: used(&|side| Some(&side.all)), groups: groups.collect(), functions: functions.collect() };
    ordering.groups.sort_by(|a, b| b.used.difference(ranked_by).total_cmp(&a.used.difference(ranked_by)));
    ordering.functions.sort_by(|a, b| b.used.difference(ranked_by).total_cmp(&a.used.difference(ranked_by)));
    Some(ordering)
}

/// Returns the names that either system has, each once.
fn names<K: Clone + Ord>(
    seen: [&OrderingSide; 2],
    of: fn(&OrderingSide) -> &BTreeMap<K, Seconds>,
) -> impl Iterator<Item = K> {
    let names: std::collections::BTreeSet<K> = seen.into_iter().flat_map(|side| of(side).keys().cloned()).collect();
    names.into_iter()
}

impl Section for Option<Ordering> {
    fn text(&self, comparison: &Comparison, f: &mut Formatter) -> fmt::Result {
        let Some(ordering) = self else { return Ok(()) };
        let title = "CPU time of barriers and atomics";
        writeln!(f, "\n{title:40} {:>8} {:>8} {:>8}  {:15} share A      B", "A", "B", "B/A", "95 % interval")?;
        cpu_line(f, "all", &ordering.all, comparison.per)?;
        for row in &ordering.groups {
            cpu_line(f, &format!("{}: {}", row.group, both(&row.most)), &row.used, comparison.per)?;
        }
        ordering
            .functions
            .iter()
            .take(TEXT_FUNCTIONS)
            .try_for_each(|row| cpu_line(f, &format!("  {}", row.function), &row.used, comparison.per))
    }

    fn html(&self, comparison: &Comparison) -> Markup {
        let Some(ordering) = self else { return html! {} };
        let titles = |first| [first, "A", "B", "B/A", "95 % interval", "share A", "share B"];
        let groups = ordering.groups.iter().map(|row| (format!("{} ({})", row.group, both(&row.most)), &row.used));
        let rows = [("all".to_owned(), &ordering.all)].into_iter().chain(groups);
        let rows = rows.map(|(name, row)| (name, used(row, comparison)));
        let functions = ordering.functions.iter().take(HTML_FUNCTIONS);
        let functions = functions.map(|row| (row.function.clone(), used(&row.used, comparison)));
        html! {
            h2 { "CPU time of barriers and atomics" }
            p.soft {
                "CPU time " (comparison.per.as_str()) ", sampled at the instruction or the one after it; the largest \
                 difference first."
            }
            (table_of_words(&titles("what it does (most of it)"), rows))
            @if !ordering.functions.is_empty() {
                h3 { "By function" }
                (table(&titles("function"), functions))
            }
        }
    }
}

/// Returns what A has and what B has, once if it is the same: `lock cmpxchg, casal`.
fn both([a, b]: &[Option<String>; 2]) -> String {
    match (a, b) {
        (Some(a), Some(b)) if a != b => format!("{a}, {b}"),
        (Some(one), _) | (None, Some(one)) => one.clone(),
        (None, None) => NOTHING.to_owned(),
    }
}

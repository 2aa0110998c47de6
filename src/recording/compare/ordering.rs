//! CPU time of barriers and atomics, on both.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cpu::CpuUse;
use super::{Per, Side};
use crate::audit::{self, Group};
use crate::measure::cpu::CpuTime;
use crate::recording::{CountsDelta, Recording};
use crate::symbols::Arch;

/// CPU time of the instructions that order memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ordering {
    pub all: CpuUse,
    /// By what the instructions do, which is what architectures have in common; the largest difference first.
    pub groups: Vec<GroupRow>,
    /// By function, the largest difference first; those that have a row of their own in either.
    pub functions: Vec<FunctionRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupRow {
    /// `atomic`, `full fence`
    pub group: &'static str,
    /// The instruction that takes most of it.
    pub most: [Option<String>; 2],
    #[serde(flatten)]
    pub used: CpuUse,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionRow {
    pub function: String,
    #[serde(flatten)]
    pub used: CpuUse,
}

/// CPU seconds in each second.
type Seconds = Vec<f64>;

/// Those of one system.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderingSide {
    all: Seconds,
    groups: BTreeMap<&'static str, Seconds>,
    functions: BTreeMap<String, Seconds>,
    /// In all, by group and instruction.
    instructions: BTreeMap<(&'static str, String), f64>,
}

impl OrderingSide {
    /// `None` where none was seen.
    pub(super) fn new(recording: &Recording) -> Option<OrderingSide> {
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

/// What an instruction does. The two halves of an atomic that is made of two are an atomic.
fn group(instruction: &str) -> &'static str {
    let classes = [Arch::X86_64, Arch::Aarch64].into_iter().flat_map(audit::classes);
    match classes.into_iter().find(|class| class.name == instruction).map(|class| class.group) {
        Some(Group::LoadExclusive | Group::StoreExclusive) => Group::Atomic.title(),
        Some(group) => group.title(),
        None => "other",
    }
}

/// `None` unless both have any.
pub(super) fn ordering(sides: [&Side; 2], ranked_by: Per) -> Option<Ordering> {
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

/// Those that either has, each once.
fn names<K: Clone + Ord>(
    seen: [&OrderingSide; 2],
    of: fn(&OrderingSide) -> &BTreeMap<K, Seconds>,
) -> impl Iterator<Item = K> {
    let names: std::collections::BTreeSet<K> = seen.into_iter().flat_map(|side| of(side).keys().cloned()).collect();
    names.into_iter()
}

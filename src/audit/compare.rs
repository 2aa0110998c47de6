//! Two builds side by side: two versions, or one version for both architectures. Functions are matched by name.

use std::collections::BTreeMap;

use serde::Serialize;

use super::report::{Binary, FunctionRow, Report};
use super::structures::Structure;
use super::verdict::Verdict;
use super::Group;

/// What functions without a name add up in: they cannot be matched.
const UNNAMED: &str = "(functions without a name)";

/// How two builds differ; the JSON form is this structure.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub a: Side,
    pub b: Side,
    /// In both builds, by group: (in A, in B).
    pub groups: BTreeMap<Group, [u64; 2]>,
    /// In both builds, by instruction.
    pub instructions: BTreeMap<&'static str, [u64; 2]>,
    /// Structures laid out for cache lines of 64 bytes that differ, by name; absent where one of the programs has no debug information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structures: Option<Vec<StructureDifference>>,
    /// Those that differ, the largest difference first.
    pub functions: Vec<Difference>,
}

/// One of the builds.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub binary: Binary,
    pub verdicts: Vec<Verdict>,
}

/// A function, or all that share its name: overloads, and the parts that a compiler made of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub name: String,
    /// Instructions that order memory, or can, in A and in B.
    pub ordering: [u64; 2],
    pub groups: BTreeMap<Group, [u64; 2]>,
}

/// A structure that is laid out for cache lines of 64 bytes in one build, or in another way in the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StructureDifference {
    pub name: String,
    /// Absent where it is not laid out for them, or not there.
    pub a: Option<Structure>,
    pub b: Option<Structure>,
}

impl StructureDifference {
    /// How it is laid out in A and in B, in words.
    pub fn layouts(&self) -> [String; 2] {
        [&self.a, &self.b].map(|side| side.as_ref().map_or("not".to_owned(), Structure::layout))
    }
}

impl Difference {
    /// How far apart the two are, over all groups.
    fn size(&self) -> u64 {
        self.groups.values().map(|[a, b]| a.abs_diff(*b)).sum()
    }
}

/// Compares two audits.
pub fn compare(a: Report, b: Report) -> Comparison {
    let groups = side_by_side(a.groups.clone(), b.groups.clone());
    let instructions = side_by_side(by_instruction(&a), by_instruction(&b));
    let functions = functions(&a.functions, &b.functions);
    let structures = a.structures.as_ref().zip(b.structures.as_ref()).map(|(a, b)| structures(a, b));
    let side = |report: Report| Side { binary: report.binary, verdicts: report.verdicts };
    Comparison { a: side(a), b: side(b), groups, instructions, structures, functions }
}

fn by_instruction(report: &Report) -> BTreeMap<&'static str, u64> {
    report.totals.iter().map(|t| (t.instruction, t.count)).collect()
}

fn side_by_side<K: Ord>(a: BTreeMap<K, u64>, b: BTreeMap<K, u64>) -> BTreeMap<K, [u64; 2]> {
    let mut both: BTreeMap<K, [u64; 2]> = BTreeMap::new();
    for (side, counts) in [a, b].into_iter().enumerate() {
        counts.into_iter().for_each(|(key, n)| both.entry(key).or_default()[side] += n);
    }
    both
}

fn functions(a: &[FunctionRow], b: &[FunctionRow]) -> Vec<Difference> {
    let mut by_name: BTreeMap<&str, Difference> = BTreeMap::new();
    for (side, rows) in [a, b].into_iter().enumerate() {
        for row in rows {
            let name = if row.is_named { &row.name } else { UNNAMED };
            let new = || Difference { name: name.to_owned(), ordering: [0; 2], groups: BTreeMap::new() };
            let found = by_name.entry(name).or_insert_with(new);
            found.ordering[side] += row.ordering;
            row.groups.iter().for_each(|(group, n)| found.groups.entry(*group).or_default()[side] += n);
        }
    }
    let mut differing: Vec<Difference> = by_name.into_values().filter(|d| d.size() > 0).collect();
    differing.sort_by_key(|d| std::cmp::Reverse(d.size()));
    differing
}

/// Those that differ in what shows how they are laid out. Where they are declared differs with each version.
fn structures(a: &[Structure], b: &[Structure]) -> Vec<StructureDifference> {
    let mut by_name: BTreeMap<&str, [Option<&Structure>; 2]> = BTreeMap::new();
    for (side, structures) in [a, b].into_iter().enumerate() {
        structures.iter().for_each(|s| by_name.entry(&s.name).or_default()[side] = Some(s));
    }
    let is_same = |a: &Structure, b: &Structure| a.size == b.size && a.evidence == b.evidence;
    let differing = by_name.into_iter().filter(|(_, [a, b])| !a.zip(*b).is_some_and(|(a, b)| is_same(a, b)));
    differing
        .map(|(name, [a, b])| StructureDifference { name: name.to_owned(), a: a.cloned(), b: b.cloned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, is_named: bool, fences: u64) -> FunctionRow {
        FunctionRow {
            name: name.to_owned(),
            is_named,
            address: "0x1".to_owned(),
            size: 4,
            module: None,
            source: None,
            ordering: fences,
            groups: BTreeMap::from([(Group::FullFence, fences)]),
            instructions: BTreeMap::new(),
        }
    }

    #[test]
    fn functions_are_matched_by_name() {
        let a = [row("f", true, 3), row("f", true, 1), row("same", true, 2), row("sub_1", false, 1)];
        let b = [row("f", true, 1), row("same", true, 2), row("new", true, 7), row("sub_9", false, 2)];
        let found: Vec<_> = functions(&a, &b).into_iter().map(|d| (d.name, d.ordering)).collect();
        let expected = [("new", [0, 7]), ("f", [4, 1]), (UNNAMED, [1, 2])];
        assert_eq!(found, expected.map(|(name, n)| (name.to_owned(), n)));
    }
}

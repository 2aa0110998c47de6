//! Compares two builds: two versions, or one version for both architectures. Functions are matched by name.

use std::collections::BTreeMap;

use serde::Serialize;

use super::report::{Binary, FunctionRow, Report};
use super::structures::Structure;
use super::verdict::Verdict;
use crate::isa::Group;

/// The row that sums all functions without a name, because they cannot be matched.
const UNNAMED: &str = "(functions without a name)";

/// The difference between two builds, serialized to JSON as is.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The build that the other is compared with.
    pub a: Side,
    /// The other build.
    pub b: Side,
    /// The counts by group in A and B, for both builds.
    pub groups: BTreeMap<Group, [u64; 2]>,
    /// The counts by instruction in A and B, for both builds.
    pub instructions: BTreeMap<&'static str, [u64; 2]>,
    /// The structures laid out for 64-byte cache lines that differ, by name. Absent if either program has no debug
    /// information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structures: Option<Vec<StructureDifference>>,
    /// The functions that differ, largest difference first.
    pub functions: Vec<Difference>,
}

/// One of the two builds.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The program.
    pub binary: Binary,
    /// What its counts mean.
    pub verdicts: Vec<Verdict>,
}

/// A function name and all functions that share it: overloads, and the parts into which a compiler split one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name, demangled and without arguments; `(functions without a name)` for all that have none.
    pub name: String,
    /// The numbers of instructions that order memory, or may, in A and in B.
    pub ordering: [u64; 2],
    /// The counts by group in A and in B.
    pub groups: BTreeMap<Group, [u64; 2]>,
}

/// A structure that is laid out for 64-byte cache lines in only one build, or differently in the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StructureDifference {
    /// The name, qualified by the enclosing namespaces and structures.
    pub name: String,
    /// The layout in A. Absent if the structure is missing or not laid out for such lines.
    pub a: Option<Structure>,
    /// The layout in B, likewise.
    pub b: Option<Structure>,
}

impl StructureDifference {
    /// Returns the layouts in A and B as text.
    pub fn layouts(&self) -> [String; 2] {
        [&self.a, &self.b].map(|side| side.as_ref().map_or("none".to_owned(), Structure::layout))
    }
}

impl Difference {
    /// Returns the size of the difference, summed over all groups.
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

/// Returns the structures whose layout evidence differs. The place of declaration does not count, because it differs
/// between versions.
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

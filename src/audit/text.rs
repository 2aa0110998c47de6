//! Audits as text for a terminal.

use std::fmt::{self, Display, Formatter};

use super::compare::{Comparison, Difference, StructureDifference};
use super::report::{Binary, FunctionRow, Report};
use super::verdict::Verdict;
use crate::isa::Group;

/// The number of functions that are listed. JSON has them all.
const FUNCTIONS: usize = 25;

/// The number of differing structures that are listed. JSON has them all.
const STRUCTURES: usize = 25;

/// The most characters of a function's name.
const MAX_NAME: usize = 71;

/// The number of outline-atomics helpers that are listed.
const HELPERS: usize = 10;

/// An audit, or a comparison, as text.
pub struct Text<'a, T>(pub &'a T);

impl Display for Text<'_, Report> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        writeln!(f, "{}\n", heading(&report.binary))?;
        write_verdicts(f, &report.verdicts, true)?;
        writeln!(f, "\nInstructions                          count  functions")?;
        for total in &report.totals {
            let ordering = total.ordering.map_or("", |o| o.as_str());
            let (group, count) = (total.group.title(), thousands(total.count));
            let line = format!("  {group:<16} {:<18} {count:>6} {:>6}  {ordering}", total.instruction, total.functions);
            writeln!(f, "{}", line.trim_end())?;
        }
        if let Some(pairs) = report.exclusives {
            writeln!(
                f,
                "  exclusive loads and stores form {} atomics: {} in retry loops, {} in outline-atomics helpers",
                pairs.pairs, pairs.loops, pairs.pairs_in_helpers
            )?;
        }
        write_helpers(f, report)?;
        write_functions(f, report)
    }
}

fn heading(binary: &Binary) -> String {
    let build = if binary.build_id.is_empty() { "none" } else { &binary.build_id };
    let (code, instructions) = (binary.text_bytes as f64 / f64::from(1 << 20), thousands(binary.instructions));
    format!(
        "{}\n{}, {instructions} instructions in {code:.1} MiB of code, symbols: {}, build id {build}",
        binary.path, binary.arch, binary.symbol_source
    )
}

fn write_verdicts(f: &mut Formatter, verdicts: &[Verdict], with_evidence: bool) -> fmt::Result {
    for verdict in verdicts {
        writeln!(f, "{} {}", if verdict.is_finding { "!" } else { "-" }, verdict.text)?;
        let evidence = verdict.evidence.iter().filter(|_| with_evidence && verdict.is_finding);
        evidence.take(5).try_for_each(|line| writeln!(f, "      {line}"))?;
    }
    Ok(())
}

fn write_helpers(f: &mut Formatter, report: &Report) -> fmt::Result {
    if report.helpers.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nOutline-atomics helpers, by calls")?;
    for helper in report.helpers.iter().take(HELPERS) {
        writeln!(f, "  {:>6}  {} at {}", thousands(helper.calls), helper.helper, helper.address)?;
    }
    let rest = report.helpers.len().saturating_sub(HELPERS);
    if rest > 0 {
        writeln!(f, "          and {rest} more")?;
    }
    Ok(())
}

fn write_functions(f: &mut Formatter, report: &Report) -> fmt::Result {
    let ordering = report.functions.iter().filter(|row| row.ordering > 0);
    writeln!(f, "\nFunctions with the most memory-ordering instructions ({} have any)", ordering.clone().count())?;
    for row in ordering.take(FUNCTIONS) {
        writeln!(f, "  {:>6}  {}  {}", thousands(row.ordering), place(row), instructions(row))?;
    }
    Ok(())
}

/// Returns the function's name and its source location.
fn place(row: &FunctionRow) -> String {
    let name = shortened(&row.name);
    match (&row.module, &row.source) {
        (Some(module), Some(source)) => format!("{name} ({module}/{source})"),
        (None, Some(source)) => format!("{name} ({source})"),
        _ => name,
    }
}

/// Shortens a long name to its beginning and its end, because template names can have any length.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= MAX_NAME {
        return name.to_owned();
    }
    let part = (MAX_NAME - 1) / 2;
    let (begin, end): (String, String) =
        (name.chars().take(part).collect(), name.chars().skip(length - part).collect());
    format!("{begin}…{end}")
}

fn instructions(row: &FunctionRow) -> String {
    let mut counts: Vec<_> = row.instructions.iter().collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    counts.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

impl Display for Text<'_, Comparison> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let comparison = self.0;
        for (letter, side) in [("A", &comparison.a), ("B", &comparison.b)] {
            writeln!(f, "{letter}  {}", heading(&side.binary))?;
            write_verdicts(f, &side.verdicts, false)?;
            writeln!(f)?;
        }
        writeln!(f, "{:<36} {:>10} {:>10} {:>10}", "Instructions", "A", "B", "B - A")?;
        for (group, counts) in &comparison.groups {
            write_pair(f, group.title(), *counts)?;
        }
        writeln!(f)?;
        for (instruction, counts) in &comparison.instructions {
            write_pair(f, instruction, *counts)?;
        }
        write_structures(f, comparison.structures.as_deref().unwrap_or_default())?;
        writeln!(
            f,
            "\nFunctions that differ ({}), largest difference first: instructions in A and B",
            comparison.functions.len()
        )?;
        comparison.functions.iter().take(FUNCTIONS).try_for_each(|d| writeln!(f, "  {}", difference(d)))
    }
}

fn write_structures(f: &mut Formatter, differing: &[StructureDifference]) -> fmt::Result {
    if differing.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nStructures laid out for 64-byte cache lines that differ ({}): A and B", differing.len())?;
    for difference in differing.iter().take(STRUCTURES) {
        let [a, b] = difference.layouts();
        writeln!(f, "  {}: {a} -> {b}", shortened(&difference.name))?;
    }
    Ok(())
}

fn write_pair(f: &mut Formatter, name: &str, [a, b]: [u64; 2]) -> fmt::Result {
    writeln!(f, "  {name:<34} {:>10} {:>10} {:>+10}", thousands(a), thousands(b), b as i64 - a as i64)
}

fn difference(difference: &Difference) -> String {
    let differing = difference.groups.iter().filter(|(_, [a, b])| a != b);
    let shown: Vec<String> = differing.map(|(group, [a, b])| format!("{} {a} -> {b}", group.title())).collect();
    format!("{}: {}", shortened(&difference.name), shown.join(", "))
}

/// Formats with separators: `1,234,567`.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
    groups.join(",")
}

/// The groups that have a column in tables.
pub(super) const COLUMNS: [Group; 8] = [
    Group::Atomic,
    Group::StoreExclusive,
    Group::OrderedStore,
    Group::AcquireLoad,
    Group::FullFence,
    Group::PartialFence,
    Group::SpinHint,
    Group::Checksum,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        let shown = [0, 999, 1000, 1_234_567].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("ut_delay"), "ut_delay");
        let short = shortened(&format!("begin{}end", "é".repeat(100)));
        assert!(short.starts_with("begin") && short.ends_with("end") && short.chars().count() == MAX_NAME, "{short}");
    }
}

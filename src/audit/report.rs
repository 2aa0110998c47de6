//! Names the counts: makes plain values for rendering, and for comparison with another build.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::classes;
use super::count::{count, AuditError, Counted, FunctionCounts};
use super::lines::{common_folder, Lines};
use super::spin::{spin_loops, SpinLoop};
use super::structures::{structures, Structure, UnknownStructures};
use super::verdict::{verdicts, Verdict};
use crate::isa::{Class, Group, Ordering};
use crate::symbols::{plain_name, DebugInfo, Image};

/// The audit of one program, serialized to JSON as is.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program.
    pub binary: Binary,
    /// What the counts mean, findings first.
    pub verdicts: Vec<Verdict>,
    /// The totals by group, most frequent first.
    pub totals: Vec<Total>,
    /// The sums by group.
    pub groups: BTreeMap<Group, u64>,
    /// The pairs of exclusive loads and stores; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusives: Option<Pairs>,
    /// The outline-atomics helpers, most called first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub helpers: Vec<HelperCalls>,
    /// The spin loops, if the catalog knows the server.
    pub spin_loops: Vec<Spin>,
    /// The structures laid out for 64-byte cache lines. Absent if the program has no readable debug information of its
    /// own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structures: Option<Vec<Structure>>,
    /// All functions with any counted instruction, those with the most ordering instructions first.
    pub functions: Vec<FunctionRow>,
}

/// The program that was audited.
#[derive(Clone, Debug, Serialize)]
pub struct Binary {
    /// The path that the user gave.
    pub path: String,
    /// The architecture: `x86_64` or `aarch64`.
    pub arch: &'static str,
    /// The GNU build ID in hexadecimal; empty if there is none.
    pub build_id: String,
    /// The source of the names.
    pub symbol_source: &'static str,
    /// The size of the code in bytes.
    pub text_bytes: u64,
    /// The number of all instructions, counted or not.
    pub instructions: u64,
}

/// The total of one instruction class.
#[derive(Clone, Debug, Serialize)]
pub struct Total {
    /// The instruction; see [`Class::name`].
    pub instruction: &'static str,
    /// Its purpose.
    pub group: Group,
    /// The ordering of an arm64 atomic; absent for all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering: Option<Ordering>,
    /// How often the program contains it.
    pub count: u64,
    /// The number of functions that contain it.
    pub functions: usize,
}

/// Exclusive loads and stores that belong together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pairs {
    /// The number of pairs.
    pub pairs: u64,
    /// The pairs that are retried until they succeed.
    pub loops: u64,
    /// The pairs in outline-atomics helpers.
    pub pairs_in_helpers: u64,
}

/// The calls of one outline-atomics helper.
#[derive(Clone, Debug, Serialize)]
pub struct HelperCalls {
    /// The name that libgcc gives it, without `__aarch64_`: `ldadd4_acq_rel`.
    pub helper: String,
    /// Link-time address in hexadecimal.
    pub address: String,
    /// The number of calls of it in the program.
    pub calls: u64,
}

/// A spin loop, and whether it contains a spin hint.
#[derive(Clone, Debug, Serialize)]
pub struct Spin {
    /// The name of the function with the loop.
    pub function: String,
    /// Link-time address in hexadecimal.
    pub address: String,
    /// The spin hint, in assembly text; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Link-time address of the hint in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint_address: Option<String>,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionRow {
    /// The demangled name without arguments, or `sub_ADDRESS` if the program has no name for it.
    pub name: String,
    /// Whether that is the function's own name.
    pub is_named: bool,
    /// Link-time address in hexadecimal.
    pub address: String,
    /// The size of its code in bytes.
    pub size: u64,
    /// The directory of its source file, relative to the directory that all source files share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// `FILE:LINE` where it begins, without directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The number of instructions that order memory, or may.
    pub ordering: u64,
    /// The counts by group.
    pub groups: BTreeMap<Group, u64>,
    /// The counts by instruction.
    pub instructions: BTreeMap<&'static str, u64>,
}

/// Audits a program; `path` is its name in the report.
///
/// # Errors
/// Fails when the program has no code that can be audited.
pub fn audit(image: &Image, path: &Path) -> Result<Report, AuditError> {
    let (debug, structures) = match DebugInfo::of(image) {
        Ok(debug) => {
            let structures = structures(&debug);
            (Some(debug), structures)
        }
        Err(why) => (None, Err(UnknownStructures::from(why))),
    };
    let counted = count(image)?;
    let spins = spin_loops(image);
    let functions = rows(image, debug.as_ref(), &counted);
    let classes = classes(image.arch());
    Ok(Report {
        verdicts: verdicts(image, &counted, &spins, structures.as_deref(), &functions),
        binary: Binary {
            path: path.display().to_string(),
            arch: image.arch().as_str(),
            build_id: image.build_id(),
            symbol_source: image.symbol_source().as_str(),
            text_bytes: counted.text,
            instructions: counted.instructions,
        },
        totals: totals(classes, &counted),
        groups: by_group(classes, |group| counted.totals.of_group(classes, group)),
        exclusives: (counted.exclusives.pairs > 0).then_some(Pairs {
            pairs: counted.exclusives.pairs,
            loops: counted.exclusives.loops,
            pairs_in_helpers: counted.exclusives.pairs_in_helpers,
        }),
        helpers: helper_calls(&counted),
        spin_loops: spins.into_iter().map(Spin::from).collect(),
        structures: structures.ok(),
        functions,
    })
}

fn by_group(classes: &[Class], n: impl Fn(Group) -> u64) -> BTreeMap<Group, u64> {
    let is_known = |group: &Group| classes.iter().any(|class| class.group == *group);
    Group::ALL.into_iter().filter(is_known).map(|group| (group, n(group))).filter(|(_, n)| *n > 0).collect()
}

fn totals(classes: &[Class], counted: &Counted) -> Vec<Total> {
    let mut functions = vec![0; classes.len()];
    for (class, _) in counted.functions.iter().flat_map(|f| f.counts.iter()) {
        functions[usize::from(class)] += 1;
    }
    let total = |(class, count): (u8, u32)| {
        let (class, functions) = (&classes[usize::from(class)], functions[usize::from(class)]);
        let &Class { name: instruction, group, ordering } = class;
        Total { instruction, group, ordering, count: u64::from(count), functions }
    };
    let mut totals: Vec<Total> = counted.totals.iter().map(total).collect();
    totals.sort_by_key(|t| (t.group, std::cmp::Reverse(t.count)));
    totals
}

fn helper_calls(counted: &Counted) -> Vec<HelperCalls> {
    let mut helpers: Vec<_> = counted.helper_calls.iter().collect();
    helpers.sort_by_key(|(entry, calls)| (std::cmp::Reverse(**calls), **entry));
    let named = helpers.into_iter().filter_map(|(entry, calls)| Some((counted.helpers.at(*entry)?, *calls)));
    named.map(|(h, calls)| HelperCalls { helper: h.symbol(), address: hex(h.range.start), calls }).collect()
}

impl From<SpinLoop> for Spin {
    fn from(spin: SpinLoop) -> Spin {
        let (hint_address, hint) = spin.hint.map(|(address, text)| (hex(address), text)).unzip();
        Spin { function: spin.function, address: hex(spin.address), hint, hint_address }
    }
}

fn rows(image: &Image, debug: Option<&DebugInfo>, counted: &Counted) -> Vec<FunctionRow> {
    let lines = Lines::of(debug);
    let addresses: Vec<u64> = counted.functions.iter().map(|f| f.address).collect();
    let sources = lines.of_all(&addresses);
    let root = common_folder(sources.iter().flatten().map(|line| &*line.file));
    let mut rows: Vec<FunctionRow> = counted.functions.iter().map(|f| row(image, counted, f)).collect();
    for (row, line) in rows.iter_mut().zip(&sources) {
        let Some(line) = line else { continue };
        let (folder, file) = line.file.rsplit_once('/').unwrap_or(("", &line.file));
        row.module = Some(folder.strip_prefix(root).unwrap_or(folder).to_owned()).filter(|m| !m.is_empty());
        row.source = Some(format!("{file}:{}", line.line));
    }
    rows.sort_by(|a, b| b.ordering.cmp(&a.ordering).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn row(image: &Image, counted: &Counted, function: &FunctionCounts) -> FunctionRow {
    let classes = classes(image.arch());
    let name = name(image, counted, function.address);
    let mut instructions = BTreeMap::new();
    for (class, n) in function.counts.iter() {
        *instructions.entry(classes[usize::from(class)].name).or_default() += u64::from(n);
    }
    FunctionRow {
        is_named: name.is_some(),
        name: name.unwrap_or_else(|| format!("sub_{:x}", function.address)),
        address: hex(function.address),
        size: function.size,
        module: None,
        source: None,
        ordering: function.counts.sum(classes, |class| class.group.orders()),
        groups: by_group(classes, |group| function.counts.of_group(classes, group)),
        instructions,
    }
}

fn name(image: &Image, counted: &Counted, address: u64) -> Option<String> {
    if let Some(helper) = counted.helpers.at(address) {
        return Some(helper.symbol());
    }
    image.symbol_at(address).filter(|s| s.is_function).map(|s| plain_name(s.name))
}

fn hex(address: u64) -> String {
    format!("{address:#x}")
}

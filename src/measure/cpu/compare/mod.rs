//! Compares the server's CPU time.

mod ordering;

pub use ordering::Ordering;
pub(crate) use ordering::{ordering, OrderingSide};

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use maud::{html, Markup};
use serde::Serialize;
use strum::IntoEnumIterator;

use crate::html::table_of_words;
use crate::model::CpuClass;
use crate::present::format::{self, NOTHING};
use crate::present::names::cut_middle;
use crate::recording::compare::{claim, interval, times, Claim, Comparison, Pair, Per, Section, Side};
use crate::recording::{CountsDelta, Recording};

/// CPU seconds per unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuBy {
    /// The unit.
    pub per: Per,
    /// CPU seconds per unit; `None` if a system does not count the unit.
    pub cpu: Option<Pair>,
}

/// A part of the CPU time on both systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuUse {
    /// The CPU time by each unit of [`Per::ALL`].
    pub by: Vec<CpuBy>,
    /// Its share of all sampled CPU time, 0 to 1, on A and on B.
    pub share: [f64; 2],
    /// What the CPU time by the unit that latches are ranked by supports.
    pub claim: Claim,
}

impl CpuUse {
    /// Compares CPU seconds that each system used in each of its seconds.
    pub(crate) fn new(sides: [&Side; 2], seconds: [Option<&[f64]>; 2], ranked_by: Per) -> CpuUse {
        let pair = |per| {
            let samples = |i: usize| sides[i].samples(per, seconds[i]);
            Pair::new(&samples(0)?, &samples(1)?)
        };
        let by: Vec<CpuBy> = Per::ALL.into_iter().map(|per| CpuBy { per, cpu: pair(per) }).collect();
        let ranked = by.iter().find(|by| by.per == ranked_by).and_then(|by| by.cpu);
        let share = |i: usize| {
            let all: f64 = sides[i].cpu.values().flatten().sum();
            let used: f64 = seconds[i].map_or(0.0, |seconds| seconds.iter().sum());
            if all > 0.0 {
                used / all
            } else {
                0.0
            }
        };
        CpuUse { by, share: [share(0), share(1)], claim: claim(ranked.and_then(|pair| pair.ratio)) }
    }

    /// Returns the CPU time by this unit.
    pub fn cpu(&self, per: Per) -> Option<&Pair> {
        self.by.iter().find(|by| by.per == per)?.cpu.as_ref()
    }

    pub(crate) fn difference(&self, per: Per) -> f64 {
        self.cpu(per).map_or(0.0, Pair::difference)
    }
}

/// A class of CPU time on both systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuRow {
    /// The class, as in the `class` label.
    pub class: &'static str,
    /// Its CPU time.
    #[serde(flatten)]
    pub used: CpuUse,
}

/// Returns the classes that either has, the largest difference first; empty if one of the two was not sampled.
pub(crate) fn classes(sides: [&Side; 2], ranked_by: Per) -> Vec<CpuRow> {
    if sides.iter().any(|side| side.cpu.is_empty()) {
        return Vec::new();
    }
    let used = CpuClass::iter().filter(|class| sides.iter().any(|side| time(side, *class) > 0.0));
    let row = |class: CpuClass| {
        let seconds = sides.map(|side| side.cpu.get(&class).map(Vec::as_slice));
        CpuRow { class: class.as_str(), used: CpuUse::new(sides, seconds, ranked_by) }
    };
    let mut rows: Vec<CpuRow> = used.map(row).collect();
    rows.sort_by(|a, b| b.used.difference(ranked_by).total_cmp(&a.used.difference(ranked_by)));
    rows
}

fn time(side: &Side, class: CpuClass) -> f64 {
    side.cpu.get(&class).map_or(0.0, |seconds| seconds.iter().sum())
}

/// Returns CPU seconds in each second, by class; empty if CPU time was not sampled.
pub(crate) fn seconds_by_class(recording: &Recording) -> BTreeMap<CpuClass, Vec<f64>> {
    let mut classes = BTreeMap::new();
    for (i, second) in recording.seconds.iter().enumerate() {
        for &CountsDelta { row, counts: [ns] } in &second.cpu {
            let class = recording.rows.cpu[row].class();
            let seconds = classes.entry(class).or_insert_with(|| vec![0.0; recording.seconds.len()]);
            seconds[i] += ns as f64 / 1e9;
        }
    }
    classes
}

impl Section for Vec<CpuRow> {
    fn text(&self, comparison: &Comparison, f: &mut Formatter) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        let title = format!("CPU time {}, by class", comparison.per.as_str());
        writeln!(f, "\n{title:40} {:>8} {:>8} {:>8}  {:15} share A      B", "A", "B", "B/A", "95 % interval")?;
        self.iter().try_for_each(|row| cpu_line(f, row.class, &row.used, comparison.per))
    }

    fn html(&self, comparison: &Comparison) -> Markup {
        let rows = self.iter().map(|row| (row.class.to_owned(), used(&row.used, comparison)));
        html! {
            @if !self.is_empty() {
                h2 { "CPU time by class" }
                p.soft { "CPU time " (comparison.per.as_str()) "; the largest difference first." }
                (table_of_words(&["class", "A", "B", "B/A", "95 % interval", "share A", "share B"], rows))
            }
        }
    }
}

fn cpu_line(f: &mut Formatter, name: &str, used: &CpuUse, per: Per) -> fmt::Result {
    let ([a, b, ratio, interval], [share_a, share_b]) = (cpu_cells(used, per), used.share.map(format::percent));
    let name = cut_middle(name, 40);
    writeln!(f, "{name:40} {a:>8} {b:>8} {ratio:>8}  {interval:15} {share_a:>7} {share_b:>6}")
}

/// Returns the cells of CPU time on both systems, and its shares.
fn used(used: &CpuUse, comparison: &Comparison) -> Vec<String> {
    cpu_cells(used, comparison.per).into_iter().chain(used.share.map(format::percent)).collect()
}

/// Returns the CPU time of A and of B, their ratio, and its interval; the last two even if the difference is unclear.
fn cpu_cells(used: &CpuUse, per: Per) -> [String; 4] {
    let cpu = used.cpu(per);
    let time = |seconds: Option<f64>| seconds.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
    let ratio = cpu.and_then(|cpu| cpu.ratio);
    [time(cpu.map(|cpu| cpu.a)), time(cpu.map(|cpu| cpu.b)), times(ratio), interval(ratio)]
}

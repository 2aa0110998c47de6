//! CPU time by class, on both.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Claim, Pair, Per, Side};
use crate::measure::checksum::Checksum;
use crate::model::CpuClass;
use crate::present::format;

/// CPU seconds by one unit; `None` where that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuBy {
    pub per: Per,
    pub cpu: Option<Pair>,
}

/// CPU time of something on both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuUse {
    pub by: Vec<CpuBy>,
    /// Of all CPU time that was sampled.
    pub share: [f64; 2],
    pub claim: Claim,
}

impl CpuUse {
    /// `seconds` is what each used of it in each of its seconds.
    pub(super) fn new(sides: [&Side; 2], seconds: [Option<&[f64]>; 2], ranked_by: Per) -> CpuUse {
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
        CpuUse { by, share: [share(0), share(1)], claim: super::claim(ranked.and_then(|pair| pair.ratio)) }
    }

    /// The CPU time by this unit.
    pub fn cpu(&self, per: Per) -> Option<&Pair> {
        self.by.iter().find(|by| by.per == per)?.cpu.as_ref()
    }

    pub(super) fn difference(&self, per: Per) -> f64 {
        self.cpu(per).map_or(0.0, Pair::difference)
    }
}

/// A class of CPU time on both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuRow {
    pub class: &'static str,
    #[serde(flatten)]
    pub used: CpuUse,
}

/// The classes that either has, the largest difference first; none where one of the two was not sampled.
pub(super) fn classes(sides: [&Side; 2], ranked_by: Per) -> Vec<CpuRow> {
    if sides.iter().any(|side| side.cpu.is_empty()) {
        return Vec::new();
    }
    let used = CpuClass::ALL.into_iter().filter(|class| sides.iter().any(|side| time(side, *class) > 0.0));
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

/// CPU time that a KiB takes to be checksummed; `None` unless both have had bursts in which calls were counted.
pub(super) fn checksum_cost(sides: [&Side; 2]) -> Option<Pair> {
    let [a, b] = sides.map(|side| side.checksums.as_deref());
    Pair::new(a?, b?)
}

/// How checksums are computed, and the instruction of spin loops: what is not alike.
pub(super) fn code(sides: [&Side; 2]) -> BTreeMap<String, [Option<String>; 2]> {
    let known = sides.map(|side| {
        let checksums = side.code.checksums.iter().map(|c: &Checksum| (c.purpose.clone(), format::checksum(c)));
        let spin = side.code.spin.iter().map(|spin| {
            let instruction = spin.instruction.clone().unwrap_or("none".to_owned());
            ("instruction of the spin loop".to_owned(), instruction)
        });
        checksums.chain(spin).collect::<BTreeMap<String, String>>()
    });
    super::unlike([&known[0], &known[1]])
}

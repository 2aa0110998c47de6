//! CPU time by class, on both.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Claim, Pair, Per, Side};
use crate::model::{Checksum, CpuClass};
use crate::ui::format;

/// CPU seconds by one unit; `None` where that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuBy {
    pub per: Per,
    pub cpu: Option<Pair>,
}

/// A class of CPU time on both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuRow {
    pub class: &'static str,
    pub by: Vec<CpuBy>,
    /// Of all CPU time that was sampled.
    pub share: [f64; 2],
    pub claim: Claim,
}

impl CpuRow {
    /// Its CPU time by this unit.
    pub fn cpu(&self, per: Per) -> Option<&Pair> {
        self.by.iter().find(|by| by.per == per)?.cpu.as_ref()
    }
}

/// The classes that either has, the largest difference first; none where one of the two was not sampled.
pub(super) fn classes(sides: [&Side; 2], ranked_by: Per) -> Vec<CpuRow> {
    if sides.iter().any(|side| side.cpu.is_empty()) {
        return Vec::new();
    }
    let used = CpuClass::ALL.into_iter().filter(|class| sides.iter().any(|side| time(side, *class) > 0.0));
    let mut rows: Vec<CpuRow> = used.map(|class| row(sides, class, ranked_by)).collect();
    let difference = |row: &CpuRow| row.cpu(ranked_by).map_or(0.0, Pair::difference);
    rows.sort_by(|a, b| difference(b).total_cmp(&difference(a)));
    rows
}

fn row(sides: [&Side; 2], class: CpuClass, ranked_by: Per) -> CpuRow {
    let pair = |per| {
        let samples = |side: &Side| side.samples(per, side.cpu.get(&class).map(Vec::as_slice));
        Pair::new(&samples(sides[0])?, &samples(sides[1])?)
    };
    let by: Vec<CpuBy> = Per::ALL.into_iter().map(|per| CpuBy { per, cpu: pair(per) }).collect();
    let ranked = by.iter().find(|by| by.per == ranked_by).and_then(|by| by.cpu);
    let share = |side: &Side| {
        let all: f64 = CpuClass::ALL.into_iter().map(|class| time(side, class)).sum();
        if all > 0.0 {
            time(side, class) / all
        } else {
            0.0
        }
    };
    CpuRow {
        class: class.as_str(),
        by,
        share: sides.map(share),
        claim: super::claim(ranked.and_then(|pair| pair.ratio)),
    }
}

fn time(side: &Side, class: CpuClass) -> f64 {
    side.cpu.get(&class).map_or(0.0, |seconds| seconds.iter().sum())
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

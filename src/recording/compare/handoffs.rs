//! Waits for latches that came from another part of the machine, on both.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{By, Claim, Pair, Per, Ratio, Sample, Side};
use crate::measure::latch::Locality;
use crate::recording::{CountsDelta, Recording};

/// What both waited for and got from somewhere.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Handoffs {
    /// The parts of each machine that are told apart.
    pub places: [Vec<String>; 2],
    pub all: HandoffRow,
    /// By latch, the largest difference first.
    pub latches: Vec<HandoffRow>,
    /// Share of the waiters that ended up in another part of the machine than they began.
    pub moved: [Option<f64>; 2],
}

/// A latch, or all of them, on both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HandoffRow {
    pub latch: String,
    /// Waits for it that ended with a handoff from another part of the machine.
    pub by: Vec<By>,
    /// Share of the time waited for what is known to come from somewhere, for what came from elsewhere.
    pub remote_share: [Option<f64>; 2],
    /// How many times as large B's is.
    pub share_ratio: Option<Ratio>,
    pub claim: Claim,
}

impl HandoffRow {
    /// Time waited, by this unit.
    pub fn wait(&self, per: Per) -> Option<&Pair> {
        self.by.iter().find(|by| by.per == per)?.wait.as_ref()
    }
}

/// The handoffs of one system, second by second.
#[derive(Clone, Debug, Default)]
pub(super) struct HandoffSide {
    places: Vec<String>,
    latches: BTreeMap<String, Series>,
    all: Series,
    waits: f64,
    migrations: f64,
}

/// Those of one latch.
#[derive(Clone, Debug, Default)]
struct Series {
    /// Seconds waited for what came from here, and from elsewhere.
    local: Vec<f64>,
    remote: Vec<f64>,
    remote_waits: Vec<f64>,
}

impl Series {
    fn of(seconds: usize) -> Series {
        Series { local: vec![0.0; seconds], remote: vec![0.0; seconds], remote_waits: vec![0.0; seconds] }
    }

    fn add(&mut self, second: usize, locality: Locality, waits: f64, wait: f64) {
        match locality {
            Locality::Local => self.local[second] += wait,
            Locality::Remote => {
                self.remote[second] += wait;
                self.remote_waits[second] += waits;
            }
        }
    }

    /// What is remote beside what is known.
    fn shares(&self) -> Vec<Sample> {
        let sample = |(&remote, &local): (&f64, &f64)| Sample { amount: remote, per: remote + local };
        self.remote.iter().zip(&self.local).map(sample).collect()
    }
}

impl HandoffSide {
    /// `None` where handoffs were not counted.
    pub(super) fn new(recording: &Recording) -> Option<HandoffSide> {
        recording.has_handoffs().then_some(())?;
        let seconds = recording.seconds.len();
        let mut side =
            HandoffSide { places: recording.start.places.clone(), all: Series::of(seconds), ..HandoffSide::default() };
        for (i, second) in recording.seconds.iter().enumerate() {
            for &CountsDelta { row, counts: [waits, wait_ns, migrations] } in &second.handoffs {
                let key = &recording.rows.handoffs[row];
                let (waits, wait) = (waits as f64, wait_ns as f64 / 1e9);
                side.waits += waits;
                side.migrations += migrations as f64;
                let Some(locality) = key.locality() else { continue };
                side.all.add(i, locality, waits, wait);
                let latch = side.latches.entry(key.latch.clone()).or_insert_with(|| Series::of(seconds));
                latch.add(i, locality, waits, wait);
            }
        }
        Some(side)
    }
}

/// `None` unless both counted them.
pub(super) fn handoffs(sides: [&Side; 2], ranked_by: Per) -> Option<Handoffs> {
    let counted = [sides[0].handoffs.as_ref()?, sides[1].handoffs.as_ref()?];
    let names: BTreeSet<&String> = counted.iter().flat_map(|side| side.latches.keys()).collect();
    let of_latch = |name: &String| row(name, sides, counted.map(|side| side.latches.get(name)), ranked_by);
    let mut latches: Vec<HandoffRow> = names.into_iter().map(of_latch).collect();
    let difference = |row: &HandoffRow| row.wait(ranked_by).map_or(0.0, Pair::difference);
    latches.sort_by(|a, b| difference(b).total_cmp(&difference(a)));
    Some(Handoffs {
        places: counted.map(|side| side.places.clone()),
        all: row("all latches", sides, counted.map(|side| Some(&side.all)), ranked_by),
        latches,
        moved: counted.map(|side| (side.waits > 0.0).then(|| side.migrations / side.waits)),
    })
}

fn row(latch: &str, sides: [&Side; 2], series: [Option<&Series>; 2], ranked_by: Per) -> HandoffRow {
    let pair = |per: Per, figure: fn(&Series) -> &[f64]| {
        let of = |i: usize| sides[i].samples(per, series[i].map(figure));
        Pair::new(&of(0)?, &of(1)?)
    };
    let by = |per| By { per, wait: pair(per, |s| &s.remote), waits: pair(per, |s| &s.remote_waits) };
    let by: Vec<By> = Per::ALL.into_iter().map(by).collect();
    let ranked = by.iter().find(|by| by.per == ranked_by).and_then(|by| by.wait);
    let shares = series.map(|series| series.map(Series::shares).unwrap_or_default());
    HandoffRow {
        latch: latch.to_owned(),
        by,
        remote_share: [super::rate(&shares[0]), super::rate(&shares[1])],
        share_ratio: super::ratio(&shares[0], &shares[1]),
        claim: super::claim(ranked.and_then(|wait| wait.ratio)),
    }
}

/// What to keep in mind when reading this.
pub(super) fn remark(sides: [&Side; 2]) -> Option<String> {
    let are_nodes = |places: &[String]| places.iter().all(|name| name.parse::<u32>().is_ok());
    match sides.map(|side| side.handoffs.as_ref().map(|handoffs| are_nodes(&handoffs.places))) {
        [Some(a), Some(b)] if a != b => {
            let what = |are_nodes| if are_nodes { "NUMA nodes" } else { "groups of CPUs" };
            Some(format!("Handoffs are those between {} on A, and between {} on B.", what(a), what(b)))
        }
        [Some(_), None] => {
            Some("B has no handoffs to compare: its machine is all one place, or they were not counted.".to_owned())
        }
        [None, Some(_)] => {
            Some("A has no handoffs to compare: its machine is all one place, or they were not counted.".to_owned())
        }
        _ => None,
    }
}

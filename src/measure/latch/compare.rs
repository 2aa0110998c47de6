//! Compares handoffs of latches between parts of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Formatter};

use maud::{html, Markup};
use serde::Serialize;

use super::figures::Locality;
use crate::html::table;
use crate::present::format::{self, NOTHING};
use crate::present::names::short_names;
use crate::recording::compare::{
    claim, interval, rate, ratio, times, By, Claim, Comparison, Figure, Pair, Per, Ratio, Sample, Section, Side,
};
use crate::recording::{CountsDelta, Recording};

/// The number of latches listed. JSON has all.
const TEXT_LATCHES: usize = 8;
const HTML_LATCHES: usize = 100;
/// The greatest width of a latch's name.
const NAME: usize = 44;

/// The handoffs of both systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Handoffs {
    /// The parts of each machine that are distinguished.
    pub places: [Vec<String>; 2],
    /// The handoffs of all latches.
    pub all: HandoffRow,
    /// By latch, the largest difference first.
    pub latches: Vec<HandoffRow>,
    /// The share of the waiters that were in another part of the machine after the wait than before, 0 to 1, on A and
    /// on B.
    pub moved: [Option<f64>; 2],
}

/// A latch, or all of them, on both systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandoffRow {
    /// The event name, or `all latches`.
    pub latch: String,
    /// Waits for it that ended with a handoff from another part of the machine, by each unit of [`Per::ALL`].
    pub by: Vec<By>,
    /// The remote share of the time waited for known handoffs, 0 to 1, on A and on B; `None` if none is known.
    pub remote_share: [Option<f64>; 2],
    /// B's share divided by A's; `None` if either is zero.
    pub share_ratio: Option<Ratio>,
    /// What the wait by the unit that latches are ranked by supports.
    pub claim: Claim,
}

impl HandoffRow {
    /// Returns the time waited, by this unit.
    pub fn wait(&self, per: Per) -> Option<&Pair> {
        self.by.iter().find(|by| by.per == per)?.wait.as_ref()
    }
}

/// The handoffs of one system, second by second.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandoffSide {
    places: Vec<String>,
    latches: BTreeMap<String, Series>,
    all: Series,
    waits: f64,
    migrations: f64,
}

/// The handoffs of one latch.
#[derive(Clone, Debug, Default)]
struct Series {
    /// Seconds waited for local and for remote handoffs.
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

    /// Returns the remote part of the wait time in each second.
    fn shares(&self) -> Vec<Sample> {
        let sample = |(&remote, &local): (&f64, &f64)| Sample { amount: remote, per: remote + local, host: 0 };
        self.remote.iter().zip(&self.local).map(sample).collect()
    }
}

impl HandoffSide {
    /// Returns `None` if handoffs were not counted.
    pub(crate) fn new(recording: &Recording) -> Option<HandoffSide> {
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

/// Returns `None` unless both systems counted them.
pub(crate) fn handoffs(sides: [&Side; 2], ranked_by: Per) -> Option<Handoffs> {
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
        remote_share: [rate(&shares[0]), rate(&shares[1])],
        share_ratio: ratio(&shares[0], &shares[1]),
        claim: claim(ranked.and_then(|wait| wait.ratio)),
    }
}

/// Returns what to keep in mind when the two systems counted different handoffs.
pub(crate) fn remark(sides: [&Side; 2]) -> Option<String> {
    let are_nodes = |places: &[String]| places.iter().all(|name| name.parse::<u32>().is_ok());
    match sides.map(|side| side.handoffs.as_ref().map(|handoffs| are_nodes(&handoffs.places))) {
        [Some(a), Some(b)] if a != b => {
            let what = |are_nodes| if are_nodes { "NUMA nodes" } else { "groups of CPUs" };
            Some(format!("Handoffs are those between {} on A, and between {} on B.", what(a), what(b)))
        }
        [Some(_), None] => {
            Some("B has no handoffs to compare: its machine has only one part, or they were not counted.".to_owned())
        }
        [None, Some(_)] => {
            Some("A has no handoffs to compare: its machine has only one part, or they were not counted.".to_owned())
        }
        _ => None,
    }
}

impl Section for Option<Handoffs> {
    fn figures(&self) -> Vec<Figure> {
        let Some(handoffs) = self else { return Vec::new() };
        let (shares, moved) = (handoffs.all.remote_share, handoffs.moved);
        let remote = Figure::of_shares("remote share of handoffs' wait", shares, handoffs.all.share_ratio);
        [remote, Figure::of_shares("share of waiters that moved", moved, None)].into_iter().flatten().collect()
    }

    fn text(&self, comparison: &Comparison, f: &mut Formatter) -> fmt::Result {
        let Some(handoffs) = self else { return Ok(()) };
        let shown = &handoffs.latches[..handoffs.latches.len().min(TEXT_LATCHES)];
        let names = short_names(shown.iter().map(|row| row.latch.as_str()), NAME);
        let title = format!("remote handoffs, by wait {}", comparison.per.as_str());
        let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max(title.chars().count());
        writeln!(f, "\n{title:width$} {:>8} {:>8} {:>8}  {:15} share A      B", "A", "B", "B/A", "95 % interval")?;
        let mut line = |name: &str, row: &HandoffRow| {
            let ([a, b, ratio, interval], [share_a, share_b]) = handoff_cells(row, comparison.per);
            writeln!(f, "{name:width$} {a:>8} {b:>8} {ratio:>8}  {interval:15} {share_a:>7} {share_b:>6}")
        };
        line("all latches", &handoffs.all)?;
        shown.iter().try_for_each(|row| line(&names[row.latch.as_str()], row))
    }

    fn html(&self, comparison: &Comparison) -> Markup {
        let Some(handoffs) = self else { return html! {} };
        let [a, b] = handoffs.places.each_ref().map(|places| places.join(", "));
        let row = |row: &HandoffRow| {
            let (cells, shares) = handoff_cells(row, comparison.per);
            (row.latch.clone(), cells.into_iter().chain(shares).collect())
        };
        let rows = [&handoffs.all].into_iter().chain(handoffs.latches.iter().take(HTML_LATCHES));
        html! {
            h2 { "Remote handoffs" }
            p.soft {
                "Wait " (comparison.per.as_str()) " for latches from another part of the machine, and its share of the \
                 wait for all known handoffs. A: " (a) ". B: " (b) "."
            }
            (table(&["latch", "A", "B", "B/A", "95 % interval", "remote A", "remote B"], rows.map(row)))
        }
    }
}

/// Returns the wait for remote handoffs of A and of B, their ratio and its interval; then the remote shares.
fn handoff_cells(row: &HandoffRow, per: Per) -> ([String; 4], [String; 2]) {
    let wait = row.wait(per);
    let time = |seconds: Option<f64>| seconds.map_or(NOTHING.to_owned(), |s| format::nanoseconds(s * 1e9));
    let ratio = wait.and_then(|wait| wait.ratio);
    let cells = [time(wait.map(|wait| wait.a)), time(wait.map(|wait| wait.b)), times(ratio), interval(ratio)];
    (cells, row.remote_share.map(|share| share.map_or(NOTHING.to_owned(), format::percent)))
}

//! Conditions: which figures and settings must be known, and within which bounds.

use std::collections::BTreeMap;

use serde::Deserialize;
use strum::EnumIter;

use super::{Entry, Facts};

/// The figures that conditions compare. Shares are 0 to 1. Those of latches are of the entry's latches; where it has
/// none, those of spins are of the latch with the most spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The latches' share of all wait time.
    Share,
    /// How many threads wait for the latches at any moment.
    Threads,
    /// How many threads wait for any latch at any moment.
    AllThreads,
    /// The share of the latches' wait time in modes that keep others out: X and SX.
    Exclusive,
    /// The share of the latches' wait time that begins where pages are read in and evicted.
    Eviction,
    /// The share of wait time that is for latches that came from another part of the machine, of those known.
    Remote,
    /// The hottest leaf's index: its share of the wait time for pages.
    HotLeaf,
    /// The hottest level above the leaves: its share of the wait time for pages.
    HotUpper,
    /// The share of spins that end asleep, if there were many.
    WastedSpins,
    /// The median wait, divided by the time that threads spin before they sleep.
    MedianOfSpin,
    /// The share of CPU time spent spinning.
    SpinCpu,
    /// The share of CPU time in atomics and barriers, outside the latches' own code.
    OrderingCpu,
    /// The share of CPU time spent converting between character sets.
    CharsetCpu,
    /// The share of CPU time spent on finding out the CPU.
    GetcpuCpu,
    /// The number of checksums that the server computes in software although the CPU has an instruction.
    SlowChecksums,
    /// How many threads wait at any moment for InnoDB's log to be written and flushed.
    RedoLog,
    /// How many threads wait at any moment for the binary log to be flushed.
    BinaryLog,
    /// How many threads wait at any moment for pages of InnoDB to be read from the disk.
    PageReads,
}

/// What must hold. Every bound that is given must.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// The least values of figures. A figure that is not known does not reach any.
    pub at_least: BTreeMap<Figure, f64>,
    /// The greatest values of figures.
    pub at_most: BTreeMap<Figure, f64>,
    /// The bounds of settings. A setting that is not known contradicts none, but the finding says that it depends on
    /// it.
    pub settings: BTreeMap<String, Bound>,
}

/// The bound of a setting.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// It has this value, as the server reports it.
    Is(String),
    /// It is a number, and no more than this.
    AtMost(f64),
    /// It is a number, and no less than this.
    AtLeast(f64),
}

impl Bound {
    fn allows(&self, value: &str) -> bool {
        let number = || value.parse::<f64>().ok();
        match self {
            Bound::Is(expected) => value.eq_ignore_ascii_case(expected),
            Bound::AtMost(most) => number().is_some_and(|n| n <= *most),
            Bound::AtLeast(least) => number().is_some_and(|n| n >= *least),
        }
    }
}

/// Formats the bound behind a setting's name: `is ON`, `is at most 64`.
impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Bound::Is(value) => write!(f, "is {value}"),
            Bound::AtMost(most) => write!(f, "is at most {most}"),
            Bound::AtLeast(least) => write!(f, "is at least {least}"),
        }
    }
}

/// By what a condition holds.
pub(super) struct Evidence {
    /// Each figure and setting in words.
    pub words: Vec<String>,
    /// How many settings are not known.
    pub guesses: usize,
}

impl When {
    /// Returns by what it holds for an entry; `None` if it does not.
    pub(super) fn evidence(&self, entry: &Entry, facts: &dyn Facts) -> Option<Evidence> {
        let mut evidence = Evidence { words: Vec::new(), guesses: 0 };
        for (figure, least) in &self.at_least {
            let quoted = facts.figure(*figure, entry).filter(|quoted| quoted.value >= *least)?;
            evidence.words.push(quoted.words);
        }
        for (figure, most) in &self.at_most {
            let quoted = facts.figure(*figure, entry).filter(|quoted| quoted.value <= *most)?;
            evidence.words.push(quoted.words);
        }
        for (name, bound) in &self.settings {
            match facts.setting(name) {
                Some(value) if bound.allows(value) => evidence.words.push(format!("{name} is {value}")),
                Some(_) => return None,
                None => {
                    evidence.guesses += 1;
                    evidence.words.push(format!("if {name} {bound}"));
                }
            }
        }
        Some(evidence)
    }

    /// Returns its bounds in words, for the page.
    pub(super) fn bounds(&self) -> Vec<String> {
        let least = self.at_least.iter().map(|(figure, least)| bound(*figure, "at least", *least));
        let most = self.at_most.iter().map(|(figure, most)| bound(*figure, "at most", *most));
        let settings = self.settings.iter().map(|(name, bound)| format!("`{name}` {bound}"));
        least.chain(most).chain(settings).collect()
    }
}

/// Returns a bound in words: `at least 5 % of all wait time`.
fn bound(figure: Figure, how: &str, value: f64) -> String {
    let percent = format!("{how} {} %", (value * 1000.0).round() / 10.0);
    match figure {
        Figure::Share => format!("{percent} of all wait time"),
        Figure::Threads => format!("{how} {value} threads waiting for it"),
        Figure::AllThreads => format!("{how} {value} threads waiting for latches"),
        Figure::Exclusive => format!("{percent} of that in modes X and SX"),
        Figure::Eviction => format!("{percent} of that where pages are read in and evicted"),
        Figure::Remote => format!("{percent} of the wait time for latches from another part of the machine"),
        Figure::HotLeaf => format!("{percent} of the wait for pages for the leaves of one index"),
        Figure::HotUpper => format!("{percent} of the wait for pages for one level above the leaves"),
        Figure::WastedSpins => format!("{percent} of the spins end asleep"),
        Figure::MedianOfSpin => format!("a median wait of {how} {value} times the spinning"),
        Figure::SpinCpu => format!("{percent} of the CPU time spent spinning"),
        Figure::OrderingCpu => format!("{percent} of the CPU time in atomics and barriers"),
        Figure::CharsetCpu => format!("{percent} of the CPU time converting character sets"),
        Figure::GetcpuCpu => format!("{percent} of the CPU time in `sched_getcpu`"),
        Figure::SlowChecksums => "a checksum computed in software, although the CPU has an instruction".to_owned(),
        Figure::RedoLog => format!("{how} {value} threads waiting for InnoDB's log to be written and flushed"),
        Figure::BinaryLog => format!("{how} {value} threads waiting for the binary log to be flushed"),
        Figure::PageReads => format!("{how} {value} threads waiting for pages to be read"),
    }
}

//! Who held the latches, in a report.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use maud::{html, Markup};
use serde::Serialize;
use strum::IntoEnumIterator;

use super::{BlockedBy, HolderState, Holding};
use crate::html::{more, table};
use crate::present::format::{self, NOTHING};
use crate::present::names::short_names;
use crate::recording::report::{seconds, Findings, Part, Report, Section};
use crate::recording::Recording;

/// The number of latches and of places of each that are listed. JSON has all.
const LATCHES: usize = 10;
const PLACES: usize = 3;
const ROWS: usize = 40;
/// The least share of the time of all, and of a latch, that is worth a sentence.
const LEAST_OF_ALL: f64 = 0.05;
const LEAST_OF_LATCH: f64 = 0.2;
/// The least sampled time for a sentence, in seconds.
const LEAST_SECONDS: f64 = 0.5;

/// Who held the latches that threads waited for.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HoldersReport {
    /// By latch, longest sampled wait first; empty if no look showed a wait.
    pub holders: Vec<LatchHolders>,
}

/// The holders of one latch, by what they did while threads waited.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatchHolders {
    /// The event name of the latch.
    pub latch: String,
    /// The sampled time of waiters, in all modes, in seconds.
    pub wait: f64,
    /// The share of it for which the holder is known, 0 to 1.
    pub known_share: f64,
    /// By what the holder did, longest first.
    pub states: Vec<HolderStateReport>,
    /// By what the holder did and where, longest first; only where the place or the latch it waited for is known.
    pub places: Vec<HolderPlace>,
}

/// The time waited while the holder did something.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderStateReport {
    /// What it did, as in the `holder_state` label.
    pub state: &'static str,
    /// The sampled time of waiters, in seconds.
    pub wait: f64,
    /// The share of the sampled time of the latch, 0 to 1.
    pub share: f64,
}

/// The time waited while the holder was somewhere.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderPlace {
    /// What it did, as in the `holder_state` label.
    pub state: &'static str,
    /// Where it was: a function, or a source file and line; `None` if that is not known.
    pub site: Option<String>,
    /// The event name of the latch that it waited for itself; `None` if it waited for none.
    pub waits_for: Option<String>,
    /// The sampled time of waiters, in seconds.
    pub wait: f64,
    /// The share of the sampled time of the latch, 0 to 1.
    pub share: f64,
}

impl Part for HoldersReport {
    fn new(recording: &Recording) -> HoldersReport {
        HoldersReport { holders: by_latch(&recording.holders()) }
    }
}

/// Returns the holders of each latch, from rows with the longest first.
fn by_latch(rows: &[BlockedBy]) -> Vec<LatchHolders> {
    let mut latches: BTreeMap<&str, Vec<&BlockedBy>> = BTreeMap::new();
    rows.iter().filter(|row| row.wait_ns > 0).for_each(|row| latches.entry(&row.holding.latch).or_default().push(row));
    let mut all: Vec<LatchHolders> = latches.into_iter().map(|(latch, rows)| of_latch(latch, &rows)).collect();
    all.sort_by(|a, b| b.wait.total_cmp(&a.wait));
    all
}

fn of_latch(latch: &str, rows: &[&BlockedBy]) -> LatchHolders {
    let total: u64 = rows.iter().map(|row| row.wait_ns).fold(0, u64::saturating_add);
    let share = |ns: u64| ns as f64 / total as f64;
    let mut times: BTreeMap<HolderState, u64> = BTreeMap::new();
    let mut placed: BTreeMap<Holding, u64> = BTreeMap::new();
    for row in rows {
        *times.entry(row.holding.state).or_default() += row.wait_ns;
        if row.holding.site.is_some() || row.holding.waits_for.is_some() {
            // Modes are those of waiters, which have the same holder.
            let holding = Holding { mode: crate::model::Mode::None, ..row.holding.clone() };
            *placed.entry(holding).or_default() += row.wait_ns;
        }
    }
    let known = total - times.get(&HolderState::Unknown).copied().unwrap_or_default();
    let mut states: Vec<HolderStateReport> = times
        .into_iter()
        .map(|(state, ns)| HolderStateReport { state: state.as_str(), wait: seconds(ns), share: share(ns) })
        .collect();
    states.sort_by(|a, b| b.wait.total_cmp(&a.wait));
    let mut places: Vec<HolderPlace> = placed
        .into_iter()
        .map(|(at, ns)| HolderPlace {
            state: at.state.as_str(),
            site: at.site,
            waits_for: at.waits_for,
            wait: seconds(ns),
            share: share(ns),
        })
        .collect();
    places.sort_by(|a, b| b.wait.total_cmp(&a.wait));
    LatchHolders { latch: latch.to_owned(), wait: seconds(total), known_share: share(known), states, places }
}

impl LatchHolders {
    /// Returns the share of the sampled time in which the holder did this, 0 to 1.
    fn share_of(&self, state: HolderState) -> f64 {
        self.states.iter().find(|row| row.state == state.as_str()).map_or(0.0, |row| row.share)
    }

    /// Returns what the holder did: `had no CPU 41%, ran 30%`.
    fn states_in_words(&self) -> String {
        let of = |row: &HolderStateReport| format!("{} {}", words(row.state), format::percent(row.share));
        self.states.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl HolderPlace {
    /// Returns what it did and where, and what it waited for:
    /// `had no CPU at row_ins_clust → wait/synch/mutex/innodb/trx_mutex 12%`.
    fn in_words(&self) -> String {
        let (did, site) = (words(self.state), self.site.as_deref().unwrap_or(NOTHING));
        let latch = self.waits_for.as_ref().map(|latch| format!(" → {latch}")).unwrap_or_default();
        format!("{did} at {site}{latch} {}", format::percent(self.share))
    }
}

/// Returns in words what a holder did, given its label.
fn words(state: &str) -> &'static str {
    HolderState::from_name(state).map_or("", HolderState::in_words)
}

impl Section for HoldersReport {
    fn text(&self, _report: &Report, f: &mut Formatter) -> fmt::Result {
        if self.holders.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nwhat the holder of each latch did while threads waited for it, by sampled time")?;
        let names = short_names(self.holders.iter().map(|row| row.latch.as_str()), usize::MAX);
        for row in self.holders.iter().take(LATCHES) {
            writeln!(f, "  {}: {}", names[row.latch.as_str()], row.states_in_words())?;
            let places: Vec<String> = row.places.iter().take(PLACES).map(HolderPlace::in_words).collect();
            if !places.is_empty() {
                writeln!(f, "    {}", places.join(", "))?;
            }
        }
        match self.holders.len().saturating_sub(LATCHES) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more, which --format json lists"),
        }
    }

    fn html(&self, _report: &Report) -> Markup {
        if self.holders.is_empty() {
            return Markup::default();
        }
        let names = short_names(self.holders.iter().map(|row| row.latch.as_str()), usize::MAX);
        let row = |row: &LatchHolders| {
            let shares = HolderState::iter().map(|state| match row.share_of(state) {
                0.0 => NOTHING.to_owned(),
                share => format::percent(share),
            });
            let place = row.places.first().map(HolderPlace::in_words);
            let cells = [format::nanoseconds(row.wait * 1e9)].into_iter().chain(shares);
            (names[row.latch.as_str()].clone(), cells.chain([place.unwrap_or_default()]).collect::<Vec<_>>())
        };
        let titles = [
            "latch",
            "sampled wait",
            "ran",
            "had no CPU",
            "file I/O",
            "network",
            "another latch",
            "slept",
            "system call",
            "none",
            "not known",
            "top place",
        ];
        html! {
            h2 { "What the holders of latches did" }
            p.soft { "While threads waited, by sampled time. Some kinds of latches do not keep their holder." }
            (table(&titles, self.holders.iter().take(ROWS).map(row)))
            (more(self.holders.len().saturating_sub(ROWS)))
        }
    }

    fn findings(&self, _report: &Report, findings: &mut Findings) {
        let all: f64 = self.holders.iter().map(|row| row.wait).sum();
        for row in self.holders.iter().filter(|row| row.wait >= LEAST_OF_ALL * all && row.wait >= LEAST_SECONDS) {
            findings.problem(without_cpu(row));
            findings.problem(in_io(row));
        }
    }
}

fn without_cpu(row: &LatchHolders) -> Option<String> {
    let share = row.share_of(HolderState::Preempted);
    (share >= LEAST_OF_LATCH).then(|| {
        format!(
            "The holder of {} had no CPU for {} of the time that threads waited for it: more threads want to run than \
             there are CPUs.",
            row.latch,
            format::percent(share)
        )
    })
}

fn in_io(row: &LatchHolders) -> Option<String> {
    let share = row.share_of(HolderState::Io);
    (share >= LEAST_OF_LATCH).then(|| {
        let place = row.places.iter().find(|place| place.state == HolderState::Io.as_str());
        let place =
            place.and_then(|place| place.site.as_deref()).map_or_else(String::new, |at| format!(", mostly in {at}"));
        format!(
            "The holder of {} was in file I/O for {} of the time that threads waited for it{place}.",
            row.latch,
            format::percent(share)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mode;

    fn row(latch: &str, mode: Mode, state: HolderState, site: Option<&str>, wait_ns: u64) -> BlockedBy {
        let site = site.map(str::to_owned);
        BlockedBy { holding: Holding { latch: latch.to_owned(), mode, state, site, waits_for: None }, wait_ns }
    }

    #[test]
    fn a_latch_has_the_states_of_all_its_holders() {
        let second = 1_000_000_000;
        let all = by_latch(&[
            row("b", Mode::X, HolderState::Preempted, Some("write"), 3 * second),
            row("b", Mode::S, HolderState::Preempted, Some("write"), 2 * second),
            row("b", Mode::X, HolderState::Unknown, None, 5 * second),
            row("a", Mode::None, HolderState::Io, Some("flush"), second),
        ]);
        let [b, a] = &all[..] else { panic!("{all:?}") };
        assert_eq!((b.latch.as_str(), b.wait, b.known_share), ("b", 10.0, 0.5));
        assert_eq!((b.places.len(), b.places[0].wait, b.share_of(HolderState::Preempted)), (1, 5.0, 0.5));
        assert_eq!(b.places[0].in_words(), "had no CPU at write 50.0%");
        assert!(without_cpu(b).is_some_and(|text| text.contains("had no CPU for 50.0%")), "{:?}", without_cpu(b));
        assert_eq!((without_cpu(a), in_io(b)), (None, None));
        assert!(in_io(a).is_some_and(|text| text.contains("mostly in flush")));
    }
}

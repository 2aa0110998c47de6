//! Reports the parts of the machine between which latches were handed over.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use maud::{html, Markup};
use serde::{Serialize, Serializer};

use super::text::NAME;
use crate::html::{table, table_of_words};
use crate::measure::latch::record::{Handed, HandoffKey};
use crate::measure::latch::Locality;
use crate::present::format::{self, NOTHING};
use crate::present::names::short_names;
use crate::recording::report::{seconds, Findings, Report, Section};
use crate::recording::Recording;

/// The number of latches listed. JSON has all.
const TEXT_LATCHES: usize = 5;
const HTML_LATCHES: usize = 20;
/// The most parts of the machine in a matrix; a larger one is unreadable. JSON has all.
const MOST_PLACES: usize = 8;
/// The least share of the wait time for remote handoffs that is worth a sentence.
const MUCH_REMOTE: f64 = 0.05;

/// Contended waits by where the latch came from. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandoffsReport {
    /// The parts of the machine that are distinguished.
    pub places: Vec<String>,
    /// The handoffs of all latches.
    pub all: HandoffSums,
    /// By latch, the one with the most wait time for remote handoffs first.
    pub latches: Vec<LatchHandoffs>,
}

/// The handoffs of one latch.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatchHandoffs {
    /// The event name.
    pub latch: String,
    /// Its handoffs.
    #[serde(flatten)]
    pub sums: HandoffSums,
}

/// The handoffs of one latch, or of all.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandoffSums {
    /// The latch came from the part of the machine in which the waiter acquired it.
    pub local: HandoffSum,
    /// The latch came from another part.
    pub remote: HandoffSum,
    /// It is not known where the latch came from, because the waiter was not woken.
    pub unknown: HandoffSum,
    /// Waits that began in another part of the machine than they ended in.
    pub migrations: u64,
    /// The handoffs by the parts that the latch came from and went to, if these have rows of their own; `None` stands
    /// for a part that is not known.
    #[serde(serialize_with = "as_list")]
    #[cfg_attr(test, schemars(with = "Vec<Cell>"))]
    pub cells: BTreeMap<(Option<String>, Option<String>), HandoffSum>,
}

/// A number of handoffs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandoffSum {
    /// The number of waits.
    pub waits: u64,
    /// Time waited, in seconds.
    pub wait: f64,
}

/// The handoffs between two parts of the machine.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Cell<'a> {
    /// `null`: unknown.
    from: &'a Option<String>,
    /// `null`: unknown.
    to: &'a Option<String>,
    #[serde(flatten)]
    sum: HandoffSum,
}

/// Serializes the cells as a list, because keys in JSON cannot consist of two parts.
fn as_list<S: Serializer>(
    cells: &BTreeMap<(Option<String>, Option<String>), HandoffSum>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_seq(cells.iter().map(|((from, to), sum)| Cell { from, to, sum: *sum }))
}

impl HandoffSum {
    fn add(&mut self, handed: Handed) {
        self.waits = self.waits.saturating_add(handed.waits);
        self.wait += seconds(handed.wait_ns);
    }
}

impl HandoffSums {
    fn add(&mut self, key: &HandoffKey, handed: Handed) {
        let sum = match key.locality() {
            Some(Locality::Local) => &mut self.local,
            Some(Locality::Remote) => &mut self.remote,
            None => &mut self.unknown,
        };
        sum.add(handed);
        self.migrations = self.migrations.saturating_add(handed.migrations);
        if key.from.is_some() || key.to.is_some() {
            self.cells.entry((key.from.clone(), key.to.clone())).or_default().add(handed);
        }
    }

    /// Returns the number of all waits.
    pub fn waits(&self) -> u64 {
        [self.local, self.remote, self.unknown].into_iter().fold(0, |sum, part| sum.saturating_add(part.waits))
    }

    /// Returns all time waited.
    pub fn wait(&self) -> f64 {
        self.local.wait + self.remote.wait + self.unknown.wait
    }

    /// Returns the share of the time waited for latches whose origin is known that was waited for remote ones, 0 to 1;
    /// `None` if no origin is known.
    pub fn remote_share(&self) -> Option<f64> {
        let known = self.local.wait + self.remote.wait;
        (known > 0.0).then(|| self.remote.wait / known)
    }

    /// Returns the share of the waiters that moved while they waited, 0 to 1; `None` if there were none.
    pub fn moved_share(&self) -> Option<f64> {
        (self.waits() > 0).then(|| self.migrations as f64 / self.waits() as f64)
    }

    /// Returns the waits for latches handed over from `from` to a waiter in `to`.
    pub fn between(&self, from: Option<&str>, to: Option<&str>) -> HandoffSum {
        let key = (from.map(str::to_owned), to.map(str::to_owned));
        self.cells.get(&key).copied().unwrap_or_default()
    }
}

impl HandoffsReport {
    /// Returns `None` if handoffs were not counted.
    pub(crate) fn new(recording: &Recording) -> Option<HandoffsReport> {
        recording.has_handoffs().then_some(())?;
        let mut all = HandoffSums::default();
        let mut latches: BTreeMap<&str, HandoffSums> = BTreeMap::new();
        for (key, handed) in recording.handoffs().filter(|(_, handed)| handed.waits > 0) {
            all.add(key, handed);
            latches.entry(&key.latch).or_default().add(key, handed);
        }
        let latch = |(latch, sums): (&str, HandoffSums)| LatchHandoffs { latch: latch.to_owned(), sums };
        let mut latches: Vec<LatchHandoffs> = latches.into_iter().map(latch).collect();
        let time = |latch: &LatchHandoffs| (latch.sums.remote.wait, latch.sums.wait());
        latches.sort_by(|a, b| time(b).partial_cmp(&time(a)).unwrap_or(std::cmp::Ordering::Equal));
        Some(HandoffsReport { places: recording.start.places.clone(), all, latches })
    }
}

impl Section for Option<HandoffsReport> {
    fn text(&self, report: &Report, f: &mut Formatter) -> fmt::Result {
        let Some(handoffs) = self.as_ref().filter(|handoffs| handoffs.all.waits() > 0) else { return Ok(()) };
        let shown = &handoffs.latches[..handoffs.latches.len().min(TEXT_LATCHES)];
        let names = short_names(shown.iter().map(|latch| latch.latch.as_str()), NAME);
        let title = format!("handed over between {}", places(handoffs));
        let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max(title.chars().count());
        writeln!(f, "\n{title:width$} handoffs/s   local  remote not woken   moved")?;
        let mut line = |name: &str, sums: &HandoffSums| {
            let [count, local, remote, unknown, moved] = handoff_cells(sums, report.duration);
            writeln!(f, "{name:width$} {count:>10} {local:>7} {remote:>7} {unknown:>9} {moved:>7}")
        };
        line("all latches, by time waited", &handoffs.all)?;
        shown.iter().try_for_each(|latch: &LatchHandoffs| line(&names[latch.latch.as_str()], &latch.sums))?;
        let Some(matrix) = matrix(handoffs, &handoffs.all, report.duration) else { return Ok(()) };
        writeln!(f, "{:width$} {}", "handoffs/s from \\ to", aligned(&matrix.titles))?;
        matrix.rows.iter().try_for_each(|(from, cells)| writeln!(f, "{from:>width$} {}", aligned(cells)))
    }

    fn html(&self, report: &Report) -> Markup {
        let Some(handoffs) = self.as_ref().filter(|handoffs| handoffs.all.waits() > 0) else { return html! {} };
        let names = short_names(handoffs.latches.iter().map(|latch| latch.latch.as_str()), usize::MAX);
        let latches =
            handoffs.latches.iter().take(HTML_LATCHES).map(|latch| (&*names[latch.latch.as_str()], &latch.sums));
        let rows = [("all latches", &handoffs.all)].into_iter().chain(latches);
        let rows = rows.map(|(name, sums)| (name.to_owned(), handoff_cells(sums, report.duration).to_vec()));
        html! {
            h2 { "Handoffs" }
            p.soft {
                "Between " (places(handoffs)) ". Local, remote and not woken are shares of the time waited; moved is the \
                 share of the waiters that ended up elsewhere than they began."
            }
            (table(&["latch", "handoffs/s", "local", "remote", "not woken", "moved"], rows))
            @if let Some(matrix) = matrix(handoffs, &handoffs.all, report.duration) {
                h3 { "Handoffs a second, from and to" }
                (table_of_words(&matrix.titles(), matrix.rows.iter().cloned()))
            }
        }
    }

    fn findings(&self, report: &Report, findings: &mut Findings) {
        findings.fact(self.as_ref().and_then(|handoffs| remote(handoffs, report)));
    }
}

/// Returns a sentence on waits for latches that came from another part of the machine.
fn remote(handoffs: &HandoffsReport, report: &Report) -> Option<String> {
    let (all, top) = (&handoffs.all, handoffs.latches.first()?);
    (all.remote.wait >= MUCH_REMOTE * report.totals.wait).then_some(())?;
    Some(format!(
        "Of the time waited for known handoffs, {} is for latches from another part of the machine, {} of that for {}.",
        format::percent(all.remote_share()?),
        format::percent(top.sums.remote.wait / all.remote.wait),
        top.latch
    ))
}

fn aligned(cells: &[String]) -> String {
    cells.iter().map(|cell| format!("{cell:>10}")).collect::<Vec<_>>().join(" ")
}

/// Returns the names of the parts: `nodes 0, 1`, `cpus 0-7, cpus 8-15`.
fn places(handoffs: &HandoffsReport) -> String {
    let names = &handoffs.places;
    let are_nodes = names.iter().all(|name| name.parse::<u32>().is_ok());
    let nodes = if are_nodes { "nodes " } else { "" };
    match names.len() {
        ..=MOST_PLACES => format!("{nodes}{}", names.join(", ")),
        many => format!("{many} {}", if are_nodes { "nodes" } else { "parts of the machine" }),
    }
}

/// Returns handoffs per second, shares of the time waited by locality, and the share of the waiters that moved.
fn handoff_cells(sums: &HandoffSums, duration: f64) -> [String; 5] {
    let share = |wait: f64| match sums.wait() {
        0.0 => NOTHING.to_owned(),
        all => format::percent(wait / all),
    };
    let moved = sums.moved_share().map_or(NOTHING.to_owned(), format::percent);
    let count = format::count(sums.waits() as f64 / duration);
    [count, share(sums.local.wait), share(sums.remote.wait), share(sums.unknown.wait), moved]
}

/// Handoffs per second between the parts of the machine.
struct Matrix {
    /// The receiving parts.
    titles: Vec<String>,
    /// The giving parts, each with the handoffs to every receiving part.
    rows: Vec<(String, Vec<String>)>,
}

impl Matrix {
    /// Returns the titles of a page's table.
    fn titles(&self) -> Vec<&str> {
        ["from \\ to"].into_iter().chain(self.titles.iter().map(String::as_str)).collect()
    }
}

/// Returns `None` if there are too many parts to read.
fn matrix(handoffs: &HandoffsReport, sums: &HandoffSums, duration: f64) -> Option<Matrix> {
    (handoffs.places.len() <= MOST_PLACES).then_some(())?;
    let places = || handoffs.places.iter().map(String::as_str);
    let row = |from: Option<&str>| {
        let count = |to| format::count(sums.between(from, Some(to)).waits as f64 / duration);
        (from.unwrap_or("not woken").to_owned(), places().map(count).collect())
    };
    let titles = places().map(str::to_owned).collect();
    Some(Matrix { titles, rows: places().map(Some).chain([None]).map(row).collect() })
}

//! Compares two systems: the waits of each per second, per statement or per CPU, and how certain the difference is.

mod distributions;
mod html;
mod ps;
mod scaling;
mod side;
mod slopes;
mod stats;
mod text;
mod throughput;

pub use distributions::{Distribution, SharesOfBucket};
pub use html::Html;
pub use ps::{Dump, PsError, Unit};
pub use scaling::{Growth, Point, Scaling, ScalingError};
pub use side::{About, Fleet, Side};
pub use stats::{is_there, rate, ratio, Ratio, Sample, ScalabilityLaw, LEAST_HOSTS, LEAST_POINTS, LEAST_SAMPLES};
pub(crate) use text::{interval, times};
pub use text::{Figure, Text};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Formatter};

use maud::Markup;
use serde::Serialize;

use crate::advice::{self, Advised};
use crate::measure::checksum::Checksum;
use crate::measure::cpu::compare::{classes, ordering, CpuRow, Ordering};
use crate::measure::latch::compare::{handoffs, remark, Handoffs};
use crate::measure::{measurements, Nothing, Room};
use crate::model::OTHER;
use crate::recording::Recording;

/// What one measurement writes in a comparison.
pub trait Section {
    /// Returns its figures of the whole system.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Writes its part of a comparison for a terminal, if it has any.
    fn text(&self, _comparison: &Comparison, _f: &mut Formatter) -> fmt::Result {
        Ok(())
    }

    /// Returns its part of a page, if it has any.
    fn html(&self, _comparison: &Comparison) -> Markup {
        Markup::default()
    }
}

/// What one measurement adds to a comparison: its fields are those of the comparison, and what is written of them.
pub trait Part: Section + Clone + Debug + Serialize {
    /// Its figures of one system; the default are those of a system of which there is no recording.
    type Side: Clone + Debug + Default;

    /// Returns the figures of a recorded system.
    fn side(recording: &Recording) -> Self::Side;

    /// Compares two systems, whose own figures of this measurement are `own`.
    fn new(sides: [&Side; 2], own: [&Self::Side; 2], ranked_by: Per) -> Self;
}

impl Section for Nothing {}

impl Part for Nothing {
    type Side = ();

    fn side(_recording: &Recording) {}

    fn new(_sides: [&Side; 2], _own: [&(); 2], _ranked_by: Per) -> Nothing {
        Nothing {}
    }
}

/// The part of a comparison that measurement `M` adds.
type PartOf<M> = <M as Room>::Comparison;

macro_rules! parts {
    ($($room:ident: $measurement:ident $rows:tt,)+) => {
        /// What the measurements add to a comparison.
        #[derive(Clone, Debug, Serialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub struct Parts {
            $(#[doc = concat!("The part of [`", stringify!($room), "`](crate::measure::", stringify!($room), ").")]
            #[serde(flatten)]
            pub $room: PartOf<crate::measure::$room::$measurement>,)+
        }

        impl Parts {
            fn new(sides: [&Side; 2], ranked_by: Per) -> Parts {
                Parts { $($room: Part::new(sides, sides.map(|side| &side.parts.$room), ranked_by)),+ }
            }

            fn sections(&self) -> Vec<&dyn Section> {
                vec![$(&self.$room),+]
            }
        }

        /// The figures of one system that the measurements compare.
        #[derive(Clone, Debug, Default)]
        struct SideParts {
            $($room: <PartOf<crate::measure::$room::$measurement> as Part>::Side,)+
        }

        impl SideParts {
            fn new(recording: &Recording) -> SideParts {
                SideParts { $($room: PartOf::<crate::measure::$room::$measurement>::side(recording)),+ }
            }
        }
    };
}

measurements!(parts);

/// What waits are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Per second.
    Second,
    /// Per 1,000 statements that clients sent.
    Query,
    /// Per second and CPU.
    Core,
    /// As a share of the wait for all latches: where nothing else is known of both systems.
    Share,
}

impl Per {
    /// The units that rows have, in this order. They have [`Per::Share`] only if latches are ranked by it.
    pub const ALL: [Per; 3] = [Per::Second, Per::Query, Per::Core];

    /// Returns the words that follow a figure: `per second`.
    pub fn as_str(self) -> &'static str {
        match self {
            Per::Second => "per second",
            Per::Query => "per 1,000 statements",
            Per::Core => "per second and CPU",
            Per::Share => "as a share of all",
        }
    }
}

/// One figure of both systems, per unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pair {
    /// The figure of A.
    pub a: f64,
    /// The figure of B.
    pub b: f64,
    /// B divided by A; `None` if either is zero.
    pub ratio: Option<Ratio>,
}

impl Pair {
    /// Returns the amounts per unit of A and B; `None` if either has no units.
    pub(crate) fn new(a: &[Sample], b: &[Sample]) -> Option<Pair> {
        Some(Pair { a: rate(a)?, b: rate(b)?, ratio: ratio(a, b) })
    }

    pub(crate) fn difference(&self) -> f64 {
        (self.b - self.a).abs()
    }
}

/// What can be claimed about a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// B waits longer for it.
    More,
    /// B waits less for it.
    Less,
    /// Only A was seen to wait for it.
    OnlyA,
    /// Only B was seen to wait for it.
    OnlyB,
    /// The interval covers 1, or there is none.
    Unclear,
}

/// Waits per unit. Each figure is `None` if a system does not count that unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct By {
    /// The unit.
    pub per: Per,
    /// Seconds waited.
    pub wait: Option<Pair>,
    /// The number of waits; `None` also if they were not counted.
    pub waits: Option<Pair>,
}

/// A latch, or all of them, on both systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row {
    /// The event name, or `all latches`.
    pub latch: String,
    /// The waits by each unit of [`Per::ALL`], and by the one that latches are ranked by.
    pub by: Vec<By>,
    /// The share of the wait time spent awake, 0 to 1, of A and of B; `None` if it is unknown or there were no waits.
    pub awake: [Option<f64>; 2],
    /// The CPU time spent spinning, divided by the wait time, of A and of B; `None` if it was not sampled, or if there
    /// was less than a second of waiting, which is too little for samples.
    pub spinning: [Option<f64>; 2],
    /// The share of spins that ended without a sleep, 0 to 1, of A and of B; `None` if there were none.
    pub spins_won: [Option<f64>; 2],
    /// What the wait by the unit that latches are ranked by supports.
    pub claim: Claim,
}

impl Row {
    fn new(latch: &str, sides: [&Side; 2], of: impl Fn(&Side) -> Option<&side::Series>, ranked_by: Per) -> Row {
        let series = sides.map(of);
        let samples = |per: Per, figure: fn(&side::Series) -> &[f64]| {
            let of = |i: usize| sides[i].samples(per, series[i].map(figure));
            Pair::new(&of(0)?, &of(1)?)
        };
        let by = |per: Per| By {
            per,
            wait: samples(per, |s| &s.wait),
            waits: samples(per, |s| &s.waits).filter(|_| are_counted(sides) && per != Per::Share),
        };
        let shares = (ranked_by == Per::Share).then_some(Per::Share);
        let by: Vec<By> = Per::ALL.into_iter().chain(shares).map(by).collect();
        let ranked = by.iter().find(|by| by.per == ranked_by).and_then(|by| by.wait);
        let claim = match [0, 1].map(|i| series[i].is_some_and(|series| series.total() > 0.0)) {
            [true, true] | [false, false] => claim(ranked.and_then(|wait| wait.ratio)),
            [in_a, _] => only(sides, series, in_a),
        };
        Row {
            latch: latch.to_owned(),
            by,
            awake: series.map(|series| series?.awake()),
            spinning: series.map(|series| series?.spinning()),
            spins_won: series.map(|series| series?.won()),
            claim,
        }
    }

    /// Returns its wait by this unit.
    pub fn wait(&self, per: Per) -> Option<&Pair> {
        self.by.iter().find(|by| by.per == per)?.wait.as_ref()
    }
}

/// Whether the waits of both systems were counted.
fn are_counted(sides: [&Side; 2]) -> bool {
    sides.iter().all(|side| !side.sampled)
}

/// Returns the claim for a latch that only one of the systems waited for. Looks at stacks may have missed it in the
/// other, and a row that sums up several latches may include it.
fn only(sides: [&Side; 2], series: [Option<&side::Series>; 2], in_a: bool) -> Claim {
    let (one, other) = if in_a { (0, 1) } else { (1, 0) };
    let waits = sides[one].samples(Per::Second, series[one].map(|series| &series.waits[..])).unwrap_or_default();
    let may_have = sides[other].latches.get(OTHER).is_some_and(|others| others.total() > 0.0);
    match !may_have && are_counted(sides) && is_there(&waits) && sides[other].is_long_enough() {
        true if in_a => Claim::OnlyA,
        true => Claim::OnlyB,
        false => Claim::Unclear,
    }
}

/// Returns what a ratio of waits says.
pub(crate) fn claim(ratio: Option<Ratio>) -> Claim {
    match ratio {
        Some(ratio) if ratio.is_clear() && ratio.value > 1.0 => Claim::More,
        Some(ratio) if ratio.is_clear() => Claim::Less,
        _ => Claim::Unclear,
    }
}

/// What the user adds to the recordings. Pairs are of A, then B.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What latches are ranked by; by default statements if both count them, otherwise time.
    pub per: Option<Per>,
    /// The CPUs' clocks in GHz, in place of those in the recordings.
    pub ghz: [Option<f64>; 2],
    /// The prices of the systems, for the same period and in the same currency.
    pub price: [Option<f64>; 2],
}

/// Throughput at the same clock, if the clocks differ: A's is scaled to B's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtOneClock {
    /// The clocks of A and B, in GHz.
    pub ghz: [f64; 2],
    /// A's statements per second, scaled to B's clock.
    pub a_scaled: f64,
    /// B's statements per second.
    pub b: f64,
    /// B divided by the scaled A; `None` if either is zero.
    pub ratio: Option<Ratio>,
}

/// Throughput for its price.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CostPerformance {
    /// The prices of A and B.
    pub price: [f64; 2],
    /// Statements per second for one unit of the currency, of A and B.
    pub per_price: [f64; 2],
    /// B's `per_price` divided by A's; `None` if either is zero.
    pub ratio: Option<Ratio>,
    /// The share of A's price that is saved when B does the work of A; negative if B costs more.
    pub saving: f64,
    /// The CPUs that A's price buys, of A and of B; `None` if the number of CPUs is not known.
    pub cores: Option<[f64; 2]>,
}

/// Two systems side by side.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    /// The system that the other is compared with.
    pub a: side::About,
    /// The other system.
    pub b: side::About,
    /// What latches are ranked by.
    pub per: Per,
    /// Statements per second; `None` if one of the two does not count them.
    pub throughput: Option<Pair>,
    /// Throughput at the same clock; `None` if the clocks do not differ or are not known.
    pub at_one_clock: Option<AtOneClock>,
    /// Throughput for its price; `None` if a price is not given.
    pub cost_performance: Option<CostPerformance>,
    /// CPU seconds of the server, per 1,000 statements.
    pub server_cpu: Option<Pair>,
    /// The waits for all latches together.
    pub all: Row,
    /// Latches whose waits clearly differ, or that only one of the two waits for; the largest difference first.
    pub changes: Vec<Row>,
    /// How long the waits took for the first of these latches; empty unless both have that.
    pub distributions: Vec<Distribution>,
    /// All other latches, in the same order.
    pub unclear: Vec<Row>,
    /// Waits to reacquire the mutex of a condition variable after a wake-up, the largest difference first; empty if one
    /// of the two does not distinguish them.
    pub reacquires: Vec<Row>,
    /// CPU time by class, the largest difference first; empty if one of the two has no samples.
    pub cpu: Vec<CpuRow>,
    /// CPU time of barriers and atomics; `None` if one of the two has none.
    pub ordering: Option<Ordering>,
    /// Waits for latches from another part of the machine; `None` if one of the two did not count them.
    pub handoffs: Option<Handoffs>,
    /// CPU seconds to checksum a KiB; `None` if one of the two did not count that.
    pub checksum_cost: Option<Pair>,
    /// What other measurements add.
    #[serde(flatten)]
    pub parts: Parts,
    /// How each checksum is computed, and the instruction of spin loops, where A and B differ.
    pub code: BTreeMap<String, [Option<String>; 2]>,
    /// The number of each instruction that orders memory in the servers' code; empty unless both recordings have them.
    pub barriers: BTreeMap<String, [u64; 2]>,
    /// The values of settings that differ, by name.
    pub settings: BTreeMap<String, [Option<String>; 2]>,
    /// What to do about the waits of either, as far as its figures show the cause; what concerns both first.
    pub what_to_do: Vec<AdvisedFor>,
    /// What to keep in mind when reading this.
    pub remarks: Vec<String>,
}

/// What to do about the waits of one system, or of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AdvisedFor {
    /// The systems: `A`, `B`, or `A and B`.
    pub system: &'static str,
    /// The finding, with the figures of B if it concerns both.
    #[serde(flatten)]
    pub advised: Advised,
}

impl Comparison {
    /// Compares two systems.
    pub fn new(a: &Side, b: &Side, options: Options) -> Comparison {
        let sides = [a, b];
        let per = options.per.unwrap_or_else(|| usual_unit(sides));
        let latches = rows(sides, |side| Some(&side.latches), per);
        let (unclear, changes): (Vec<Row>, Vec<Row>) = latches.into_iter().partition(|row| row.claim == Claim::Unclear);
        let throughput = Pair::new(&a.throughput().unwrap_or_default(), &b.throughput().unwrap_or_default());
        let (settings, barriers) = (unlike(sides.map(|side| &side.about.settings)), barriers(sides));
        let mut comparison = Comparison {
            a: a.about.clone(),
            b: b.about.clone(),
            per,
            throughput,
            at_one_clock: at_one_clock(throughput, sides, options.ghz),
            cost_performance: cost_performance(throughput, sides, options.price),
            server_cpu: server_cpu(sides),
            all: Row::new("all latches", sides, |side| Some(&side.all), per),
            distributions: distributions::distributions(sides, &changes),
            changes,
            unclear,
            reacquires: rows(sides, |side| side.reacquires.as_ref(), per),
            cpu: classes(sides, per),
            ordering: ordering(sides, per),
            handoffs: handoffs(sides, per),
            checksum_cost: checksum_cost(sides),
            parts: Parts::new(sides, per),
            code: code(sides),
            barriers,
            settings,
            what_to_do: what_to_do(sides.map(|side| &side.advised[..])),
            remarks: Vec::new(),
        };
        comparison.remarks = remarks(&comparison, sides);
        comparison
    }

    /// Returns the sections that follow the latches, in the order of text and pages.
    fn sections(&self) -> Vec<&dyn Section> {
        let mut sections: Vec<&dyn Section> = vec![&self.cpu, &self.ordering, &self.handoffs];
        sections.extend(self.parts.sections());
        sections
    }
}

/// Returns what latches are ranked by if the user does not say: the first that both systems count.
fn usual_unit(sides: [&Side; 2]) -> Per {
    let both_count = |per: &Per| sides.iter().all(|side| side.has(*per));
    [Per::Query, Per::Second].into_iter().find(both_count).unwrap_or(Per::Share)
}

/// Returns a row for each latch of either, the largest difference first; empty unless both have that figure.
fn rows(sides: [&Side; 2], of: impl Fn(&Side) -> Option<&BTreeMap<String, side::Series>>, per: Per) -> Vec<Row> {
    let names: Option<Vec<_>> = sides.into_iter().map(|side| Some(of(side)?.keys())).collect();
    let names: BTreeSet<&String> = names.into_iter().flatten().flatten().collect();
    let row = |name: &String| Row::new(name, sides, |side| of(side)?.get(name), per);
    let mut rows: Vec<Row> = names.into_iter().map(row).collect();
    let difference = |row: &Row| row.wait(per).map_or(0.0, Pair::difference);
    rows.sort_by(|a, b| difference(b).total_cmp(&difference(a)).then_with(|| a.latch.cmp(&b.latch)));
    rows
}

/// Clocks that differ by less than this share are the same.
const SAME_CLOCK: f64 = 0.005;

fn at_one_clock(throughput: Option<Pair>, sides: [&Side; 2], given: [Option<f64>; 2]) -> Option<AtOneClock> {
    let throughput = throughput?;
    let ghz = [given[0].or(sides[0].about.ghz)?, given[1].or(sides[1].about.ghz)?];
    let scale = ghz[1] / ghz[0];
    ((scale - 1.0).abs() >= SAME_CLOCK).then_some(())?;
    let ratio = throughput.ratio.map(|ratio| ratio.scaled(1.0 / scale));
    Some(AtOneClock { ghz, a_scaled: throughput.a * scale, b: throughput.b, ratio })
}

fn cost_performance(throughput: Option<Pair>, sides: [&Side; 2], price: [Option<f64>; 2]) -> Option<CostPerformance> {
    let (throughput, price) = (throughput?, [price[0]?, price[1]?]);
    let per_price = [throughput.a / price[0], throughput.b / price[1]];
    let cores = sides[0].about.cores.zip(sides[1].about.cores).map(|(a, b)| [a, b * price[0] / price[1]]);
    let ratio = throughput.ratio.map(|ratio| ratio.scaled(price[0] / price[1]));
    Some(CostPerformance { price, per_price, ratio, saving: 1.0 - per_price[0] / per_price[1], cores })
}

fn server_cpu(sides: [&Side; 2]) -> Option<Pair> {
    let samples = |side: &Side| side.samples(Per::Query, Some(side.server_cpu.as_deref()?));
    Pair::new(&samples(sides[0])?, &samples(sides[1])?)
}

/// Returns the CPU time to checksum a KiB; `None` unless both systems had bursts in which calls were counted.
fn checksum_cost(sides: [&Side; 2]) -> Option<Pair> {
    let [a, b] = sides.map(|side| side.checksums.as_deref());
    Pair::new(a?, b?)
}

/// Returns what differs in how checksums are computed, and in the instruction of spin loops.
fn code(sides: [&Side; 2]) -> BTreeMap<String, [Option<String>; 2]> {
    let known = sides.map(|side| {
        let checksums = side.code.checksums.iter().map(|c: &Checksum| (c.purpose.clone(), c.to_string()));
        let spin = side.code.spin.iter().map(|spin| {
            let instruction = spin.instruction.clone().unwrap_or("none".to_owned());
            ("instruction of the spin loop".to_owned(), instruction)
        });
        checksums.chain(spin).collect::<BTreeMap<String, String>>()
    });
    unlike([&known[0], &known[1]])
}

fn unlike(known: [&BTreeMap<String, String>; 2]) -> BTreeMap<String, [Option<String>; 2]> {
    // Nothing differs from a system whose values are not known.
    if known.iter().any(|known| known.is_empty()) {
        return BTreeMap::new();
    }
    let names: BTreeSet<&String> = known.iter().flat_map(|known| known.keys()).collect();
    let values = names.into_iter().map(|name| (name.clone(), known.map(|known| known.get(name).cloned())));
    values.filter(|(_, [a, b])| a != b).collect()
}

fn barriers(sides: [&Side; 2]) -> BTreeMap<String, [u64; 2]> {
    let counts = sides.map(|side| &side.barriers);
    if counts.iter().any(|counts| counts.is_empty()) {
        return BTreeMap::new();
    }
    let names: BTreeSet<&String> = counts.iter().flat_map(|counts| counts.keys()).collect();
    let count = |name: &String| counts.map(|counts| counts.get(name).copied().unwrap_or(0));
    names.into_iter().map(|name| (name.clone(), count(name))).collect()
}

fn remarks(comparison: &Comparison, sides: [&Side; 2]) -> Vec<String> {
    let mut remarks: Vec<String> = Vec::new();
    for (letter, side) in ["A", "B"].into_iter().zip(sides) {
        remarks.extend(side.remarks.iter().map(|remark| format!("{letter}: {remark}")));
    }
    if comparison.per == Per::Second && comparison.throughput.is_none() {
        let remedy = match sides.iter().any(|side| side.is_fleet()) {
            true => "let armtrace count the statements of all servers (--defaults-file)",
            false => "record with --mysql, or give --qps-a and --qps-b",
        };
        remarks.push(format!(
            "A system that serves more statements also waits more per second. For figures per statement, {remedy}."
        ));
    }
    if comparison.per == Per::Share {
        remarks.push(
            "Only shares of all waits are compared, because A and B have neither statements nor seconds in common: \
             a larger share is not a longer wait. Give --ps-statements or --ps-duration for each dump."
                .to_owned(),
        );
    }
    remarks.extend(how_certain(sides));
    remarks.extend(remark(sides));
    if comparison.a.flavor != comparison.b.flavor {
        remarks.push(
            "MySQL and MariaDB name latches differently: a latch that only one of them has may have another name in the \
             other."
                .to_owned(),
        );
    }
    remarks
}

/// Returns what the intervals cover, and why there are none.
fn how_certain(sides: [&Side; 2]) -> Vec<String> {
    let (is_fleet, is_short) =
        (sides.iter().any(|side| side.is_fleet()), sides.iter().any(|side| !side.is_long_enough()));
    let of_one_host = ["A", "B"].into_iter().zip(sides).filter(|(_, side)| side.hosts() < LEAST_HOSTS);
    let of_one_host: Vec<&str> = of_one_host.map(|(letter, _)| letter).collect();
    match (is_short, is_fleet) {
        (true, true) => vec![format!(
            "No difference is called clear: that takes at least {LEAST_SAMPLES} windows, or {LEAST_HOSTS} hosts, of \
             each."
        )],
        (true, false) => {
            vec![format!("No difference is called clear: that takes at least {LEAST_SAMPLES} seconds of each.")]
        }
        (false, true) if of_one_host.is_empty() => Vec::new(),
        (false, true) => vec![format!(
            "The intervals are over time alone, because {} one host: how much hosts differ among themselves is not \
             known.",
            if of_one_host.len() == 2 { "A and B have".to_owned() } else { format!("{} has", of_one_host[0]) }
        )],
        (false, false) => Vec::new(),
    }
}

/// Returns the findings on both systems: those on both first, then the heaviest of each in turn.
fn what_to_do([a, b]: [&[Advised]; 2]) -> Vec<AdvisedFor> {
    let is_in = |list: &[Advised], one: &Advised| {
        list.iter().any(|other| (&other.entry, &other.cause) == (&one.entry, &one.cause))
    };
    let of = |system, list: &[Advised], wanted: &dyn Fn(&Advised) -> bool| -> Vec<AdvisedFor> {
        let wanted = list.iter().filter(|advised| wanted(advised));
        wanted.map(|advised| AdvisedFor { system, advised: advised.clone() }).collect()
    };
    let both = of("A and B", b, &|advised| is_in(a, advised));
    let (mut of_a, mut of_b) =
        (of("A", a, &|advised| !is_in(b, advised)).into_iter(), of("B", b, &|advised| !is_in(a, advised)).into_iter());
    let in_turn = std::iter::from_fn(|| {
        let next: Vec<AdvisedFor> = of_b.next().into_iter().chain(of_a.next()).collect();
        (!next.is_empty()).then_some(next)
    });
    both.into_iter().chain(in_turn.flatten()).take(advice::MOST).collect()
}

/// Returns the name and heading of a system in one line.
pub(crate) fn title(about: &side::About) -> String {
    [&about.name, &about.heading].into_iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_both_comes_first_and_then_each_in_turn() {
        let advised = |entry: &str| Advised {
            entry: entry.to_owned(),
            title: entry.to_owned(),
            evidence: Vec::new(),
            cause: "cause".to_owned(),
            remedies: Vec::new(),
        };
        let lists = [["a1", "both", "a2", "a3"], ["b1", "b2", "both", "b3"]].map(|list| list.map(advised));
        let all = what_to_do([&lists[0], &lists[1]]);
        let all: Vec<(&str, &str)> = all.iter().map(|each| (each.system, each.advised.entry.as_str())).collect();
        assert_eq!(all, [("A and B", "both"), ("B", "b1"), ("A", "a1"), ("B", "b2"), ("A", "a2")]);
    }
}

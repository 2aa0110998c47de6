//! Writes a comparison for a terminal.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::side::About;
use super::{title, AdvisedFor, Claim, Comparison, Growth, Pair, Per, Ratio, Row, Scaling};
use crate::present::format::{self, NOTHING};
use crate::present::names::{cut_middle, short_names};

/// The most rows of each list. JSON has all of them.
const CHANGES: usize = 20;
const UNCLEAR: usize = 10;
const GROWING: usize = 10;
const REACQUIRES: usize = 5;
/// The greatest width of a latch's name.
const NAME: usize = 44;

/// A comparison, or the scaling of one load, as text.
pub struct Text<'a, T>(pub &'a T);

impl Display for Text<'_, Comparison> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let comparison = self.0;
        for (letter, about) in [("A", &comparison.a), ("B", &comparison.b)] {
            let labels: String = about.labels.iter().map(|(key, value)| format!(" · {key}={value}")).collect();
            writeln!(f, "{letter}  {}{labels}{}", title(about), length(about))?;
        }
        overall(f, &figures(comparison))?;
        for line in sentences(comparison) {
            writeln!(f, "{line}")?;
        }
        rows(
            f,
            comparison,
            &format!("what changed, by wait {}", comparison.per.as_str()),
            &comparison.changes,
            CHANGES,
        )?;
        if comparison.changes.is_empty() {
            writeln!(f, "\nno latch clearly differs")?;
        }
        rows(f, comparison, "not clear: the interval covers 1", &comparison.unclear, UNCLEAR)?;
        let title = "woken by a condition, waiting for its mutex";
        rows(f, comparison, title, &comparison.reacquires, REACQUIRES)?;
        comparison.sections().iter().try_for_each(|section| section.text(comparison, f))?;
        what_to_do(f, &comparison.what_to_do)?;
        differing(f, "", &comparison.code)?;
        differing(f, "setting ", &comparison.settings)?;
        remarks(f, &comparison.remarks)
    }
}

/// Returns the length of a recording, if it is known, to follow its name.
fn length(about: &About) -> String {
    if about.duration > 0.0 {
        format!(" · {:.0} s", about.duration)
    } else {
        String::new()
    }
}

fn overall(f: &mut Formatter, figures: &[Figure]) -> fmt::Result {
    if figures.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{:34} {:>9} {:>9} {:>8}  95 % interval", "", "A", "B", "B/A")?;
    figures.iter().try_for_each(|figure| writeln!(f, "{figure}"))
}

fn what_to_do(f: &mut Formatter, advised: &[AdvisedFor]) -> fmt::Result {
    if advised.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nwhat to do, one thing at a time")?;
    advised.iter().try_for_each(|each| writeln!(f, "{}: {}", each.system, each.advised))
}

fn differing(f: &mut Formatter, what: &str, values: &BTreeMap<String, [Option<String>; 2]>) -> fmt::Result {
    let value = |value: &Option<String>| value.clone().unwrap_or(NOTHING.to_owned());
    for (i, (name, [a, b])) in values.iter().enumerate() {
        writeln!(f, "{}{what}{name}: A {}, B {}", if i == 0 { "\n" } else { "" }, value(a), value(b))?;
    }
    Ok(())
}

fn remarks(f: &mut Formatter, remarks: &[String]) -> fmt::Result {
    for (i, remark) in remarks.iter().enumerate() {
        writeln!(f, "{}note: {remark}", if i == 0 { "\n" } else { "" })?;
    }
    Ok(())
}

/// A figure of the whole system, as shown for A and for B.
pub struct Figure {
    /// The heading of its line.
    pub name: String,
    /// The figure of A, with its unit.
    pub a: String,
    /// The figure of B, with its unit.
    pub b: String,
    /// B divided by A; `None` if either is zero, or where a ratio would say nothing.
    pub ratio: Option<Ratio>,
}

impl Figure {
    /// Returns the figure of two shares, 0 to 1; `None` unless both are known.
    pub(crate) fn of_shares(name: &str, shares: [Option<f64>; 2], ratio: Option<Ratio>) -> Option<Figure> {
        let [a, b] = shares.map(|share| share.map(format::percent));
        Some(Figure { name: name.to_owned(), a: a?, b: b?, ratio })
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let (ratio, interval) = (times(self.ratio), interval(self.ratio));
        write!(f, "{:34} {:>9} {:>9} {ratio:>8}  {interval}", self.name, self.a, self.b)
    }
}

pub(super) fn figures(comparison: &Comparison) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: &str, pair: Option<Pair>, show: fn(f64) -> String| {
        figures.extend(pair.map(|pair| Figure {
            name: name.to_owned(),
            a: show(pair.a),
            b: show(pair.b),
            ratio: pair.ratio,
        }));
    };
    let time = |seconds: f64| format::nanoseconds(seconds * 1e9);
    let wait = |per| comparison.all.wait(per).copied();
    add("statements/s", comparison.throughput, format::count);
    let clock = comparison.at_one_clock.map(|clock| Pair { a: clock.a_scaled, b: clock.b, ratio: clock.ratio });
    add("statements/s, A at B's clock", clock, format::count);
    let money =
        comparison.cost_performance.map(|cost| Pair { a: cost.per_price[0], b: cost.per_price[1], ratio: cost.ratio });
    add("statements/s per unit of price", money, format::count);
    add("server's CPU time, 1,000 statements", comparison.server_cpu, time);
    add("threads waiting for latches", wait(Per::Second), |threads| format!("{threads:.2}"));
    add("threads waiting per CPU", wait(Per::Core), |threads| format!("{threads:.2}"));
    add("wait, 1,000 statements", wait(Per::Query), time);
    let waits = |per| comparison.all.by.iter().find(|by| by.per == per)?.waits;
    add("waits, 1,000 statements", waits(Per::Query), format::count);
    add("waits/s", waits(Per::Second), format::count);
    add("CPU time per KiB checksummed", comparison.checksum_cost, time);
    figures.extend(Figure::of_shares("share of the wait spent awake", comparison.all.awake, None));
    figures.extend(comparison.sections().iter().flat_map(|section| section.figures()));
    figures
}

/// Returns sentences on clocks and prices.
pub(super) fn sentences(comparison: &Comparison) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(comparison.at_one_clock.map(|clock| {
        format!(
            "A has {:.2} GHz and B {:.2} GHz. At B's clock, A is assumed to be faster or slower in proportion, although \
             memory and disks are not.",
            clock.ghz[0], clock.ghz[1]
        )
    }));
    if let Some(cost) = comparison.cost_performance {
        let ratio = cost.per_price[1] / cost.per_price[0];
        let unclear = if cost.ratio.is_some_and(|ratio| ratio.is_clear()) {
            ""
        } else {
            " (not clear: the interval covers 1, or there is none)"
        };
        let (more, saves) =
            (if ratio >= 1.0 { "more" } else { "less" }, if cost.saving >= 0.0 { "less" } else { "more" });
        sentences.push(format!(
            "For the same money B serves {} {more}; for the same throughput it costs {} {saves}{unclear}.",
            format::percent((ratio - 1.0).abs()),
            format::percent(cost.saving.abs())
        ));
        sentences.extend(cost.cores.map(|[a, b]| format!("A's price buys {a:.0} CPUs of A, or {b:.1} of B.")));
    }
    sentences
}

fn rows(f: &mut Formatter, comparison: &Comparison, title: &str, rows: &[Row], most: usize) -> fmt::Result {
    let shown = &rows[..rows.len().min(most)];
    if shown.is_empty() {
        return Ok(());
    }
    let names = short_names(shown.iter().map(|row| row.latch.as_str()), NAME);
    let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max(title.chars().count());
    write!(f, "\n{title:width$} {:>8} {:>8} {:>8}  {:15}", "A", "B", "B/A", "95 % interval")?;
    writeln!(f, " awake A    B  spin A    B   won A    B")?;
    for row in shown {
        let [a, b, ratio, interval] = cells(row, comparison.per);
        let name = &names[row.latch.as_str()];
        write!(f, "{name:width$} {a:>8} {b:>8} {ratio:>8}  {interval:15}")?;
        for [a, b] in shares(row) {
            write!(f, " {a:>7} {b:>4}")?;
        }
        writeln!(f)?;
    }
    match rows.len() - shown.len() {
        0 => Ok(()),
        more => writeln!(f, "and {more} more, which --format json lists"),
    }
}

/// Returns the shares awake, spinning, and of spins won, each of A and of B.
pub(super) fn shares(row: &Row) -> [[String; 2]; 3] {
    let percent = |share: Option<f64>| share.map_or(NOTHING.to_owned(), |share| format!("{:.0}%", share * 100.0));
    [row.awake, row.spinning, row.spins_won].map(|shares| shares.map(percent))
}

/// Returns the wait of A and of B, their ratio and its interval.
pub(super) fn cells(row: &Row, per: Per) -> [String; 4] {
    let wait = row.wait(per);
    let written = |amount: f64| match per {
        Per::Share => format::percent(amount),
        Per::Second | Per::Query | Per::Core => format::nanoseconds(amount * 1e9),
    };
    let time = |amount: Option<f64>| amount.map_or(NOTHING.to_owned(), written);
    let ratio = wait.and_then(|wait| wait.ratio);
    let (times, interval) = match row.claim {
        Claim::OnlyA => ("only A".to_owned(), String::new()),
        Claim::OnlyB => ("only B".to_owned(), String::new()),
        Claim::More | Claim::Less | Claim::Unclear => (times(ratio), interval(ratio)),
    };
    [time(wait.map(|wait| wait.a)), time(wait.map(|wait| wait.b)), times, interval]
}

/// Returns the ratio: `1.52`.
pub(crate) fn times(ratio: Option<Ratio>) -> String {
    ratio.map_or(NOTHING.to_owned(), |ratio| factor(ratio.value))
}

/// Returns the interval: `1.41 to 1.63`.
pub(crate) fn interval(ratio: Option<Ratio>) -> String {
    let interval = ratio.and_then(|ratio| ratio.interval);
    interval.map_or(NOTHING.to_owned(), |[low, high]| format!("{} to {}", factor(low), factor(high)))
}

fn factor(times: f64) -> String {
    match times {
        ..0.0995 => format!("{times:.3}"),
        ..9.995 => format!("{times:.2}"),
        ..99.95 => format!("{times:.1}"),
        ..999_999.5 => format!("{times:.0}"),
        _ => "∞".to_owned(),
    }
}

impl Display for Text<'_, Scaling> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let scaling = self.0;
        writeln!(
            f,
            "{:>8} {:>13} {:>11} {:>9} {:>9} {:>6}  recording",
            scaling.by, "statements/s", "efficiency", "law", "waiting", "CPUs"
        )?;
        for point in &scaling.points {
            let law = point.law.map_or(NOTHING.to_owned(), format::count);
            let cpus = point.cpus.map_or(NOTHING.to_owned(), |cpus| format!("{cpus:.2}"));
            writeln!(
                f,
                "{:>8} {:>13} {:>11} {law:>9} {:>9.2} {cpus:>6}  {}",
                point.n,
                format::count(point.throughput),
                format::percent(point.efficiency),
                point.waiting,
                point.name,
            )?;
        }
        writeln!(f)?;
        scaling.findings.iter().try_for_each(|finding| writeln!(f, "· {finding}"))?;
        growing(f, scaling)?;
        remarks(f, &scaling.remarks)
    }
}

fn growing(f: &mut Formatter, scaling: &Scaling) -> fmt::Result {
    let shown = &scaling.growing[..scaling.growing.len().min(GROWING)];
    if shown.is_empty() {
        return Ok(());
    }
    let names = short_names(shown.iter().map(|growth| growth.latch.as_str()), NAME);
    let title = "threads waiting, if increasing";
    let width = names.values().map(|name| name.chars().count()).max().unwrap_or(0).max(title.len());
    write!(f, "\n{title:width$}")?;
    scaling.points.iter().try_for_each(|point| write!(f, " {:>6}", cut_middle(&point.n.to_string(), 6)))?;
    writeln!(f, " {:>8} {:>9}", "of added", "statement")?;
    for growth in shown {
        write!(f, "{:width$}", names[growth.latch.as_str()])?;
        growth.waiting.iter().try_for_each(|threads| write!(f, " {threads:>6.2}"))?;
        writeln!(f, " {:>8} {:>9}", format::percent(growth.share_of_added), grown(growth))?;
    }
    Ok(())
}

/// Formats how many times as long a statement waits with the most threads: `15.4×`, or `new`.
pub(super) fn grown(growth: &Growth) -> String {
    growth.per_query.map_or("new".to_owned(), |ratio| format!("{}×", factor(ratio.value)))
}

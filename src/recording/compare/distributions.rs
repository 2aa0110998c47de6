//! Draws how long the waits for the latches that changed most took: A and B over each other.

use std::collections::BTreeMap;

use maud::{html, Markup};
use serde::Serialize;

use super::{Comparison, Pair, Per, Row, Side};
use crate::measure::latch::LatchWaits;
use crate::model::{Histogram, Kind, BUCKETS, BUCKET_BOUNDS_NS};
use crate::present::format;
use crate::present::names::short_names;
use crate::recording::Recording;

/// The most latches.
const MOST: usize = 8;
/// The size of a chart, the part of it below the shapes, which has the times, and the part above, which has the scale.
const WIDTH: f64 = 336.0;
const HEIGHT: f64 = 130.0;
const BELOW: f64 = 18.0;
const ABOVE: f64 = 16.0;
/// The place beside the shapes for the ends of their lines, and of the times below.
const BESIDE: f64 = 16.0;
/// How long a name may be, in characters.
const NAME: usize = 40;

/// How long the waits for a latch took on both systems, in all modes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Distribution {
    /// The event name.
    pub latch: String,
    /// The number of waits of A and of B.
    pub waits: [u64; 2],
    /// The median wait of A and of B, interpolated within its bucket; `None` if there were none.
    pub p50: [Option<f64>; 2],
    /// The 99th percentile of the waits of A and of B, likewise.
    pub p99: [Option<f64>; 2],
    /// The part of the wait time of A and of B that is estimated because probes were off, 0 to 1.
    pub estimated: [f64; 2],
    /// Buckets in which either has waits, by ascending bound.
    pub buckets: Vec<SharesOfBucket>,
}

/// Waits that took up to `le` and longer than the bucket before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharesOfBucket {
    /// The upper bound, in seconds, inclusive; `None` for the last bucket.
    pub le: Option<f64>,
    /// The share of the waits of A and of B, 0 to 1.
    pub shares: [f64; 2],
}

/// The waits of one system for a latch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    waits: Histogram,
    estimated_ns: u64,
}

impl Lengths {
    fn estimated(&self) -> f64 {
        (self.estimated_ns as f64 / self.waits.sum_ns.max(1) as f64).min(1.0)
    }
}

/// Returns the waits of a recording by latch; `None` if it does not have how long each took.
pub(super) fn lengths(recording: &Recording) -> Option<BTreeMap<String, Lengths>> {
    let mut by_latch: BTreeMap<String, Lengths> = BTreeMap::new();
    let latches = recording.latches();
    for LatchWaits { latch, waits, estimated_ns, .. } in latches.into_iter().filter(|row| row.kind != Kind::Cond) {
        let lengths = by_latch.entry(latch).or_default();
        lengths.waits.merge(&waits);
        lengths.estimated_ns = lengths.estimated_ns.saturating_add(estimated_ns);
    }
    let are_known = by_latch.values().any(|lengths| lengths.waits.buckets.iter().any(|waits| *waits > 0));
    are_known.then_some(by_latch)
}

/// Returns the distributions of the latches that changed most; none unless both systems have them.
pub(super) fn distributions(sides: [&Side; 2], changes: &[Row]) -> Vec<Distribution> {
    let [Some(a), Some(b)] = sides.map(|side| side.waits_by_length.as_ref()) else { return Vec::new() };
    let of_latch = |row: &Row| distribution(&row.latch, [a.get(&row.latch), b.get(&row.latch)]);
    changes.iter().take(MOST).map(of_latch).collect()
}

fn distribution(latch: &str, sides: [Option<&Lengths>; 2]) -> Distribution {
    let none = Lengths::default();
    let sides = sides.map(|side| side.unwrap_or(&none));
    let quantile = |q: f64| sides.map(|side| side.waits.quantile_ns(q).map(|ns| ns / 1e9));
    // The count and the buckets of a recording that was cut short may differ by a wait.
    let all = sides.map(|side| side.waits.buckets.iter().map(|&waits| waits as f64).sum::<f64>().max(1.0));
    let bucket = |i: usize| SharesOfBucket {
        le: BUCKET_BOUNDS_NS.get(i).map(|&ns| ns as f64 / 1e9),
        shares: [0, 1].map(|side| sides[side].waits.buckets[i] as f64 / all[side]),
    };
    let is_there = |bucket: &SharesOfBucket| bucket.shares.iter().any(|share| *share > 0.0);
    Distribution {
        latch: latch.to_owned(),
        waits: sides.map(|side| side.waits.count),
        p50: quantile(0.5),
        p99: quantile(0.99),
        estimated: sides.map(Lengths::estimated),
        buckets: (0..BUCKETS).map(bucket).filter(is_there).collect(),
    }
}

/// Returns a chart for each distribution, all with the same times on a logarithmic axis.
pub(super) fn charts(comparison: &Comparison) -> Markup {
    let shown = &comparison.distributions;
    let Some(axis) = Axis::of(shown) else { return Markup::default() };
    let names = short_names(shown.iter().map(|latch| latch.latch.as_str()), NAME);
    let are_estimated = shown.iter().any(|latch| latch.estimated.iter().any(|share| *share > 0.0));
    html! {
        h3 { "How long these waits took" }
        p.soft {
            "Waits by their length, on one logarithmic scale of times: the share of each system's waits for the latch in \
             each bucket."
            @if are_estimated { " ~ marks what is partly estimated, because probes were off." }
        }
        div.charts {
            @for latch in shown {
                (chart(latch, &names[latch.latch.as_str()], &captions(latch, comparison), &axis))
            }
        }
    }
}

fn chart(latch: &Distribution, name: &str, captions: &[String; 2], axis: &Axis) -> Markup {
    let most = latch.buckets.iter().flat_map(|bucket| bucket.shares).fold(0.0, f64::max);
    let bottom = HEIGHT - BELOW;
    let label = format!("Waits for {} by their length. A: {}. B: {}.", latch.latch, captions[0], captions[1]);
    html! {
        figure {
            svg width=(WIDTH) height=(HEIGHT) role="img" aria-label=(label) {
                @for (x, time) in axis.ticks() {
                    line.axis x1=(x) x2=(x) y1=(ABOVE) y2=(bottom + 4.0) {}
                    text x=(x) y=(HEIGHT - 3.0) text-anchor="middle" { (time) }
                }
                line.axis x1="0" x2=(WIDTH) y1=(bottom) y2=(bottom) {}
                line.axis x1="0" x2=(WIDTH) y1=(ABOVE) y2=(ABOVE) {}
                text x="0" y=(ABOVE - 4.0) { (format::percent(most)) }
                path.a d=(steps(latch, 0, most, axis)) {}
                path.b d=(steps(latch, 1, most, axis)) {}
            }
            figcaption {
                code title=(latch.latch) { (name) }
                @for (letter, class, caption) in [("A", "a", &captions[0]), ("B", "b", &captions[1])] {
                    br; (key(class)) " " (letter) ": " (caption)
                }
            }
        }
    }
}

/// Returns a sample of a system's line.
fn key(class: &str) -> Markup {
    html! { svg.key width="30" height="8" aria-hidden="true" { path class=(class) d="M0 4H30" {} } }
}

/// Returns the figures of A and of B: `median 1.20ms, p99 ~8.50ms, 5.9 waits per 1,000 statements`.
fn captions(latch: &Distribution, comparison: &Comparison) -> [String; 2] {
    let row = comparison.changes.iter().find(|row| row.latch == latch.latch);
    let waits = row.and_then(|row| waits(row, comparison.per));
    [0, 1].map(|side| {
        let (Some(p50), Some(p99)) = (latch.p50[side], latch.p99[side]) else { return "no waits".to_owned() };
        let estimate = |figure: String| format::estimate(figure, latch.estimated[side] > 0.0, None);
        let time = |seconds: f64| estimate(format::nanoseconds(seconds * 1e9));
        let number = waits.map_or_else(
            || format!("{} waits", format::count(latch.waits[side] as f64)),
            |waits| format!("{} waits {}", format::count([waits.a, waits.b][side]), comparison.per.as_str()),
        );
        format!("median {}, p99 {}, {}", time(p50), time(p99), estimate(number))
    })
}

fn waits(row: &Row, per: Per) -> Option<Pair> {
    row.by.iter().find(|by| by.per == per)?.waits
}

/// Returns the steps of one system as a path, as SVG has it.
fn steps(latch: &Distribution, side: usize, most: f64, axis: &Axis) -> String {
    let bottom = HEIGHT - BELOW;
    let mut path = String::new();
    let mut end = f64::NAN;
    for bucket in latch.buckets.iter().filter(|bucket| bucket.shares[side] > 0.0) {
        let [from, to] = edges(bucket.le).map(|ns| axis.x(ns));
        let y = bottom - bucket.shares[side] / most * (bottom - ABOVE);
        // Where waits have the lengths in between, the line goes on; where none has, it goes to the bottom.
        let begin = if (from - end).abs() < 0.05 {
            String::new()
        } else if path.is_empty() {
            format!("M{from:.1} {bottom}")
        } else {
            format!("V{bottom}M{from:.1} {bottom}")
        };
        path += &format!("{begin}V{y:.1}H{to:.1}");
        end = to;
    }
    if !path.is_empty() {
        path += &format!("V{bottom}");
    }
    path
}

/// Returns where the bucket with this bound begins and ends, in nanoseconds. The first begins and the last ends an
/// octave further.
fn edges(le: Option<f64>) -> [f64; 2] {
    let bounds = &BUCKET_BOUNDS_NS;
    let i = le.map_or(bounds.len(), |le| bounds.partition_point(|&ns| (ns as f64) < le * 1e9 - 0.5));
    let bound = |i: usize| bounds.get(i).map(|&ns| ns as f64);
    let last = bounds[bounds.len() - 1] as f64;
    let to = bound(i).unwrap_or(2.0 * last);
    [i.checked_sub(1).map_or(to / 2.0, |before| bound(before).unwrap_or(last)), to]
}

/// A logarithmic axis of times.
#[derive(Debug, PartialEq)]
struct Axis {
    from_ns: f64,
    to_ns: f64,
}

impl Axis {
    /// Returns the axis that has all buckets of these; `None` if there are none. It has at least a factor of ten, so
    /// that one of the [ticks](Axis::ticks) is on it.
    fn of(all: &[Distribution]) -> Option<Axis> {
        let buckets = || all.iter().flat_map(|latch| &latch.buckets).map(|bucket| edges(bucket.le));
        let from_ns = buckets().map(|[from, _]| from).reduce(f64::min)?;
        let to_ns = buckets().map(|[_, to]| to).fold(from_ns * 10.0, f64::max);
        Some(Axis { from_ns, to_ns })
    }

    fn x(&self, ns: f64) -> f64 {
        BESIDE + (ns / self.from_ns).ln() / (self.to_ns / self.from_ns).ln() * (WIDTH - 2.0 * BESIDE)
    }

    /// Returns the powers of ten on it, with their places.
    fn ticks(&self) -> Vec<(String, String)> {
        // A bound that is a power of ten is one in spite of rounding.
        let powers = (self.from_ns * 0.999_999).log10().ceil() as i32..=(self.to_ns * 1.000_001).log10().floor() as i32;
        powers
            .map(|power| 10_f64.powi(power))
            .map(|ns| (format!("{:.1}", self.x(ns)), format::bound(ns / 1e9)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns waits of these lengths, each with how many took as long.
    fn of(waits: &[(u64, u64)]) -> Lengths {
        let mut histogram = Histogram::default();
        for &(ns, count) in waits {
            histogram.buckets[BUCKET_BOUNDS_NS.partition_point(|&bound| bound < ns)] += count;
            histogram.count += count;
            histogram.sum_ns += ns * count;
            histogram.max_ns = histogram.max_ns.max(ns);
        }
        Lengths { waits: histogram, estimated_ns: 0 }
    }

    #[test]
    fn sides_of_unequal_size_have_equal_shapes() {
        let (a, b) = (of(&[(3_000, 30), (100_000, 10)]), of(&[(3_000, 3_000), (100_000, 1_000)]));
        let both = distribution("x", [Some(&a), Some(&b)]);
        let shares: Vec<_> = both.buckets.iter().map(|bucket| (bucket.le, bucket.shares)).collect();
        assert_eq!(shares, [(Some(4e-6), [0.75; 2]), (Some(128e-6), [0.25; 2])]);
        assert_eq!(both.p50[0], both.p50[1]);
        let axis = Axis::of(std::slice::from_ref(&both)).unwrap();
        assert_eq!(steps(&both, 0, 0.75, &axis), steps(&both, 1, 0.75, &axis));
    }

    #[test]
    fn a_side_without_waits_has_no_line() {
        let a = of(&[(3_000, 30)]);
        let only_a = distribution("x", [Some(&a), None]);
        assert_eq!((only_a.waits, only_a.p50[1], only_a.p99[1]), ([30, 0], None, None));
        let axis = Axis::of(std::slice::from_ref(&only_a)).unwrap();
        assert!(steps(&only_a, 1, 1.0, &axis).is_empty());
        assert!(steps(&only_a, 0, 1.0, &axis).starts_with("M16.0 112V16.0H"));
        assert_eq!(Axis::of(&[distribution("x", [None, None])]), None);
        assert_eq!(Axis::of(&[]), None);
    }

    #[test]
    fn the_line_is_at_the_bottom_where_there_are_no_waits() {
        let gap = of(&[(1_500, 1), (3_000, 1), (60_000, 2)]);
        let path = {
            let latch = distribution("x", [Some(&gap), None]);
            steps(&latch, 0, 0.5, &Axis::of(std::slice::from_ref(&latch)).unwrap())
        };
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(path.matches("V112").count(), 2, "{path}");
    }

    #[test]
    fn the_axis_is_logarithmic_and_has_a_tick() {
        let axis = Axis { from_ns: 1e3, to_ns: 1e9 };
        assert_eq!((axis.x(1e3), axis.x(1e9)), (BESIDE, WIDTH - BESIDE));
        assert!((axis.x(1e6) - WIDTH / 2.0).abs() < 1e-9);
        let times: Vec<String> = axis.ticks().into_iter().map(|(_, time)| time).collect();
        assert_eq!(times, ["1µs", "10µs", "100µs", "1ms", "10ms", "100ms", "1s"]);
        // Every single bucket.
        for i in 0..BUCKETS {
            let le = BUCKET_BOUNDS_NS.get(i).map(|&ns| ns as f64 / 1e9);
            let buckets = vec![SharesOfBucket { le, shares: [1.0, 0.0] }];
            let axis = Axis::of(&[Distribution { buckets, ..distribution("x", [None, None]) }]).unwrap();
            let [from, to] = edges(le);
            assert!(from < to && axis.from_ns == from && axis.to_ns >= to && !axis.ticks().is_empty(), "{le:?}");
        }
        assert_eq!(edges(Some(1e-6)), [500.0, 1e3]);
        assert_eq!(edges(None), [1e10, 2e10]);
    }
}

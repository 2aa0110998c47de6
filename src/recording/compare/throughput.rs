//! Draws throughput by the number of threads: what was measured, and the law.

use maud::{html, Markup};

use super::{Point, Scaling};
use crate::present::format;

/// The size of the chart, and the place beside and below it for figures.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const BESIDE: f64 = 48.0;
const BELOW: f64 = 22.0;
const ABOVE: f64 = 10.0;
/// The least distance of two numbers below the chart.
const APART: f64 = 24.0;

/// Returns a chart of throughput by number: dots for what was measured, a line for the law.
pub(super) fn chart(scaling: &Scaling) -> Markup {
    let scale = Scale::of(&scaling.points);
    let bottom = scale.y(0.0);
    html! {
        div {
            svg width=(BESIDE + WIDTH + 20.0) height=(ABOVE + HEIGHT + BELOW) role="img" aria-label=(label(scaling)) {
                @for throughput in scale.lines() {
                    @let y = scale.y(throughput);
                    line.axis x1=(BESIDE) x2=(BESIDE + WIDTH) y1=(tenths(y)) y2=(tenths(y)) {}
                    text x=(BESIDE - 6.0) y=(tenths(y + 4.0)) text-anchor="end" { (format::count(throughput)) }
                }
                @if let Some(law) = scaling.law {
                    polyline.law points=(curve(scale.most_n, |n| (scale.x(n), scale.y(law.throughput(n))))) {}
                }
                @for point in &scaling.points {
                    circle.bar cx=(tenths(scale.x(point.n))) cy=(tenths(scale.y(point.throughput))) r="4" {
                        title { (point.n) ": " (format::count(point.throughput)) "/s" }
                    }
                }
                @for (x, n) in scale.numbers(&scaling.points) {
                    text x=(tenths(x)) y=(tenths(bottom + 16.0)) text-anchor="middle" { (n) }
                }
            }
        }
        p.soft {
            "Statements per second by " (scaling.by) "."
            @if scaling.law.is_some() { " The dots were measured; the line is the law." }
        }
    }
}

/// Returns what is read to who does not see the chart.
fn label(scaling: &Scaling) -> String {
    let point = |point: &Point| format!("{} at {}", format::count(point.throughput), point.n);
    let points: Vec<String> = scaling.points.iter().map(point).collect();
    format!("Statements per second by {}: {}", scaling.by, points.join(", "))
}

fn tenths(place: f64) -> String {
    format!("{place:.1}")
}

/// Where numbers and throughputs are; both begin at zero.
struct Scale {
    most_n: f64,
    most: f64,
}

impl Scale {
    fn of(points: &[Point]) -> Scale {
        let most_n = points.iter().map(|point| point.n).fold(1.0, f64::max);
        let throughputs = points.iter().flat_map(|point| [Some(point.throughput), point.law]);
        let most = throughputs.flatten().fold(0.0, f64::max);
        Scale { most_n, most: if most > 0.0 { most } else { 1.0 } }
    }

    fn x(&self, n: f64) -> f64 {
        BESIDE + n / self.most_n * WIDTH
    }

    fn y(&self, throughput: f64) -> f64 {
        ABOVE + (1.0 - throughput / self.most) * HEIGHT
    }

    /// Returns three to six round throughputs, from zero.
    fn lines(&self) -> Vec<f64> {
        let power = 10_f64.powf((self.most / 2.0).log10().floor());
        let steps = [5.0, 2.0, 1.0, 0.5].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| self.most / step >= 2.0).unwrap_or(power);
        (0..=5).map(|i| f64::from(i) * step).filter(|line| *line <= self.most).collect()
    }

    /// Returns the places of the numbers for which there is room; the greatest is one of them.
    fn numbers(&self, points: &[Point]) -> Vec<(f64, f64)> {
        let mut places: Vec<(f64, f64)> = Vec::new();
        for point in points.iter().rev() {
            let x = self.x(point.n);
            if places.last().is_none_or(|(before, _)| before - x >= APART) {
                places.push((x, point.n));
            }
        }
        places.reverse();
        places
    }
}

/// Returns the points of a curve from 1 to `most`, as SVG has them.
fn curve(most: f64, place: impl Fn(f64) -> (f64, f64)) -> String {
    const STEPS: usize = 100;
    let numbers = (0..=STEPS).map(|i| most * i as f64 / STEPS as f64).filter(|n| *n >= 1.0);
    let points = numbers.map(|n| {
        let (x, y) = place(n);
        format!("{x:.1},{y:.1}")
    });
    points.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(numbers: &[f64]) -> Vec<Point> {
        let point = |n: &f64| Point {
            name: String::new(),
            n: *n,
            throughput: 100.0 * n,
            efficiency: 1.0,
            law: None,
            waiting: 0.0,
            cpus: None,
        };
        numbers.iter().map(point).collect()
    }

    #[test]
    fn lines_are_at_round_throughputs() {
        let of = |most: f64| Scale { most_n: 1.0, most }.lines();
        assert_eq!(of(24_100.0), [0.0, 10_000.0, 20_000.0]);
        assert_eq!(of(8_030.0), [0.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0]);
        assert_eq!(of(1.0), [0.0, 0.5, 1.0]);
        for most in [0.3, 1.0, 9.99, 10.0, 19.9, 20.0, 49.0, 50.0, 99.0, 1e9] {
            let lines = of(most);
            assert!((3..=6).contains(&lines.len()) && lines[1] > 0.0, "{most}: {lines:?}");
        }
        // Nothing was served.
        assert_eq!(Scale::of(&points(&[0.0])).y(0.0), ABOVE + HEIGHT);
    }

    #[test]
    fn numbers_do_not_cover_each_other() {
        let all = points(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]);
        let scale = Scale::of(&all);
        let shown: Vec<f64> = scale.numbers(&all).into_iter().map(|(_, n)| n).collect();
        assert_eq!(shown, [8.0, 32.0, 64.0, 128.0, 256.0, 512.0]);
    }
}

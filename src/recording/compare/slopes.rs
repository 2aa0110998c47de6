//! Draws the latches that changed: a line for each, from its wait on A to that on B.

use maud::{html, Markup};

use super::text::cells;
use super::{Comparison, Pair, Per, Row};
use crate::present::names::short_names;

/// The most lines. The table below has the others.
const MOST: usize = 12;
/// Where lines begin and end, and how high the chart is.
const A_X: f64 = 20.0;
const B_X: f64 = 200.0;
const HEIGHT: f64 = 300.0;
const TOP: f64 = 24.0;
/// The height of a name.
const LINE: f64 = 14.0;
/// How long a name may be, in characters.
const NAME: usize = 40;

/// A line from A to B, by where it begins and ends below the top.
struct Slope<'a> {
    row: &'a Row,
    ends: [f64; 2],
}

/// Returns a chart of the latches that changed most, on a logarithmic scale. What was not waited for is at the bottom.
pub fn slopes(comparison: &Comparison) -> Markup {
    let per = comparison.per;
    let changed = comparison.changes.iter().take(MOST);
    let changed: Vec<(&Row, &Pair)> = changed.filter_map(|row| Some((row, row.wait(per)?))).collect();
    let Some(scale) = Scale::of(&changed) else { return Markup::default() };
    let mut slopes: Vec<Slope> =
        changed.iter().map(|(row, wait)| Slope { row, ends: [scale.y(wait.a), scale.y(wait.b)] }).collect();
    slopes.sort_by(|a, b| a.ends[1].total_cmp(&b.ends[1]));
    let names = short_names(slopes.iter().map(|slope| slope.row.latch.as_str()), NAME);
    let label = format!("The wait for {} latches on A and on B; the table below has the figures", slopes.len());
    html! {
        div {
            svg width="700" height=(HEIGHT + TOP + 2.0 * LINE) role="img" aria-label=(label) {
                text x=(A_X - 4.0) y="14" { "A" }
                text x=(B_X - 4.0) y="14" { "B" }
                line.axis x1=(A_X) x2=(A_X) y1=(TOP) y2=(TOP + HEIGHT) {}
                line.axis x1=(B_X) x2=(B_X) y1=(TOP) y2=(TOP + HEIGHT) {}
                @for (slope, name_y) in slopes.iter().zip(apart(&slopes)) {
                    (line(slope, per, &names[slope.row.latch.as_str()], name_y))
                }
            }
        }
    }
}

fn line(slope: &Slope, per: Per, name: &str, name_y: f64) -> Markup {
    let [a, b, ..] = cells(slope.row, per);
    let [from, to] = slope.ends.map(|y| format!("{:.1}", TOP + y));
    let class = if slope.ends[1] < slope.ends[0] { "more" } else { "less" };
    html! {
        line class=(class) x1=(A_X) y1=(from) x2=(B_X) y2=(to) {
            title { (slope.row.latch) ": " (a) " on A, " (b) " on B" }
        }
        circle class=(class) cx=(A_X) cy=(from) r="3" {}
        circle class=(class) cx=(B_X) cy=(to) r="3" {}
        text x=(B_X + 10.0) y=(format!("{:.1}", TOP + name_y + 4.0)) { (name) " " (a) " → " (b) }
    }
}

/// Returns where names are written, as near to the ends of their lines as others leave room. The lines are in order.
fn apart(slopes: &[Slope]) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::new();
    for slope in slopes {
        let free = places.last().map_or(0.0, |last| last + LINE);
        places.push(slope.ends[1].max(free));
    }
    // The last may have been pushed below the bottom.
    let mut limit = HEIGHT + LINE;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE;
    }
    places
}

/// A logarithmic scale from the shortest to the longest wait.
struct Scale {
    shortest: f64,
    longest: f64,
}

impl Scale {
    /// Returns `None` if nothing was waited for.
    fn of(changed: &[(&Row, &Pair)]) -> Option<Scale> {
        let all = changed.iter().flat_map(|(_, wait)| [wait.a, wait.b]).filter(|wait| *wait > 0.0);
        let ends = |(least, most): (f64, f64), wait: f64| (least.min(wait), most.max(wait));
        let (shortest, longest) = all.fold((f64::INFINITY, 0.0), ends);
        (longest > 0.0).then_some(Scale { shortest, longest })
    }

    /// Returns how far below the top a wait is.
    fn y(&self, wait: f64) -> f64 {
        if wait <= 0.0 {
            return HEIGHT;
        }
        // What was waited for is above what was not.
        let range = (self.longest / self.shortest).ln().max(f64::MIN_POSITIVE);
        (self.longest / wait).ln() / range * (HEIGHT - 2.0 * LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::compare::Claim;

    #[test]
    fn longer_waits_are_higher() {
        let scale = Scale { shortest: 0.001, longest: 10.0 };
        assert_eq!(scale.y(10.0), 0.0);
        assert!((scale.y(0.1) - scale.y(10.0) / 2.0 - (HEIGHT - 2.0 * LINE) / 2.0).abs() < 1e-9);
        assert!(scale.y(0.001) < scale.y(0.0) && scale.y(0.0) == HEIGHT);
        assert_eq!(Scale { shortest: 2.0, longest: 2.0 }.y(2.0), 0.0);
    }

    #[test]
    fn names_do_not_cover_each_other() {
        let row = |latch: &str| Row {
            latch: latch.to_owned(),
            by: Vec::new(),
            awake: [None; 2],
            spinning: [None; 2],
            spins_won: [None; 2],
            claim: Claim::More,
        };
        let row = row("x");
        let at = |ends: &[f64]| {
            let slopes: Vec<Slope> = ends.iter().map(|end| Slope { row: &row, ends: [0.0, *end] }).collect();
            apart(&slopes)
        };
        assert_eq!(at(&[0.0, 1.0, 100.0]), [0.0, LINE, 100.0]);
        let bottom = at(&[HEIGHT; MOST]);
        assert!(bottom.windows(2).all(|pair| pair[1] - pair[0] >= LINE - 1e-9) && bottom[MOST - 1] <= HEIGHT + LINE);
        assert!(bottom[0] >= 0.0);
    }
}

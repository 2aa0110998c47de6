//! Draws a flame graph. The page has no script: pointing at a frame shows its whole name and its figures.

use std::collections::BTreeMap;

use maud::{html, Markup};

use crate::present::format;

/// The width of all frames together, and the height of each row.
const WIDTH: f64 = 1200.0;
const ROW: usize = 17;
/// The narrowest frame, and the most frames, which bound the size of the page.
const NARROWEST: f64 = 1.5;
const MOST_FRAMES: usize = 500;
/// The width of a character, and the narrowest frame that has a text.
const CHARACTER: f64 = 6.9;
const NARROWEST_TEXT: f64 = 30.0;

/// What paths have in common that begin alike.
#[derive(Default)]
struct Tree {
    seconds: f64,
    above: BTreeMap<String, Tree>,
}

/// A part of a row.
struct Frame<'a> {
    name: &'a str,
    seconds: f64,
    /// The number of rows below it.
    level: usize,
    left: f64,
    width: f64,
}

/// Returns a flame graph of paths with their time, in seconds. A path begins at the bottom.
pub(crate) fn graph(paths: &[(Vec<String>, f64)]) -> Markup {
    let mut tree = Tree::default();
    for (path, seconds) in paths {
        tree.add(path, *seconds);
    }
    let all = tree.seconds.max(f64::MIN_POSITIVE);
    let mut frames = Vec::new();
    tree.draw(0, 0.0, WIDTH / all, &mut frames);
    // No frame is wider than the one below it, so none is kept without that.
    frames.sort_by(|a, b| b.width.total_cmp(&a.width).then(a.level.cmp(&b.level)));
    frames.truncate(MOST_FRAMES);
    let rows = frames.iter().map(|frame| frame.level + 1).max().unwrap_or(0);
    html! {
        div {
            svg.flame width=(WIDTH) height=(rows * ROW) role="img" aria-label=(spoken(paths, all)) {
                @for frame in &frames { (frame.markup(rows, all)) }
            }
        }
    }
}

impl Tree {
    fn add(&mut self, path: &[String], seconds: f64) {
        self.seconds += seconds;
        if let Some((first, rest)) = path.split_first() {
            self.above.entry(first.clone()).or_default().add(rest, seconds);
        }
    }

    /// Adds the frames above this one, the widest first, from this place on. A second is as wide as `scale`.
    fn draw<'a>(&'a self, level: usize, left: f64, scale: f64, frames: &mut Vec<Frame<'a>>) {
        let mut above: Vec<(&String, &Tree)> = self.above.iter().collect();
        above.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        let mut left = left;
        for (name, tree) in above {
            let width = tree.seconds * scale;
            if width < NARROWEST {
                break;
            }
            frames.push(Frame { name, seconds: tree.seconds, level, left, width });
            tree.draw(level + 1, left, scale, frames);
            left += width;
        }
    }
}

impl Frame<'_> {
    fn markup(&self, rows: usize, all: f64) -> Markup {
        let y = (rows - 1 - self.level) * ROW;
        let (time, share) = (format::nanoseconds(self.seconds * 1e9), format::percent(self.seconds / all));
        html! {
            g class=[(self.level == 0).then_some("root")] {
                title { (self.name) ": " (time) ", " (share) }
                rect x=(format!("{:.1}", self.left)) y=(y) width=(format!("{:.1}", self.width)) height=(ROW) {}
                @if self.width >= NARROWEST_TEXT {
                    text x=(format!("{:.1}", self.left + 3.0)) y=(y + ROW - 5) { (self.text()) }
                }
            }
        }
    }

    /// Returns as much of the name as fits.
    fn text(&self) -> String {
        let fits = ((self.width - 6.0) / CHARACTER) as usize;
        if self.name.chars().count() <= fits {
            return self.name.to_owned();
        }
        self.name.chars().take(fits.saturating_sub(1)).chain(['…']).collect()
    }
}

/// Returns what the graph shows for who does not see it: the longest path.
fn spoken(paths: &[(Vec<String>, f64)], all: f64) -> String {
    let longest = paths.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let of = |(path, seconds): &(Vec<String>, f64)| {
        format!("Flame graph. {} of the time: {}", format::percent(seconds / all), path.join(", "))
    };
    longest.map_or_else(String::new, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_begins_alike_is_drawn_once() {
        let paths = [(path(&["a", "b", "c"]), 2.0), (path(&["a", "d"]), 1.0), (path(&["e"]), 1.0)];
        let page = graph(&paths).into_string();
        let rect = |name: &str, share: &str, x: &str, y: usize, width: &str| {
            page.contains(&format!(
                "<title>{name}: {share}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{ROW}\">"
            ))
        };
        assert!(rect("a", "3.00s, 75.0%", "0.0", 2 * ROW, "900.0"), "{page}");
        assert!(
            rect("b", "2.00s, 50.0%", "0.0", ROW, "600.0") && rect("c", "2.00s, 50.0%", "0.0", 0, "600.0"),
            "{page}"
        );
        assert!(
            rect("d", "1.00s, 25.0%", "600.0", ROW, "300.0") && rect("e", "1.00s, 25.0%", "900.0", 2 * ROW, "300.0")
        );
        assert!(page.contains("50.0% of the time: a, b, c"), "{page}");
    }

    #[test]
    fn a_page_stays_small() {
        let deep = |n: usize| {
            path(&(0..200).map(|level| if level == 0 { "l" } else { "f" }).collect::<Vec<_>>())
                .into_iter()
                .chain([format!("leaf{n}")])
                .collect::<Vec<_>>()
        };
        let paths: Vec<(Vec<String>, f64)> = (0..1000).map(|n| (deep(n), 1.0)).collect();
        let page = graph(&paths).into_string();
        assert!(page.len() < 100_000 && page.matches("<rect").count() <= MOST_FRAMES, "{}", page.len());
        assert!(graph(&[]).into_string().contains("<svg"), "nothing to draw");
    }

    #[test]
    fn names_are_cut_to_their_frames() {
        let frame = |width| Frame { name: "abcdefghij", seconds: 1.0, level: 0, left: 0.0, width };
        assert_eq!(frame(100.0).text(), "abcdefghij");
        assert_eq!(frame(40.0).text(), "abc…");
    }
}

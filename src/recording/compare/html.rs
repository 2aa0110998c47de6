//! Comparisons as one self-contained web page.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::text::{cells, figures, grown, interval, sentences, shares, times};
use super::{title, Comparison, Growth, Row, Scaling};
use crate::html::{begin, end, table, table_of_words, Escaped};
use crate::present::format::{self, NOTHING};

/// Rows of each table. JSON has all.
const ROWS: usize = 100;

/// A comparison as a page.
pub struct Html<'a, T>(pub &'a T);

impl Display for Html<'_, Comparison> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let comparison = self.0;
        begin(f, "comparison")?;
        for (letter, about) in [("A", &comparison.a), ("B", &comparison.b)] {
            let labels: Vec<String> = about.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            writeln!(f, "<h1>{letter}: {}</h1>", Escaped(&title(about)))?;
            writeln!(f, "<p class=\"soft\">{:.0} s recorded {}</p>", about.duration, Escaped(&labels.join(" ")))?;
        }
        writeln!(f, "<h2>In all</h2>")?;
        let rows = figures(comparison).into_iter().map(|figure| {
            let (times, interval) = (times(figure.ratio), interval(figure.ratio));
            (figure.name, vec![figure.a, figure.b, times, interval])
        });
        table_of_words(f, &["", "A", "B", "B/A", "95 % interval"], rows)?;
        list(f, &sentences(comparison))?;
        writeln!(
            f,
            "<h2>What changed</h2>\n<p class=\"soft\">Wait {}; the largest difference first.</p>",
            comparison.per.as_str()
        )?;
        if comparison.changes.is_empty() {
            writeln!(f, "<p>No latch differs as far as can be told.</p>")?;
        } else {
            latches(f, comparison, &comparison.changes)?;
        }
        if !comparison.unclear.is_empty() {
            writeln!(f, "<h2>Not clear</h2>\n<p class=\"soft\">The interval covers 1, or there is none.</p>")?;
            latches(f, comparison, &comparison.unclear)?;
        }
        if !comparison.reacquires.is_empty() {
            writeln!(
                f,
                "<h2>Wake-ups</h2>\n<p class=\"soft\">Threads that a condition variable woke, and that wait to get its mutex \
                 back: no contention, and in no sum.</p>"
            )?;
            latches(f, comparison, &comparison.reacquires)?;
        }
        comparison.sections().iter().try_for_each(|section| section.html(comparison, f))?;
        differing(f, "Code that differs", "what", &comparison.code)?;
        differing(f, "Settings that differ", "setting", &comparison.settings)?;
        if !comparison.barriers.is_empty() {
            writeln!(f, "<h2>Barriers and atomics in the servers' code</h2>")?;
            let rows =
                comparison.barriers.iter().map(|(name, counts)| (name.clone(), counts.map(|n| n.to_string()).to_vec()));
            table(f, &["instruction", "A", "B"], rows)?;
        }
        list(f, &comparison.remarks)?;
        end(f)
    }
}

fn differing(
    f: &mut Formatter,
    title: &str,
    what: &str,
    values: &BTreeMap<String, [Option<String>; 2]>,
) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    writeln!(f, "<h2>{title}</h2>")?;
    let value = |value: &Option<String>| value.clone().unwrap_or(NOTHING.to_owned());
    table(f, &[what, "A", "B"], values.iter().map(|(name, [a, b])| (name.clone(), vec![value(a), value(b)])))
}

fn latches(f: &mut Formatter, comparison: &Comparison, rows: &[Row]) -> fmt::Result {
    let row = |row: &Row| {
        let shares = shares(row).into_iter().flatten();
        (row.latch.clone(), cells(row, comparison.per).into_iter().chain(shares).collect())
    };
    let titles = ["latch", "A", "B", "B/A", "95 % interval", "awake A", "B", "spinning A", "B", "spins won A", "B"];
    table(f, &titles, rows.iter().take(ROWS).map(row))?;
    match rows.len().saturating_sub(ROWS) {
        0 => Ok(()),
        more => writeln!(f, "<p class=\"soft\">and {more} more, which <code>--format json</code> lists</p>"),
    }
}

fn list(f: &mut Formatter, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "<ul>")?;
    lines.iter().try_for_each(|line| writeln!(f, "<li>{}</li>", Escaped(line)))?;
    writeln!(f, "</ul>")
}

impl Display for Html<'_, Scaling> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let scaling = self.0;
        begin(f, &format!("scaling by {}", scaling.by))?;
        writeln!(f, "<h1>Scaling by {}</h1>", Escaped(&scaling.by))?;
        list(f, &scaling.findings)?;
        chart(f, scaling)?;
        let rows = scaling.points.iter().map(|point| {
            let law = point.law.map_or(NOTHING.to_owned(), format::count);
            let cells = [
                format::count(point.throughput),
                format::percent(point.efficiency),
                law,
                format!("{:.2}", point.waiting),
                point.cpus.map_or(NOTHING.to_owned(), |cpus| format!("{cpus:.2}")),
                point.name.clone(),
            ];
            (point.n.to_string(), cells.to_vec())
        });
        table(
            f,
            &[&Escaped(&scaling.by).to_string(), "statements/s", "efficiency", "law", "waiting", "CPUs", "recording"],
            rows,
        )?;
        if !scaling.growing.is_empty() {
            writeln!(f, "<h2>Latches for which a statement waits longer</h2>")?;
            writeln!(
                f,
                "<p class=\"soft\">Threads waiting at any moment, at each number of {}.</p>",
                Escaped(&scaling.by)
            )?;
            growing(f, scaling)?;
        }
        list(f, &scaling.remarks)?;
        end(f)
    }
}

fn growing(f: &mut Formatter, scaling: &Scaling) -> fmt::Result {
    let numbers: Vec<String> = scaling.points.iter().map(|point| point.n.to_string()).collect();
    let numbers = numbers.iter().map(String::as_str);
    let titles: Vec<&str> = ["latch"].into_iter().chain(numbers).chain(["of those added", "per statement"]).collect();
    let row = |growth: &Growth| {
        let waiting = growth.waiting.iter().map(|threads| format!("{threads:.2}"));
        let rest = [format::percent(growth.share_of_added), grown(growth)];
        (growth.latch.clone(), waiting.chain(rest).collect())
    };
    table(f, &titles, scaling.growing.iter().take(ROWS).map(row))
}

/// Throughput by number: dots for what was measured, a line for the law.
fn chart(f: &mut Formatter, scaling: &Scaling) -> fmt::Result {
    const SIZE: (f64, f64) = (700.0, 260.0);
    const STEPS: usize = 100;
    let most_n = scaling.points.iter().map(|point| point.n).fold(1.0, f64::max);
    let law = |n: f64| scaling.law.map(|law| law.throughput(n));
    let throughputs = scaling.points.iter().flat_map(|point| [Some(point.throughput), point.law]);
    let most = throughputs.flatten().fold(0.0, f64::max) * 1.05;
    let place = |n: f64, throughput: f64| (n / most_n * SIZE.0 + 10.0, (1.0 - throughput / most) * SIZE.1 + 5.0);
    writeln!(f, "<div><svg width=\"{}\" height=\"{}\" role=\"img\">", SIZE.0 + 60.0, SIZE.1 + 30.0)?;
    let (zero, right) = (place(0.0, 0.0), place(most_n, 0.0));
    writeln!(f, "<line class=\"axis\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>", zero.0, zero.1, right.0, right.1)?;
    if scaling.law.is_some() {
        let points: Vec<String> = (0..=STEPS)
            .filter_map(|i| {
                let n = most_n * i as f64 / STEPS as f64;
                let (x, y) = place(n, law(n.max(1.0)).filter(|_| n >= 1.0)?);
                Some(format!("{x:.1},{y:.1}"))
            })
            .collect();
        writeln!(f, "<polyline class=\"law\" points=\"{}\"/>", points.join(" "))?;
    }
    for point in &scaling.points {
        let (x, y) = place(point.n, point.throughput);
        let text = format::count(point.throughput);
        writeln!(
            f,
            "<circle class=\"bar\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}: {text}/s</title></circle>",
            point.n
        )?;
        writeln!(f, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x - 5.0, zero.1 + 15.0, point.n)?;
    }
    writeln!(f, "</svg></div>")
}

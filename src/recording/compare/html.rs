//! Writes a comparison as one self-contained web page.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use maud::{html, Markup};

use super::distributions::charts;
use super::side::About;
use super::slopes::slopes;
use super::text::{cells, figures, grown, interval, sentences, shares, times};
use super::{throughput, title, Comparison, Growth, Row, Scaling};
use crate::html::{list, more, page, table, table_of_words};
use crate::present::format::{self, NOTHING};
use crate::recording::report::{recorded, what_to_do};

/// The most rows of each table. JSON has all of them.
const ROWS: usize = 100;

/// A comparison, or the scaling of one load, as a page.
pub struct Html<'a, T>(pub &'a T);

impl Display for Html<'_, Comparison> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let comparison = self.0;
        let body = html! {
            (about("A", &comparison.a))
            (about("B", &comparison.b))
            (in_all(comparison))
            (list(&sentences(comparison)))
            (changes(comparison))
            @for section in comparison.sections() { (section.html(comparison)) }
            (what_to_do(comparison.what_to_do.iter().map(|each| (format!("{}: ", each.system), &each.advised))))
            (differing("Code that differs", "what", &comparison.code))
            (differing("Settings that differ", "setting", &comparison.settings))
            @if !comparison.barriers.is_empty() {
                h2 { "Barriers and atomics in the servers' code" }
                (barriers(comparison))
            }
            (list(&comparison.remarks))
        };
        f.write_str(&page("comparison", &body))
    }
}

fn about(letter: &str, about: &About) -> Markup {
    let labels = about.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let length = format!("{:.0} s recorded", about.duration);
    let recorded = about.began_ms.map_or(length, |from| recorded(&about.host, from, about.duration));
    let facts: Vec<String> = [recorded].into_iter().chain(labels).collect();
    html! {
        h1 { (letter) ": " (title(about)) }
        @if about.duration > 0.0 { p.soft { (facts.join(" · ")) } }
    }
}

fn in_all(comparison: &Comparison) -> Markup {
    let rows: Vec<_> = figures(comparison)
        .into_iter()
        .map(|figure| {
            let (times, interval) = (times(figure.ratio), interval(figure.ratio));
            (figure.name, vec![figure.a, figure.b, times, interval])
        })
        .collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Overall" }
            (table_of_words(&["", "A", "B", "B/A", "95 % interval"], rows.into_iter()))
        }
    }
}

/// Returns the latches that changed, those that may have, and the wake-ups.
fn changes(comparison: &Comparison) -> Markup {
    html! {
        h2 { "What changed" }
        p.soft { "Wait " (comparison.per.as_str()) "; the largest difference first." }
        @if comparison.changes.is_empty() {
            p { "No latch clearly differs." }
        } @else {
            (slopes(comparison))
            (latches(comparison, &comparison.changes))
            (charts(comparison))
        }
        @if !comparison.unclear.is_empty() {
            h2 { "Not clear" }
            p.soft { "The interval covers 1, or there is none." }
            (latches(comparison, &comparison.unclear))
        }
        @if !comparison.reacquires.is_empty() {
            h2 { "Wake-ups" }
            p.soft {
                "Threads that a condition variable woke wait to reacquire its mutex. This is not contention, and no sum \
                 includes it."
            }
            (latches(comparison, &comparison.reacquires))
        }
    }
}

fn differing(title: &str, what: &str, values: &BTreeMap<String, [Option<String>; 2]>) -> Markup {
    let value = |value: &Option<String>| value.clone().unwrap_or(NOTHING.to_owned());
    let rows = values.iter().map(|(name, [a, b])| (name.clone(), vec![value(a), value(b)]));
    html! {
        @if !values.is_empty() {
            h2 { (title) }
            (table(&[what, "A", "B"], rows))
        }
    }
}

fn barriers(comparison: &Comparison) -> Markup {
    let row = |(name, counts): (&String, &[u64; 2])| (name.clone(), counts.map(|n| n.to_string()).to_vec());
    table(&["instruction", "A", "B"], comparison.barriers.iter().map(row))
}

fn latches(comparison: &Comparison, rows: &[Row]) -> Markup {
    let row = |row: &Row| {
        let shares = shares(row).into_iter().flatten();
        (row.latch.clone(), cells(row, comparison.per).into_iter().chain(shares).collect())
    };
    let titles = ["latch", "A", "B", "B/A", "95 % interval", "awake A", "B", "spinning A", "B", "spins won A", "B"];
    html! {
        (table(&titles, rows.iter().take(ROWS).map(row)))
        (more(rows.len().saturating_sub(ROWS)))
    }
}

impl Display for Html<'_, Scaling> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let scaling = self.0;
        let body = html! {
            h1 { "Scaling by " (scaling.by) }
            (list(&scaling.findings))
            (throughput::chart(scaling))
            (points(scaling))
            @if !scaling.growing.is_empty() {
                h2 { "Latches for which a statement waits longer" }
                p.soft { "Threads waiting at any moment, at each number of " (scaling.by) "." }
                (growing(scaling))
            }
            (list(&scaling.remarks))
        };
        f.write_str(&page(&format!("scaling by {}", scaling.by), &body))
    }
}

fn points(scaling: &Scaling) -> Markup {
    let rows = scaling.points.iter().map(|point| {
        let cells = [
            format::count(point.throughput),
            format::percent(point.efficiency),
            point.law.map_or(NOTHING.to_owned(), format::count),
            format!("{:.2}", point.waiting),
            point.cpus.map_or(NOTHING.to_owned(), |cpus| format!("{cpus:.2}")),
            point.name.clone(),
        ];
        (point.n.to_string(), cells.to_vec())
    });
    table(&[&scaling.by, "statements/s", "efficiency", "law", "waiting", "CPUs", "recording"], rows)
}

fn growing(scaling: &Scaling) -> Markup {
    let numbers: Vec<String> = scaling.points.iter().map(|point| point.n.to_string()).collect();
    let numbers = numbers.iter().map(String::as_str);
    let titles: Vec<&str> = ["latch"].into_iter().chain(numbers).chain(["of those added", "per statement"]).collect();
    let row = |growth: &Growth| {
        let waiting = growth.waiting.iter().map(|threads| format!("{threads:.2}"));
        let rest = [format::percent(growth.share_of_added), grown(growth)];
        (growth.latch.clone(), waiting.chain(rest).collect())
    };
    table(&titles, scaling.growing.iter().take(ROWS).map(row))
}

//! One latch, opened: its figures, a histogram of its waits, and its call sites.

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

use super::views::mode;
use super::{LatchId, Screen};
use crate::model::{Histogram, LatchWaits, Snapshot, BUCKET_BOUNDS_NS};
use crate::ui::format::{self, NOTHING};
use crate::ui::names::cut_middle;

/// Columns of a histogram's longest bar.
const BAR: usize = 40;

impl Screen {
    /// The lines that tell of a latch, at most `width` wide and `height` high.
    pub(super) fn detail(&self, latch: &LatchId, width: usize, height: usize) -> Vec<Line<'static>> {
        let bold = Style::from(Modifier::BOLD);
        let mut lines = vec![Line::from(format!("{} {}", latch.0, mode(latch.2).trim_matches('-'))).style(bold)];
        let Some(now) = find(&self.now, latch) else {
            lines.push(Line::from("no wait was seen"));
            return lines;
        };
        let waits = self
            .since()
            .and_then(|earlier| find(earlier, latch))
            .map_or(now.waits.clone(), |e| now.waits.since(&e.waits));
        lines.extend(self.figures(now, latch).into_iter().map(Line::from));
        lines.extend(self.modes(latch));
        lines.push(Line::from(""));
        lines.push(
            Line::from(if self.since().is_some() {
                "how long waits took, last seconds"
            } else {
                "how long waits took"
            })
            .style(bold),
        );
        lines.extend(histogram(&waits));
        lines.push(Line::from(""));
        lines.push(Line::from("call sites, all modes, since attach").style(bold));
        lines.extend(callsites(&self.now, &latch.0, width));
        lines.truncate(height);
        lines
    }

    fn figures(&self, now: &LatchWaits, latch: &LatchId) -> Vec<String> {
        let before = self.since().and_then(|earlier| find(earlier, latch));
        let (waits, sleep_ns, sleeps) = match before {
            Some(e) => (
                now.waits.since(&e.waits),
                now.sleep_ns.saturating_sub(e.sleep_ns),
                now.sleeps.saturating_sub(e.sleeps),
            ),
            None => (now.waits.clone(), now.sleep_ns, now.sleeps),
        };
        let time = |ns: Option<f64>| ns.map_or(NOTHING.to_owned(), format::nanoseconds);
        let quantiles = [0.5, 0.9, 0.99].map(|q| time(waits.quantile_ns(q)));
        let sleep_ns = sleep_ns.min(waits.sum_ns);
        let [p50, p90, p99] = quantiles;
        let max = format::nanoseconds(now.waits.max_ns as f64);
        let mut lines = vec![format!("{} waits · p50 {p50} · p90 {p90} · p99 {p99} · max {max}", waits.count)];
        if self.now.sleeps_seen {
            let [awake, asleep] = [waits.sum_ns - sleep_ns, sleep_ns].map(|ns| format::nanoseconds(ns as f64));
            lines.push(format!("awake {awake} · asleep {asleep} in {} sleeps", format::count(sleeps as f64)));
        }
        lines
    }

    /// All of the latch's modes, since attach, where it has several.
    fn modes(&self, latch: &LatchId) -> Vec<Line<'static>> {
        let of_latch: Vec<&LatchWaits> = self.now.latches.iter().filter(|row| row.latch == latch.0).collect();
        let line = |row: &&LatchWaits| {
            let (wait, waits) = (format::nanoseconds(row.waits.sum_ns as f64), format::count(row.waits.count as f64));
            Line::from(format!("  {:>2} {wait:>7} in {waits:>6} waits", mode(row.mode)))
        };
        if of_latch.len() < 2 {
            return Vec::new();
        }
        let title = Line::from("modes, since attach").style(Modifier::BOLD);
        [Line::from(""), title].into_iter().chain(of_latch.iter().map(line)).collect()
    }
}

fn find<'a>(snapshot: &'a Snapshot, (latch, kind, mode): &LatchId) -> Option<&'a LatchWaits> {
    snapshot.latches.iter().find(|row| row.latch == *latch && row.kind == *kind && row.mode == *mode)
}

/// A bar for each bucket between the first and the last that hold waits.
fn histogram(waits: &Histogram) -> Vec<Line<'static>> {
    let holds = |n: &u64| *n > 0;
    let (Some(first), Some(last)) = (waits.buckets.iter().position(holds), waits.buckets.iter().rposition(holds))
    else {
        return vec![Line::from("  none")];
    };
    let most = waits.buckets.iter().max().copied().unwrap_or(1) as f64;
    let bar = |i: usize| {
        let bound =
            BUCKET_BOUNDS_NS.get(i).map_or("more".to_owned(), |&ns| format!("≤ {}", format::nanoseconds(ns as f64)));
        let length = (waits.buckets[i] as f64 / most * BAR as f64).ceil() as usize;
        Line::from(format!("  {bound:>8} {:>7} {}", format::count(waits.buckets[i] as f64), "█".repeat(length)))
    };
    (first..=last).map(bar).collect()
}

fn callsites(now: &Snapshot, latch: &str, width: usize) -> Vec<Line<'static>> {
    let mut sites: Vec<_> = now.callsites.iter().filter(|site| site.latch == latch && site.wait_ns > 0).collect();
    sites.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.callsite.cmp(&b.callsite)));
    let all: u64 = sites.iter().map(|site| site.wait_ns).sum();
    let line = |site: &&crate::model::CallsiteWaits| {
        let share = format::percent(site.wait_ns as f64 / all as f64);
        let site_name = cut_middle(&site.callsite, width.saturating_sub(30));
        Line::from(format!(
            "  {share:>6} {:>7} in {:>6} waits  {site_name}",
            format::nanoseconds(site.wait_ns as f64),
            format::count(site.waits as f64)
        ))
    };
    sites.iter().map(line).collect()
}

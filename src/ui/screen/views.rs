//! The lists, with their columns and rows.

use std::collections::BTreeMap;

use super::LatchId;
use crate::measure::cpu::CpuTime;
use crate::measure::latch::{CallsiteWaits, Handoffs};
use crate::measure::Snapshot;
use crate::model::Mode;
use crate::present::format::{self, mode, NOTHING};
use crate::ui::top::{HandoffTimes, Interval};

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Latches,
    Callsites,
    Pages,
    Cpu,
    Numa,
    Probes,
}

/// A row: its name, and a sort key and a text for each further column.
pub(super) struct ViewRow {
    /// The whole name, which the filter searches even if the column is too narrow for it.
    pub name: String,
    pub values: Vec<f64>,
    pub texts: Vec<String>,
    /// The latch that opens from this row.
    pub opens: Option<LatchId>,
}

/// A column's title and width. The first column takes the width that the others leave.
pub(super) type Column = (&'static str, u16);

impl View {
    pub const ALL: [View; 6] = [View::Latches, View::Callsites, View::Pages, View::Cpu, View::Numa, View::Probes];

    pub fn next(self) -> View {
        View::ALL[(self as usize + 1) % View::ALL.len()]
    }

    pub fn title(self) -> &'static str {
        match self {
            View::Latches => "Latches",
            View::Callsites => "Call sites",
            View::Pages => "Pages",
            View::Cpu => "CPU",
            View::Numa => "NUMA",
            View::Probes => "Probes",
        }
    }

    pub fn columns(self) -> &'static [Column] {
        match self {
            View::Latches => &[
                ("latch", 0),
                ("mode", 4),
                ("waits/s", 7),
                ("wait/s", 7),
                ("mean", 6),
                ("p99", 6),
                ("max", 6),
                ("asleep", 6),
                ("total", 6),
            ],
            View::Callsites => &[("latch ← call site", 0), ("waits/s", 8), ("wait/s", 8), ("share", 6), ("total", 7)],
            View::Pages => &[("table.index", 0), ("level", 5), ("waits/s", 8), ("wait/s", 8), ("total", 7)],
            View::Cpu => &[("class · function", 0), ("CPUs", 6), ("share", 6), ("total", 7)],
            View::Numa => &[
                ("latch", 0),
                ("handed/s", 8),
                ("wait/s", 7),
                ("remote/s", 8),
                ("local", 6),
                ("remote", 6),
                ("moved", 6),
            ],
            View::Probes => &[("probe", 0), ("state", 10), ("hits/s", 8), ("hits", 8), ("a trap", 7), ("CPU time", 8)],
        }
    }

    /// Returns the column that the view is sorted by until the user chooses another.
    pub fn usual_sort(self) -> usize {
        match self {
            View::Latches | View::Pages | View::Numa => 3,
            View::Callsites => 2,
            View::Cpu => 1,
            View::Probes => 5,
        }
    }

    pub fn rows(self, now: &Snapshot, earlier: Option<&Snapshot>) -> Vec<ViewRow> {
        let interval = Interval::new(now, earlier);
        match self {
            View::Latches => latches(now, &interval),
            View::Callsites => callsites(now, earlier, interval.seconds()),
            View::Pages => pages(now, earlier, interval.seconds()),
            View::Cpu => cpu(now, earlier, interval.seconds()),
            View::Numa => numa(now, &interval),
            View::Probes => probes(now, earlier, interval.seconds()),
        }
    }
}

fn latches(now: &Snapshot, interval: &Interval) -> Vec<ViewRow> {
    let longest = |latch: &str, mode: Mode| {
        let row = now.latch.waits.iter().find(|row| row.latch == latch && row.mode == mode);
        row.map_or(0, |row| row.waits.max_ns) as f64
    };
    let time = |ns: Option<f64>| ns.map_or(NOTHING.to_owned(), format::nanoseconds);
    let row = |top: crate::ui::top::TopLatch| {
        let max = longest(&top.latch, top.mode);
        ViewRow {
            values: vec![
                f64::from(top.mode as u8),
                top.waits_per_second.unwrap_or(-1.0),
                top.wait_ns_per_second,
                top.mean_ns.unwrap_or(-1.0),
                top.p99_ns.unwrap_or(-1.0),
                max,
                top.sleep_share.unwrap_or(-1.0),
                top.total_ns as f64,
            ],
            texts: vec![
                mode(top.mode).to_owned(),
                format::rate(top.waits_per_second),
                format::estimate(format::nanoseconds(top.wait_ns_per_second), top.is_estimated, None),
                time(top.mean_ns),
                time(top.p99_ns),
                time(Some(max).filter(|_| now.latch.counted())),
                top.sleep_share.map_or(NOTHING.to_owned(), |share| format!("{:.0}%", share * 100.0)),
                format::nanoseconds(top.total_ns as f64),
            ],
            opens: Some((top.latch.clone(), top.kind, top.mode)),
            name: top.latch,
        }
    };
    interval.top_latches().into_iter().map(row).collect()
}

fn callsites(now: &Snapshot, earlier: Option<&Snapshot>, seconds: f64) -> Vec<ViewRow> {
    let before = |site: &CallsiteWaits| {
        let rows = earlier.map(|earlier| &earlier.latch.callsites[..]).unwrap_or_default();
        let is_same =
            |row: &&CallsiteWaits| (row.mode, &row.latch, &row.callsite) == (site.mode, &site.latch, &site.callsite);
        rows.iter().find(is_same).map_or((0, 0), |row| (row.waits, row.wait_ns))
    };
    let new: Vec<(u64, u64)> = now
        .latch
        .callsites
        .iter()
        .map(|site| {
            let before = before(site);
            (site.waits.saturating_sub(before.0), site.wait_ns.saturating_sub(before.1))
        })
        .collect();
    let all = new.iter().map(|(_, ns)| *ns as f64).sum::<f64>().max(1.0);
    let row = |(site, (waits, ns)): (&CallsiteWaits, &(u64, u64))| {
        let (waits, wait, share) = (*waits as f64 / seconds, *ns as f64 / seconds, *ns as f64 / all);
        let opens = now.latch.waits.iter().filter(|latch| site.is_of(&latch.latch, latch.mode));
        let opens = opens.max_by_key(|latch| latch.waits.sum_ns);
        let in_mode =
            site.mode.filter(|own| *own != Mode::None).map_or_else(String::new, |own| format!(" {}", mode(own)));
        ViewRow {
            name: format!("{}{in_mode} ← {}", site.latch, site.callsite),
            values: vec![waits, wait, share, site.wait_ns as f64],
            texts: vec![
                format::count(waits),
                format::nanoseconds(wait),
                format::percent(share),
                format::nanoseconds(site.wait_ns as f64),
            ],
            opens: opens.map(|latch| (latch.latch.clone(), latch.kind, latch.mode)),
        }
    };
    now.latch.callsites.iter().zip(&new).map(row).collect()
}

fn pages(now: &Snapshot, earlier: Option<&Snapshot>, seconds: f64) -> Vec<ViewRow> {
    let before = |page: &crate::measure::latch::PageWaits| {
        let rows = earlier.map(|earlier| &earlier.latch.pages[..]).unwrap_or_default();
        rows.iter().find(|row| row.location() == page.location()).map_or((0, 0), |row| (row.waits, row.wait_ns))
    };
    let row = |page: &crate::measure::latch::PageWaits| {
        let before = before(page);
        let waits = page.waits.saturating_sub(before.0) as f64 / seconds;
        let wait = page.wait_ns.saturating_sub(before.1) as f64 / seconds;
        ViewRow {
            name: page.place(),
            values: vec![page.level.map_or(-1.0, f64::from), waits, wait, page.wait_ns as f64],
            texts: vec![
                page.level.map_or(NOTHING.to_owned(), |level| level.to_string()),
                format::count(waits),
                format::nanoseconds(wait),
                format::nanoseconds(page.wait_ns as f64),
            ],
            opens: None,
        }
    };
    now.latch.pages.iter().map(row).collect()
}

fn cpu(now: &Snapshot, earlier: Option<&Snapshot>, seconds: f64) -> Vec<ViewRow> {
    let before = |time: &CpuTime| {
        let rows = earlier.map(|earlier| &earlier.cpu.time[..]).unwrap_or_default();
        rows.iter().find(|row| row.class == time.class && row.function == time.function).map_or(0, |row| row.ns)
    };
    let new: Vec<f64> = now.cpu.time.iter().map(|time| time.ns.saturating_sub(before(time)) as f64).collect();
    let all = new.iter().sum::<f64>().max(1.0);
    let row = |(time, ns): (&CpuTime, &f64)| {
        let (cpus, share) = (ns / 1e9 / seconds, ns / all);
        ViewRow {
            name: format!("{} · {}", time.class.as_str(), time.function),
            values: vec![cpus, share, time.ns as f64],
            texts: vec![format!("{cpus:.2}"), format::percent(share), format::nanoseconds(time.ns as f64)],
            opens: None,
        }
    };
    now.cpu.time.iter().zip(&new).map(row).collect()
}

/// Returns latches by where they came from. `remote/s` is the time waited per second for remote handoffs.
fn numa(now: &Snapshot, interval: &Interval) -> Vec<ViewRow> {
    let mut latches: BTreeMap<String, Vec<Handoffs>> = BTreeMap::new();
    for row in interval.handoffs() {
        latches.entry(row.latch.clone()).or_default().push(row);
    }
    let row = |(latch, rows): (String, Vec<Handoffs>)| {
        let sum = |of: fn(&Handoffs) -> u64| rows.iter().map(of).fold(0, u64::saturating_add) as f64;
        let (count, moved) = (sum(|row| row.count), sum(|row| row.migrations));
        let opens = now.latch.waits.iter().filter(|row| row.latch == latch).max_by_key(|row| row.waits.sum_ns);
        let opens = opens.map(|row| (row.latch.clone(), row.kind, row.mode));
        let times: HandoffTimes = rows.into_iter().collect();
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { -1.0 };
        let shares = [share(times.local_ns, times.ns()), share(times.remote_ns, times.ns()), share(moved, count)];
        let rates = [count, times.ns(), times.remote_ns].map(|n| n / interval.seconds());
        let percent = |share: f64| if share < 0.0 { NOTHING.to_owned() } else { format::percent(share) };
        let [counts, wait, remote] = rates;
        let texts = [format::count(counts), format::nanoseconds(wait), format::nanoseconds(remote)];
        ViewRow {
            name: latch,
            values: [rates, shares].concat(),
            texts: texts.into_iter().chain(shares.map(percent)).collect(),
            opens,
        }
    };
    latches.into_iter().map(row).collect()
}

fn probes(now: &Snapshot, earlier: Option<&Snapshot>, seconds: f64) -> Vec<ViewRow> {
    // Sites may share a name, so they are matched by their position, which never changes.
    let before = |i: usize| earlier.and_then(|earlier| earlier.probes.get(i)).map_or(0, |probe| probe.hits);
    let row = |(i, probe): (usize, &crate::model::ProbeStatus)| {
        let hits = probe.hits.saturating_sub(before(i)) as f64 / seconds;
        let known = |ns: Option<f64>| ns.map_or(NOTHING.to_owned(), format::nanoseconds);
        ViewRow {
            name: probe.probe.clone(),
            values: vec![
                f64::from(probe.state as u8),
                hits,
                probe.hits as f64,
                probe.trap_ns.unwrap_or(-1.0),
                probe.total_cost_ns().unwrap_or(-1.0),
            ],
            texts: vec![
                probe.state.as_str().to_owned(),
                format::count(hits),
                format::count(probe.hits as f64),
                known(probe.trap_ns),
                known(probe.total_cost_ns()),
            ],
            opens: None,
        }
    };
    now.probes.iter().enumerate().map(row).collect()
}

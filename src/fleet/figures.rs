//! Turns counters at the ends of windows into the figures of a side.

use std::collections::{BTreeMap, BTreeSet};

use super::counters::{has, Counter, Counters, Key, OfServer};
use super::grid::Grid;
use super::targets::Target;
use super::{Hosts, Selection};
use crate::measure::cpu::CpuTime;
use crate::model::Kind;
use crate::recording::compare::{About, Fleet, Side};
use crate::recording::{CountsDelta, CpuKey, End, Ending, LatchDelta, LatchKey, OrderingKey, Recording, Second};

/// By how much of itself a sum of counters may fall without a restart: the order in which it is added up can change.
const ROUNDING: f64 = 1e-9;

/// A window of one server: what its counters grew by.
struct Window<'a> {
    /// Seconds between the scrapes at its two ends.
    length: f64,
    grown: BTreeMap<&'a Key, f64>,
}

/// Returns the figures of a side; `None` if no window has any.
pub fn side(
    selection: &Selection,
    grid: &Grid,
    targets: &[Target],
    counters: &Counters,
    hosts: &mut Hosts,
) -> Option<Side> {
    let none = BTreeMap::new();
    let mut built = Built::default();
    let mut with_windows = Vec::new();
    for target in targets {
        let own = counters.get(&target.identity).unwrap_or(&none);
        let windows: Vec<Window> = (1..grid.ends()).filter_map(|end| window(target, own, grid, end)).collect();
        if windows.is_empty() {
            continue;
        }
        let host = hosts.number(target);
        built.hosts.extend(std::iter::repeat_n(host, windows.len()));
        windows.iter().for_each(|window| built.add(window));
        with_windows.push((target, windows));
    }
    let windows = built.hosts.len();
    (windows > 0).then_some(())?;
    let fleet = Fleet {
        servers: with_windows.len(),
        hosts: built.hosts.iter().collect::<BTreeSet<_>>().len(),
        windows,
        windows_left_out: targets.len() * grid.windows - windows,
        from_ms: selection.range.from_ms,
        to_ms: selection.range.to_ms,
    };
    let about = about(selection, fleet, &with_windows, counters);
    let remarks = remarks(fleet, targets, &with_windows, counters);
    Some(Side::of_fleet(about, &built.recording(), built.hosts.clone(), remarks))
}

/// Returns what a server's counters grew by between two ends; `None` if one of them has no scrape, or if a counter fell
/// between them, as in a restart. A series that ended counts nothing: what it counted since is too little to matter.
fn window<'a>(target: &Target, counters: &'a OfServer, grid: &Grid, end: usize) -> Option<Window<'a>> {
    let scraped = [target.scraped_ms(grid, end - 1)?, target.scraped_ms(grid, end)?];
    let length = (scraped[1] - scraped[0]) as f64 / 1000.0;
    (length > 0.0).then_some(())?;
    let up = counters.get(&(Counter::Up, Vec::new()))?;
    (up[end - 1].is_some() && up[end].is_some()).then_some(())?;
    let mut grown = BTreeMap::new();
    for (key, ends) in counters.iter().filter(|((counter, _), _)| !counter.is_gauge()) {
        match (ends[end - 1], ends[end]) {
            // Statements are not counted while the server does not answer.
            (None, _) | (_, None) if key.0 == Counter::Statements => return None,
            (None, None) => {}
            (Some(_), None) if key.0.can_end() => {}
            (Some(_), None) => return None,
            (before, Some(now)) => {
                // A series begins with its first wait, so what is not there yet is 0.
                let more = now - before.unwrap_or(0.0);
                (more >= -ROUNDING * now.abs()).then_some(())?;
                grown.insert(key, more.max(0.0));
            }
        }
    }
    Some(Window { length, grown })
}

/// Windows of all servers, as the seconds of a recording.
#[derive(Default)]
struct Built {
    seconds: Vec<Second>,
    hosts: Vec<usize>,
    elapsed: f64,
    latches: Numbers,
    reacquires: Numbers,
    classes: Numbers,
    instructions: Numbers,
    sampled: bool,
}

/// The numbers of rows, by name.
#[derive(Default)]
struct Numbers(BTreeMap<String, usize>);

impl Numbers {
    fn of(&mut self, name: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    /// Returns the names in the order of their numbers.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<(&String, &usize)> = self.0.iter().collect();
        names.sort_by_key(|(_, number)| **number);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }
}

fn ns(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

impl Built {
    fn add(&mut self, window: &Window) {
        self.elapsed += window.length;
        let mut second = Second { at_ns: ns(self.elapsed).unsigned_abs(), ..Second::default() };
        let mut latches = BTreeMap::<usize, LatchDelta>::new();
        let mut reacquires = BTreeMap::<usize, [i64; 2]>::new();
        for ((counter, by), &more) in &window.grown {
            match counter {
                Counter::Up | Counter::Cpus | Counter::Clock => {}
                Counter::ServerCpu => second.server_cpu_ns = Some(ns(more).unsigned_abs()),
                Counter::Statements => second.queries = Some(more.round() as u64),
                Counter::Cpu => second.cpu.push(CountsDelta { row: self.classes.of(&by[0]), counts: [ns(more)] }),
                Counter::Ordering => {
                    second.ordering.push(CountsDelta { row: self.instructions.of(&by[0]), counts: [ns(more)] });
                }
                Counter::Reacquires => {
                    reacquires.entry(self.reacquires.of(&by[0])).or_default()[0] = more.round() as i64;
                }
                Counter::Reacquire => reacquires.entry(self.reacquires.of(&by[0])).or_default()[1] = ns(more),
                of_latch => {
                    self.sampled |= *of_latch == Counter::Sampled;
                    let row = self.latches.of(&by[0]);
                    let delta = latches.entry(row).or_insert_with(|| LatchDelta { row, ..LatchDelta::default() });
                    add_to_latch(delta, *of_latch, by.get(3).map_or("", String::as_str), more);
                }
            }
        }
        second.latches = latches.into_values().collect();
        second.reacquires = reacquires.into_iter().map(|(row, counts)| CountsDelta { row, counts }).collect();
        self.seconds.push(second);
    }

    fn recording(&self) -> Recording {
        let mut recording = Recording::default();
        let latch = |latch: String| LatchKey { kind: kind(&latch).to_owned(), latch, mode: String::new() };
        let other = || CpuTime::OTHER.to_owned();
        recording.rows.latches = self.latches.names().into_iter().map(latch).collect();
        recording.rows.reacquires = self.reacquires.names();
        // CPU time of a part of the servers is not that of all.
        if self.seconds.iter().all(|second| !second.cpu.is_empty()) {
            recording.rows.cpu =
                self.classes.names().into_iter().map(|class| CpuKey { class, function: other() }).collect();
            let key = |instruction| OrderingKey { instruction, function: other() };
            recording.rows.ordering = self.instructions.names().into_iter().map(key).collect();
            recording.seconds.clone_from(&self.seconds);
        } else {
            let without = |second: &Second| Second { cpu: Vec::new(), ordering: Vec::new(), ..second.clone() };
            recording.seconds = self.seconds.iter().map(without).collect();
        }
        recording.start.sampled = self.sampled;
        recording.start.sleeps_seen =
            self.seconds.iter().flat_map(|second| &second.latches).any(|row| row.sleep_ns > 0);
        recording.start.reacquires_seen = !self.reacquires.0.is_empty();
        recording.end =
            Some(End { ending: Ending::Complete, probes: Vec::new(), code: None, static_barriers: BTreeMap::new() });
        recording
    }
}

/// Adds what a counter of a latch grew by. `part` is the value of the label that only it has.
fn add_to_latch(delta: &mut LatchDelta, counter: Counter, part: &str, more: f64) {
    match counter {
        Counter::Wait => delta.wait_ns += ns(more),
        Counter::Waits => delta.waits += more.round() as i64,
        Counter::Sleep => delta.sleep_ns += ns(more),
        Counter::SpinCpu => delta.spin_cpu_ns += ns(more),
        Counter::Spins if part == "won" => delta.spins_won += more.round() as i64,
        Counter::Spins => delta.spins_wasted += more.round() as i64,
        Counter::Estimated => delta.estimated_ns += ns(more),
        Counter::Sampled => {
            delta.wait_ns += ns(more);
            delta.sleep_ns += if part == "asleep" { ns(more) } else { 0 };
        }
        _ => {}
    }
}

/// Returns the kind that a latch's event name has.
fn kind(latch: &str) -> &str {
    let kind = latch.strip_prefix("wait/synch/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    match Kind::from_name(kind) {
        Some(Kind::Cond) | None => Kind::Mutex.as_str(),
        Some(kind) => kind.as_str(),
    }
}

type WithWindows<'a> = [(&'a Target, Vec<Window<'a>>)];

fn about(selection: &Selection, fleet: Fleet, targets: &WithWindows, counters: &Counters) -> About {
    let all = |label: &str| distinct(targets.iter().filter_map(|(target, _)| target.info.get(label)));
    let versions = targets.iter().map(|(target, _)| {
        let label = |name: &str| target.info.get(name).map_or("", String::as_str);
        format!("{} {}", label("flavor"), label("version"))
    });
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let servers = format!("{} on {}", count(fleet.servers, "server"), count(fleet.hosts, "host"));
    let heading = [servers, distinct(versions), all("arch"), all("cpu_model")];
    About {
        name: selection.servers.to_string(),
        heading: heading.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · "),
        flavor: all("flavor"),
        arch: all("arch"),
        cores: mean(targets, counters, Counter::Cpus),
        ghz: mean(targets, counters, Counter::Clock).map(|hertz| hertz / 1e9),
        duration: selection.range.length_ms() as f64 / 1000.0,
        fleet: Some(fleet),
        ..About::default()
    }
}

/// The most values of one kind that a heading lists.
const MOST_LISTED: usize = 3;

/// Lists values, each once.
fn distinct(values: impl Iterator<Item = impl Into<String> + Clone>) -> String {
    let values: BTreeSet<String> = values.map(Into::into).collect();
    let listed: Vec<&str> = values.iter().map(String::as_str).take(MOST_LISTED).collect();
    match values.len().saturating_sub(MOST_LISTED) {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}

/// Returns the mean of a gauge, by time; `None` unless it is known of all servers.
fn mean(targets: &WithWindows, counters: &Counters, gauge: Counter) -> Option<f64> {
    let (mut sum, mut time) = (0.0, 0.0);
    for (target, windows) in targets {
        let ends = counters.get(&target.identity)?.get(&(gauge, Vec::new()))?;
        let last = ends.iter().rev().find_map(|value| *value)?;
        let length: f64 = windows.iter().map(|window| window.length).sum();
        (sum, time) = (sum + last * length, time + length);
    }
    (time > 0.0).then_some(sum / time)
}

fn remarks(fleet: Fleet, targets: &[Target], with_windows: &WithWindows, counters: &Counters) -> Vec<String> {
    let mut remarks = Vec::new();
    let of = fleet.windows + fleet.windows_left_out;
    if fleet.windows_left_out > 0 {
        remarks.push(format!(
            "{} of {of} windows are left out: they have no scrape at one end, or a restart",
            fleet.windows_left_out
        ));
    }
    let without: Vec<String> = targets
        .iter()
        .filter(|target| !with_windows.iter().any(|(with, _)| with.identity == target.identity))
        .map(name)
        .collect();
    if !without.is_empty() {
        remarks.push(format!("servers without any window: {}", distinct(without.into_iter())));
    }
    for (counter, what, remedy) in [
        (Counter::Statements, "count of statements, so nothing is per statement", "--defaults-file"),
        (Counter::Cpu, "CPU time, so it is not compared", "samples"),
    ] {
        let lacks = |target: &Target| counters.get(&target.identity).is_none_or(|own| !has(own, counter));
        let lacking: Vec<String> =
            with_windows.iter().map(|(target, _)| *target).filter(|t| lacks(t)).map(name).collect();
        if !lacking.is_empty() && lacking.len() < with_windows.len() {
            remarks.push(format!(
                "some servers have no {what}: run armtrace with {remedy} there, or leave them out: {}",
                distinct(lacking.into_iter())
            ));
        }
    }
    remarks
}

/// Returns the name of a server for the user.
fn name(target: &Target) -> String {
    let label = |name: &str| target.identity.get(name).cloned();
    [label("instance"), label("target")].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

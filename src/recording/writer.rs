//! Writes a recording, second by second.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};
use std::mem;

use super::frame::{write_frame, write_mark, FrameKind};
use super::schema::{
    CallsiteKey, ChecksumKey, Code, CpuKey, End, Ending, HandoffDelta, HandoffKey, LatchDelta, LatchKey, NewRows,
    OrderingKey, PageKey, Probe, Second, Start, WaitDelta,
};
use crate::measure::checksum::ChecksumCalls;
use crate::measure::cpu::{CpuTime, OrderingTime};
use crate::measure::latch::{CallsiteWaits, Handoffs, LatchWaits, PageWaits, Reacquires};
use crate::measure::Snapshot;
use crate::model::Histogram;

/// How many rows a recording holds of each kind, so that a minute of a server with thousands of tables stays small. Those that
/// come later are added up in a row called other.
const LATCHES: usize = 300;
const REACQUIRES: usize = 100;
const CALLSITES: usize = 400;
const PAGES: usize = 200;
const FUNCTIONS: usize = 250;
const ORDERING: usize = 150;
/// From so many rows on, those of a latch that are alike local, remote or unknown are one, whatever the places: a machine of many
/// nodes has one for every two of them. The second limit is that of all.
const HANDOFF_CELLS: usize = 200;
const HANDOFFS: usize = 400;
/// In place of a name.
const OTHER: &str = "other";

/// Turns snapshots into the frames of a file. Each second is in the file when [`Recorder::second`] returns.
pub struct Recorder<W> {
    to: W,
    latches: Rows<LatchKey, LatchTotal>,
    reacquires: Rows<String, WaitTotal>,
    callsites: Rows<CallsiteKey, WaitTotal>,
    pages: Rows<PageKey, WaitTotal>,
    cpu: Rows<CpuKey, u64>,
    handoffs: Rows<HandoffKey, HandoffTotal>,
    ordering: Rows<OrderingKey, u64>,
    checksum_calls: Rows<ChecksumKey, WaitTotal>,
    lost: Rows<String, u64>,
    /// What was written of the server's code.
    code: Code,
    server_cpu_ns: u64,
    probe_cost_ns: u64,
    queries: Option<u64>,
}

/// Rows by number, and what was written of each so far.
struct Rows<K, T> {
    numbers: HashMap<K, usize>,
    written: Vec<T>,
    new: Vec<K>,
}

#[derive(Clone, Default, PartialEq)]
struct LatchTotal {
    waits: Histogram,
    sleep_ns: u64,
    sleeps: u64,
    estimated_ns: u64,
    spin_cpu_ns: u64,
    spins_won: u64,
    spins_wasted: u64,
}

/// Waits and nanoseconds; calls and bytes of checksums.
#[derive(Clone, Default, PartialEq)]
struct WaitTotal {
    waits: u64,
    wait_ns: u64,
}

#[derive(Clone, Default, PartialEq)]
struct HandoffTotal {
    waits: WaitTotal,
    migrations: u64,
}

impl<K: Clone + Eq + Hash, T: Clone + Default> Rows<K, T> {
    fn new() -> Rows<K, T> {
        Rows { numbers: HashMap::new(), written: Vec::new(), new: Vec::new() }
    }

    /// The row of `key`, or of what stands for it where there are `limit` rows already.
    fn number(&mut self, key: K, limit: usize, other: impl FnOnce(&K) -> K) -> usize {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let key = if self.numbers.len() < limit { key } else { other(&key) };
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        self.numbers.insert(key.clone(), self.written.len());
        self.new.push(key);
        self.written.push(T::default());
        self.written.len() - 1
    }

    /// What has changed since it was written, in the order of the rows. A row that is in no sum any more has nothing left.
    fn changes<D>(&mut self, mut sums: HashMap<usize, T>, since: impl Fn(&T, &T, usize) -> Option<D>) -> Vec<D> {
        let change = |(row, written): (usize, &mut T)| {
            let now = sums.remove(&row).unwrap_or_default();
            let delta = since(&now, written, row);
            *written = now;
            delta
        };
        self.written.iter_mut().enumerate().filter_map(change).collect()
    }
}

impl<W: Write> Recorder<W> {
    /// Begins a file. `queries` is the server's count of statements at this moment, where it is known.
    pub fn begin(mut to: W, start: &Start, queries: Option<u64>) -> io::Result<Recorder<W>> {
        write_mark(&mut to)?;
        write_frame(&mut to, FrameKind::Start, start)?;
        to.flush()?;
        Ok(Recorder {
            to,
            latches: Rows::new(),
            reacquires: Rows::new(),
            callsites: Rows::new(),
            pages: Rows::new(),
            cpu: Rows::new(),
            handoffs: Rows::new(),
            ordering: Rows::new(),
            checksum_calls: Rows::new(),
            lost: Rows::new(),
            code: Code::default(),
            server_cpu_ns: 0,
            probe_cost_ns: 0,
            queries,
        })
    }

    /// Adds what was counted since the second before. `queries` is the server's count of statements at this moment.
    pub fn second(&mut self, now: &Snapshot, queries: Option<u64>) -> io::Result<()> {
        let added = |now: Option<u64>, before: &mut u64| Some(now?.saturating_sub(mem::replace(before, now?)));
        let second = Second {
            at_ns: now.elapsed.as_nanos() as u64,
            latches: self.latches(&now.latch.waits),
            reacquires: self.reacquires(&now.latch.reacquires),
            callsites: self.callsites(&now.latch.callsites),
            pages: self.pages(&now.latch.pages),
            cpu: self.cpu(&now.cpu.time),
            handoffs: self.handoffs(&now.latch.handoffs),
            ordering: self.ordering(&now.cpu.ordering),
            checksum_calls: self.checksum_calls(&now.checksum.calls),
            code: self.code(now),
            lost: self.lost(&now.lost),
            server_cpu_ns: added(now.server_cpu_ns, &mut self.server_cpu_ns),
            probe_cost_ns: added(now.probe_cost_ns().map(|ns| ns as u64), &mut self.probe_cost_ns),
            // A count that has fallen was reset: how many there were since is not known.
            queries: queries
                .zip(mem::replace(&mut self.queries, queries))
                .and_then(|(now, then)| now.checked_sub(then)),
            new: NewRows {
                latches: mem::take(&mut self.latches.new),
                reacquires: mem::take(&mut self.reacquires.new),
                callsites: mem::take(&mut self.callsites.new),
                pages: mem::take(&mut self.pages.new),
                cpu: mem::take(&mut self.cpu.new),
                handoffs: mem::take(&mut self.handoffs.new),
                ordering: mem::take(&mut self.ordering.new),
                checksum_calls: mem::take(&mut self.checksum_calls.new),
                lost: mem::take(&mut self.lost.new),
            },
        };
        write_frame(&mut self.to, FrameKind::Second, &second)?;
        self.to.flush()
    }

    /// Ends the file.
    pub fn end(mut self, ending: Ending, last: &Snapshot) -> io::Result<()> {
        let probes = last.probes.iter().map(|probe| Probe {
            probe: probe.probe.clone(),
            state: probe.state.as_str().to_owned(),
            hits: probe.hits,
            cost_ns: probe.total_cost_ns().map(|ns| ns as u64),
        });
        let end = End {
            ending,
            probes: probes.collect(),
            code: self.code(last),
            static_barriers: last.barriers.iter().cloned().collect(),
        };
        write_frame(&mut self.to, FrameKind::End, &end)?;
        self.to.flush()
    }

    fn latches(&mut self, now: &[LatchWaits]) -> Vec<LatchDelta> {
        let rows = &mut self.latches;
        let mut sums = HashMap::<usize, LatchTotal>::new();
        for latch in now {
            let (kind, mode) = (latch.kind.as_str().to_owned(), latch.mode.as_str().to_owned());
            let key = LatchKey { latch: latch.latch.clone(), kind, mode };
            let row = rows.number(key, LATCHES, |key| LatchKey { latch: OTHER.to_owned(), ..key.clone() });
            let sum = sums.entry(row).or_default();
            sum.waits.merge(&latch.waits);
            sum.sleep_ns += latch.sleep_ns;
            sum.sleeps += latch.sleeps;
            sum.estimated_ns += latch.estimated_ns;
            sum.spin_cpu_ns += latch.spin_cpu_ns;
            sum.spins_won += latch.spins_won;
            sum.spins_wasted += latch.spins_wasted;
        }
        rows.changes(sums, LatchTotal::since)
    }

    fn reacquires(&mut self, now: &[Reacquires]) -> Vec<WaitDelta> {
        let rows = &mut self.reacquires;
        let mut sums = HashMap::<usize, WaitTotal>::new();
        for row in now {
            let number = rows.number(row.latch.clone(), REACQUIRES, |_| OTHER.to_owned());
            sums.entry(number).or_default().add(row.waits, row.wait_ns);
        }
        rows.changes(sums, WaitTotal::since)
    }

    fn callsites(&mut self, now: &[CallsiteWaits]) -> Vec<WaitDelta> {
        let rows = &mut self.callsites;
        let other = |_: &CallsiteKey| CallsiteKey { latch: OTHER.to_owned(), mode: None, callsite: OTHER.to_owned() };
        let mut sums = HashMap::<usize, WaitTotal>::new();
        for site in now {
            let mode = site.mode.map(|mode| mode.as_str().to_owned());
            let key = CallsiteKey { latch: site.latch.clone(), mode, callsite: site.callsite.clone() };
            sums.entry(rows.number(key, CALLSITES, other)).or_default().add(site.waits, site.wait_ns);
        }
        rows.changes(sums, WaitTotal::since)
    }

    fn pages(&mut self, now: &[PageWaits]) -> Vec<WaitDelta> {
        let rows = &mut self.pages;
        let other = |_: &PageKey| PageKey { table: PageWaits::OTHER.to_owned(), index: String::new(), level: None };
        let mut sums = HashMap::<usize, WaitTotal>::new();
        for page in now {
            let key = PageKey { table: page.table.clone(), index: page.index.clone(), level: page.level };
            sums.entry(rows.number(key, PAGES, other)).or_default().add(page.waits, page.wait_ns);
        }
        rows.changes(sums, WaitTotal::since)
    }

    fn cpu(&mut self, now: &[CpuTime]) -> Vec<(usize, i64)> {
        let rows = &mut self.cpu;
        let other = |key: &CpuKey| CpuKey { function: CpuTime::OTHER.to_owned(), ..key.clone() };
        let mut sums = HashMap::<usize, u64>::new();
        for time in now {
            let key = CpuKey { class: time.class.as_str().to_owned(), function: time.function.clone() };
            *sums.entry(rows.number(key, FUNCTIONS, other)).or_default() += time.ns;
        }
        rows.changes(sums, count_since)
    }

    fn handoffs(&mut self, now: &[Handoffs]) -> Vec<HandoffDelta> {
        let rows = &mut self.handoffs;
        let other = |key: &HandoffKey| HandoffKey { latch: OTHER.to_owned(), ..key.clone() }.of_latch();
        // Those that are waited for longest are to have rows of their own.
        let mut longest_first: Vec<&Handoffs> = now.iter().collect();
        longest_first.sort_by_key(|row| std::cmp::Reverse(row.wait_ns));
        let mut sums = HashMap::<usize, HandoffTotal>::new();
        for handoffs in longest_first {
            let cell = HandoffKey::of(handoffs);
            let has_row = rows.numbers.contains_key(&cell) || rows.numbers.len() < HANDOFF_CELLS;
            let key = if has_row { cell } else { cell.of_latch() };
            let sum = sums.entry(rows.number(key, HANDOFFS, other)).or_default();
            sum.waits.add(handoffs.count, handoffs.wait_ns);
            sum.migrations += handoffs.migrations;
        }
        rows.changes(sums, HandoffTotal::since)
    }

    fn ordering(&mut self, now: &[OrderingTime]) -> Vec<(usize, i64)> {
        let rows = &mut self.ordering;
        let other = |key: &OrderingKey| OrderingKey { function: CpuTime::OTHER.to_owned(), ..key.clone() };
        let mut sums = HashMap::<usize, u64>::new();
        for time in now {
            let key = OrderingKey { instruction: time.instruction.clone(), function: time.function.clone() };
            *sums.entry(rows.number(key, ORDERING, other)).or_default() += time.ns;
        }
        rows.changes(sums, count_since)
    }

    fn checksum_calls(&mut self, now: &[ChecksumCalls]) -> Vec<WaitDelta> {
        let rows = &mut self.checksum_calls;
        let mut sums = HashMap::<usize, WaitTotal>::new();
        for counted in now {
            let key = ChecksumKey { function: counted.function.clone(), implementation: counted.implementation };
            sums.entry(rows.number(key, usize::MAX, ChecksumKey::clone)).or_default().add(counted.calls, counted.bytes);
        }
        rows.changes(sums, WaitTotal::since)
    }

    /// What is known of the server's code, where that is news.
    fn code(&mut self, now: &Snapshot) -> Option<Code> {
        // Of a server that has just ended nothing can be read any more.
        let spin = now.spin.clone().or_else(|| self.code.spin.clone());
        let code = Code { checksums: now.checksum.chosen.clone(), spin };
        (code != self.code).then(|| self.code.clone_from(&code))?;
        Some(code)
    }

    fn lost(&mut self, now: &[(String, u64)]) -> Vec<(usize, i64)> {
        let rows = &mut self.lost;
        let mut sums = HashMap::<usize, u64>::new();
        for (cause, events) in now.iter().filter(|(_, events)| *events > 0) {
            *sums.entry(rows.number(cause.clone(), usize::MAX, String::clone)).or_default() += events;
        }
        rows.changes(sums, count_since)
    }
}

impl LatchTotal {
    /// What there is more than `before`; `None` where that is nothing.
    fn since(&self, before: &LatchTotal, row: usize) -> Option<LatchDelta> {
        if self == before {
            return None;
        }
        let mut buckets = Vec::new();
        for (i, (now, before)) in self.waits.buckets.iter().zip(before.waits.buckets).enumerate() {
            if *now != before {
                buckets.extend([i as i64, difference(*now, before)]);
            }
        }
        let is_longer = self.waits.max_ns > before.waits.max_ns;
        Some(LatchDelta {
            r: row,
            n: difference(self.waits.count, before.waits.count),
            ns: difference(self.waits.sum_ns, before.waits.sum_ns),
            sl: difference(self.sleep_ns, before.sleep_ns),
            s: difference(self.sleeps, before.sleeps),
            e: difference(self.estimated_ns, before.estimated_ns),
            c: difference(self.spin_cpu_ns, before.spin_cpu_ns),
            w: difference(self.spins_won, before.spins_won),
            l: difference(self.spins_wasted, before.spins_wasted),
            x: if is_longer { self.waits.max_ns as i64 } else { 0 },
            b: buckets,
        })
    }
}

impl WaitTotal {
    fn add(&mut self, waits: u64, wait_ns: u64) {
        self.waits += waits;
        self.wait_ns += wait_ns;
    }

    fn since(&self, before: &WaitTotal, row: usize) -> Option<WaitDelta> {
        let delta = || (row, difference(self.waits, before.waits), difference(self.wait_ns, before.wait_ns));
        (self != before).then(delta)
    }
}

impl HandoffTotal {
    fn since(&self, before: &HandoffTotal, row: usize) -> Option<HandoffDelta> {
        let delta = || {
            let waits = difference(self.waits.waits, before.waits.waits);
            let wait_ns = difference(self.waits.wait_ns, before.waits.wait_ns);
            (row, waits, wait_ns, difference(self.migrations, before.migrations))
        };
        (self != before).then(delta)
    }
}

fn count_since(now: &u64, before: &u64, row: usize) -> Option<(usize, i64)> {
    (now != before).then(|| (row, difference(*now, *before)))
}

fn difference(now: u64, before: u64) -> i64 {
    now.wrapping_sub(before) as i64
}

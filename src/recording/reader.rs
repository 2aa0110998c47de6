//! Reads a recording.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;

use super::frame::{FormatError, Frame, FrameKind, Frames};
use super::schema::{
    CallsiteKey, ChecksumKey, Code, CpuKey, End, HandoffDelta, HandoffKey, LatchDelta, NewRows, OrderingKey, PageKey,
    Second, Start, WaitDelta,
};
use crate::measure::checksum::ChecksumCalls;
use crate::measure::cpu::{CpuTime, OrderingTime};
use crate::measure::latch::{CallsiteWaits, LatchWaits, PageWaits, Reacquires};
use crate::model::{CpuClass, Histogram, Kind, Mode, BUCKETS, BUCKET_BOUNDS_NS};

/// Seconds of sampled time from which on a share of it is told: at 99 samples a second, a half within 10 points.
pub(super) const LEAST_SAMPLED: f64 = 1.0;
/// Bursts from which on what they come to is set beside other figures: servers write in bursts too.
pub(super) const LEAST_BURSTS: usize = 10;
/// Rows times seconds: what figures by row and second take. An hour of a very busy server has 7 million; what has more is hostile.
const MOST_CELLS: usize = 32 << 20;
/// More buckets than any version has; what claims more is damaged.
const MOST_BUCKETS: usize = 1000;

/// A whole recording, checked: all numbers of rows and buckets exist, and time goes forward.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub start: Start,
    /// All rows that the seconds refer to, by their numbers.
    pub rows: NewRows,
    /// At least one.
    pub seconds: Vec<Second>,
    /// What was last known of the server's code.
    pub code: Code,
    /// `None` where the file was cut short, as by `kill -9`.
    pub end: Option<End>,
    /// For each of the recording's buckets the one of [`BUCKET_BOUNDS_NS`] that it goes to.
    buckets: Vec<usize>,
    /// The latches' kinds and modes, in the order of the rows.
    latches: Vec<(Kind, Mode)>,
}

/// Reads the file at `path`.
///
/// # Errors
/// When the file cannot be read, is no recording, is damaged, or of a format from the future. A file that was cut short is no error
/// if it has a whole second.
pub fn read(path: &Path) -> Result<Recording, FormatError> {
    Recording::read_from(BufReader::new(File::open(path)?))
}

impl Recording {
    /// Reads a recording from its bytes.
    ///
    /// # Errors
    /// As [`read`].
    pub fn read_from(bytes: impl Read) -> Result<Recording, FormatError> {
        let mut frames = Frames::new(bytes)?;
        let mut recording = Recording::default();
        let mut has_begun = false;
        while let Some(frame) = frames.next()? {
            if frame.is(FrameKind::Start) && !has_begun {
                recording.begin(&frame)?;
                has_begun = true;
            } else if !has_begun {
                return Err(frame.damaged("it does not begin with what was recorded"));
            } else if recording.end.is_some() {
                return Err(frame.damaged("it goes on behind its end"));
            } else if frame.is(FrameKind::Second) {
                recording.add(&frame)?;
            } else if frame.is(FrameKind::End) {
                let mut end: End = frame.parse()?;
                if let Some(code) = end.code.take() {
                    recording.code = code;
                }
                recording.end = Some(end);
            } else if frame.is(FrameKind::Start) {
                return Err(frame.damaged("it begins twice"));
            }
        }
        if recording.seconds.is_empty() {
            return Err(FormatError::Empty);
        }
        Ok(recording)
    }

    fn begin(&mut self, frame: &Frame) -> Result<(), FormatError> {
        self.start = frame.parse()?;
        let bounds = &self.start.bounds_ns;
        if bounds.len() > MOST_BUCKETS || !bounds.is_sorted() {
            return Err(frame.damaged("its buckets are not in order"));
        }
        let into = |bound: &u64| BUCKET_BOUNDS_NS.partition_point(|mine| mine < bound);
        self.buckets = bounds.iter().map(into).chain([BUCKETS - 1]).collect();
        Ok(())
    }

    fn add(&mut self, frame: &Frame) -> Result<(), FormatError> {
        let mut second: Second = frame.parse()?;
        let before = self.seconds.last().map_or(0, |second| second.at_ns);
        if second.at_ns <= before {
            return Err(frame.damaged("its time goes backwards"));
        }
        for latch in &second.new.latches {
            let known = Kind::from_name(&latch.kind).zip(Mode::from_name(&latch.mode));
            self.latches.push(known.ok_or_else(|| frame.damaged("a latch of an unknown kind"))?);
        }
        let new = std::mem::take(&mut second.new);
        let NewRows { latches, reacquires, callsites, pages, cpu, handoffs, ordering, checksum_calls, lost } = new;
        self.rows.latches.extend(latches);
        self.rows.reacquires.extend(reacquires);
        self.rows.callsites.extend(callsites);
        self.rows.pages.extend(pages);
        self.rows.cpu.extend(cpu);
        self.rows.handoffs.extend(handoffs);
        self.rows.ordering.extend(ordering);
        self.rows.checksum_calls.extend(checksum_calls);
        self.rows.lost.extend(lost);
        let is_right = second.latches.iter().all(|delta| self.is_right(delta))
            && ascending(second.latches.iter().map(|delta| delta.r))
            && in_rows(&second.reacquires, self.rows.reacquires.len())
            && in_rows(&second.callsites, self.rows.callsites.len())
            && in_rows(&second.pages, self.rows.pages.len())
            && counts_in_rows(&second.cpu, self.rows.cpu.len())
            && handoffs_in_rows(&second.handoffs, self.rows.handoffs.len())
            && counts_in_rows(&second.ordering, self.rows.ordering.len())
            && in_rows(&second.checksum_calls, self.rows.checksum_calls.len())
            && counts_in_rows(&second.lost, self.rows.lost.len());
        if !is_right {
            return Err(frame.damaged("figures of a row that does not exist"));
        }
        if self.rows.count().saturating_mul(self.seconds.len() + 1) > MOST_CELLS {
            return Err(frame.damaged("more rows and seconds than any recording has"));
        }
        if let Some(code) = second.code.take() {
            self.code = code;
        }
        self.seconds.push(second);
        Ok(())
    }

    fn is_right(&self, delta: &LatchDelta) -> bool {
        let buckets = delta.b.chunks(2).map(|pair| pair[0]);
        delta.r < self.latches.len()
            && delta.b.len().is_multiple_of(2)
            && ascending(buckets.clone())
            && buckets.into_iter().all(|bucket| (0..self.buckets.len() as i64).contains(&bucket))
    }

    /// From its beginning to its last second.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.seconds.last().map_or(0, |second| second.at_ns))
    }

    /// The lengths of its seconds, in seconds.
    pub fn lengths(&self) -> impl Iterator<Item = f64> + '_ {
        let began = std::iter::once(0).chain(self.seconds.iter().map(|second| second.at_ns));
        began.zip(&self.seconds).map(|(began, second)| (second.at_ns - began) as f64 / 1e9)
    }

    /// The name, kind and mode of a latch's row.
    pub fn latch(&self, row: usize) -> (&str, Kind, Mode) {
        let (kind, mode) = self.latches[row];
        (&self.rows.latches[row].latch, kind, mode)
    }

    /// All waits for each latch and mode, longest first.
    pub fn latches(&self) -> Vec<LatchWaits> {
        let mut sums = vec![LatchSum::default(); self.latches.len()];
        for delta in self.seconds.iter().flat_map(|second| &second.latches) {
            sums[delta.r].add(delta, &self.buckets);
        }
        let mut latches: Vec<LatchWaits> =
            sums.iter().enumerate().map(|(row, sum)| sum.waits(self.latch(row))).collect();
        latches.sort_by(|a, b| {
            b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| (&a.latch, a.mode).cmp(&(&b.latch, b.mode)))
        });
        latches
    }

    /// All waits for mutexes of threads that a condition variable had woken, longest first.
    pub fn reacquires(&self) -> Vec<Reacquires> {
        let sums = self.sums(self.rows.reacquires.len(), |second| &second.reacquires);
        let row = |(latch, (waits, wait_ns)): (&String, _)| Reacquires { latch: latch.clone(), waits, wait_ns };
        let mut rows: Vec<Reacquires> = self.rows.reacquires.iter().zip(sums).map(row).collect();
        rows.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.latch.cmp(&b.latch)));
        rows
    }

    /// All waits in each mode that began at each call site, longest first. A mode that only a later armtrace knows is not known to this one.
    pub fn callsites(&self) -> Vec<CallsiteWaits> {
        let sums = self.sums(self.rows.callsites.len(), |second| &second.callsites);
        let site = |(key, (waits, wait_ns)): (&CallsiteKey, _)| CallsiteWaits {
            latch: key.latch.clone(),
            mode: key.mode.as_deref().and_then(Mode::from_name),
            callsite: key.callsite.clone(),
            wait_ns,
            waits,
        };
        let mut sites: Vec<CallsiteWaits> = self.rows.callsites.iter().zip(sums).map(site).collect();
        sites.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| (&a.callsite, a.mode).cmp(&(&b.callsite, b.mode))));
        sites
    }

    /// All waits for pages by what these are part of, longest first.
    pub fn pages(&self) -> Vec<PageWaits> {
        let sums = self.sums(self.rows.pages.len(), |second| &second.pages);
        let page = |(key, (waits, wait_ns)): (&PageKey, _)| PageWaits {
            table: key.table.clone(),
            index: key.index.clone(),
            level: key.level,
            waits,
            wait_ns,
        };
        let mut pages: Vec<PageWaits> = self.rows.pages.iter().zip(sums).map(page).collect();
        pages.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.place().cmp(&b.place())));
        pages
    }

    /// What a function's row counts as. A class that only a later armtrace knows is to this one what has no class.
    pub fn cpu_class(&self, row: usize) -> CpuClass {
        CpuClass::from_name(&self.rows.cpu[row].class).unwrap_or(CpuClass::Other)
    }

    /// CPU time of all functions, the most first; none where it was not sampled.
    pub fn cpu(&self) -> Vec<CpuTime> {
        let sums = self.counts(self.rows.cpu.len(), |second| &second.cpu);
        let time = |(row, (key, ns)): (usize, (&CpuKey, u64))| CpuTime {
            class: self.cpu_class(row),
            function: key.function.clone(),
            ns,
        };
        let mut cpu: Vec<CpuTime> = self.rows.cpu.iter().zip(sums).enumerate().map(time).collect();
        cpu.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| (a.class, &a.function).cmp(&(b.class, &b.function))));
        cpu
    }

    /// Whether handoffs were counted.
    pub fn has_handoffs(&self) -> bool {
        !self.start.places.is_empty()
    }

    /// All handoffs by latch and places, in the order of the rows.
    pub fn handoffs(&self) -> impl Iterator<Item = (&HandoffKey, Handed)> {
        let mut sums = vec![[0_i64; 3]; self.rows.handoffs.len()];
        for &(row, waits, wait_ns, moved) in self.seconds.iter().flat_map(|second| &second.handoffs) {
            let added = sums[row].iter_mut().zip([waits, wait_ns, moved]);
            added.for_each(|(sum, more)| *sum = sum.saturating_add(more));
        }
        let sums = sums.into_iter().map(|sum| sum.map(whole));
        let handed = |[waits, wait_ns, migrations]: [u64; 3]| Handed { waits, wait_ns, migrations };
        self.rows.handoffs.iter().zip(sums.map(handed))
    }

    /// CPU time of instructions that order memory, the most first; none where CPU time was not sampled.
    pub fn ordering(&self) -> Vec<OrderingTime> {
        let sums = self.counts(self.rows.ordering.len(), |second| &second.ordering);
        let time = |(key, ns): (&OrderingKey, u64)| OrderingTime {
            instruction: key.instruction.clone(),
            function: key.function.clone(),
            ns,
        };
        let mut ordering: Vec<OrderingTime> = self.rows.ordering.iter().zip(sums).map(time).collect();
        ordering.sort_by(|a, b| {
            b.ns.cmp(&a.ns).then_with(|| (&a.instruction, &a.function).cmp(&(&b.instruction, &b.function)))
        });
        ordering
    }

    /// How often checksums were computed; none where there was no burst.
    pub fn checksum_calls(&self) -> Vec<ChecksumCalls> {
        let sums = self.sums(self.rows.checksum_calls.len(), |second| &second.checksum_calls);
        let counted = |(key, (calls, bytes)): (&ChecksumKey, _)| ChecksumCalls {
            function: key.function.clone(),
            implementation: key.implementation,
            calls,
            bytes,
        };
        self.rows.checksum_calls.iter().zip(sums).map(counted).collect()
    }

    /// Waits and nanoseconds of each row.
    fn sums(&self, rows: usize, of: impl Fn(&Second) -> &[WaitDelta]) -> Vec<(u64, u64)> {
        let mut sums = vec![(0_i64, 0_i64); rows];
        for &(row, waits, wait_ns) in self.seconds.iter().flat_map(of) {
            let sum = &mut sums[row];
            *sum = (sum.0.saturating_add(waits), sum.1.saturating_add(wait_ns));
        }
        sums.into_iter().map(|(waits, wait_ns)| (whole(waits), whole(wait_ns))).collect()
    }

    /// Events that are in no other figure, by cause; those that there were.
    pub fn lost(&self) -> Vec<(String, u64)> {
        let sums = self.counts(self.rows.lost.len(), |second| &second.lost);
        self.rows.lost.iter().cloned().zip(sums).collect()
    }

    /// What each row of one figure comes to.
    fn counts(&self, rows: usize, of: impl Fn(&Second) -> &[(usize, i64)]) -> Vec<u64> {
        let mut sums = vec![0_i64; rows];
        for &(row, n) in self.seconds.iter().flat_map(of) {
            sums[row] = sums[row].saturating_add(n);
        }
        sums.into_iter().map(whole).collect()
    }

    /// CPU time that the server used, nanoseconds; `None` unless every second has it.
    pub fn server_cpu_ns(&self) -> Option<u64> {
        self.total(|second| second.server_cpu_ns)
    }

    /// Statements of clients; `None` unless every second has them.
    pub fn queries(&self) -> Option<u64> {
        self.total(|second| second.queries)
    }

    /// CPU time that probes took from the server, nanoseconds. What hits cost is known a moment after the beginning; the
    /// first second that has a cost has that of all before it.
    pub fn probe_cost_ns(&self) -> Option<u64> {
        let known = self.seconds.iter().skip_while(|second| second.probe_cost_ns.is_none());
        let known: Vec<Option<u64>> = known.map(|second| second.probe_cost_ns).collect();
        (!known.is_empty()).then_some(())?;
        known.into_iter().try_fold(0_u64, |sum, ns| Some(sum.saturating_add(ns?)))
    }

    fn total(&self, of: impl Fn(&Second) -> Option<u64>) -> Option<u64> {
        self.seconds.iter().map(of).try_fold(0_u64, |sum, n| Some(sum.saturating_add(n?)))
    }
}

/// Waits that ended with a latch handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    pub waits: u64,
    pub wait_ns: u64,
    /// Waits that began in another part of the machine than they ended in.
    pub migrations: u64,
}

/// What a latch's seconds come to.
#[derive(Clone, Default)]
struct LatchSum {
    buckets: [i64; BUCKETS],
    waits: i64,
    wait_ns: i64,
    sleep_ns: i64,
    sleeps: i64,
    estimated_ns: i64,
    spin_cpu_ns: i64,
    spins_won: i64,
    spins_wasted: i64,
    longest_ns: i64,
}

impl LatchSum {
    /// `into` has for each of the recording's buckets the one here.
    fn add(&mut self, delta: &LatchDelta, into: &[usize]) {
        let add = |sum: &mut i64, n: i64| *sum = sum.saturating_add(n);
        for pair in delta.b.chunks_exact(2) {
            add(&mut self.buckets[into[pair[0] as usize]], pair[1]);
        }
        add(&mut self.waits, delta.n);
        add(&mut self.wait_ns, delta.ns);
        add(&mut self.sleep_ns, delta.sl);
        add(&mut self.sleeps, delta.s);
        add(&mut self.estimated_ns, delta.e);
        add(&mut self.spin_cpu_ns, delta.c);
        add(&mut self.spins_won, delta.w);
        add(&mut self.spins_wasted, delta.l);
        self.longest_ns = self.longest_ns.max(delta.x);
    }

    fn waits(&self, (latch, kind, mode): (&str, Kind, Mode)) -> LatchWaits {
        let waits = Histogram {
            buckets: self.buckets.map(whole),
            count: whole(self.waits),
            sum_ns: whole(self.wait_ns),
            max_ns: whole(self.longest_ns),
        };
        LatchWaits {
            latch: latch.to_owned(),
            kind,
            mode,
            waits,
            sleep_ns: whole(self.sleep_ns),
            sleeps: whole(self.sleeps),
            spin_cpu_ns: whole(self.spin_cpu_ns),
            spins_won: whole(self.spins_won),
            spins_wasted: whole(self.spins_wasted),
            estimated_ns: whole(self.estimated_ns),
        }
    }
}

/// A sum that cannot be less than nothing.
fn whole(sum: i64) -> u64 {
    sum.max(0) as u64
}

fn ascending<T: Ord>(numbers: impl Iterator<Item = T>) -> bool {
    numbers.is_sorted_by(|a, b| a < b)
}

fn counts_in_rows(counts: &[(usize, i64)], rows: usize) -> bool {
    ascending(counts.iter().map(|count| count.0)) && counts.last().is_none_or(|count| count.0 < rows)
}

fn in_rows(deltas: &[WaitDelta], rows: usize) -> bool {
    ascending(deltas.iter().map(|delta| delta.0)) && deltas.last().is_none_or(|delta| delta.0 < rows)
}

fn handoffs_in_rows(deltas: &[HandoffDelta], rows: usize) -> bool {
    ascending(deltas.iter().map(|delta| delta.0)) && deltas.last().is_none_or(|delta| delta.0 < rows)
}

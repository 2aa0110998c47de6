//! Reads a recording.

use std::fs::File;
use std::io::{BufReader, Read};
use std::mem;
use std::path::Path;
use std::time::Duration;

use super::frame::{FormatError, Frame, FrameKind, Frames};
use super::rows::{Delta, Total};
use super::schema::{Code, End, NewRows, Recorded, Second, Start};
use crate::model::{BUCKETS, BUCKET_BOUNDS_NS};

/// The least sampled CPU time, in seconds, of which shares are reported. At 99 samples per second, a share of a half is
/// right to within 10 percentage points.
pub(crate) const LEAST_SAMPLED: f64 = 1.0;
/// The fewest bursts whose counts are related to other figures, because servers too write in bursts.
pub(crate) const LEAST_BURSTS: usize = 10;
/// The largest product of rows and seconds, which bounds memory. An hour of a very busy server has 7 million; only
/// hostile files have more.
const MOST_CELLS: usize = 32 << 20;
/// The most seconds, two days, and the most rows, several times as many as armtrace counts of a server.
const MOST_SECONDS: usize = 200_000;
const MOST_ROWS: usize = 200_000;
/// More histogram buckets than any version has. A file that claims more is damaged.
const MOST_BUCKETS: usize = 1000;

/// A whole recording, checked: all rows and buckets that it refers to exist, and time goes forward.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What was known when recording began.
    pub start: Start,
    /// All rows that the seconds refer to, by their numbers.
    pub rows: NewRows,
    /// The seconds, at least one.
    pub seconds: Vec<Second>,
    /// What was last known about the server's code.
    pub code: Code,
    /// What was known when recording ended; `None` if the file was cut short, as by `kill -9`.
    pub end: Option<End>,
    /// For each of the recording's histogram buckets, the number of the bucket of [`BUCKET_BOUNDS_NS`] to add it to.
    buckets: Vec<usize>,
}

/// Reads the file at `path`.
///
/// # Errors
/// Fails if the file cannot be read, is not a recording, is damaged, or has a newer format. A file that was cut short
/// is valid if it has a whole second.
pub fn read(path: &Path) -> Result<Recording, FormatError> {
    Recording::read_from(BufReader::new(File::open(path)?))
}

/// The size of a recording, which bounds the memory that reading it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    seconds: usize,
    rows: usize,
}

impl Size {
    /// Adds a second with these new rows. Returns whether the recording can still be read.
    pub fn add(&mut self, new: &NewRows) -> bool {
        self.seconds += 1;
        self.rows += new.count();
        self.fits()
    }

    fn fits(self) -> bool {
        self.seconds <= MOST_SECONDS && self.rows <= MOST_ROWS && self.rows.saturating_mul(self.seconds) <= MOST_CELLS
    }
}

impl Recording {
    /// Returns a number of waits, or something that depends on counting them; `None` if they were not counted.
    pub fn counted<T>(&self, number: T) -> Option<T> {
        (!self.start.sampled).then_some(number)
    }

    /// Reads a recording from its bytes.
    ///
    /// # Errors
    /// Fails as [`read`] does.
    pub fn read_from(bytes: impl Read) -> Result<Recording, FormatError> {
        let mut frames = Frames::new(bytes)?;
        let mut recording = Recording::default();
        let mut has_begun = false;
        while let Some(frame) = frames.next()? {
            if frame.is(FrameKind::Start) && !has_begun {
                recording.begin(&frame)?;
                has_begun = true;
            } else if !has_begun {
                return Err(frame.damaged("it does not begin with a start"));
            } else if recording.end.is_some() {
                return Err(frame.damaged("it continues after its end"));
            } else if frame.is(FrameKind::Second) {
                recording.add(&frame)?;
            } else if frame.is(FrameKind::End) {
                let mut end: End = frame.parse()?;
                if let Some(code) = end.code.take() {
                    recording.code = code;
                }
                recording.end = Some(end);
            } else if frame.is(FrameKind::Start) {
                return Err(frame.damaged("it has a second start"));
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
        if let Some(fault) = second.new.fault() {
            return Err(frame.damaged(fault));
        }
        self.rows.extend(mem::take(&mut second.new));
        if !self.rows.cover(&second, self.buckets.len()) {
            return Err(frame.damaged("it counts for a row that does not exist"));
        }
        if let Some(code) = &second.code {
            self.code.clone_from(code);
        }
        self.seconds.push(second);
        if !self.fits() {
            return Err(frame.damaged("it has too many rows and seconds"));
        }
        Ok(())
    }

    /// Returns the keys of all rows of a kind in the order of their numbers, each with the sum of all seconds.
    pub(crate) fn totals<R: Recorded>(&self) -> impl Iterator<Item = (&R::Key, R::Total)> {
        let keys = R::keys(&self.rows);
        let mut totals = vec![R::Total::default(); keys.len()];
        for delta in self.seconds.iter().flat_map(R::deltas) {
            totals[delta.row()].add(delta, &self.buckets);
        }
        keys.iter().zip(totals)
    }

    /// Returns, for each row of a kind, the entry of a snapshot at the end, in the order of the rows.
    pub(crate) fn entries<R: Recorded>(&self) -> Vec<R> {
        self.totals::<R>().map(|(key, total)| R::restore(key, total)).collect()
    }

    /// Returns a recording that begins in the same way and has no second yet.
    pub(super) fn empty(&self) -> Recording {
        Recording { start: self.start.clone(), buckets: self.buckets.clone(), ..Recording::default() }
    }

    /// Returns whether it has not more rows and seconds than may be read.
    pub(super) fn fits(&self) -> bool {
        Size { seconds: self.seconds.len(), rows: self.rows.count() }.fits()
    }

    /// Returns, for each of its histogram buckets, the bucket of [`BUCKET_BOUNDS_NS`] to add it to.
    pub(super) fn buckets(&self) -> &[usize] {
        &self.buckets
    }

    /// Returns the time from its beginning to the end of its last second.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.seconds.last().map_or(0, |second| second.at_ns))
    }

    /// Returns the lengths of its seconds, in seconds.
    pub fn lengths(&self) -> impl Iterator<Item = f64> + '_ {
        let began = std::iter::once(0).chain(self.seconds.iter().map(|second| second.at_ns));
        began.zip(&self.seconds).map(|(began, second)| (second.at_ns - began) as f64 / 1e9)
    }

    /// Returns the events that are in no other figure, by cause; only causes that occurred.
    pub fn lost(&self) -> Vec<(String, u64)> {
        self.entries()
    }

    /// Returns the CPU time that the server used, in nanoseconds; `None` unless every second has it.
    pub fn server_cpu_ns(&self) -> Option<u64> {
        self.total(|second| second.server_cpu_ns)
    }

    /// Returns the number of statements that clients sent; `None` unless every second has it.
    pub fn queries(&self) -> Option<u64> {
        self.total(|second| second.queries)
    }

    /// Returns the CPU time that probes took from the server, in nanoseconds; `None` if it never became known. The cost
    /// of a hit is known shortly after the beginning, and the first second that has a cost includes that of all seconds
    /// before it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        let is_read = |seconds, rows| Size { seconds, rows }.fits();
        assert!(is_read(24 * 3600, 300) && is_read(3600, 9000) && is_read(60, 100_000));
        assert!(!is_read(MOST_SECONDS + 1, 0) && !is_read(1, MOST_ROWS + 1) && !is_read(3600, 20_000));
        let mut size = Size { seconds: MOST_SECONDS - 1, rows: 0 };
        assert!(size.add(&NewRows::default()) && !size.add(&NewRows::default()));
    }
}

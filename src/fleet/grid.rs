//! The time that is asked about, and the windows that it is divided into.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// The most windows of a range. An interval over time takes ten.
const MOST_WINDOWS: i64 = 60;
/// The fewest scrapes in a window, so that each end of a window has one of its own.
const LEAST_SCRAPES: i64 = 2;

/// A range of time, in milliseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its beginning.
    pub from_ms: i64,
    /// Its end.
    pub to_ms: i64,
}

impl Range {
    /// Returns the range of this length that ends then.
    pub fn before(to_ms: i64, length: Duration) -> Range {
        Range { from_ms: to_ms.saturating_sub(milliseconds(length)), to_ms }
    }

    /// Returns the range of this length that begins then.
    pub fn after(from_ms: i64, length: Duration) -> Range {
        Range { from_ms, to_ms: from_ms.saturating_add(milliseconds(length)) }
    }

    pub(super) fn length_ms(self) -> i64 {
        self.to_ms - self.from_ms
    }
}

impl Display for Range {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let time = |ms: i64| jiff::Timestamp::from_millisecond(ms / 1000 * 1000).unwrap_or_default();
        write!(f, "from {} to {}", time(self.from_ms), time(self.to_ms))
    }
}

fn milliseconds(time: Duration) -> i64 {
    time.as_millis().try_into().unwrap_or(i64::MAX)
}

/// The ends of windows of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The beginning of the first window.
    pub from_ms: i64,
    /// The length of each.
    pub step_ms: i64,
    /// The number of windows, at least one.
    pub windows: usize,
    /// How old a scrape may be at the end of a window.
    pub fresh_ms: i64,
}

impl Grid {
    /// Divides a range, in which servers are scraped with this interval; returns `None` if it is too short.
    pub fn new(range: Range, interval_ms: i64) -> Option<Grid> {
        let least = Grid::least_ms(interval_ms);
        let step_ms = (range.length_ms() / MOST_WINDOWS).max(least);
        let windows = usize::try_from(range.length_ms() / step_ms).ok().filter(|windows| *windows > 0)?;
        Some(Grid { from_ms: range.from_ms, step_ms, windows, fresh_ms: least })
    }

    /// Returns the length of the shortest window.
    pub fn least_ms(interval_ms: i64) -> i64 {
        interval_ms.max(1).saturating_mul(LEAST_SCRAPES)
    }

    /// Returns the number of ends, that before the first window included.
    pub fn ends(&self) -> usize {
        self.windows + 1
    }

    /// Returns the time of an end.
    pub fn end_ms(&self, end: usize) -> i64 {
        self.from_ms + self.step_ms * end as i64
    }

    /// Returns the number of the end at this time, if there is one.
    pub fn end_at(&self, ms: i64) -> Option<usize> {
        let since = ms - self.from_ms;
        let end = usize::try_from((since + self.step_ms / 2).div_euclid(self.step_ms)).ok()?;
        // Times are written as seconds with three places.
        (end < self.ends() && (self.end_ms(end) - ms).abs() <= 1).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_sixty_windows() {
        let range = Range::before(3_600_000, Duration::from_secs(3600));
        let grid = Grid::new(range, 15_000).unwrap();
        assert_eq!(grid, Grid { from_ms: 0, step_ms: 60_000, windows: 60, fresh_ms: 30_000 });
        assert_eq!((grid.end_ms(60), grid.end_at(120_001), grid.end_at(120_002)), (3_600_000, Some(2), None));
        assert_eq!((grid.end_at(3_660_000), grid.end_at(-60_000)), (None, None));
        assert_eq!(range.to_string(), "from 1970-01-01T00:00:00Z to 1970-01-01T01:00:00Z");
    }

    #[test]
    fn windows_have_two_scrapes_at_least() {
        let range = Range::after(1000, Duration::from_secs(90));
        assert_eq!(Grid::new(range, 15_000).map(|grid| (grid.step_ms, grid.windows)), Some((30_000, 3)));
        assert_eq!(Grid::new(range, 60_000), None);
    }
}

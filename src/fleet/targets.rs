//! Finds the servers of a side, and when each was scraped.

use std::collections::BTreeMap;
use std::time::Duration;

use super::client::{Client, Series};
use super::error::FleetError;
use super::grid::{Grid, Range};
use super::labels::{identity, Labels};
use super::Selection;

/// How long before the range the last scrape before it may be.
const MOST_BEFORE: Duration = Duration::from_secs(300);

/// A server in Prometheus.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// What tells it from others.
    pub identity: Labels,
    /// What was last said of it.
    pub info: Labels,
    /// The times at which it was scraped, in milliseconds since 1970, in order.
    scrapes: Vec<i64>,
}

impl Target {
    /// Returns what identifies its host: one armtrace serves all servers of a host.
    pub fn host(&self) -> Labels {
        let mut host = self.identity.clone();
        host.remove("target");
        host
    }

    /// Returns the time of the last scrape up to the end of a window, if it is fresh.
    pub fn scraped_ms(&self, grid: &Grid, end: usize) -> Option<i64> {
        let end_ms = grid.end_ms(end);
        let before = self.scrapes.partition_point(|scrape| *scrape <= end_ms);
        let last = *self.scrapes.get(before.checked_sub(1)?)?;
        (end_ms - last < grid.fresh_ms).then_some(last)
    }

    /// Returns the median time between two scrapes; `None` if there are fewer than two.
    fn interval_ms(&self) -> Option<i64> {
        let mut intervals: Vec<i64> = self.scrapes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        intervals.sort_unstable();
        intervals.get(intervals.len() / 2).copied()
    }
}

/// Returns the servers that a selection has, and the windows for them.
///
/// # Errors
/// Fails if a request fails, if there is no such server, or if the range is too short.
pub fn find(client: &Client, selection: &Selection) -> Result<(Vec<Target>, Grid), FleetError> {
    let Selection { servers, range } = selection;
    let before = i64::try_from(MOST_BEFORE.as_millis()).unwrap_or(i64::MAX);
    let asked = Range { from_ms: range.from_ms - before, to_ms: range.to_ms };
    let targets = targets(&client.samples(&servers.info(), asked)?, range.from_ms);
    if targets.is_empty() {
        return Err(FleetError::NoServers { servers: servers.to_string(), range: *range });
    }
    let interval_ms = targets.iter().filter_map(Target::interval_ms).max();
    let nothing = || FleetError::NoWindows { servers: servers.to_string(), range: *range };
    let interval_ms = interval_ms.ok_or_else(nothing)?;
    let grid = Grid::new(*range, interval_ms).ok_or_else(|| FleetError::Short {
        servers: servers.to_string(),
        every: Duration::from_millis(interval_ms.unsigned_abs()),
        least: Duration::from_millis(Grid::least_ms(interval_ms).unsigned_abs()),
    })?;
    Ok((targets, grid))
}

/// Returns the servers that were scraped after this time. A server of which something has changed, as its version, has
/// several series.
fn targets(series: &[Series], from_ms: i64) -> Vec<Target> {
    let mut targets = BTreeMap::<Labels, (i64, Target)>::new();
    for series in series {
        let identity = identity(&series.labels, &[]);
        let (last, target) = targets.entry(identity.clone()).or_insert_with(|| (i64::MIN, Target::default()));
        target.scrapes.extend(series.points().map(|(ms, _)| ms));
        let latest = series.points().last().map_or(i64::MIN, |(ms, _)| ms);
        if latest >= *last {
            *last = latest;
            target.info.clone_from(&series.labels);
        }
        target.identity = identity;
    }
    let mut targets: Vec<Target> =
        targets.into_values().filter(|(last, _)| *last >= from_ms).map(|(_, target)| target).collect();
    targets.iter_mut().for_each(|target| target.scrapes.sort_unstable());
    targets
}

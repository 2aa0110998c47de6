//! How long flushes of files take: each call of fsync and fdatasync, by what the file is for. Threads that commit wait
//! for them.

mod compare;
mod figures;
mod metrics;
mod probes;
pub mod record;
pub mod report;

pub use figures::{Figures, Fsyncs};
pub use metrics::FsyncMetrics;

use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use self::compare::FsyncComparison;
use self::probes::{Flushes, FsyncProbes};
use self::report::FsyncReport;
use super::rest::{Governed, Shown, INTERVAL};
use super::{cost_ns, Attaching, Measurement, Room, Snapshot};
use crate::attach::Costs;
use crate::catalog::REDO_LOG;
use crate::server::Target;
use crate::worker::{Stop, Worker};

/// Times the flushes of one server. Dropping it detaches the probes.
pub struct FsyncTimer {
    governed: Arc<Governed<FsyncProbes>>,
    shown: Mutex<Shown<Fsyncs>>,
    /// The thread that checks what the probes cost.
    worker: Mutex<Option<Worker>>,
}

impl FsyncTimer {
    /// Attaches the probes for `target`, and keeps them within a budget of `max_overhead`, 0 to 1.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded.
    pub fn attach(target: &Arc<Target>, max_overhead: f64) -> Result<FsyncTimer> {
        let governed = Governed::new(Arc::clone(target), FsyncProbes::attach(target)?, max_overhead)?;
        let governed = Arc::new(governed);
        let checked = Arc::clone(&governed);
        let work = move |stop: &Stop| {
            while stop.wait(INTERVAL) {
                checked.check().unwrap_or_else(|why| tracing::error!("cannot read what the probes cost: {why:#}"));
            }
        };
        let worker = Worker::start("fsync", work).context("cannot start a thread")?;
        Ok(FsyncTimer { governed, shown: Mutex::default(), worker: Mutex::new(Some(worker)) })
    }
}

/// Returns the rows of what was counted. Every server has a redo log, so it is among them also if it was not flushed,
/// unless there are flushes that are not seen.
fn rows(mut counted: Flushes, sees_all: bool) -> Vec<Fsyncs> {
    if sees_all {
        counted.entry(REDO_LOG).or_default();
    }
    counted.into_iter().map(|(event, calls)| Fsyncs { event: event.to_owned(), calls }).collect()
}

impl Room for FsyncTimer {
    type Figures = Figures;
    type Metrics = FsyncMetrics;
    type Report = FsyncReport;
    type Comparison = FsyncComparison;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<FsyncTimer>>> {
        on.more?;
        if on.latches.are_without_probes() {
            return None;
        }
        let timer = FsyncTimer::attach(on.target, on.max_overhead).map(Arc::new);
        Some(timer.context("flushes of files are not timed"))
    }
}

impl Measurement for FsyncTimer {
    fn refused(&self) -> Vec<String> {
        self.governed.probes.refused().into_iter().collect()
    }

    fn cost_ns(&self, costs: &Costs) -> u64 {
        cost_ns(self.governed.status(Some(costs)).unwrap_or_default())
    }

    fn limit(&self, _share: f64, costs: &Costs) {
        self.governed.limit(costs);
    }

    fn collect(&self, costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        let probes = &self.governed.probes;
        let mut shown = self.shown.lock();
        let is_refused = probes.refused().is_some();
        if is_refused && shown.last().is_empty() {
            return Ok(());
        }
        snapshot.probes.extend(self.governed.status(costs)?);
        // They may also be refused after a pause.
        let rests = self.governed.rests().0.filter(|_| !is_refused);
        match rests {
            Some(rests) => snapshot.fsync.calls = shown.of(rows(probes.counted()?, probes.sees_all()), rests),
            None => {
                snapshot.fsync.calls = shown.last();
                snapshot.fsync.rests = snapshot.up;
            }
        }
        probes.add_lost(&mut snapshot.lost)
    }

    fn pause(&self) {
        self.governed.pause();
    }

    fn resume(&self) {
        self.governed.resume();
    }

    fn detach(&self) {
        self.governed.end();
        // It may be about to look at them.
        let worker = self.worker.lock().take();
        worker.into_iter().for_each(Worker::end);
    }
}

impl Drop for FsyncTimer {
    fn drop(&mut self) {
        self.detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Histogram;

    #[test]
    fn a_log_that_is_not_flushed_is_known_only_if_all_flushes_are_seen() {
        let binlog = || Flushes::from([("wait/io/file/sql/binlog", Histogram::default())]);
        let events = |sees_all| rows(binlog(), sees_all).into_iter().map(|row| row.event).collect::<Vec<_>>();
        assert_eq!(events(true), [REDO_LOG, "wait/io/file/sql/binlog"]);
        assert_eq!(events(false), ["wait/io/file/sql/binlog"]);
    }
}

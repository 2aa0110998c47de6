//! The state of the probes, as other threads read it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use strum::IntoEnumIterator;

use super::call_stacks::SeenCallStacks;
use super::files::FileTimes;
use super::holders::Times;
use super::maps::Tracepoint;
use super::missed::Missed;
use crate::attach::Limit;
use crate::model::ProbeState;

/// The state of the probes, as others may read it.
#[derive(Default)]
pub(crate) struct Status {
    /// In the order of [`Plan::probes`](super::Plan::probes).
    pub probes: Mutex<Vec<ProbeState>>,
    /// Those that are needed here.
    pub tracepoints: Mutex<Vec<(Tracepoint, ProbeState)>>,
    /// The state of the program that glances at threads, if it was ever loaded.
    pub glances: Mutex<Option<ProbeState>>,
    /// The estimates for the time in which probes were off.
    pub missed: Mutex<Missed>,
    /// What the holders of latches did while threads waited for them, since that was taken last.
    pub holders: Arc<Mutex<Times>>,
    /// Through which calls threads came to wait, as far as that was seen.
    pub call_stacks: Arc<SeenCallStacks>,
    /// For how long threads waited for files, since that was taken last.
    pub files: Mutex<FileTimes>,
    /// For how long some probes have taken turns so far, by reason.
    limited: Mutex<Vec<(Limit, Duration)>>,
}

impl Status {
    /// Notes that nothing is attached any more.
    pub fn set_detached(&self) {
        let (mut probes, mut tracepoints) = (self.probes.lock(), self.tracepoints.lock());
        let states = probes.iter_mut().chain(tracepoints.iter_mut().map(|(_, state)| state));
        states.filter(|state| **state != ProbeState::Failed).for_each(|state| *state = ProbeState::Detached);
    }

    /// Adds a time in which some probes took turns for this reason.
    pub fn add_limited(&self, limit: Limit, elapsed: Duration) {
        let mut limited = self.limited.lock();
        match limited.iter_mut().find(|(known, _)| *known == limit) {
            Some((_, sum)) => *sum += elapsed,
            None => limited.push((limit, elapsed)),
        }
    }

    /// Returns for how long some probes have taken turns, for each reason that exists.
    pub fn limited(&self) -> Vec<(Limit, Duration)> {
        let limited = self.limited.lock();
        let of = |limit| limited.iter().find(|(known, _)| *known == limit).map_or(Duration::ZERO, |(_, sum)| *sum);
        Limit::iter().map(|limit| (limit, of(limit))).collect()
    }
}

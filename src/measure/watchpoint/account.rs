//! Accounts for what watchpoints cost the server.

use anyhow::Result;
use parking_lot::Mutex;

use crate::attach::Costs;
use crate::measure::{cost_ns, Measurement, Snapshot};
use crate::model::{ProbeState, ProbeStatus};

/// The name of watchpoints among the probes.
const PROBE: &str = "watchpoint";

/// The cost of the watchpoints on one server's memory so far; none until a latch is watched.
#[derive(Default)]
pub struct WatchpointAccount(Mutex<Option<ProbeStatus>>);

impl WatchpointAccount {
    /// Adds this many reported accesses, at `hit_ns` nanoseconds each, and sets the watchpoints' state.
    pub fn add(&self, state: ProbeState, hits: u64, hit_ns: f64) {
        let mut account = self.0.lock();
        let hits = hits + account.as_ref().map_or(0, |before| before.hits);
        *account = Some(ProbeStatus { probe: PROBE.to_owned(), state, hits, trap_ns: Some(hit_ns), program_ns: 0 });
    }

    fn status(&self) -> Option<ProbeStatus> {
        self.0.lock().clone()
    }
}

impl Measurement for WatchpointAccount {
    fn cost_ns(&self, _costs: &Costs) -> u64 {
        cost_ns(self.status())
    }

    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.probes.extend(self.status());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_add_up() {
        let account = WatchpointAccount::default();
        assert_eq!(account.cost_ns(&Costs::default()), 0);
        account.add(ProbeState::Attached, 100, 12_000.0);
        account.add(ProbeState::Detached, 50, 15_000.0);
        let mut snapshot = Snapshot::default();
        account.collect(None, &mut snapshot).expect("a status");
        let probe = &snapshot.probes[0];
        assert_eq!((probe.probe.as_str(), probe.state, probe.hits), ("watchpoint", ProbeState::Detached, 150));
        assert_eq!((snapshot.probes.len(), account.cost_ns(&Costs::default())), (1, 150 * 15_000));
    }
}

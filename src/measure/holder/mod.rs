//! Who holds the latches that threads wait for: what the holder does meanwhile, and where in the server's code.
//!
//! Looks at the threads show it (`measure/latch/holders`); no probe is needed. Here it gets names.

mod figures;
mod metrics;
pub mod record;
pub mod report;

pub use figures::{BlockedBy, Figures, Holding};
pub use metrics::HolderMetrics;

pub use super::latch::HolderState;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;

use self::report::HoldersReport;
use super::latch::LatchCollector;
use super::{Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::{stacks_are_shown, Costs};

/// The most rows. What has none of its own lacks the place and the latch that the holder waits for; there are as many
/// such rows again.
const MOST_ROWS: usize = 4096;

/// The holders of one server's latches.
pub struct Holders {
    looks: Arc<LatchCollector>,
    /// The time waited so far, in nanoseconds.
    times: Mutex<BTreeMap<Holding, u64>>,
}

impl Room for Holders {
    type Figures = Figures;
    type Metrics = HolderMetrics;
    type Report = HoldersReport;
    type Comparison = Nothing;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Holders>>> {
        Some(Ok(Arc::new(Holders { looks: on.latches.collector(), times: Mutex::default() })))
    }
}

impl Measurement for Holders {
    fn refused(&self) -> Vec<String> {
        let why = "who holds latches is not known: Linux before 5.15 does not show what threads do";
        (!stacks_are_shown()).then(|| why.to_owned()).into_iter().collect()
    }

    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        let mut times = self.times.lock();
        self.looks.take_holders().into_iter().for_each(|row| add(&mut times, row));
        snapshot.holder.blocked =
            times.iter().map(|(holding, ns)| BlockedBy { holding: holding.clone(), wait_ns: *ns }).collect();
        Ok(())
    }
}

/// Adds a row. What was counted under a name stays there, also if the latch gets another. Without room for a latch, its
/// time is left out: a program that only claims to be a server could show ever new ones.
fn add(times: &mut BTreeMap<Holding, u64>, row: BlockedBy) {
    let is_new = !times.contains_key(&row.holding);
    let holding = if is_new && times.len() >= MOST_ROWS { row.holding.without_place() } else { row.holding };
    if times.len() >= 2 * MOST_ROWS && !times.contains_key(&holding) {
        return;
    }
    let time = times.entry(holding).or_default();
    *time = time.saturating_add(row.wait_ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mode;

    #[test]
    fn rows_are_bounded_and_no_time_is_lost() {
        let mut times = BTreeMap::new();
        let row = |site: usize| BlockedBy {
            holding: Holding {
                latch: "a".to_owned(),
                mode: Mode::None,
                state: HolderState::Io,
                site: Some(site.to_string()),
                waits_for: None,
            },
            wait_ns: 1,
        };
        (0..2 * MOST_ROWS).for_each(|site| add(&mut times, row(site)));
        add(&mut times, row(0));
        assert_eq!((times.len(), times.values().sum::<u64>()), (MOST_ROWS + 1, 2 * MOST_ROWS as u64 + 1));
        assert_eq!(times[&row(0).holding], 2);
        // No server has so many latches.
        for latch in 0..2 * MOST_ROWS {
            let of = row(0);
            add(&mut times, BlockedBy { holding: Holding { latch: latch.to_string(), ..of.holding }, ..of });
        }
        assert_eq!(times.len(), 2 * MOST_ROWS);
    }
}

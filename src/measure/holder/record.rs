//! Records who holds latches.

use serde::{Deserialize, Serialize};

use super::figures::{BlockedBy, Holding};
use super::HolderState;
use crate::measure::Snapshot;
use crate::model::{Mode, OTHER};
use crate::recording::{Bound, Counts, Recording, Row};

/// A latch, and what its holder does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HolderKey {
    /// The event name of the latch.
    pub latch: String,
    /// The mode, as in the `mode` label; empty for a latch without modes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// What the holder does, as in the `holder_state` label.
    pub state: String,
    /// Where the holder is; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The event name of the latch that the holder waits for; absent if it waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

impl HolderKey {
    fn without_place(&self) -> HolderKey {
        HolderKey { site: None, waits_for: None, ..self.clone() }
    }

    fn of_others(&self) -> HolderKey {
        HolderKey { latch: OTHER.to_owned(), mode: String::new(), ..self.without_place() }
    }
}

/// Nanoseconds by latch, mode, and what the holder does.
impl Row for BlockedBy {
    type Key = HolderKey;
    type Total = Counts<1>;

    /// Beyond the first bound, one row counts all places of a latch's holders.
    const BOUNDS: &'static [Bound<HolderKey>] = &[
        Bound { rows: 300, other: HolderKey::without_place },
        Bound { rows: 300, other: |key| if *key == key.without_place() { key.of_others() } else { key.clone() } },
    ];

    fn entries(now: &Snapshot) -> Vec<&BlockedBy> {
        now.holder.blocked.iter().collect()
    }

    fn key(&self) -> HolderKey {
        let holding = &self.holding;
        HolderKey {
            latch: holding.latch.clone(),
            mode: holding.mode.as_str().to_owned(),
            state: holding.state.as_str().to_owned(),
            site: holding.site.clone(),
            waits_for: holding.waits_for.clone(),
        }
    }

    fn total(&self) -> Counts<1> {
        Counts([self.wait_ns])
    }

    /// A mode or a state that only a later armtrace knows is none, or unknown.
    fn restore(key: &HolderKey, Counts([wait_ns]): Counts<1>) -> BlockedBy {
        let holding = Holding {
            latch: key.latch.clone(),
            mode: Mode::from_name(&key.mode).unwrap_or(Mode::None),
            state: HolderState::from_name(&key.state).unwrap_or(HolderState::Unknown),
            site: key.site.clone(),
            waits_for: key.waits_for.clone(),
        };
        BlockedBy { holding, wait_ns }
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<BlockedBy> {
        &mut snapshot.holder.blocked
    }

    fn weight(Counts([wait_ns]): &Counts<1>) -> u64 {
        *wait_ns
    }
}

impl Recording {
    /// Returns for how long threads waited by what the latches' holders did, longest first.
    pub fn holders(&self) -> Vec<BlockedBy> {
        let mut rows = self.entries::<BlockedBy>();
        rows.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.holding.cmp(&b.holding)));
        rows
    }
}

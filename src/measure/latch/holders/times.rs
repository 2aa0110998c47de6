//! For how long threads waited for latches, by what the latches' holders did.

use foldhash::{HashMap, HashMapExt};
use strum::{EnumIter, EnumString, IntoStaticStr};

use crate::measure::latch::keys::MapKey;
use crate::measure::latch::stacks::Waiter;

/// The most rows between two snapshots. What has no row of its own lacks the place and the latch that the holder waits
/// for.
const MOST_ROWS: usize = 4096;

/// The most latches between two snapshots, which may be far apart if nobody asks for figures. The time of others is not
/// counted.
const MOST_LATCHES: usize = 4096;

/// What the holder of a latch does while others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, EnumString, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum HolderState {
    /// It runs on a CPU.
    Running,
    /// It could run, but has no CPU.
    Preempted,
    /// It reads, writes or flushes a file.
    Io,
    /// It waits for a client or another server.
    Network,
    /// It waits for another latch.
    Latch,
    /// It sleeps until another thread wakes it.
    Asleep,
    /// It is in another system call.
    Call,
    /// Nobody holds the latch: the waiter has not got it yet, mostly for lack of a CPU.
    Nobody,
    /// It is not known who holds the latch, or what that thread does.
    Unknown,
}

impl HolderState {
    /// Returns the value of the `holder_state` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the state with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<HolderState> {
        name.parse().ok()
    }

    /// Returns what it means, for people: `had no CPU`.
    pub fn in_words(self) -> &'static str {
        match self {
            HolderState::Running => "ran",
            HolderState::Preempted => "had no CPU",
            HolderState::Io => "was in file I/O",
            HolderState::Network => "waited for the network",
            HolderState::Latch => "waited for another latch",
            HolderState::Asleep => "slept until woken",
            HolderState::Call => "was in a system call",
            HolderState::Nobody => "there was none",
            HolderState::Unknown => "not known",
        }
    }

    /// Returns whether a thread that does this has registers that a look shows.
    pub(super) fn is_seen_off_cpu(self) -> bool {
        matches!(self, HolderState::Preempted | HolderState::Io | HolderState::Asleep)
    }
}

/// A place in the server's code: a file name's address and a line, or an address in code and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::measure) struct Site {
    pub address: u64,
    pub line: u64,
}

impl Site {
    /// Stands for a place that is not known.
    pub const NONE: Site = Site { address: 0, line: 0 };

    pub(super) fn of((address, line): (u64, u64)) -> Site {
        Site { address, line }
    }

    pub(super) fn at(address: u64) -> Site {
        Site { address, line: 0 }
    }
}

/// What tells apart waits for latches by their holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::measure) struct Held {
    pub latch: MapKey,
    pub state: HolderState,
    pub site: Site,
    /// The latch that the holder waits for.
    pub waits_for: Option<MapKey>,
}

/// The time that threads waited, since it was taken last.
#[derive(Debug, Default)]
pub(in crate::measure) struct Times {
    /// In nanoseconds.
    pub rows: HashMap<Held, u64>,
    /// The address of one latch of each identity.
    pub examples: HashMap<MapKey, u64>,
}

impl Times {
    /// Adds this time of a waiter.
    pub(super) fn add(
        &mut self,
        waiter: &Waiter,
        state: HolderState,
        site: Site,
        waits_for: Option<(MapKey, u64)>,
        ns: u64,
    ) {
        let has_room = |latch: &MapKey| self.examples.len() < MOST_LATCHES || self.examples.contains_key(latch);
        if !has_room(&waiter.latch) {
            return;
        }
        let waits_for = waits_for.filter(|(latch, _)| has_room(latch));
        let held = Held { latch: waiter.latch, state, site, waits_for: waits_for.map(|(latch, _)| latch) };
        let is_new = !self.rows.contains_key(&held);
        let plain = Held { site: Site::NONE, waits_for: None, ..held };
        let held = if is_new && self.rows.len() >= MOST_ROWS { plain } else { held };
        let time = self.rows.entry(held).or_default();
        *time = time.saturating_add(ns);
        self.examples.insert(waiter.latch, waiter.example);
        self.examples.extend(waits_for);
    }

    /// Adds a row again that was among what was taken.
    pub fn put_back(&mut self, held: &Held, ns: u64, taken: &Times) {
        let time = self.rows.entry(*held).or_default();
        *time = time.saturating_add(ns);
        for key in [Some(held.latch), held.waits_for].into_iter().flatten() {
            if let Some(example) = taken.examples.get(&key) {
                self.examples.entry(key).or_insert(*example);
            }
        }
    }

    /// Takes what was added.
    pub fn take(&mut self) -> Times {
        let next = Times { rows: HashMap::with_capacity(self.rows.len()), ..Times::default() };
        std::mem::replace(self, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use strum::IntoEnumIterator;

    fn waiter(latch: u8) -> Waiter {
        let latch = [latch; size_of::<MapKey>()];
        Waiter { thread: 0, latch, example: 0x1000, callsite: (0, 0), is_asleep: true, ran_here: false }
    }

    #[test]
    fn states_have_names_of_their_own() {
        for state in HolderState::iter() {
            assert_eq!(HolderState::from_name(state.as_str()), Some(state));
        }
        assert_eq!(HolderState::Preempted.as_str(), "preempted");
    }

    #[test]
    fn times_add_up_and_are_taken_once() {
        let mut times = Times::default();
        let other = ([9; size_of::<MapKey>()], 0x2000);
        times.add(&waiter(1), HolderState::Running, Site::NONE, None, 5);
        times.add(&waiter(1), HolderState::Running, Site::NONE, None, 6);
        times.add(&waiter(1), HolderState::Latch, Site::at(0x40), Some(other), 7);
        let taken = times.take();
        let mut ns: Vec<u64> = taken.rows.values().copied().collect();
        ns.sort_unstable();
        assert_eq!((ns, taken.examples[&other.0]), (vec![7, 11], 0x2000));
        assert!(times.take().rows.is_empty());
    }

    #[test]
    fn rows_are_bounded_and_no_time_is_lost() {
        let mut times = Times::default();
        for n in 0..2 * MOST_ROWS as u64 {
            times.add(&waiter(1), HolderState::Io, Site::at(n + 1), None, 1);
        }
        assert_eq!(times.rows.len(), MOST_ROWS + 1);
        assert_eq!(times.rows.values().sum::<u64>(), 2 * MOST_ROWS as u64);
    }

    #[test]
    fn latches_are_bounded() {
        let mut times = Times::default();
        for n in 0..2 * MOST_LATCHES as u64 {
            let mut latch = [0; size_of::<MapKey>()];
            latch[..8].copy_from_slice(&n.to_ne_bytes());
            times.add(&Waiter { latch, ..waiter(1) }, HolderState::Unknown, Site::NONE, None, 1);
        }
        times.add(&Waiter { latch: [0; size_of::<MapKey>()], ..waiter(1) }, HolderState::Unknown, Site::NONE, None, 1);
        assert_eq!((times.rows.len(), times.rows.values().sum::<u64>()), (MOST_LATCHES, MOST_LATCHES as u64 + 1));
    }
}

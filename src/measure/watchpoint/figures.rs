//! The figures of a watched cache line: what touched it, and whether a neighbor of the latch is to blame.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was seen of a latch's cache line while it was watched.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineWatch {
    /// The event name.
    pub latch: String,
    /// The address of the watched latch in the process, in hexadecimal.
    pub address: String,
    /// The number of latches of this name for which threads were seen waiting.
    pub instances: usize,
    /// The share of those waiters that waited for this one, 0 to 1.
    pub waiters_share: f64,
    /// The size of the cache line, in bytes.
    pub line_bytes: u64,
    /// The number of CPUs that watched.
    pub cpus: usize,
    /// The number of bursts.
    pub bursts: usize,
    /// The longest time that a burst watches, in milliseconds.
    pub burst_ms: u64,
    /// The most accesses to a word that a CPU reports in a burst.
    pub hits_per_burst: u32,
    /// The time from the first burst to the last, with the pauses, in seconds.
    pub seconds: f64,
    /// The number of reported accesses.
    pub hits: u64,
    /// The number of these that were another process's.
    pub hits_of_others: u64,
    /// The cost of a reported access, in nanoseconds; `None` if it could not be measured.
    pub ns_per_hit: Option<f64>,
    /// The words of the line, by address. Of each burst, only the time in which all CPUs watched counts.
    pub words: Vec<WatchedWord>,
    /// The moves of the line in all bursts together.
    pub moves: Moves,
    /// What makes the line move.
    pub verdict: Sharing,
}

impl LineWatch {
    /// Returns whether this word is one that the verdict blames.
    pub fn blames(&self, word: &WatchedWord) -> bool {
        match self.verdict {
            Sharing::FalseSharing => word.is_foreign(),
            Sharing::Shared => word.is_users(),
            Sharing::LatchOnly | Sharing::Still | Sharing::Quiet => false,
        }
    }
}

/// Eight bytes of a cache line.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WatchedWord {
    /// The distance from the beginning of the latch, in bytes.
    pub offset: i64,
    /// Whether it is part of the latch.
    pub is_latch: bool,
    /// The object that contains it, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// For how long it was watched, in nanoseconds.
    pub watched_ns: u64,
    /// The number of accesses.
    pub touches: u64,
    /// The number of accesses that write. Those of the kernel count as reads.
    pub writes: u64,
    /// The number of accesses by CPU.
    pub by_cpu: BTreeMap<u32, u64>,
    /// The functions that access it, the most accesses first.
    pub functions: Vec<TouchingFunction>,
    /// The moves of the line in the bursts that watched this word together with the latch's first word.
    pub moves: Moves,
}

/// The fewest moves on which a verdict is based.
pub const LEAST_MOVES: u64 = 20;
/// The least share of a line's moves with which a word is to blame for them.
const BLAME: f64 = 0.1;

impl WatchedWord {
    /// Returns whether threads that have nothing to do with the latch take the line away by touching this word.
    pub fn is_foreign(&self) -> bool {
        self.is_to_blame(self.moves.foreign)
    }

    /// Returns whether threads that use the latch make the line move by touching this word.
    pub fn is_users(&self) -> bool {
        self.is_to_blame(self.moves.user)
    }

    fn is_to_blame(&self, part: u64) -> bool {
        !self.is_latch && part >= LEAST_MOVES && part as f64 >= BLAME * self.moves.moved as f64
    }
}

/// A function that touches a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TouchingFunction {
    /// The function's name.
    pub function: String,
    /// The number of its accesses to the word.
    pub touches: u64,
    /// The number of these that write.
    pub writes: u64,
    /// The instruction with the most accesses, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
}

/// How often a line moved between CPUs. It moves with two consecutive accesses from different CPUs, at least one of
/// which writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Moves {
    /// Accesses that followed another one in the same burst.
    pub followed: u64,
    /// Accesses with which the line moved.
    pub moved: u64,
    /// Moves from another part of the machine, if it has several.
    #[serde(rename = "between_places")]
    pub between_domains: u64,
    /// Moves between two accesses to the latch.
    pub latch: u64,
    /// Moves with an access to a neighbor: a write by a thread that does not hold the latch, or a read by one that has
    /// nothing to do with the latch.
    pub foreign: u64,
    /// Moves with an access to a neighbor by a thread that uses the latch: the last one that wrote to the latch, or a
    /// reader of the neighbor that accessed the latch too in the burst.
    pub user: u64,
}

impl Moves {
    /// Adds the moves of other bursts.
    pub fn add(&mut self, other: &Moves) {
        self.followed += other.followed;
        self.moved += other.moved;
        self.between_domains += other.between_domains;
        self.latch += other.latch;
        self.foreign += other.foreign;
        self.user += other.user;
    }
}

/// The verdict on what makes a line move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Too few accesses were seen for a verdict.
    Quiet,
    /// The line hardly moves.
    Still,
    /// Only the latch itself makes the line move.
    LatchOnly,
    /// Threads that use the latch also use a neighbor, and fetch the line again if others have accessed the latch
    /// meanwhile.
    Shared,
    /// Threads that have nothing to do with the latch make the line move.
    FalseSharing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_of_bursts_add_up_figure_by_figure() {
        let mut all = Moves { followed: 100, moved: 90, between_domains: 40, latch: 30, foreign: 20, user: 10 };
        all.add(&Moves { followed: 6, moved: 5, between_domains: 4, latch: 3, foreign: 2, user: 1 });
        let sum = Moves { followed: 106, moved: 95, between_domains: 44, latch: 33, foreign: 22, user: 11 };
        assert_eq!(all, sum);
    }
}

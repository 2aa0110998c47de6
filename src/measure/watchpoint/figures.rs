//! Who touches the cache line that a latch lies on.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was seen of a latch's cache line while it was watched.
#[derive(Clone, Debug, Serialize)]
pub struct LineWatch {
    /// The event name.
    pub latch: String,
    /// Of the latch that was watched, in the server's memory.
    pub address: String,
    /// Latches of this name of which waiters were seen.
    pub instances: usize,
    /// The part of those waiters that waited for this one, 0 to 1.
    pub waiters_share: f64,
    pub line_bytes: u64,
    /// CPUs that watched.
    pub cpus: usize,
    pub bursts: usize,
    /// For how long a burst watches at most, and how many accesses each CPU reports of each word in it.
    pub burst_ms: u64,
    pub hits_per_burst: u32,
    /// From the first burst to the last, pauses included.
    pub seconds: f64,
    /// Accesses that were reported, and how many of them were another process's.
    pub hits: u64,
    pub hits_of_others: u64,
    /// What a reported access costs; `None` where that could not be measured.
    pub ns_per_hit: Option<f64>,
    /// By address. Of each burst only as much counts as all CPUs watched.
    pub words: Vec<WatchedWord>,
    /// Of the line, in all bursts together.
    pub moves: Moves,
    pub verdict: Sharing,
}

impl LineWatch {
    /// Whether the verdict is for this word.
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
pub struct WatchedWord {
    /// Bytes from the latch's beginning.
    pub offset: i64,
    /// Whether it is part of the latch.
    pub is_latch: bool,
    /// What it is part of, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// For how long it was watched, nanoseconds.
    pub watched_ns: u64,
    pub touches: u64,
    /// Of those. The kernel's accesses are not told apart.
    pub writes: u64,
    /// Touches by CPU.
    pub by_cpu: BTreeMap<u32, u64>,
    /// Most touches first.
    pub functions: Vec<TouchingFunction>,
    /// Of the line, in the bursts that watched this word beside the latch's first.
    pub moves: Moves,
}

/// Fewer moves than this tell nothing.
pub const LEAST_MOVES: u64 = 20;
/// The part of a line's moves from which on somebody is to blame for them.
const BLAME: f64 = 0.1;

impl WatchedWord {
    /// Whether threads that have nothing to do with the latch take the line away by touching this word.
    pub fn is_foreign(&self) -> bool {
        self.is_to_blame(self.moves.foreign)
    }

    /// Whether the line goes back and forth between this word, touched by those who use the latch, and the latch.
    pub fn is_users(&self) -> bool {
        self.is_to_blame(self.moves.user)
    }

    fn is_to_blame(&self, part: u64) -> bool {
        !self.is_latch && part >= LEAST_MOVES && part as f64 >= BLAME * self.moves.moved as f64
    }
}

/// A function that touches a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TouchingFunction {
    pub function: String,
    pub touches: u64,
    pub writes: u64,
    /// The instruction that did so most often, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
}

/// How a line moved between CPUs: two touches of it in a row from different CPUs, of which one writes at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moves {
    /// Touches that follow another in the same burst.
    pub followed: u64,
    /// Those that came from another CPU, and one of the two wrote.
    pub moved: u64,
    /// Of those: from another part of the machine, where it has several.
    #[serde(rename = "between_places")]
    pub between_domains: u64,
    /// Of those that moved: both were of the latch.
    pub latch: u64,
    /// One was of a neighbour, written by a thread that had not the latch, or read by one that has nothing to do with it.
    pub foreign: u64,
    /// One was of a neighbour, by a thread that had the latch or at least uses it: the last to write to it, or a reader of the
    /// neighbour that touched the latch too in the burst.
    pub user: u64,
}

impl Moves {
    pub fn add(&mut self, other: &Moves) {
        self.followed += other.followed;
        self.moved += other.moved;
        self.between_domains += other.between_domains;
        self.latch += other.latch;
        self.foreign += other.foreign;
        self.user += other.user;
    }
}

/// Whether a neighbour on the line is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Too little happened to tell.
    Quiet,
    /// The line stays where it is.
    Still,
    /// Only the latch itself makes the line move.
    LatchOnly,
    /// Threads that use the latch use a neighbour too, and fetch the line again when others touched the latch meanwhile.
    Shared,
    /// Threads that have nothing to do with the latch make the line move.
    FalseSharing,
}

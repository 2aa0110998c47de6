//! MariaDB's lock primitives in binaries that have no names for them.

use std::collections::HashSet;
use std::ops::Range;

use super::variables::Variables;
use crate::analysis::{futex_waits, FutexWait};
use crate::catalog::{FutexShape, Table};
use crate::symbols::Image;

/// The server variable that holds the number of spin rounds before a sleep.
const SPIN_ROUNDS: &str = "sync_spin_loops";

/// Returns the unnamed functions that do nothing but wait for a latch in a futex, with how they wait. Empty if they
/// cannot be identified.
///
/// A function that also calls another of them takes free latches too: it is a lock function into which a wait function
/// was inlined.
pub(super) fn primitives(image: &Image) -> Vec<(Range<u64>, FutexShape)> {
    let pointers = image.static_pointers();
    let Some(rounds) = Variables::new(image, &pointers, Table::System).variable(SPIN_ROUNDS) else { return Vec::new() };
    let rounds = image.with_got_entries(&HashSet::from([rounds]));
    let waits = futex_waits(image);
    let entries: HashSet<u64> = waits.iter().map(|w| w.function.start).collect();
    waits
        .into_iter()
        .filter(|w| w.calls.is_disjoint(&entries))
        .filter(|w| image.symbol_at(w.function.start).is_none())
        .filter_map(|w| Some((w.function.clone(), shape(&w, &rounds)?)))
        .collect()
}

/// Returns how the function waits. `None` if it does more: if it sleeps in several places, or has a path on which it
/// neither spins nor sleeps as pure wait functions do.
fn shape(wait: &FutexWait, rounds: &HashSet<u64>) -> Option<FutexShape> {
    let [Some(word)] = wait.words[..] else { return None };
    let spins = !wait.refers_to.is_disjoint(rounds);
    let always_spins = !wait.always_refers_to.is_disjoint(rounds);
    let shape = FutexShape { word, wakes_all: wait.wakes_all, spins };
    // A thread that waits for readers has done everything else before.
    let waits = if spins { always_spins } else { word == 0 || wait.always_sleeps };
    waits.then_some(shape)
}

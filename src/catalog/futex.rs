//! MariaDB's lock primitives in binaries that have no names for them.

use std::collections::HashSet;
use std::ops::Range;

use super::variables::{variable, Table};
use super::FutexShape;
use crate::code::{futex_waits, FutexWait};
use crate::symbols::Image;

/// The server variable that says how many rounds a wait spins before it sleeps.
const SPIN_ROUNDS: &str = "sync_spin_loops";

/// The functions without a name that do nothing but wait in a futex for a latch, and how. Empty if that cannot be told.
///
/// A function that also calls another of them takes a free latch too: it is no wait function, but a lock function in
/// which one has been inlined.
pub fn primitives(image: &Image) -> Vec<(Range<u64>, FutexShape)> {
    let pointers = image.static_pointers();
    let Some(rounds) = variable(image, &pointers, Table::System, SPIN_ROUNDS) else { return Vec::new() };
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

/// How the function waits. `None` if it does more: if it sleeps in several places, or goes a way on which it
/// neither spins nor sleeps as those do that only wait.
fn shape(wait: &FutexWait, rounds: &HashSet<u64>) -> Option<FutexShape> {
    let [Some(word)] = wait.words[..] else { return None };
    let spins = !wait.refers_to.is_disjoint(rounds);
    let always_spins = !wait.always_refers_to.is_disjoint(rounds);
    let shape = FutexShape { word, wakes_all: wait.wakes_all, spins };
    // Who waits for readers has done everything else before.
    let waits = if spins { always_spins } else { word == 0 || wait.always_sleeps };
    waits.then_some(shape)
}

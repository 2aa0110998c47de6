//! Finds lock words in static data through the code that waits for them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::analysis::{direct_calls, Function, Passed};
use crate::catalog::{Family, Found};
use crate::discovery::find_wait_function;
use crate::symbols::Image;

/// Returns the lock words at fixed addresses that the code waits for: link-time address, and whether any of the waits
/// is for an rw-lock. Waits for a mutex use the same function as waits for the writer side of an rw-lock.
pub fn waited(image: &Image, family: &Family) -> BTreeMap<u64, bool> {
    let is_rwlock_wait = |found: &Found| matches!(found, Found::Futex(_, shape) if shape.word != 0 || shape.wakes_all);
    let waits: HashMap<u64, bool> = family
        .wait_functions
        .iter()
        .flat_map(|w| {
            find_wait_function(image, w).into_iter().map(move |range| (range.start, is_rwlock_wait(&w.found)))
        })
        .collect();
    let mut found = BTreeMap::new();
    let mut function: Option<Function> = None;
    for (at, to) in direct_calls(image, &waits.keys().copied().collect::<HashSet<u64>>()) {
        if !function.as_ref().is_some_and(|f| f.contains(at)) {
            function = image.function_at(at).and_then(|range| Function::new(image, range));
        }
        let Some(Some(Passed::Constant(word))) = function.as_ref().map(|f| f.passed_at(at)[0]) else { continue };
        *found.entry(word).or_insert(false) |= waits.get(&to).copied().unwrap_or(false);
    }
    found
}

//! Reads the programs' maps.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use plain::Plain;

use crate::attach::Skipped;
use crate::bpf::latch::types;

/// The cause of those events that the kernel did not show the programs.
const SKIPPED: &str = "program_skipped";

/// Adds how often the kernel did not run these programs to what other programs lost.
///
/// # Errors
/// Fails if the kernel does not describe a program.
pub(super) fn add_skipped(lost: &mut Vec<(String, u64)>, skipped: &Skipped) -> Result<()> {
    let runs = skipped.runs()?;
    match lost.iter_mut().find(|(cause, _)| cause == SKIPPED) {
        Some((_, sum)) => *sum += runs,
        None => lost.push((SKIPPED.to_owned(), runs)),
    }
    Ok(())
}

/// Returns all entries of a hash map.
pub(super) fn entries<K: Plain + Copy, V: Plain + Copy>(map: &MapHandle) -> Result<Vec<(K, V)>> {
    each_entry(map)?.collect()
}

/// Returns the entries of a hash map one by one.
pub(super) fn each_entry<'a, K: Plain + Copy + 'a, V: Plain + Copy + 'a>(
    map: &'a MapHandle,
) -> Result<impl Iterator<Item = Result<(K, V)>> + 'a> {
    // There must be room for all of them in one call: the kernel ends a batch early if a bucket does not fit.
    let entries = map.lookup_batch(map.max_entries(), MapFlags::ANY, MapFlags::ANY).context("reading a map")?;
    Ok(entries.map(parsed))
}

/// Returns all entries of a hash map and removes them.
pub(super) fn take_entries<K: Plain + Copy, V: Plain + Copy>(map: &MapHandle) -> Result<Vec<(K, V)>> {
    let entries = map.lookup_and_delete_batch(map.max_entries(), MapFlags::ANY, MapFlags::ANY);
    entries.context("emptying a map")?.map(parsed).collect()
}

fn parsed<K: Plain + Copy, V: Plain + Copy>((key, value): (Vec<u8>, Vec<u8>)) -> Result<(K, V)> {
    let parse = || Some((*plain::from_bytes(&key).ok()?, *plain::from_bytes(&value).ok()?));
    parse().context("a map entry has an unexpected size")
}

/// Returns the sum of a per-CPU counter.
pub(super) fn sum_over_cpus(map: &MapHandle, index: u32) -> Result<u64> {
    Ok(of_cpus::<u64>(map, index)?.into_iter().sum())
}

/// Returns each CPU's value at an index.
pub(super) fn of_cpus<V: Plain + Copy>(map: &MapHandle, index: u32) -> Result<Vec<V>> {
    let values = map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY).context("reading a counter")?;
    let values = values.unwrap_or_default();
    Ok(values.iter().filter_map(|bytes| plain::from_bytes(bytes).ok().copied()).collect())
}

/// Returns how often a probe of programs with `meter.h` was hit, by its index.
///
/// # Errors
/// Fails when the map cannot be read.
pub(super) fn hits_over_cpus(map: &MapHandle, index: u32) -> Result<types::hits> {
    let all = of_cpus::<types::hits>(map, index)?;
    Ok(all.into_iter().fold(types::hits::default(), |sum, hits| types::hits {
        count: sum.count + hits.count,
        timed_ns: sum.timed_ns + hits.timed_ns,
    }))
}

impl types::hits {
    /// Returns for how long the program ran in all hits together, extrapolated from those that were timed.
    pub(super) fn program_ns(&self) -> u64 {
        self.timed_ns * u64::from(types::limit::TIMED_HITS.0)
    }
}

#[test]
fn programs_of_all_measurements_add_up() {
    let mut lost = vec![("pages_full".to_owned(), 1)];
    for _ in 0..2 {
        add_skipped(&mut lost, &Skipped::of(std::iter::empty()).unwrap()).unwrap();
    }
    assert_eq!(lost, [("pages_full".to_owned(), 1), (SKIPPED.to_owned(), 0)], "a cause has one row");
}

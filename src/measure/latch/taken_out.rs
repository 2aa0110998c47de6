//! What was taken out of the programs' map of pages to make room.
//!
//! Over weeks, threads wait for pages of more indexes than the map has room for: tables come and go. So when it is
//! nearly full, the entries that were counted least of late are taken out, and go on from their former values if they
//! come back. Only if there are too many of these do the smallest end up in the entry for all others.

use std::collections::{HashMap, HashSet};

use crate::bpf::bytes_of;
use crate::bpf::latch::types;

/// From how many entries on the map counts as nearly full, and how many are then left.
const FULL: usize = types::limit::MAX_PAGES.0 as usize / 4 * 3;
const LEFT: usize = types::limit::MAX_PAGES.0 as usize / 2;

/// How many entries that are not in the map are kept.
const KEPT: usize = types::limit::MAX_PAGES.0 as usize;

/// A page's key in comparable form.
type PageBytes = [u8; size_of::<types::page_key>()];

fn bytes(key: &types::page_key) -> PageBytes {
    bytes_of(key).try_into().expect("a key is as long as itself")
}

/// The key of all others.
pub(super) fn other_pages() -> types::page_key {
    types::page_key { r#type: types::page_type::PAGE_OTHER.0 as u16, ..Default::default() }
}

/// Returns whether a key stands for all others.
pub(super) fn is_other(key: &types::page_key) -> bool {
    u32::from(key.r#type) == types::page_type::PAGE_OTHER.0
}

/// Returns the entries to take out of the map: none while there is room. `recent` is what was counted of late.
pub(super) fn coldest(
    pages: &[(types::page_key, types::page_waits)],
    recent: impl Fn(&types::page_key) -> f64,
) -> Vec<types::page_key> {
    if pages.len() < FULL {
        return Vec::new();
    }
    let known = pages.iter().filter(|(key, _)| !is_other(key));
    let mut known: Vec<_> = known.map(|(key, waits)| (recent(key), waits.sum_ns, *key)).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    known.truncate(pages.len() - LEFT);
    known.into_iter().map(|(_, _, key)| key).collect()
}

/// The entries that were taken out.
#[derive(Default)]
pub(super) struct TakenOut {
    pages: HashMap<PageBytes, (types::page_key, types::page_waits)>,
}

impl TakenOut {
    /// Adds what an entry had counted when it was taken out of the map.
    pub fn add(&mut self, key: types::page_key, waits: &types::page_waits) {
        add(&mut self.pages.entry(bytes(&key)).or_insert((key, types::page_waits::default())).1, waits);
    }

    /// Moves the smallest to all others if there are too many, and returns their keys. `pages` are in the map.
    pub fn bound(&mut self, pages: impl Iterator<Item = types::page_key>) -> Vec<types::page_key> {
        let there: HashSet<PageBytes> = pages.map(|key| bytes(&key)).chain([bytes(&other_pages())]).collect();
        let gone = self.pages.iter().filter(|(key, _)| !there.contains(*key));
        let mut gone: Vec<_> = gone.map(|(key, (_, waits))| (waits.sum_ns, *key)).collect();
        gone.sort_unstable();
        gone.truncate(gone.len().saturating_sub(KEPT));
        let moved: Vec<_> = gone.iter().filter_map(|(_, key)| self.pages.remove(key)).collect();
        for (_, waits) in &moved {
            self.add(other_pages(), waits);
        }
        moved.into_iter().map(|(key, _)| key).collect()
    }

    /// Adds everything to what is in the map.
    pub fn add_to(&self, pages: &mut Vec<(types::page_key, types::page_waits)>) {
        let mut left = self.pages.clone();
        for (key, waits) in pages.iter_mut() {
            if let Some((_, before)) = left.remove(&bytes(key)) {
                add(waits, &before);
            }
        }
        pages.extend(left.into_values());
    }
}

fn add(to: &mut types::page_waits, more: &types::page_waits) {
    to.count += more.count;
    to.sum_ns += more.sum_ns;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(index: u64) -> types::page_key {
        types::page_key { index, r#type: 17, ..Default::default() }
    }

    fn waits(count: u64) -> types::page_waits {
        types::page_waits { count, sum_ns: 10 * count }
    }

    #[test]
    fn nothing_is_taken_out_while_there_is_room() {
        let all: Vec<_> = (0..FULL as u64 - 1).map(|index| (page(index), waits(1))).collect();
        assert_eq!(coldest(&all, |_| 0.0).len(), 0);
    }

    #[test]
    fn the_coldest_and_then_the_smallest_are_taken_out() {
        let hot = 5;
        let mut all: Vec<_> = (0..FULL as u64).map(|index| (page(index), waits(FULL as u64 - index))).collect();
        all.push((other_pages(), waits(0)));
        let out = coldest(&all, |key| f64::from(u8::from(key.index < hot)));
        assert_eq!(out.len(), all.len() - LEFT);
        assert!(out.iter().all(|key| !is_other(key) && key.index >= hot), "what is hot stays, and so does the rest");
        assert_eq!((out[0].index, out[1].index), (FULL as u64 - 1, FULL as u64 - 2));
    }

    #[test]
    fn what_was_taken_out_goes_on_from_its_former_value() {
        let mut out = TakenOut::default();
        out.add(page(1), &waits(3));
        out.add(page(2), &waits(4));
        out.add(page(1), &waits(2));
        let mut pages = vec![(page(1), waits(1)), (page(3), waits(7))];
        out.add_to(&mut pages);
        let mut counts: Vec<_> = pages.iter().map(|(key, waits)| (key.index, waits.count, waits.sum_ns)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [(1, 6, 60), (2, 4, 40), (3, 7, 70)]);
    }

    #[test]
    fn too_many_are_summed_with_all_others() {
        let mut out = TakenOut::default();
        let all = KEPT as u64 + 10;
        for index in 1..=all {
            out.add(page(index), &waits(index));
        }
        // The two smallest are in the map again: they would step back if they lost what they had.
        let moved = out.bound([page(1), page(2)].into_iter());
        assert_eq!(moved.len() as u64, all - 2 - KEPT as u64);
        assert!(moved.iter().all(|key| (3..=10).contains(&key.index)), "{:?}", moved.len());
        let mut pages = vec![(page(1), waits(1)), (other_pages(), waits(5))];
        out.add_to(&mut pages);
        assert_eq!(pages[0].1.count, 2);
        assert_eq!(pages[1].1.count, 5 + (3..=10).sum::<u64>());
        assert_eq!(pages.iter().map(|(_, waits)| waits.count).sum::<u64>(), (1..=all).sum::<u64>() + 6);
        assert_eq!(pages.len(), KEPT + 3, "memory is bounded");
    }
}

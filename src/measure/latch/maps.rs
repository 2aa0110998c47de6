//! The maps in which the programs count, and what they contain at one moment.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapMut};
use parking_lot::Mutex;
use plain::Plain;
use strum::EnumCount;

use crate::attach::Skipped;
use crate::bpf::bytes_of;
use crate::bpf::latch::{types, LatchSkel};
use crate::measure::maps::{each_entry, entries, hits_over_cpus, sum_over_cpus};

/// The names of the causes in `enum lost`, in its order.
const LOST: [&str; types::lost::LOST_CAUSES.0 as usize] = [
    "threads_full",
    "latches_full",
    "callsites_full",
    "latch_unreadable",
    "end_not_seen",
    "begin_not_seen",
    "unknown_site",
    "lock_unknown",
    "cut_off",
    "handoffs_full",
    "pages_full",
    "map_busy",
];

/// What is counted in addition to the sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumCount, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u32)]
pub(super) enum Tracepoint {
    FutexEnter = types::tracepoint::HIT_FUTEX_ENTER.0,
    FutexExit = types::tracepoint::HIT_FUTEX_EXIT.0,
    ThreadExit = types::tracepoint::HIT_THREAD_EXIT.0,
    FutexWake = types::tracepoint::HIT_FUTEX_WAKE.0,
    /// Users read this name, and thread samples are looks.
    #[strum(to_string = "quick_sample")]
    Glance = types::tracepoint::HIT_GLANCE.0,
}

const _: () = assert!(
    Tracepoint::COUNT == (types::tracepoint::MAX_HITS.0 - types::tracepoint::HIT_FUTEX_ENTER.0) as usize,
    "the programs count more than is named here"
);

/// Two maps of waits under the same keys: entries that all CPUs share, and entries in which one CPU counts alone.
struct Counters {
    shared: MapHandle,
    own: MapHandle,
}

/// The maps that are read at each scrape. They outlive the loaded programs.
pub(crate) struct Maps {
    latches: Counters,
    callsites: Counters,
    pages: Counters,
    handoffs: Counters,
    pub hits: MapHandle,
    pub lost: MapHandle,
    pub attachments: MapHandle,
    /// Held while an entry of `attachments` is changed, which several threads do.
    attachment_change: Mutex<()>,
    pub threads: MapHandle,
    /// The program that clocks run in addition to the one that samples CPU time.
    pub at_clock: MapHandle,
    pub skipped: Skipped,
}

impl Maps {
    pub(super) fn of(skel: &LatchSkel<'_>) -> libbpf_rs::Result<Maps> {
        Ok(Maps {
            latches: Counters::of(&skel.maps.latches, &skel.maps.own_latches)?,
            callsites: Counters::of(&skel.maps.callsites, &skel.maps.own_callsites)?,
            pages: Counters::of(&skel.maps.pages, &skel.maps.own_pages)?,
            handoffs: Counters::of(&skel.maps.handoffs, &skel.maps.own_handoffs)?,
            hits: MapHandle::try_from(&skel.maps.hits)?,
            lost: MapHandle::try_from(&skel.maps.lost)?,
            attachments: MapHandle::try_from(&skel.maps.attachments)?,
            attachment_change: Mutex::default(),
            threads: MapHandle::try_from(&skel.maps.threads)?,
            at_clock: MapHandle::try_from(&skel.maps.at_clock)?,
            skipped: Skipped::of(skel.object().progs().filter(|program| program.autoload()))?,
        })
    }

    /// Changes what the programs know about a wait function's probes. If this fails, for which there is no known
    /// reason, waits may be counted under another cause of loss.
    pub(super) fn update_attachment(&self, function: u8, change: impl FnOnce(&mut types::attachment)) {
        let _held = self.attachment_change.lock();
        let key = u32::from(function).to_ne_bytes();
        let Ok(Some(bytes)) = self.attachments.lookup(&key, MapFlags::ANY) else { return };
        let Ok(mut attachment) = plain::from_bytes::<types::attachment>(&bytes).copied() else { return };
        change(&mut attachment);
        _ = self.attachments.update(&key, bytes_of(&attachment), MapFlags::ANY);
    }

    /// Returns whether a thread is in a wait that began in one of these functions, and whose end would be seen.
    pub(super) fn has_open_waits(&self, functions: &HashSet<u8>) -> bool {
        let Ok(attachments) = entries::<u32, types::attachment>(&self.attachments) else { return false };
        let attachments: HashMap<u32, types::attachment> = attachments.into_iter().collect();
        let is_open = |wait: &types::wait| {
            let function = wait.key.latch.function;
            let probes = attachments.get(&function.into());
            wait.latch != 0
                && wait.end_ns == 0
                && functions.contains(&function)
                && probes.is_some_and(|probes| probes.generation == wait.generation)
        };
        each_entry::<u32, types::wait>(&self.threads).is_ok_and(|all| all.flatten().any(|(_, wait)| is_open(&wait)))
    }

    /// Returns the waits of each latch.
    ///
    /// # Errors
    /// Fails when a map cannot be read.
    pub(super) fn latches(&self) -> Result<Vec<(types::latch_key, types::waits)>> {
        self.latches.read(|own: types::own_latch_key| own.latch, add_waits)
    }

    /// Takes the entries of these pages out, and returns what they had counted. A wait that ends at the same moment may
    /// be missing.
    pub(super) fn take_pages(&self, keys: &[types::page_key]) -> Vec<(types::page_key, types::page_waits)> {
        self.pages.take(keys, |own: types::own_page_key| own.page, add_page_waits)
    }

    /// Returns how often a probe was hit, by its index.
    ///
    /// # Errors
    /// Fails when the map cannot be read.
    pub(super) fn hits_of(&self, index: u32) -> Result<types::hits> {
        hits_over_cpus(&self.hits, index)
    }

    /// Returns the numbers of events that are in no figure, by cause.
    ///
    /// # Errors
    /// Fails when the map cannot be read.
    pub(super) fn lost(&self) -> Result<Vec<(String, u64)>> {
        let mut lost = Vec::new();
        for (cause, index) in LOST.iter().zip(0..) {
            lost.push(((*cause).to_owned(), sum_over_cpus(&self.lost, index)?));
        }
        Ok(lost)
    }
}

/// The waits that the programs have counted, as the maps contain them.
#[derive(Clone, Default)]
pub(super) struct Counts {
    pub latches: Vec<(types::latch_key, types::waits)>,
    pub callsites: Vec<(types::callsite_key, types::callsite_waits)>,
    pub pages: Vec<(types::page_key, types::page_waits)>,
    pub handoffs: Vec<(types::handoff_key, types::handoffs)>,
}

impl Counts {
    /// Reads the maps.
    ///
    /// # Errors
    /// Fails when a map cannot be read.
    pub fn read(maps: &Maps) -> Result<Counts> {
        Ok(Counts {
            latches: maps.latches()?,
            callsites: maps.callsites.read(|own: types::own_callsite_key| own.callsite, add_callsite_waits)?,
            pages: maps.pages.read(|own: types::own_page_key| own.page, add_page_waits)?,
            handoffs: maps.handoffs.read(|own: types::own_handoff_key| own.handoff, add_handoffs)?,
        })
    }
}

impl Counters {
    fn of(shared: &MapMut<'_>, own: &MapMut<'_>) -> libbpf_rs::Result<Counters> {
        Ok(Counters { shared: MapHandle::try_from(shared)?, own: MapHandle::try_from(own)? })
    }

    /// Returns the sums under each key. `key` returns the key that an entry of one CPU belongs to.
    fn read<K: Plain + Copy, O: Plain + Copy, V: Plain + Copy>(
        &self,
        key: impl Fn(O) -> K,
        add: impl Fn(&mut V, &V),
    ) -> Result<Vec<(K, V)>> {
        let mut all = entries::<K, V>(&self.shared)?;
        let mut index: HashMap<Vec<u8>, usize> =
            all.iter().zip(0..).map(|((key, _), i)| (bytes_of(key).to_vec(), i)).collect();
        for entry in each_entry::<O, V>(&self.own)? {
            let (own, counted) = entry?;
            let key = key(own);
            match index.get(bytes_of(&key)) {
                Some(at) => add(&mut all[*at].1, &counted),
                // A key has a shared entry first, but that may have been taken out.
                None => {
                    index.insert(bytes_of(&key).to_vec(), all.len());
                    all.push((key, counted));
                }
            }
        }
        Ok(all)
    }

    /// Takes the entries under these keys out, and returns their sums. What cannot be taken out stays.
    fn take<K: Plain + Copy, O: Plain + Copy, V: Plain + Copy + Default>(
        &self,
        keys: &[K],
        key: impl Fn(O) -> K,
        add: impl Fn(&mut V, &V),
    ) -> Vec<(K, V)> {
        let mut taken: HashMap<Vec<u8>, (K, V)> =
            keys.iter().map(|key| (bytes_of(key).to_vec(), (*key, V::default()))).collect();
        let own = entries::<O, V>(&self.own).unwrap_or_default();
        for (own, _) in own {
            if let Some((_, sum)) = taken.get_mut(bytes_of(&key(own))) {
                take_entry(&self.own, &own).into_iter().for_each(|counted| add(sum, &counted));
            }
        }
        // The shared entry goes last, because it comes first.
        for (key, sum) in taken.values_mut() {
            take_entry(&self.shared, key).into_iter().for_each(|counted| add(sum, &counted));
        }
        taken.into_values().collect()
    }
}

/// Takes an entry out of a map; `None` if there is none, or it cannot be taken out.
fn take_entry<K: Plain + Copy, V: Plain + Copy>(map: &MapHandle, key: &K) -> Option<V> {
    let key = bytes_of(key);
    // Hash maps can do this at once since Linux 5.14.
    let bytes = map.lookup_and_delete(key).or_else(|_| {
        let bytes = map.lookup(key, MapFlags::ANY)?;
        map.delete(key)?;
        Ok::<_, libbpf_rs::Error>(bytes)
    });
    plain::from_bytes(&bytes.ok()??).ok().copied()
}

fn add_waits(to: &mut types::waits, more: &types::waits) {
    to.sum_ns += more.sum_ns;
    to.max_ns = to.max_ns.max(more.max_ns);
    to.watched += more.watched;
    to.watched_ns += more.watched_ns;
    to.sleep_ns += more.sleep_ns;
    to.sleeps += more.sleeps;
    to.slept += more.slept;
    if more.example != 0 {
        to.example = more.example;
    }
    to.buckets.iter_mut().zip(more.buckets).for_each(|(to, more)| *to += more);
}

fn add_callsite_waits(to: &mut types::callsite_waits, more: &types::callsite_waits) {
    to.sum_ns += more.sum_ns;
    to.count += more.count;
}

fn add_page_waits(to: &mut types::page_waits, more: &types::page_waits) {
    to.sum_ns += more.sum_ns;
    to.count += more.count;
}

fn add_handoffs(to: &mut types::handoffs, more: &types::handoffs) {
    to.sum_ns += more.sum_ns;
    to.count += more.count;
    to.migrations += more.migrations;
}

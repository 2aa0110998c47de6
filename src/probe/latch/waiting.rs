//! Which latches threads wait for at this moment.

use std::sync::PoisonError;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use plain::Plain;

use super::collect::{identity, library_kind, LatchCollector, LIBRARY};
use crate::bpf::latch::types;
use crate::catalog::{library_lock, MUTEX_BYTES, RW_LOCK_BYTES, WORDS_BYTES};
use crate::model::Kind;
use crate::names::{Identity, LatchName};
use crate::probe::maps::entries;
use crate::target::Memory;

// SAFETY: a plain C structure; any bytes of the right length are a valid value of it.
unsafe impl Plain for types::wait {}

/// Entries of the map of threads that are read at a time.
const BATCH: u32 = 256;

/// A latch that somebody waits for, or waited for last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedFor {
    pub name: LatchName,
    /// Of the word that it is known by, in the process.
    pub address: u64,
    /// How much of it lies from there on.
    pub bytes: u64,
    /// How often somebody waited for one of this identity so far; 0 where that was not asked.
    pub waits: u64,
}

impl LatchCollector {
    /// How many bytes of a latch lie in front of its word: MariaDB's have the pointer to their performance_schema instance there,
    /// if they have one at all.
    pub fn bytes_before(&self, latch: &WaitedFor) -> u64 {
        let family = self.target.family;
        let Some(before) = family.psi_from_latch().filter(|from| *from < 0) else { return 0 };
        let (memory, class) = (Memory::new(self.target.pid), family.library.class);
        let follow = |at: u64| memory.u64(at);
        let Some(instance) = follow(latch.address.wrapping_add_signed(i64::from(before))) else { return 0 };
        let leads_to_event = || {
            let class_at = follow(instance.wrapping_add(u64::from(class.to_class)))?;
            LatchName::from_event(&memory.string(class_at.wrapping_add(u64::from(class.to_name)))?)
        };
        // Without performance_schema it is null.
        if instance == 0 || leads_to_event().is_some() {
            u64::from(before.unsigned_abs())
        } else {
            0
        }
    }

    /// The latches that threads wait for now, one entry for each thread.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn waited_for_now(&self) -> Result<Vec<WaitedFor>> {
        let mut found = Vec::new();
        for entry in self.maps.threads.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY).context("reading a map")? {
            let wait: types::wait = *plain::from_bytes(&entry.1).ok().context("a wait has an unexpected size")?;
            if wait.latch != 0 && wait.end_ns == 0 {
                found.extend(self.waited_for(&wait.key.latch, wait.latch, 0));
            } else if wait.library.word != 0 {
                found.extend(self.waited_for(&wait.library.key.latch, wait.library.word, 0));
            }
        }
        Ok(found)
    }

    /// For each identity the latch that was waited for last.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn waited_for_last(&self) -> Result<Vec<WaitedFor>> {
        let all = entries::<types::latch_key, types::waits>(&self.maps.latches)?.into_iter();
        Ok(all.filter_map(|(key, waits)| self.waited_for(&key, waits.example, waits.buckets.iter().sum())).collect())
    }

    /// `None` for condition variables, for which threads wait without anybody having them.
    fn waited_for(&self, key: &types::latch_key, word: u64, waits: u64) -> Option<WaitedFor> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let arch = self.target.image.arch();
        let (name, address, bytes) = if key.function == LIBRARY {
            let kind = library_kind(key.primitive);
            let (address, bytes) = library_lock(arch, kind?, word)?;
            (caches.namer.library_lock(&identity(key), kind), address, bytes)
        } else {
            let identity = identity(key);
            let name = caches.namer.name(&identity, word);
            let bytes = match identity {
                Identity::LatchId(_) => MUTEX_BYTES,
                Identity::Created { .. } => RW_LOCK_BYTES,
                _ => WORDS_BYTES,
            };
            (name, word, bytes)
        };
        (name.kind != Kind::Cond).then_some(WaitedFor { name, address, bytes, waits })
    }
}

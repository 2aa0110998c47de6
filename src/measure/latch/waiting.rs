//! Shows which latches threads are waiting for at this moment.

use std::collections::HashMap;

use anyhow::Result;

use super::collect::LatchCollector;
use super::keys::{identity, key_of, pthread_kind, MapKey, PTHREAD};
use crate::bpf::latch::types;
use crate::catalog::{pthread_lock, MUTEX_BYTES, RW_LOCK_BYTES, WORDS_BYTES};
use crate::measure::maps::{each_entry, entries};
use crate::model::Kind;
use crate::names::{Identity, LatchName};
use crate::server::Memory;

/// A latch that a thread waits for, or waited for last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedFor {
    /// The latch's name and kind.
    pub name: LatchName,
    /// The address in the process of the word by which it is identified.
    pub address: u64,
    /// The size of the part of the latch from there on.
    pub bytes: u64,
}

/// The number of waits for latches of each identity that had ended at the last call.
pub type Counted = HashMap<MapKey, u64>;

impl LatchCollector {
    /// Returns how many bytes of a latch precede its word. MariaDB's latches may have the pointer to their
    /// performance_schema instance there.
    pub fn bytes_before(&self, latch: &WaitedFor) -> u64 {
        let family = self.target.family;
        let Some(before) = family.psi_from_latch().filter(|from| *from < 0) else { return 0 };
        let (memory, class) = (Memory::new(self.target.pid), self.target.psi_class());
        let follow = |at: u64| memory.u64(at);
        let Some(instance) = follow(latch.address.wrapping_add_signed(i64::from(before))) else { return 0 };
        let leads_to_event = || {
            let class_at = follow(instance.wrapping_add(u64::from(class.to_class)))?;
            LatchName::from_event(&memory.string(class_at.wrapping_add(u64::from(class.to_name)))?)
        };
        // Without performance_schema the pointer is null.
        if instance == 0 || leads_to_event().is_some() {
            u64::from(before.unsigned_abs())
        } else {
            0
        }
    }

    /// Returns the latches that threads are waiting for now, one entry per thread.
    ///
    /// # Errors
    /// Fails when a map cannot be read.
    pub fn waited_for_now(&self) -> Result<Vec<WaitedFor>> {
        // If probes were detached during a wait, its end was not seen.
        let attachments: HashMap<u32, types::attachment> = entries(&self.maps.attachments)?.into_iter().collect();
        let is_open = |function: u8, generation: u32| {
            attachments.get(&function.into()).is_some_and(|probes| probes.generation == generation)
        };
        let mut found = Vec::new();
        for entry in each_entry::<u32, types::wait>(&self.maps.threads)? {
            let (_, wait) = entry?;
            if wait.latch != 0 && wait.end_ns == 0 && is_open(wait.key.latch.function, wait.generation) {
                found.extend(self.waited_for(&wait.key.latch, wait.latch));
            } else if wait.pthread.word != 0 && is_open(PTHREAD, wait.sleep_generation) {
                found.extend(self.waited_for(&wait.pthread.key.latch, wait.pthread.word));
            }
        }
        Ok(found)
    }

    /// Returns, for each identity with more ended waits than `counted` says, the latch that was last waited for.
    /// Updates `counted`.
    ///
    /// # Errors
    /// Fails when the map cannot be read.
    pub fn waited_for_last(&self, counted: &mut Counted) -> Result<Vec<WaitedFor>> {
        let mut found = Vec::new();
        for (key, waits) in self.maps.latches()? {
            let ended = waits.buckets.iter().sum();
            if counted.insert(key_of(&key), ended).unwrap_or(0) < ended {
                found.extend(self.waited_for(&key, waits.example));
            }
        }
        Ok(found)
    }

    /// Returns `None` for condition variables, for which threads wait although no thread holds them.
    fn waited_for(&self, key: &types::latch_key, word: u64) -> Option<WaitedFor> {
        let mut caches = self.caches.lock();
        let arch = self.target.image.arch();
        let (name, address, bytes) = if key.function == PTHREAD {
            let kind = pthread_kind(key.primitive);
            let (address, bytes) = pthread_lock(arch, kind?, word)?;
            (caches.namer.pthread_lock(&identity(key), kind)?, address, bytes)
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
        (name.kind != Kind::Cond).then_some(WaitedFor { name, address, bytes })
    }
}

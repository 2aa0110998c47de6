//! Which lock a wait is for, by the stage that the server shows meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::figures::ROW_LOCK;
use crate::bpf::lock::types;
use crate::catalog::{LockKind, STAGE_PREFIX, TABLE_STAGE};
use crate::server::{Memory, Target};
use crate::symbols::Image;

/// The name of a metadata lock whose stage could not be read, or is one of too many.
const UNNAMED: &str = "unnamed metadata lock";

/// The name of the metadata lock that every server has.
pub(super) static TABLE_LOCK: LazyLock<String> = LazyLock::new(|| lock_of(TABLE_STAGE));

/// The words at the beginning of a stage among which the pointer to its name is looked for.
const WORDS: u64 = 4;
/// The most characters of a stage's name.
const MOST: usize = 64;
/// The most names. A program that only claims to be a server could show ever new ones.
const MOST_NAMES: usize = types::lock_limit::MAX_LOCKS.0 as usize;

/// The names of locks.
pub(super) struct Stages {
    target: Arc<Target>,
    memory: Memory,
    /// By the stage's address in the process.
    names: HashMap<u64, String>,
}

impl Stages {
    pub fn new(target: &Arc<Target>) -> Stages {
        Stages { memory: Memory::new(target.pid), names: HashMap::new(), target: Arc::clone(target) }
    }

    /// Returns the name of the lock that is waited for.
    pub fn name(&mut self, key: &types::lock_key) -> String {
        if key.stage == 0 {
            return ROW_LOCK.to_owned();
        }
        if let Some(known) = self.names.get(&key.stage) {
            return known.clone();
        }
        let Some(name) = self.read(key.stage).filter(|_| self.names.len() < MOST_NAMES) else {
            return UNNAMED.to_owned();
        };
        self.names.insert(key.stage, name.clone());
        name
    }

    /// Returns whether a stage is at this address in the process, and is that of a wait for a metadata lock.
    pub fn is_wait(&mut self, address: u64) -> bool {
        let name = self.read(address);
        name.is_some_and(|name| name.ends_with(" lock") && name != ROW_LOCK)
    }

    /// Reads the name in the stage at this address in the process.
    fn read(&self, stage: u64) -> Option<String> {
        let words = (0..WORDS).filter_map(|word| self.memory.u64(stage.checked_add(8 * word)?));
        let texts = words.map(|word| word.wrapping_sub(self.target.bias));
        texts.filter_map(|text| constant(&self.target.image, text)).next().map(lock_of)
    }
}

/// Returns the lock of this kind that every server has.
pub(super) fn expected(kind: LockKind) -> String {
    match kind {
        LockKind::Row => ROW_LOCK.to_owned(),
        LockKind::Metadata { .. } => TABLE_LOCK.clone(),
    }
}

/// Returns the text at this link-time address, if it is among the program's constants and can be a stage's name.
fn constant(image: &Image, addr: u64) -> Option<&str> {
    let text = image.section(".rodata").filter(|constants| constants.contains(&addr)).and_then(|_| image.cstr(addr))?;
    let is_name = (3..=MOST).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    is_name.then_some(text)
}

/// Returns the lock that a stage waits for: `table metadata lock` for `Waiting for table metadata lock`, `user lock`
/// for `User lock`.
fn lock_of(stage: &str) -> String {
    stage.strip_prefix(STAGE_PREFIX).unwrap_or(stage).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_called_as_the_server_calls_them() {
        assert_eq!(lock_of(TABLE_STAGE), "table metadata lock");
        assert_eq!(lock_of("Waiting for global read lock"), "global read lock");
        assert_eq!(lock_of("User lock"), "user lock");
    }
}

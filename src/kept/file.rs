//! A file, and what makes it that of a program.
//!
//! ```text
//! mark       8 bytes
//! checksum   CRC-32 of what follows, 4 bytes, least significant byte first
//! contents   JSON: the key, and what was found
//! ```
//!
//! Who can write the file can choose the checksum. So whoever uses what is read has to compare it with the program.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Unusable;
use crate::symbols::{own_build_id, FileIdentity, Image};

/// The last byte but one changes with the format.
const MARK: &[u8; 8] = b"\x8aPLAN\r2\n";
const SUM: usize = size_of::<u32>();

/// The longest build ID, in hexadecimal digits: it is part of a file's name.
const LONGEST_ID: usize = 128;

/// What decides what an analysis of a program finds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Key {
    /// The build ID of the armtrace that analyses: another one may find something else.
    agent: String,
    /// The program's build ID.
    build: String,
    /// The program's file. Whoever runs a program chooses its build ID, so a container could have its program analysed
    /// in place of another's.
    file: FileIdentity,
    /// The number of the symbols by which functions are found, and their checksum.
    symbols: (usize, u32),
    /// The name of the analysis, and what else decides about its result.
    what: serde_json::Value,
}

impl Key {
    /// Returns the key of a running program's analysis; `None` if a build has no ID.
    pub fn new(image: &Image, what: &impl Serialize) -> Option<Key> {
        let is_id = |id: &str| (1..=LONGEST_ID).contains(&id.len());
        let (agent, build) = (own_build_id(), image.build_id());
        let (file, what) = (image.file_identity()?, serde_json::to_value(what).ok()?);
        let symbols = image.symbols_digest();
        (is_id(&agent) && is_id(&build)).then_some(Key { agent, build, file, symbols, what })
    }

    /// Returns the name of its file.
    pub fn file_name(&self) -> String {
        let rest = serde_json::to_vec(self).unwrap_or_default();
        format!("{}.{:08x}", self.build, crc32fast::hash(&rest))
    }
}

#[derive(Serialize, Deserialize)]
struct Contents<K, T> {
    key: K,
    found: T,
}

/// Returns the bytes of the file.
pub(super) fn to_bytes(found: &impl Serialize, key: &Key) -> Vec<u8> {
    // What is in memory can always be written as JSON.
    in_file(&serde_json::to_vec(&Contents { key, found }).unwrap_or_default())
}

/// Returns what the bytes of a file have, if it is that of this key.
pub(super) fn from_bytes<T: DeserializeOwned>(bytes: &[u8], key: &Key) -> Result<T, Unusable> {
    let contents: Contents<Key, T> = serde_json::from_slice(contents(bytes)?)?;
    if contents.key == *key {
        Ok(contents.found)
    } else {
        Err(Unusable::Other)
    }
}

fn contents(bytes: &[u8]) -> Result<&[u8], Unusable> {
    let rest = bytes.strip_prefix(MARK).ok_or(Unusable::Damaged)?;
    let (sum, contents) = rest.split_first_chunk::<SUM>().ok_or(Unusable::Damaged)?;
    let is_whole = crc32fast::hash(contents) == u32::from_le_bytes(*sum);
    is_whole.then_some(contents).ok_or(Unusable::Damaged)
}

/// Returns what the bytes of a file have, whatever its key.
#[cfg(any(test, fuzzing))]
pub(crate) fn in_any_file<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let contents: Contents<Key, T> = serde_json::from_slice(contents(bytes).ok()?).ok()?;
    _ = contents.key.file_name();
    Some(contents.found)
}

/// Returns the bytes of a file with these contents.
pub(crate) fn in_file(contents: &[u8]) -> Vec<u8> {
    [&MARK[..], &crc32fast::hash(contents).to_le_bytes(), contents].concat()
}

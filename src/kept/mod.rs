//! What analyses find in programs, on disk: a program that was analysed once need not be analysed again by the next
//! armtrace.
//!
//! ```text
//! folder   $CACHE_DIRECTORY/plans, or /var/cache/armtrace/plans: the agent's own, 0700
//! file     one per program, armtrace and analysis, named by build ID: 0600
//! ```
//!
//! Whatever is wrong with a folder or a file, the program is analysed as if there were none.

mod file;
mod folder;

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::Serialize;

use self::file::Key;
use self::folder::Folder;
use crate::symbols::Image;

#[cfg(any(test, fuzzing))]
pub(crate) use self::file::{in_any_file, in_file};

/// The variable in which systemd passes the folder of `CacheDirectory=`.
const FOLDER_VARIABLE: &str = "CACHE_DIRECTORY";
const FOLDER: &str = "/var/cache/armtrace";

/// The part of the folder that has what was found. The rest may be debuginfod's.
const PART: &str = "plans";

/// The reason why what was kept is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// The kernel does not let it be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// Others than this user may have written it.
    #[error("it belongs to another user, others may write to it, or it is no plain file or folder")]
    Foreign,
    /// It has too many bytes.
    #[error("it has more bytes than it can have")]
    TooLong,
    /// It does not begin as such files do, or its checksum is wrong.
    #[error("it is damaged")]
    Damaged,
    /// Its contents are not what was expected.
    #[error("it has something else: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It is for another program, armtrace or analysis.
    #[error("it is of another program or armtrace")]
    Other,
    /// What it has does not fit the program.
    #[error("the program is not what was analysed")]
    Program,
}

/// The folder in which what is found in programs is kept.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Whether somebody has named the folder, and so wants to know when nothing can be kept there.
    is_named: bool,
}

impl Cache {
    /// Keeps it below this folder.
    pub fn below(folder: &Path) -> Cache {
        Cache { folder: folder.join(PART), is_named: true }
    }

    /// Keeps it below systemd's folder for this service, or else below the usual one.
    pub fn usual() -> Cache {
        Cache::below_given(env::var_os(FOLDER_VARIABLE).as_deref())
    }

    fn below_given(given: Option<&OsStr>) -> Cache {
        // systemd passes several, separated by colons.
        let given = given.and_then(OsStr::to_str).and_then(|folders| folders.split(':').next()).map(Path::new);
        let usual = || Cache { is_named: false, ..Cache::below(Path::new(FOLDER)) };
        given.filter(|folder| folder.is_absolute()).map_or_else(usual, Cache::below)
    }

    /// Returns what an analysis of the program in `image` finds: what was kept of it, if that `fits` the program, or
    /// else what it finds now, which is kept. `what` is the name of the analysis, and what decides about its result
    /// besides the program.
    pub fn get<T: Serialize + DeserializeOwned>(
        &self,
        image: &Image,
        what: (&str, impl Serialize),
        fits: impl FnOnce(&T) -> bool,
        find: impl FnOnce() -> T,
    ) -> T {
        let (begun, name) = (Instant::now(), what.0);
        let Some(key) = Key::new(image, &what) else { return find() };
        if let Some(kept) = self.kept(&key, fits) {
            let took = begun.elapsed().as_micros();
            tracing::debug!("the program was analysed before for its {name}, which was read in {took} µs");
            return kept;
        }
        let found = find();
        tracing::debug!("the program was analysed for its {name} in {} µs", begun.elapsed().as_micros());
        self.keep(&key, &found);
        found
    }

    fn kept<T: DeserializeOwned>(&self, key: &Key, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        let name = key.file_name();
        let bytes = Folder::open(&self.folder).and_then(|folder| folder.read(&name));
        let kept = bytes.and_then(|bytes| file::from_bytes(&bytes, key));
        match kept.and_then(|kept| if fits(&kept) { Ok(kept) } else { Err(Unusable::Program) }) {
            Ok(kept) => Some(kept),
            Err(Unusable::Unreadable(why)) if why.kind() == io::ErrorKind::NotFound => None,
            Err(why) => {
                let file = self.folder.join(name);
                tracing::info!("the program is analysed again, because {} is of no use: {why}", file.display());
                None
            }
        }
    }

    fn keep(&self, key: &Key, found: &impl Serialize) {
        static TELL: Once = Once::new();
        let (folder, bytes) = (self.folder.display(), file::to_bytes(found, key));
        let kept = Folder::create(&self.folder).and_then(|folder| folder.write(&key.file_name(), &bytes));
        let Err(why) = kept else { return };
        TELL.call_once(|| match self.is_named {
            true => tracing::warn!("what is found in programs is not kept for the next start: {folder}: {why}"),
            false => tracing::info!("what is found in programs is not kept for the next start: {folder}: {why}"),
        });
    }
}

#[cfg(test)]
mod tests;

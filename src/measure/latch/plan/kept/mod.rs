//! Plans on disk: a program that was analysed once need not be analysed again by the next armtrace.
//!
//! ```text
//! folder   $CACHE_DIRECTORY/plans, or /var/cache/armtrace/plans: the agent's own, 0700
//! file     one per program, armtrace and way to attach, named by build ID: 0600
//! ```
//!
//! Whatever is wrong with a folder or a file, the program is analysed as if there were none.

mod file;
mod folder;
pub(super) mod packed;

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Instant;

use self::file::{Kept, Key};
use self::folder::Folder;
use super::{plan, Allowed, Plan};
use crate::catalog::Family;
use crate::symbols::Image;

#[cfg(any(test, fuzzing))]
pub(crate) use self::file::examine;

/// The variable in which systemd passes the folder of `CacheDirectory=`.
const FOLDER_VARIABLE: &str = "CACHE_DIRECTORY";
const FOLDER: &str = "/var/cache/armtrace";

/// The part of the folder that has the plans. The rest may be debuginfod's.
const PART: &str = "plans";

/// The reason why a kept plan is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// The kernel does not let it be read.
    #[error(transparent)]
    Unreadable(#[from] std::io::Error),
    /// Others than this user may have written it.
    #[error("it belongs to another user, others may write to it, or it is no plain file or folder")]
    Foreign,
    /// It has too many bytes.
    #[error("it has more bytes than a plan can have")]
    TooLong,
    /// It does not begin as plans do, or its checksum is wrong.
    #[error("it is damaged")]
    Damaged,
    /// Its contents are no plan.
    #[error("it has no plan: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It is for another program, armtrace or way to attach.
    #[error("it is the plan of another program or armtrace")]
    Other,
    /// The program has other code at its sites, or no code.
    #[error("the program's code is not what was analysed")]
    Code,
}

/// The folder in which plans are kept.
#[derive(Clone, Debug)]
pub struct PlanCache {
    folder: PathBuf,
    /// Whether somebody has named the folder, and so wants to know when nothing can be kept there.
    is_named: bool,
}

impl PlanCache {
    /// Keeps plans below this folder.
    pub fn below(folder: &Path) -> PlanCache {
        PlanCache { folder: folder.join(PART), is_named: true }
    }

    /// Keeps plans below systemd's folder for this service, or else below the usual one.
    pub fn usual() -> PlanCache {
        PlanCache::below_given(env::var_os(FOLDER_VARIABLE).as_deref())
    }

    fn below_given(given: Option<&OsStr>) -> PlanCache {
        // systemd passes several, separated by colons.
        let given = given.and_then(OsStr::to_str).and_then(|folders| folders.split(':').next()).map(Path::new);
        let usual = || PlanCache { is_named: false, ..PlanCache::below(Path::new(FOLDER)) };
        given.filter(|folder| folder.is_absolute()).map_or_else(usual, PlanCache::below)
    }

    /// Returns the plan for the server in `image`: the kept one, or else a new one, which is kept.
    pub fn plan(&self, image: &Image, family: &Family, allowed: Allowed) -> Plan {
        let begun = Instant::now();
        let Some(key) = Key::new(image, allowed) else { return plan(image, family, allowed) };
        if let Some(kept) = self.kept(&key, image, family) {
            tracing::debug!("the program was analysed before, which was read in {} µs", begun.elapsed().as_micros());
            return kept;
        }
        let plan = plan(image, family, allowed);
        tracing::debug!("the program was analysed in {} µs", begun.elapsed().as_micros());
        self.keep(&key, Kept::new(&key, &plan, image).to_bytes());
        plan
    }

    fn kept(&self, key: &Key, image: &Image, family: &Family) -> Option<Plan> {
        let name = key.file_name();
        let bytes = Folder::open(&self.folder).and_then(|folder| folder.read(&name));
        match bytes.and_then(|bytes| Kept::from_bytes(&bytes)?.checked(key, image, family)) {
            Ok(plan) => Some(plan),
            Err(Unusable::Unreadable(why)) if why.kind() == std::io::ErrorKind::NotFound => None,
            Err(why) => {
                let file = self.folder.join(name);
                tracing::info!("the program is analysed again, because {} is of no use: {why}", file.display());
                None
            }
        }
    }

    fn keep(&self, key: &Key, bytes: Vec<u8>) {
        static TELL: Once = Once::new();
        let folder = self.folder.display();
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

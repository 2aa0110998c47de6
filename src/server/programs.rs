//! Programs that several servers run: each is read once, and is in memory once.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Weak};

use super::{exe_path, unusable, OpenError};
use crate::discovery;
use crate::symbols::{self, DebugRoots, FileIdentity, Image, Settings, Trial};

/// The programs of servers that are open.
#[derive(Default)]
pub struct Programs(HashMap<FileIdentity, (Weak<Image>, Arc<Vec<Trial>>)>);

impl Programs {
    /// Returns the program of process `pid` with its symbols, and where these were searched.
    ///
    /// # Errors
    /// Fails when it cannot be read, or when the symbol file that the user named is not this program's.
    pub fn of(&mut self, pid: i32, settings: &Settings) -> Result<(Arc<Image>, Arc<Vec<Trial>>), OpenError> {
        self.0.retain(|_, (image, _)| image.strong_count() > 0);
        let file = fs::metadata(exe_path(pid)).ok().map(|file| FileIdentity::of(&file));
        let known =
            file.and_then(|file| self.0.get(&file)).and_then(|(image, trials)| Some((image.upgrade()?, trials)));
        if let Some((image, trials)) = known {
            return Ok((image, Arc::clone(trials)));
        }
        let mut image = Image::open_running(&exe_path(pid)).map_err(|e| unusable(pid, e))?;
        let trials = symbols::complete(&mut image, &DebugRoots::of_process(pid), settings, discovery::misses_symbols)?;
        let (image, trials) = (Arc::new(image), Arc::new(trials));
        if let Some(file) = file {
            self.0.insert(file, (Arc::downgrade(&image), Arc::clone(&trials)));
        }
        Ok((image, trials))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_once_while_it_is_in_use() {
        let (mut programs, own) = (Programs::default(), std::process::id() as i32);
        let mut of = || programs.of(own, &Settings::default()).expect("this test's program").0;
        let (first, second) = (of(), of());
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        assert_eq!(Arc::strong_count(&of()), 1, "it was read again");
    }
}

//! The folder of the dumps, and what they are called there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tempfile::NamedTempFile;

use super::Cause;
use crate::recording::table::as_name;

/// The most dumps that stay in a folder. Of 15 minutes, one has 4 MiB at most.
const MOST: usize = 50;

/// A folder that has the newest dumps, and maybe other files, which stay.
pub struct Folder(PathBuf);

impl Folder {
    /// Checks that files can be written to a folder.
    ///
    /// # Errors
    /// Fails with the kernel's reason why they cannot.
    pub fn open(path: &Path) -> io::Result<Folder> {
        // Only an attempt shows it: file systems are mounted read-only, and root has given up some of its privileges.
        NamedTempFile::new_in(path)?;
        Ok(Folder(path.to_owned()))
    }

    /// Writes a file that only its owner may read, under its name once it is whole. Removes the oldest of too many.
    pub(super) fn write(&self, name: &str, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<PathBuf> {
        let mut file = NamedTempFile::new_in(&self.0)?;
        write(file.as_file_mut())?;
        let path = self.0.join(name);
        file.persist(&path).map_err(|error| error.error)?;
        if let Err(why) = self.remove_oldest() {
            tracing::debug!("old dumps stay in {}: {why}", self.0.display());
        }
        Ok(path)
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut dumps = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(at) = written_at(&name).filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file())) {
                dumps.push((at.to_owned(), name));
            }
        }
        dumps.sort();
        let too_many = dumps.len().saturating_sub(MOST);
        dumps[..too_many].iter().try_for_each(|(_, name)| fs::remove_file(self.0.join(name)))
    }
}

/// Returns what a dump of this server is called: `mysql.service-20261127T030412Z-ended-1234.rec`.
pub(super) fn file_name(server: &str, at: Timestamp, cause: Cause, pid: i32) -> String {
    format!("{}-{}-{}-{pid}.rec", as_name(server), at.strftime("%Y%m%dT%H%M%SZ"), cause.as_str())
}

/// Returns the time in the name of a dump; `None` if it is the name of something else.
fn written_at(name: &str) -> Option<&str> {
    let mut parts = name.strip_suffix(".rec")?.rsplitn(4, '-');
    let (pid, cause, at) = (parts.next()?, parts.next()?, parts.next()?);
    let (date, time) = at.strip_suffix('Z')?.split_once('T')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_dump = is_number(pid)
        && Cause::ALL.iter().any(|known| known.as_str() == cause)
        && (date.len(), time.len()) == (8, 6)
        && is_number(date)
        && is_number(time)
        && parts.next().is_some_and(|server| !server.is_empty());
    is_dump.then_some(at)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_780_800 + second).expect("a time")
    }

    #[test]
    fn a_dump_is_known_by_its_name() {
        let name = file_name("mysql.service", at(7), Cause::Ended, 1234);
        assert_eq!(name, "mysql.service-20261127T120007Z-ended-1234.rec");
        for cause in Cause::ALL {
            assert_eq!(written_at(&file_name("a-b", at(0), cause, 1)), Some("20261127T120000Z"), "{cause:?}");
        }
        for other in [
            "spike.rec",
            "mysql.service-20261127T120007Z-ended-1234.rec.gz",
            "mysql.service-20261127T120007Z-other-1234.rec",
            "mysql.service-20261127T120007Z-ended-12x4.rec",
            "mysql.service-20261127T120007Z-ended-.rec",
            "mysql.service-20261127T1200Z-ended-1234.rec",
            "mysql.service-2026112xT120007Z-ended-1234.rec",
            "-20261127T120007Z-ended-1234.rec",
            "20261127T120007Z-ended-1234.rec",
        ] {
            assert_eq!(written_at(other), None, "{other}");
        }
    }

    /// Whoever starts a container chooses its name.
    #[test]
    fn no_name_leads_out_of_the_folder() {
        for hostile in ["../../etc/cron.d/x", "/srv/mysql", "a\n\x1b[2Jb", "..", "", "\u{e9}\u{1f600}"] {
            let name = file_name(hostile, at(0), Cause::Waiting, 1);
            assert!(!name.contains(['/', '\n', '\x1b']) && name.is_ascii() && name.len() > 30, "{name}");
            assert!(written_at(&name).is_some(), "{name}");
        }
        assert!(file_name(&"\u{e9}".repeat(128), at(0), Cause::Statement, i32::MAX).len() < 255);
    }

    #[test]
    fn the_newest_dumps_stay_and_so_do_other_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let others = ["a.rec", "a-20261127T120007Z-ended-1234.txt"].map(|name| folder.path().join(name));
        others.iter().for_each(|other| fs::write(other, "").expect("a file"));
        let link = folder.path().join(file_name("link", at(-9), Cause::Ended, 1));
        symlink(&others[0], &link).expect("a link");
        let dumps = Folder::open(folder.path()).expect("a folder");
        let write = |second: i64| {
            // The order is not that of their names.
            let name = file_name(&format!("{}", 1000 - second), at(second), Cause::Ended, 1);
            dumps.write(&name, |file| file.write_all(b"x")).expect("a dump")
        };
        let written: Vec<PathBuf> = (0..MOST as i64 + 3).map(write).collect();
        let (gone, left) = written.split_at(3);
        assert!(gone.iter().all(|path| !path.exists()) && left.iter().all(|path| path.exists()));
        assert!(others.iter().all(|path| path.exists()) && link.symlink_metadata().is_ok());
        assert_eq!(left[0].metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let dumps = Folder::open(folder.path()).expect("a folder");
        let full = |file: &mut File| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let name = file_name("a", at(0), Cause::Ended, 1);
        assert_eq!(dumps.write(&name, full).expect_err("an error").kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        assert!(Folder::open(&folder.path().join("none")).is_err());
    }
}

//! A folder whose files only this user can have written, and the bounds on what is kept in it.

use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    fstat, futimens, mkdir, open, openat, renameat, statat, unlinkat, AtFlags, Dir, FileType, Mode, OFlags, Stat,
    Timespec, Timestamps, UTIME_NOW,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::Unusable;

/// The most files, and the most bytes of one and of all.
const MOST_FILES: usize = 48;
pub(super) const MOST_BYTES: u64 = 512 << 10;
const MOST_BYTES_OF_ALL: u64 = 8 << 20;

/// An open folder, which belongs to this user and to which nobody else can write.
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens a folder that exists.
    pub fn open(path: &Path) -> Result<Folder, Unusable> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(path, flags, Mode::empty()).map_err(io::Error::from)?;
        let is_ours = is_ours(&fstat(&folder).map_err(io::Error::from)?);
        is_ours.then_some(Folder(folder)).ok_or(Unusable::Foreign)
    }

    /// Opens a folder, which is created if there is none.
    pub fn create(path: &Path) -> Result<Folder, Unusable> {
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).create(parent)?;
        }
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Folder::open(path),
            Err(why) => Err(io::Error::from(why).into()),
        }
    }

    /// Returns the contents of a file, which counts as used now.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Unusable> {
        // A pipe would block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::empty()).map_err(io::Error::from)?;
        let stat = fstat(&file).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_ours(&stat) {
            return Err(Unusable::Foreign);
        }
        let mut bytes = Vec::new();
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // Without the time of its last use it may be dropped earlier.
        _ = futimens(&file, &Timestamps { last_access: now, last_modification: now });
        File::from(file).take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        (bytes.len() as u64 <= MOST_BYTES).then_some(bytes).ok_or(Unusable::TooLong)
    }

    /// Writes the whole file or none. Then files are dropped, those first that were not used for longest, until the
    /// bounds are kept.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Unusable> {
        if bytes.len() as u64 > MOST_BYTES {
            return Err(Unusable::TooLong);
        }
        let part = format!(".{:016x}", fastrand::u64(..));
        let written = self.write_new(&part, bytes).and_then(|()| Ok(renameat(&self.0, &part, &self.0, name)?));
        if written.is_err() {
            _ = unlinkat(&self.0, &part, AtFlags::empty());
        }
        self.drop_oldest()?;
        Ok(written?)
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?).write_all(bytes)
    }

    fn drop_oldest(&self) -> io::Result<()> {
        let mut files = self.files()?;
        files.sort_by_key(|(_, stat)| std::cmp::Reverse((stat.st_mtime, stat.st_mtime_nsec)));
        let mut bytes = 0;
        for (number, (name, stat)) in files.iter().enumerate() {
            bytes += u64::try_from(stat.st_size).unwrap_or(u64::MAX / 2);
            if number >= MOST_FILES || bytes > MOST_BYTES_OF_ALL {
                unlinkat(&self.0, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Returns the files, with those that another armtrace is writing or has left half-written.
    fn files(&self) -> io::Result<Vec<(CString, Stat)>> {
        let mut files = Vec::new();
        for entry in Dir::read_from(self.0.as_fd())? {
            let name = entry?.file_name().to_owned();
            // It may be gone by now.
            let stat = statat(&self.0, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
            files.extend(stat.filter(|s| FileType::from_raw_mode(s.st_mode) != FileType::Directory).map(|s| (name, s)));
        }
        Ok(files)
    }
}

/// Returns whether this user owns it, and nobody else can write to it.
fn is_ours(stat: &Stat) -> bool {
    let others = Mode::WGRP | Mode::WOTH;
    stat.st_uid == geteuid().as_raw() && !Mode::from_raw_mode(stat.st_mode).intersects(others)
}

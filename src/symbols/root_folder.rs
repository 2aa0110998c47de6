//! Opens files of a server, which may be in a container that wants to harm this process.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{open, openat2, Mode, OFlags, ResolveFlags};

/// A read does not block, because the file could be a pipe.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// A directory that is the root of all paths in it.
#[derive(Debug)]
pub struct RootFolder(OwnedFd);

impl RootFolder {
    /// Opens a directory.
    ///
    /// # Errors
    /// Fails when there is no such directory, or when this user may not enter it.
    pub fn open(path: &Path) -> io::Result<RootFolder> {
        Ok(RootFolder(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Opens a regular file by its path in this directory. No symbolic link leads out of it: a link in a container
    /// must not make this process, which is root on the host, open a file of the host.
    ///
    /// # Errors
    /// Fails when there is no such file, or when it is not a regular one.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        regular(openat2(&self.0, path, FLAGS, Mode::empty(), ResolveFlags::IN_ROOT)?)
    }

    /// Returns what the kernel says about any file, by its path in this directory, without opening it.
    ///
    /// # Errors
    /// Fails when there is no such file.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        File::from(openat2(&self.0, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?).metadata()
    }
}

/// Opens a regular file by a path that the kernel itself provides, such as one in `/proc/PID/map_files`.
///
/// # Errors
/// Fails when there is no such file, or when it is not a regular one.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(open(path, FLAGS, Mode::empty())?)
}

fn regular(file: OwnedFd) -> io::Result<File> {
    let file = File::from(file);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{fcntl_getfl, mknodat, FileType, CWD};
    use rustix::io::{fcntl_getfd, FdFlags};

    #[test]
    fn a_root_folder_is_not_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = folder.path().join("secret");
        fs::write(&secret, "host").expect("a file");
        let inside = folder.path().join("root");
        fs::create_dir_all(inside.join("etc")).expect("a folder");
        fs::write(inside.join("etc/file"), "inside").expect("a file");
        symlink("/etc/file", inside.join("absolute")).expect("a link");
        symlink("../../secret", inside.join("etc/up")).expect("a link");
        symlink(&secret, inside.join("out")).expect("a link");
        let root = RootFolder::open(&inside).expect("the folder");
        // Programs that armtrace starts do not get it, and it cannot be read itself.
        assert!(fcntl_getfd(&root.0).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC)));
        assert!(fcntl_getfl(&root.0).is_ok_and(|flags| flags.contains(OFlags::PATH)));
        assert!(RootFolder::open(&secret).is_err(), "a file");
        let open = |path: &str| root.open_file(Path::new(path)).map(|mut f| io::read_to_string(&mut f).expect("text"));
        assert_eq!(open("/etc/file").expect("the file"), "inside");
        assert_eq!(open("/absolute").expect("the file"), "inside");
        for path in ["/out", "/etc/up", "/../secret", "/etc", "/nothing"] {
            assert!(open(path).is_err(), "{path}");
        }
        let length = |path: &str| root.metadata(Path::new(path)).map(|file| file.len());
        assert_eq!(length("/absolute").expect("the file"), 6);
        assert!(length("/out").is_err() && length("/../secret").is_err());
    }

    #[test]
    fn a_pipe_does_not_hold_anybody_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let root = RootFolder::open(folder.path()).expect("the folder");
        assert!(root.open_file(Path::new("/pipe")).is_err());
        assert!(root.metadata(Path::new("/pipe")).is_ok());
        assert!(open_regular(&pipe).is_err());
    }
}

//! The directories in which a program's debug files are searched: first in the root directory that the program sees,
//! then on this host.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::root_folder::RootFolder;

/// The directories to search.
#[derive(Debug)]
pub struct DebugRoots {
    pub(super) roots: Vec<Root>,
}

/// A root directory, and the path of the program in it.
#[derive(Debug)]
pub(super) struct Root {
    folder: RootFolder,
    shown: PathBuf,
    pub program: PathBuf,
}

impl DebugRoots {
    /// Returns the roots for process `pid`: its own root directory, as its container or chroot has it, and the host's
    /// if that is another.
    pub fn of_process(pid: i32) -> DebugRoots {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let program = program_path(&fs::read_link(proc.join("exe")).unwrap_or_default());
        // Both links show paths as this process sees them. In a mere chroot they include the chroot's directory.
        let inside = match fs::read_link(proc.join("root")).map(|root| program.strip_prefix(root).map(Path::to_owned)) {
            Ok(Ok(inside)) => Path::new("/").join(inside),
            _ => program.clone(),
        };
        let own = proc.join("root");
        let mut roots: Vec<Root> = Root::open(&own, inside).into_iter().collect();
        if roots.is_empty() || !is_same_folder(&own, Path::new("/")) {
            roots.extend(Root::open(Path::new("/"), program));
        }
        DebugRoots { roots }
    }

    /// Returns a single root directory with a program in it, both by path.
    ///
    /// # Errors
    /// Fails when the directory cannot be opened.
    pub fn in_folder(root: &Path, program: &Path) -> io::Result<DebugRoots> {
        Ok(DebugRoots { roots: vec![Root::open(root, program.to_owned())?] })
    }
}

/// Returns whether the program file of process `pid` was deleted or replaced on disk after the process started.
pub fn is_deleted(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|link| program_path(&link) != link)
}

/// Returns the path in the link `/proc/PID/exe`, to which the kernel adds a word if the file no longer exists.
fn program_path(link: &Path) -> PathBuf {
    let bytes = link.as_os_str().as_bytes();
    let path = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    PathBuf::from(std::ffi::OsStr::from_bytes(path))
}

fn is_same_folder(a: &Path, b: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
}

impl Root {
    fn open(path: &Path, program: PathBuf) -> io::Result<Root> {
        Ok(Root { folder: RootFolder::open(path)?, shown: path.to_owned(), program })
    }

    /// Returns how messages show a path in this root directory.
    pub fn shown(&self, path: &Path) -> PathBuf {
        self.shown.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Opens a regular file by its path in this root directory, as [`RootFolder::open_file`] does.
    ///
    /// # Errors
    /// Fails when there is no such file, or when it is not a regular one.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        self.folder.open_file(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_programs_path_is_known() {
        assert_eq!(program_path(Path::new("/usr/sbin/mysqld (deleted)")), Path::new("/usr/sbin/mysqld"));
        assert_eq!(program_path(Path::new("/usr/sbin/mysqld")), Path::new("/usr/sbin/mysqld"));
    }

    #[test]
    fn the_hosts_own_process_has_one_root() {
        let roots = DebugRoots::of_process(std::process::id() as i32);
        assert_eq!(roots.roots.len(), 1);
        assert_eq!(roots.roots[0].program, std::env::current_exe().expect("this program"));
        assert!(!is_deleted(std::process::id() as i32));
    }
}

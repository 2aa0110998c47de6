//! Finds where a process has its executable in memory.
//!
//! The maps are parsed here rather than by `procfs`, because the process chooses the paths in them: `procfs` panics on
//! a mapped file called `/SYSV`, and rejects all maps for one called `/SYSV` and no number.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::symbols::{open_regular, Image, ImageError, RootFolder};

/// Returns the difference between addresses in process `pid` and link-time addresses of its executable `image`.
///
/// The executable's mappings are identified by device and inode rather than by path: a package upgrade may have deleted
/// or replaced the file, and the path of a container's process means another file here.
///
/// # Errors
/// Fails when the process's maps cannot be read, or when it does not run this executable.
pub fn load_bias(pid: i32, image: &Image) -> io::Result<u64> {
    let maps = maps_of(pid)?;
    let exe = executable_id(pid)?;
    bias(&maps, exe, |offset| image.page_address_of(offset)).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("process {pid} has no mapping of its executable"))
    })
}

/// A part of a file that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMapping {
    /// The first address in the process.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// The offset in the file that is mapped at `start`, in bytes.
    pub offset: u64,
    /// The file name without directories, which depend on the mount namespace.
    pub name: String,
    /// Whether it may be executed.
    pub is_code: bool,
    /// The whole path, as the process sees it.
    path: String,
    /// The address range, as the file names in `/proc/PID/map_files` have it.
    addresses: String,
}

impl FileMapping {
    /// Returns the path as the process sees it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Opens the file, which process `pid` has mapped.
    ///
    /// # Errors
    /// Fails when it is out of reach, or no regular file.
    pub fn file(&self, pid: i32) -> io::Result<File> {
        self.open(&PathBuf::from(format!("/proc/{pid}")))
    }

    /// Reads the file, which process `pid` has mapped and may change at any time: a copy of at most `most` bytes.
    ///
    /// # Errors
    /// Fails when the file cannot be opened, is too large, or is not an ELF file that can be used.
    pub fn image(&self, pid: i32, most: u64) -> Result<Image, ImageError> {
        let open = |source| ImageError::Open { path: self.path.clone(), source };
        Image::of_copy(&self.file(pid).map_err(open)?, &self.path, most)
    }

    /// Opens the file of the process with this directory in /proc. Its link in `map_files` leads to the file wherever
    /// it is, and even if it has been deleted, but may only be followed with permission to inspect any process.
    /// Otherwise the path is looked up in the process's root directory, which its links do not leave.
    fn open(&self, process: &Path) -> io::Result<File> {
        open_regular(&process.join("map_files").join(&self.addresses))
            .or_else(|_| RootFolder::open(&process.join("root"))?.open_file(Path::new(&self.path)))
    }
}

/// Returns the mapped files of process `pid`, by ascending address; empty if its maps cannot be read.
pub fn file_mappings(pid: i32) -> Vec<FileMapping> {
    maps_of(pid).unwrap_or_default().lines().filter_map(file_mapping).collect()
}

/// Returns the text of a process's maps. A path need not be UTF-8: that of one file must not hide all others.
fn maps_of(pid: i32) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/maps"))?).into_owned())
}

fn file_mapping(line: &str) -> Option<FileMapping> {
    let Mapping { start, end, offset, .. } = parse(line)?;
    let path = &line[line.find('/')?..];
    let name = path.rsplit('/').next()?.to_owned();
    let mut fields = line.split(' ');
    let addresses = fields.next()?.to_owned();
    let is_code = fields.next()?.contains('x');
    Some(FileMapping { start, end, offset, name, is_code, path: path.to_owned(), addresses })
}

/// Device and inode as `/proc/PID/maps` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
}

/// Returns the executable's identity from the file behind `/proc/PID/exe`. It exists as long as the process does, even
/// if the file has no name any more.
fn executable_id(pid: i32) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(Path::new("/proc").join(pid.to_string()).join("exe"))?;
    Ok(FileId { major: libc::major(meta.dev()), minor: libc::minor(meta.dev()), inode: meta.ino() })
}

/// Returns the bias from the first mapping of the file with a known link-time address.
///
/// Some file systems (overlayfs, btrfs) show a different device in maps than `stat` does. There the inode alone
/// decides, if only one mapped file has it.
fn bias(maps: &str, exe: FileId, address_of: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let all: Vec<Mapping> = maps.lines().filter_map(parse).filter(|m| m.file.inode == exe.inode).collect();
    let exact: Vec<&Mapping> = all.iter().filter(|m| m.file == exe).collect();
    let unique = all.iter().all(|m| m.file == all[0].file);
    let of_exe = if exact.is_empty() && unique { all.iter().collect() } else { exact };
    of_exe.iter().find_map(|m| Some(m.start.wrapping_sub(address_of(m.offset)?)))
}

/// Does with the text of some process's maps all that is done with it.
#[cfg(any(test, fuzzing))]
pub(crate) fn examine_maps(maps: &str) {
    let _: Vec<FileMapping> = maps.lines().filter_map(file_mapping).collect();
    if let Some(first) = maps.lines().find_map(parse) {
        bias(maps, first.file, |offset| offset.checked_mul(3));
    }
}

struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: FileId,
}

/// Parses `55d0c0a00000-55d0c17f9000 r--p 00000000 fe:01 393482    /usr/sbin/mysqld`.
fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let hex = |s| u64::from_str_radix(s, 16).ok();
    let file =
        FileId { major: u32::from_str_radix(major, 16).ok()?, minor: u32::from_str_radix(minor, 16).ok()?, inode };
    (inode != 0).then_some(Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, file })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use rustix::fs::{mknodat, FileType, Mode, CWD};

    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000001000 r--p 00000000 fe:01 11   /usr/lib/libc.so.6
55d000400000-55d000401000 r--p 00000000 fe:01 42   /usr/sbin/mysqld (deleted)
55d000401000-55d000402000 r-xp 00001000 fe:01 42   /usr/sbin/mysqld (deleted)
55d000402000-55d000403000 rw-p 00000000 00:00 0
";

    fn link_address(offset: u64) -> Option<u64> {
        (offset < 0x2000).then_some(0x40_0000 + offset)
    }

    fn exe(major: u32, inode: u64) -> FileId {
        FileId { major, minor: 1, inode }
    }

    #[test]
    fn finds_the_executable_by_device_and_inode() {
        assert_eq!(bias(MAPS, exe(0xfe, 42), link_address), Some(0x55d0_0000_0000));
        assert_eq!(bias(MAPS, exe(0xfe, 43), link_address), None);
    }

    #[test]
    fn another_device_number_is_accepted_for_a_unique_inode() {
        assert_eq!(bias(MAPS, exe(0x99, 42), link_address), Some(0x55d0_0000_0000));
        let twice = format!("{MAPS}7f0000002000-7f0000003000 r--p 00000000 fe:02 42 /other\n");
        assert_eq!(bias(&twice, exe(0x99, 42), link_address), None);
        assert_eq!(bias(&twice, exe(0xfe, 42), link_address), Some(0x55d0_0000_0000));
    }

    #[test]
    fn finds_this_test_itself() {
        let image = Image::open(Path::new("/proc/self/exe")).expect("the test's own executable");
        let bias = load_bias(std::process::id() as i32, &image).expect("a bias");
        let function = finds_this_test_itself as fn() as usize as u64;
        assert!(image.extent().contains(&function.wrapping_sub(bias)));
    }

    #[test]
    fn mapped_files_have_paths() {
        let mapped: Vec<FileMapping> = MAPS.lines().filter_map(file_mapping).collect();
        assert_eq!((mapped.len(), mapped[0].name.as_str(), mapped[0].start), (3, "libc.so.6", 0x7f00_0000_0000));
    }

    /// A process as /proc shows it to whoever may not follow its `map_files`: a root directory, and a library in it.
    struct Container {
        folder: tempfile::TempDir,
    }

    impl Container {
        fn new() -> Container {
            let folder = tempfile::tempdir().expect("a folder");
            fs::create_dir(folder.path().join("root")).expect("a folder");
            Container { folder }
        }

        /// Returns the path, on the host, of the library.
        fn library(&self) -> PathBuf {
            self.folder.path().join("root/lib.so")
        }

        fn open(&self) -> io::Result<File> {
            file_mapping("7f0000000000-7f0000001000 r--p 00000000 fe:01 11   /lib.so")
                .expect("a mapping")
                .open(self.folder.path())
        }
    }

    #[test]
    fn a_container_cannot_choose_which_file_is_opened() {
        let container = Container::new();
        let host = container.folder.path().join("secret");
        fs::write(&host, "host").expect("a file");
        symlink(&host, container.library()).expect("a link");
        assert!(container.open().is_err(), "a link to a file of the host");
        let replace_by = |make: &dyn Fn(&Path)| {
            _ = fs::remove_file(container.library()).or_else(|_| fs::remove_dir(container.library()));
            make(&container.library());
        };
        replace_by(&|path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe"));
        assert!(container.open().is_err(), "a pipe");
        replace_by(&|path| fs::create_dir(path).expect("a folder"));
        assert!(container.open().is_err(), "a folder");
        replace_by(&|path| fs::write(path, "a file").expect("a file"));
        assert_eq!(io::read_to_string(container.open().expect("the file")).expect("text"), "a file");
    }

    #[test]
    fn a_library_may_be_truncated_while_it_is_in_use() {
        let container = Container::new();
        fs::copy("/proc/self/exe", container.library()).expect("a copy of this test");
        let image = Image::of_copy(&container.open().expect("the file"), "/lib.so", u64::MAX).expect("a program");
        let symbols = image.symbols().count();
        File::create(container.library()).expect("an empty file");
        // The pages that were read before must not hide that the file is gone.
        image.release_memory();
        let text = image.section(".text").expect("code");
        assert!(image
            .bytes(text.start, usize::try_from(text.end - text.start).expect("a size"))
            .expect("code")
            .iter()
            .any(|byte| *byte != 0));
        assert_eq!(image.symbols().count(), symbols);
    }

    #[test]
    fn a_library_that_is_too_large_or_no_program_is_refused() {
        let container = Container::new();
        let refused = |most| {
            Image::of_copy(&container.open().expect("the file"), "/lib.so", most).err().expect("a refusal").to_string()
        };
        File::create(container.library()).expect("a file").set_len(1 << 40).expect("a sparse file");
        assert!(refused(1 << 20).contains("too large"));
        fs::write(container.library(), "").expect("an empty file");
        assert!(refused(1 << 20).contains("/lib.so"));
    }

    #[test]
    fn a_path_that_is_not_utf8_hides_no_other_mapping() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(OsStr::from_bytes(b"\xff"));
        fs::write(&path, "mapped").expect("a file");
        let before = file_mappings(std::process::id() as i32).len();
        // SAFETY: nothing changes the file.
        let _map = unsafe { memmap2::Mmap::map(&File::open(&path).expect("the file")) }.expect("a mapping");
        let mapped = file_mappings(std::process::id() as i32);
        assert!(before > 0 && mapped.iter().any(|m| m.name == "\u{fffd}"), "{mapped:?}");
    }

    #[test]
    fn garbage_lines_are_skipped() {
        for line in
            ["", "x", "1-2 r--p", "1-2 r--p 0 fe 3", "zz-2 r--p 0 fe:01 3", "1-2 r--p 0 fe:01 99999999999999999999"]
        {
            assert!(parse(line).is_none(), "{line}");
        }
    }
}

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::time::{Duration, SystemTime};

use super::folder::MOST_BYTES;
use super::*;

const WHAT: (&str, u8) = ("colours", 1);

/// A small program.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/program").join(name)
}

fn running(name: &str) -> Image {
    Image::open_running(&program(name)).expect("a program")
}

/// A folder with what was found in one program.
struct Case {
    folder: tempfile::TempDir,
    cache: Cache,
    key: Key,
    image: Image,
}

impl Case {
    fn new() -> Case {
        let image = running("mysql.x86_64");
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::below(folder.path());
        let key = Key::new(&image, &WHAT).expect("build IDs");
        let case = Case { folder, cache, key, image };
        assert_eq!((case.kept(), case.get()), (None, "red".to_owned()));
        assert_eq!(case.kept().as_deref(), Some("red"));
        case
    }

    fn get(&self) -> String {
        self.cache.get(&self.image, WHAT, |_| true, || "red".to_owned())
    }

    fn kept(&self) -> Option<String> {
        self.cache.kept(&self.key, |_| true)
    }

    fn file(&self) -> PathBuf {
        self.cache.folder.join(self.key.file_name())
    }

    /// Checks that the file is of no use as it is, and that the next attachment mends that.
    fn is_refused(&self, what: &str) {
        assert!(self.kept().is_none(), "{what}");
        assert_eq!(self.get(), "red", "{what}");
    }
}

#[test]
fn what_is_kept_is_not_looked_for_again() {
    let case = Case::new();
    assert_eq!(case.cache.get(&case.image, WHAT, |_| true, || -> String { panic!("it is kept") }), "red");
    // Unless it does not fit.
    assert_eq!(case.cache.get(&case.image, WHAT, |kept| kept != "red", || "blue".to_owned()), "blue");
    assert_eq!(case.kept().as_deref(), Some("blue"));
}

#[test]
fn another_program_or_analysis_has_another_file() {
    let case = Case::new();
    let others = [
        Key::new(&running("mariadb.x86_64"), &WHAT),
        Key::new(&case.image, &("colours", 2)),
        Key::new(&case.image, &("sizes", 1)),
    ];
    for key in others.map(|key| key.expect("build IDs")) {
        assert!(case.cache.kept::<String>(&key, |_| true).is_none());
        // Also if it has the other's name.
        fs::copy(case.file(), case.cache.folder.join(key.file_name())).expect("a copy");
        assert!(case.cache.kept::<String>(&key, |_| true).is_none());
    }
}

/// As files of a program that has no name or was copied.
#[test]
fn a_program_that_is_no_running_file_is_not_kept() {
    let image = Image::open(&program("mysql.x86_64")).expect("a program");
    assert!(Key::new(&image, &WHAT).is_none());
}

#[test]
fn a_damaged_file_is_of_no_use() {
    let case = Case::new();
    let whole = fs::read(case.file()).expect("the file");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(file::from_bytes::<String>(&damaged, &case.key).is_err(), "byte {at}");
        assert!(file::from_bytes::<String>(&whole[..at], &case.key).is_err(), "{at} bytes");
    }
    fs::write(case.file(), &whole[..whole.len() / 2]).expect("a file");
    case.is_refused("half of it");
    assert!(case.kept().is_some(), "it was written again");
}

#[test]
fn files_of_others_are_of_no_use() {
    let case = Case::new();
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    let modes = |path: &Path| fs::metadata(path).expect("it").permissions().mode() & 0o7777;
    assert_eq!((modes(&case.cache.folder), modes(&case.file())), (0o700, 0o600));
    for others in [0o620, 0o602] {
        mode(&case.file(), others);
        case.is_refused("a file that others may write to");
        assert_eq!(modes(&case.file()), 0o600, "it was written again");
    }
    mode(&case.cache.folder, 0o770);
    case.is_refused("a folder that others may write to");
    mode(&case.cache.folder, 0o700);
    let target = case.folder.path().join("target");
    fs::rename(case.file(), &target).expect("a name");
    symlink(&target, case.file()).expect("a link");
    case.is_refused("a link");
    assert!(!case.file().is_symlink(), "it was replaced");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(case.file(), Some(1), None).expect("an owner");
        case.is_refused("a file of another user");
    }
}

#[test]
fn what_is_no_file_is_of_no_use() {
    let case = Case::new();
    File::options().write(true).open(case.file()).and_then(|file| file.set_len(MOST_BYTES + 1)).expect("a size");
    case.is_refused("a file that is too long");
    fs::remove_file(case.file()).expect("the file");
    rustix::fs::mknodat(rustix::fs::CWD, case.file(), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    case.is_refused("a pipe");
    fs::remove_file(case.file()).expect("the file");
    fs::create_dir(case.file()).expect("a folder");
    case.is_refused("a folder");
}

#[test]
fn a_folder_that_cannot_be_written_is_no_hindrance() {
    let case = Case::new();
    for folder in [&*case.file(), Path::new("/proc")] {
        assert_eq!(Cache::below(folder).get(&case.image, WHAT, |_| true, || 7), 7);
    }
}

#[test]
fn what_was_not_used_for_longest_is_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("plans");
    let opened = Folder::create(&folder).expect("a folder");
    let names = || {
        let entries = fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().expect("a name")).collect();
        names.sort();
        names
    };
    let used_ago = |name: &str, seconds| {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        File::open(folder.join(name)).and_then(|file| file.set_modified(time)).expect("a time");
    };
    for n in 0..48 {
        let name = format!("{n:02}");
        opened.write(&name, b"x").expect("written");
        used_ago(&name, 1000 - n);
    }
    assert_eq!(opened.read("00").expect("a file"), b"x");
    opened.write("48", b"x").expect("written");
    assert_eq!(names().len(), 48);
    assert!(names().contains(&"00".to_owned()) && !names().contains(&"01".to_owned()), "{:?}", names());
    assert!(opened.write("49", &vec![0; MOST_BYTES as usize + 1]).is_err(), "it is too long");
    assert_eq!(names().len(), 48, "nothing is left of it");
}

#[test]
fn the_folder_is_systemds() {
    let below = |given: Option<&str>| Cache::below_given(given.map(OsStr::new)).folder;
    assert_eq!(below(Some("/var/cache/a:/var/cache/b")), Path::new("/var/cache/a/plans"));
    for given in [None, Some(""), Some("relative")] {
        assert_eq!(below(given), Path::new("/var/cache/armtrace/plans"));
    }
}

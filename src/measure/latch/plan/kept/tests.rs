use std::fs::{self, File, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::folder::MOST_BYTES;
use super::*;
use crate::discovery;

const ALLOWED: Allowed = Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true };

/// A small program that is recognised as a server.
fn server(name: &str) -> (Image, &'static Family) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/program").join(name);
    let image = Image::open_running(&program).expect("a program");
    let family = discovery::family(&image).expect("a server");
    (image, family)
}

/// A folder of plans with that of one server.
struct Case {
    folder: tempfile::TempDir,
    cache: PlanCache,
    key: Key,
    image: Image,
    family: &'static Family,
}

impl Case {
    fn new() -> Case {
        let (image, family) = server("mysql.x86_64");
        let folder = tempfile::tempdir().expect("a folder");
        let cache = PlanCache::below(folder.path());
        let key = Key::new(&image, ALLOWED).expect("build IDs");
        let case = Case { folder, cache, key, image, family };
        assert!(case.kept().is_none());
        assert!(!case.plan().sites.is_empty());
        assert!(case.kept().is_some());
        case
    }

    fn plan(&self) -> Plan {
        self.cache.plan(&self.image, self.family, ALLOWED)
    }

    fn kept(&self) -> Option<Plan> {
        self.cache.kept(&self.key, &self.image, self.family)
    }

    fn file(&self) -> PathBuf {
        self.cache.folder.join(self.key.file_name())
    }

    /// Checks that the file is of no use as it is, and that the next attachment mends that.
    fn is_refused(&self, what: &str) {
        assert!(self.kept().is_none(), "{what}");
        assert!(!self.plan().sites.is_empty(), "{what}");
    }
}

fn json(plan: &Plan) -> String {
    serde_json::to_string(plan).expect("JSON")
}

#[test]
fn a_kept_plan_is_the_same() {
    for name in ["mysql.x86_64", "mysql.aarch64", "mariadb.x86_64", "mariadb.aarch64"] {
        let (image, family) = server(name);
        let folder = tempfile::tempdir().expect("a folder");
        let cache = PlanCache::below(folder.path());
        let key = Key::new(&image, ALLOWED).expect("build IDs");
        let new = cache.plan(&image, family, ALLOWED);
        let kept = cache.kept(&key, &image, family).expect(name);
        assert_eq!(json(&kept), json(&new), "{name}");
        assert_eq!(json(&kept), json(&plan(&image, family, ALLOWED)), "{name}");
    }
}

#[test]
fn another_program_or_way_to_attach_has_another_plan() {
    let case = Case::new();
    let (other, family) = server("mariadb.x86_64");
    let other_key = Key::new(&other, ALLOWED).expect("build IDs");
    let other_way = Key::new(&case.image, Allowed { calls: false, ..ALLOWED }).expect("build IDs");
    for key in [&other_key, &other_way] {
        assert!(case.cache.kept(key, &case.image, case.family).is_none());
        // Also if it has the other's name.
        fs::copy(case.file(), case.cache.folder.join(key.file_name())).expect("a copy");
        assert!(case.cache.kept(key, &case.image, case.family).is_none());
    }
    // A program with the same key, as nobody can make one, has other code.
    assert!(case.cache.kept(&case.key, &other, family).is_none());
}

/// As files of a program that has no name or was copied.
#[test]
fn a_program_that_is_no_running_file_is_not_kept() {
    let image = Image::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/program/mysql.x86_64"));
    assert!(Key::new(&image.expect("a program"), ALLOWED).is_none());
}

#[test]
fn a_damaged_file_is_of_no_use() {
    let case = Case::new();
    let whole = fs::read(case.file()).expect("the file");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Kept::from_bytes(&damaged).is_err(), "byte {at}");
        assert!(Kept::from_bytes(&whole[..at]).is_err(), "{at} bytes");
    }
    fs::write(case.file(), &whole[..whole.len() / 2]).expect("a file");
    case.is_refused("half of it");
    assert!(case.kept().is_some(), "it was written again");
}

/// Who can write the file can choose the checksum.
#[test]
fn what_refers_to_nothing_is_of_no_use() {
    let case = Case::new();
    let bytes = || fs::read(case.file()).expect("the file");
    let kept = || Kept::from_bytes(&bytes()).expect("a plan");
    let refused = |what: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = kept().checked(&case.key, &case.image, case.family).expect("a plan");
        change(&mut plan);
        let changed = Kept::new(&case.key, &plan, &case.image).to_bytes();
        let changed = Kept::from_bytes(&changed).expect("a plan");
        assert!(changed.checked(&case.key, &case.image, case.family).is_err(), "{what}");
    };
    refused("a site elsewhere", &|plan| plan.sites[0].addr += 1);
    refused("a site outside of the file", &|plan| plan.sites[0].file_offset = u64::MAX);
    refused("a function that is not in the catalog", &|plan| plan.sites[0].site.function = u8::MAX);
    refused("a role that there is not", &|plan| plan.sites[0].site.role = u8::MAX);
    refused("a probe that there is not", &|plan| plan.sites[0].site.probe = u16::MAX);
    refused("a site that there is not, in a group", &|plan| plan.groups[0].push(usize::MAX));
    refused("a site in no group", &|plan| _ = plan.groups[0].pop());
    refused("a site twice in a probe", &|plan| plan.probes[0].sites.push(0));
    refused("a wait function that there is not", &|plan| plan.functions[0].index = u8::MAX);
    refused("a function without code", &|plan| plan.functions[0].range.end = u64::MAX);
    refused("a function that is inlined and not there", &|plan| plan.inlined.push(u8::MAX));
    refused("more kinds than fit", &|plan| plan.kinds[0].count = u32::MAX);
    refused("a caller elsewhere", &|plan| plan.wrapper_returns.push(u64::MAX));
    refused("other static data", &|plan| plan.static_data = Some(0..u64::MAX));
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
    let cache = PlanCache::below(&case.file());
    assert!(!cache.plan(&case.image, case.family, ALLOWED).sites.is_empty());
    assert!(!PlanCache::below(Path::new("/proc")).plan(&case.image, case.family, ALLOWED).sites.is_empty());
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
    for n in 0..16 {
        let name = format!("{n:02}");
        opened.write(&name, b"x").expect("written");
        used_ago(&name, 1000 - n);
    }
    assert_eq!(opened.read("00").expect("a file"), b"x");
    opened.write("16", b"x").expect("written");
    assert_eq!(names().len(), 16);
    assert!(names().contains(&"00".to_owned()) && !names().contains(&"01".to_owned()), "{:?}", names());
    assert!(opened.write("17", &vec![0; MOST_BYTES as usize + 1]).is_err(), "it is too long");
    assert_eq!(names().len(), 16, "nothing is left of it");
}

#[test]
fn the_folder_is_systemds() {
    let below = |given: Option<&str>| PlanCache::below_given(given.map(OsStr::new)).folder;
    assert_eq!(below(Some("/var/cache/a:/var/cache/b")), Path::new("/var/cache/a/plans"));
    for given in [None, Some(""), Some("relative")] {
        assert_eq!(below(given), Path::new("/var/cache/armtrace/plans"));
    }
}

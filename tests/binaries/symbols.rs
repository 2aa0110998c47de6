//! Symbols from every source for a real server binary. With each of them, a stripped copy must have the same probe
//! sites and names as the unstripped program.
//!
//! Needs root: a debuginfod server listens on all addresses, so it runs in its own network namespace.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use armtrace::catalog::Naming;
use armtrace::discovery;
use armtrace::measure::latch::{plan, Allowed, Gap};
use armtrace::names::MariadbRules;
use armtrace::symbols::{
    complete, read_any, DebugRoots, Debuginfod, Image, Mismatch, Settings, SymbolSource, Trial, UnusableFile,
};
use lab::binaries;
use tempfile::TempDir;

/// The path of the stripped program in the root folders of these tests.
const PROGRAM: &str = "/usr/sbin/mariadbd";

/// MariaDB 11.4, unstripped and as packages ship it: stripped and a debug file.
struct Variants {
    folder: TempDir,
    original: PathBuf,
}

/// Returns the variants, which concurrent tests share. They are removed with the last test that uses them; a plain
/// static would never be dropped.
fn variants() -> Arc<Variants> {
    static SHARED: Mutex<Weak<Variants>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().expect("no test panicked here");
    shared.upgrade().unwrap_or_else(|| {
        let variants = Arc::new(Variants::new());
        *shared = Arc::downgrade(&variants);
        variants
    })
}

impl Variants {
    fn new() -> Variants {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let variants = Variants { original: binaries::mariadb_amd64_path(), folder };
        let (original, debug, stripped) = (&variants.original, variants.debug(), variants.stripped());
        run("objcopy", &[&"--only-keep-debug", original, &debug]);
        let link = format!("--add-gnu-debuglink={}", debug.display());
        run("objcopy", &[&"--strip-all", &link, original, &stripped]);
        variants
    }

    /// Checks that the stripped program with symbols from this source is equivalent to the original.
    fn equals_original_with(&self, roots: &DebugRoots, settings: &Settings, source: SymbolSource) {
        let (mut image, original) = (self.open_stripped(), self.open_original());
        assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
        let start = Instant::now();
        let trials = complete(&mut image, roots, settings, discovery::misses_symbols).expect("symbols");
        println!("{}: {:?}", source.as_str(), start.elapsed());
        assert_eq!(image.symbol_source(), source, "{trials:#?}");
        assert!(is_used(&trials, source), "{trials:#?}");
        let expected = seen(&original);
        assert!(expected.sites.len() >= 6 && expected.latches.len() >= 5, "{expected:#?}");
        assert_eq!(seen(&image), expected);
        assert_eq!(functions(&image), functions(&original));
    }

    fn open_stripped(&self) -> Image {
        Image::open(&self.stripped()).expect("the stripped program")
    }

    fn open_original(&self) -> Image {
        Image::open(&self.original).expect("the program")
    }

    fn debug(&self) -> PathBuf {
        self.folder.path().join("mariadbd.debug")
    }

    fn stripped(&self) -> PathBuf {
        self.folder.path().join("mariadbd")
    }
}

type Argument<'a> = &'a dyn AsRef<std::ffi::OsStr>;

fn run(program: &str, arguments: &[Argument]) {
    let mut command = Command::new(program);
    command.args(arguments.iter().map(AsRef::as_ref));
    let output = command.output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates a root folder with links to files, given as their paths in the root and the files to link.
fn root(files: &[(&str, &Path)]) -> (TempDir, DebugRoots) {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    for (path, from) in files {
        let to = folder.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        if fs::hard_link(from, &to).is_err() {
            fs::copy(from, to).expect("a copy");
        }
    }
    let roots = DebugRoots::in_folder(folder.path(), Path::new(PROGRAM)).expect("the folder");
    (folder, roots)
}

fn build_id_path(image: &Image) -> String {
    let id = image.build_id();
    format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..])
}

fn with(file: &Path) -> Settings {
    Settings { file: Some(file.to_owned()), debuginfod: None }
}

/// What the analysis of an image finds: probe sites, what is not measured, and the latches in static data.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sites: Vec<(String, u64, String)>,
    wrapper_returns: Vec<u64>,
    gaps: Vec<Gap>,
    latches: BTreeMap<u64, String>,
}

fn seen(image: &Image) -> Seen {
    let family = discovery::family(image).expect("a known family");
    let plan = plan(image, family, Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true });
    let Naming::Mariadb(names) = family.naming else { panic!("this is MySQL") };
    let rules = MariadbRules::new(image, family, names);
    let latches = rules.statics().iter().map(|(&word, name)| (word, name.event.clone())).collect();
    Seen {
        sites: plan.sites.into_iter().map(|s| (s.name, s.addr, s.instruction)).collect(),
        wrapper_returns: plan.wrapper_returns,
        gaps: plan.gaps,
        latches,
    }
}

/// Returns the name of every function, by address.
fn functions(image: &Image) -> BTreeMap<u64, String> {
    let functions = image.symbols().filter(|s| s.is_function && s.size > 0).map(|s| s.addr);
    functions.filter_map(|addr| Some((addr, image.symbol_at(addr)?.name.to_owned()))).collect()
}

fn is_used(trials: &[Trial], source: SymbolSource) -> bool {
    trials.iter().any(|t| t.source == source && t.outcome.is_ok())
}

#[test]
fn a_debug_file_by_build_id() {
    let variants = variants();
    let (_folder, roots) = root(&[(&build_id_path(&variants.open_original()), &variants.debug())]);
    variants.equals_original_with(&roots, &Settings::default(), SymbolSource::BuildId);
}

#[test]
fn a_debug_file_by_debuglink() {
    let variants = variants();
    for folder in ["/usr/sbin", "/usr/sbin/.debug", "/usr/lib/debug/usr/sbin"] {
        let (_folder, roots) = root(&[(&format!("{folder}/mariadbd.debug"), &variants.debug())]);
        variants.equals_original_with(&roots, &Settings::default(), SymbolSource::Debuglink);
    }
}

#[test]
fn a_named_debug_file() {
    let variants = variants();
    let (_folder, roots) = root(&[]);
    variants.equals_original_with(&roots, &with(&variants.debug()), SymbolSource::File);
    variants.equals_original_with(&roots, &with(&variants.original), SymbolSource::File);
}

fn armtrace(arguments: &[Argument]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.args(arguments.iter().map(AsRef::as_ref)).output().expect("armtrace runs")
}

#[test]
fn a_symbol_file() {
    let variants = variants();
    let (folder, roots) = root(&[]);
    let file = folder.path().join("mariadbd.symbols");
    for from in [&variants.debug(), &variants.original] {
        let output = armtrace(&[&"symbols", &"export", from, &"-o", &file]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let size = fs::metadata(&file).expect("the file").len();
        println!("{}", String::from_utf8_lossy(&output.stdout));
        assert!(size < 3 << 20, "{size} bytes");
        variants.equals_original_with(&roots, &with(&file), SymbolSource::File);
    }
    // A symbol file can itself be exported.
    let again = folder.path().join("again");
    assert!(armtrace(&[&"symbols", &"export", &file, &"-o", &again]).status.success());
    assert_eq!(fs::read(&file).expect("a file"), fs::read(&again).expect("a file"));
}

/// As in distributions, the program contains a compressed symbol table of the functions that are not in `.dynsym`.
#[test]
fn functions_from_mini_debug_info() {
    let variants = variants();
    let (folder, roots) = root(&[]);
    let file = |name: &str| folder.path().join(name);
    let script = r#"
        nm -D "$1" --format=posix --defined-only | awk '{ print $1 }' | sort -u > exported
        nm "$2" --format=posix --defined-only | awk '$2 == "T" || $2 == "t" { print $1 }' | sort -u > functions
        comm -13 exported functions > kept
        objcopy --strip-all --remove-section .comment --keep-symbols=kept "$2" mini
        xz mini
        objcopy --add-section .gnu_debugdata=mini.xz "$1" mariadbd
    "#;
    let mut shell = Command::new("bash");
    shell.args(["-ec", script, "mini"]).arg(variants.stripped()).arg(variants.debug()).current_dir(folder.path());
    assert!(shell.status().expect("bash").success());
    let mut image = Image::open(&file("mariadbd")).expect("a program");
    let trials = complete(&mut image, &roots, &Settings::default(), |_| false).expect("symbols");
    assert_eq!(image.symbol_source(), SymbolSource::MiniDebugInfo, "{trials:#?}");
    let expected = variants.open_original();
    assert_eq!(seen(&image).sites, seen(&expected).sites);
    // It has no data symbols, and a function with several names may have kept a different one.
    assert!(image.symbol("log_sys").is_none() && expected.symbol("log_sys").is_some());
    assert!(!discovery::misses_symbols(&image), "the functions that matter have names");
    assert!(discovery::misses_symbols(&Image::open(&variants.stripped()).expect("a program")));
    for (addr, name) in functions(&expected) {
        assert!(image.symbols().any(|s| s.addr == addr) || name.contains("."), "{name} at {addr:#x}");
    }

    // A full debug file is preferred.
    let (_folder, roots) = root(&[(&build_id_path(&image), &variants.debug())]);
    let mut image = Image::open(&file("mariadbd")).expect("a program");
    complete(&mut image, &roots, &Settings::default(), |_| false).expect("symbols");
    assert_eq!(image.symbol_source(), SymbolSource::BuildId);
    assert_eq!(seen(&image), seen(&expected));
}

/// Creates a copy of the debug file with a different build ID.
fn of_another_build(variants: &Variants, folder: &Path) -> PathBuf {
    let other = folder.join("other.debug");
    let note = folder.join("note");
    let mut bytes = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0".to_vec();
    bytes.extend([0x5a; 20]);
    fs::write(&note, bytes).expect("a file");
    let section = format!(".note.gnu.build-id={}", note.display());
    run("objcopy", &[&"--update-section", &section, &variants.debug(), &other]);
    other
}

#[test]
fn another_builds_file_is_not_used() {
    let variants = variants();
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let other = of_another_build(&variants, scratch.path());
    let id = build_id_path(&variants.open_original());
    let (_folder, roots) = root(&[(&id, &other), ("/usr/sbin/mariadbd.debug", &other)]);
    let mut image = variants.open_stripped();
    let trials = complete(&mut image, &roots, &Settings::default(), discovery::misses_symbols).expect("no failure");
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
    for source in [SymbolSource::BuildId, SymbolSource::Debuglink] {
        let refused = |t: &&Trial| t.source == source && t.is_failure() && t.to_string().contains("another build");
        assert_eq!(trials.iter().filter(refused).count(), 1, "{trials:#?}");
    }
    let why = complete(&mut image, &roots, &with(&other), |_| true).expect_err("another build");
    let why = why.to_string();
    assert!(why.contains("another build") && why.contains(&variants.open_original().build_id()), "{why}");
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
    // The right debug file is found among wrong ones.
    let (_folder, roots) = root(&[(&id, &other), ("/usr/sbin/.debug/mariadbd.debug", &variants.debug())]);
    variants.equals_original_with(&roots, &Settings::default(), SymbolSource::Debuglink);
}

#[test]
fn a_debuglink_needs_a_matching_checksum() {
    let variants = variants();
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let longer = scratch.path().join("mariadbd.debug");
    fs::copy(variants.debug(), &longer).expect("a copy");
    OpenOptions::new().append(true).open(&longer).and_then(|mut f| f.write_all(&[0])).expect("one byte more");
    let (_folder, roots) = root(&[("/usr/sbin/mariadbd.debug", &longer)]);
    let mut image = variants.open_stripped();
    let trials = complete(&mut image, &roots, &Settings::default(), |_| true).expect("no failure");
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
    assert!(trials.iter().any(|t| t.is_failure() && t.to_string().contains("checksum")), "{trials:#?}");
}

/// Debian's debuginfod, serving one folder in this thread's own network namespace.
struct Server {
    process: Child,
    port: u16,
    _database: TempDir,
}

impl Server {
    fn start(folder: &Path) -> Server {
        // SAFETY: takes no pointers. It affects only this thread and its children.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "needs root");
        run("ip", &[&"link", &"set", &"lo", &"up"]);
        let database = tempfile::tempdir().expect("a folder");
        let port = 8002;
        let process = Command::new("debuginfod")
            .args(["--disable-source-scan", "--port", &port.to_string(), "--scan-file-dir", "--database"])
            .arg(database.path().join("db"))
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("debuginfod starts; Debian's package debuginfod has it");
        Server { process, port, _database: database }
    }

    fn settings(&self, cache: &Path, extra: &[(&'static str, &str)]) -> Settings {
        let url = format!("http://127.0.0.1:{}", self.port);
        settings(&url, cache, extra)
    }
}

fn settings(urls: &str, cache: &Path, extra: &[(&'static str, &str)]) -> Settings {
    let mut variables: BTreeMap<&str, OsString> = extra.iter().map(|&(name, value)| (name, value.into())).collect();
    variables.insert("DEBUGINFOD_URLS", urls.into());
    variables.insert("DEBUGINFOD_CACHE_PATH", cache.into());
    Settings { file: None, debuginfod: Debuginfod::from_variables(|name| variables.get(name).cloned(), true) }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn debuginfod_trial(trials: Vec<Trial>) -> Trial {
    trials.into_iter().find(|t| t.source == SymbolSource::Debuginfod).expect("debuginfod was considered")
}

#[test]
fn a_debuginfod_server() {
    let variants = variants();
    let (_folder, roots) = root(&[]);
    let cache = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let served = tempfile::tempdir_in("/var/tmp").expect("a folder");
    fs::hard_link(variants.debug(), served.path().join("mariadbd.debug")).expect("a link");
    let server = Server::start(served.path());
    let request = |settings: &Settings| {
        let mut image = variants.open_stripped();
        let trials = complete(&mut image, &roots, settings, discovery::misses_symbols).expect("no failure");
        (image, debuginfod_trial(trials))
    };

    // The server has the file only after it has scanned the folder.
    let start = Instant::now();
    while request(&server.settings(cache.path(), &[])).1.outcome.is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "debuginfod does not serve");
        std::thread::sleep(Duration::from_millis(200));
    }
    variants.equals_original_with(&roots, &server.settings(cache.path(), &[]), SymbolSource::Debuginfod);
    let cached = cache.path().join(variants.open_original().build_id()).join("debuginfo");
    assert_eq!(fs::metadata(&cached).expect("it is in the cache").len(), fs::metadata(variants.debug()).unwrap().len());

    // A file that is too large is not downloaded, and no part of it remains.
    let other = tempfile::tempdir().expect("a folder");
    let (_, trial) = request(&server.settings(other.path(), &[("DEBUGINFOD_MAXSIZE", "1000000")]));
    assert!(trial.is_failure() && trial.to_string().contains("DEBUGINFOD_MAXSIZE"), "{trial}");
    assert_eq!(fs::read_dir(other.path().join(variants.open_original().build_id())).expect("a folder").count(), 0);

    // There is no request if no symbols are missing, or if the user has configured no server.
    let mut image = variants.open_stripped();
    let trials = complete(&mut image, &roots, &server.settings(other.path(), &[]), |_| false).expect("no failure");
    assert!(!debuginfod_trial(trials).is_failure() && image.symbol_source() == SymbolSource::Dynsym);
    let trials = complete(&mut image, &roots, &Settings::default(), |_| true).expect("no failure");
    let trial = debuginfod_trial(trials);
    assert!(trial.to_string().contains("DEBUGINFOD_URLS is not set"), "{trial}");

    // A cached file needs no server. Without either, the failure is reported.
    drop(server);
    let stopped = "http://127.0.0.1:8002";
    assert_eq!(request(&settings(stopped, cache.path(), &[])).0.symbol_source(), SymbolSource::Debuginfod);
    let (image, trial) = request(&settings(stopped, other.path(), &[]));
    assert!(trial.is_failure() && trial.to_string().contains("refused"), "{trial}");
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
}

/// MySQL exports all symbols that are needed, so nothing is downloaded for it.
#[test]
fn mysql_misses_nothing() {
    for image in [binaries::mysql_amd64(), binaries::mysql_arm64()] {
        assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
        assert!(!discovery::misses_symbols(&image));
    }
}

/// Only the symbol table of a debug file is read, so that debug info does not delay attaching.
#[test]
fn debug_info_is_not_read() {
    let variants = variants();
    let before = bytes_read();
    let start = Instant::now();
    let found = read_any(&variants.debug()).expect("the debug file");
    let (took, read) = (start.elapsed(), bytes_read() - before);
    println!("{} symbols: {read} bytes read in {took:?}", found.symbols.iter().count());
    assert!(read < 10 << 20, "{read} bytes of {}", fs::metadata(variants.debug()).unwrap().len());
}

/// Returns the number of bytes that this thread has read so far.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").expect("I/O counters");
    let line = io.lines().find_map(|l| l.strip_prefix("rchar: ")).expect("a line");
    line.parse().expect("a number")
}

mod hostile {
    use super::*;

    /// A xorshift generator, so that the damage is the same in every run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end.max(1) as u64) as usize
        }
    }

    /// Creates a small program with symbols and the files derived from it.
    fn samples(folder: &Path) -> Vec<PathBuf> {
        let source = folder.join("small.c");
        fs::write(&source, "int datum = 1; static int inner(int x) { return x * datum; } int main(int c, char **v) { return inner(c); }")
            .expect("a file");
        let (program, debug) = (folder.join("small"), folder.join("small.debug"));
        run("gcc", &[&"-g", &"-Wl,--build-id", &source, &"-o", &program]);
        run("objcopy", &[&"--only-keep-debug", &program, &debug]);
        let (portable, mini) = (folder.join("small.symbols"), folder.join("small.mini"));
        run("xz", &[&"--keep", &debug]);
        let section = format!(".gnu_debugdata={}.xz", debug.display());
        run("objcopy", &[&"--strip-all", &"--add-section", &section, &program, &mini]);
        assert!(armtrace(&[&"symbols", &"export", &debug, &"-o", &portable]).status.success());
        let found = read_any(&portable).expect("a symbol file");
        assert!(found.symbols.by_name("inner").is_some() && found.symbols.by_name("datum").is_some());
        vec![program, debug, portable, mini]
    }

    /// Returns the peak memory of this process so far, in bytes.
    fn peak_memory() -> u64 {
        let status = fs::read_to_string("/proc/self/status").expect("the status");
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Files that are truncated at many lengths or changed in many roots are rejected or read, but nothing worse
    /// happens.
    #[test]
    fn damaged_files_do_no_harm() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("damaged");
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (_folder, roots) = root(&[]);
        let before = peak_memory();
        let examine = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("a file");
            let found = read_any(&file);
            if let Ok(mut image) = Image::open(&file) {
                _ = complete(&mut image, &roots, &Settings::default(), |_| true);
                _ = (image.function_at(image.extent().start), image.relative_relocations(), image.imports());
            }
            found
        };
        let samples = samples(folder.path());
        let mut mini = Image::open(&samples[3]).expect("a program");
        complete(&mut mini, &roots, &Settings::default(), |_| true).expect("symbols");
        assert_eq!(mini.symbol_source(), SymbolSource::MiniDebugInfo);
        for sample in samples {
            let whole = fs::read(&sample).expect("a sample");
            let is_portable = sample.extension().is_some_and(|e| e == "symbols");
            let step = (whole.len() / 500).max(1);
            for length in (0..whole.len()).step_by(step) {
                let found = examine(&whole[..length]);
                assert!(found.is_err() || !is_portable, "{} of {} bytes were accepted", length, whole.len());
            }
            for _ in 0..3000 {
                let mut damaged = whole.clone();
                for _ in 0..=random.below(4) {
                    // Change mostly headers, to small numbers, huge numbers, and numbers with one bit flipped.
                    let end = if random.below(2) == 0 { 128.min(damaged.len()) } else { damaged.len() };
                    let at = random.below(end);
                    match random.below(3) {
                        0 => damaged[at] ^= 1 << random.below(8),
                        1 => damaged[at..].iter_mut().take(8).for_each(|b| *b = 0xff),
                        _ => damaged[at] = random.below(256) as u8,
                    }
                }
                _ = examine(&damaged);
            }
        }
        let grown = peak_memory().saturating_sub(before);
        // The limit includes the memory of tests that run at the same time.
        assert!(grown < 1 << 30, "{grown} bytes");
    }

    /// A sparse file can really be as large as its symbol table claims.
    #[test]
    fn huge_tables_are_rejected() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        for sample in samples(folder.path()).into_iter().take(2) {
            let mut bytes = fs::read(&sample).expect("a sample");
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            // In ELF, 0x28 has the offset of the section headers. Each has 64 bytes, with its type at 4 and its size at
            // 32.
            let headers = number(0x28) as usize;
            let symtab = (headers..).step_by(64).find(|at| bytes[at + 4] == 2).expect("a symbol table");
            bytes[symtab + 32..symtab + 40].copy_from_slice(&(24_u64 << 30).to_le_bytes());
            let file = folder.path().join("hole");
            fs::write(&file, &bytes)
                .and_then(|()| OpenOptions::new().write(true).open(&file)?.set_len(64 << 30))
                .expect("a file");
            let (before, start) = (peak_memory(), Instant::now());
            assert!(read_any(&file).is_err());
            // The program's other symbols can still be used.
            assert!(Image::open(&file).map_or(true, |image| image.damage().is_some()));
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
            assert!(peak_memory() - before < 1 << 30);
        }
    }

    /// Symbols of the same program, marked as being for the other architecture, can be exported but do not match this
    /// program.
    #[test]
    fn symbols_of_the_other_architecture_are_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        let program = samples(folder.path()).remove(0);
        let mut bytes = fs::read(&program).expect("a sample");
        // e_machine: x86_64 is 62, aarch64 183.
        bytes[0x12] ^= 62 ^ 183;
        fs::write(file("other"), bytes).expect("a file");
        let symbols = file("other.symbols");
        assert!(armtrace(&[&"symbols", &"export", &file("other"), &"-o", &symbols]).status.success());
        let (_folder, roots) = root(&[]);
        for (of, from, fits) in [("other", &symbols, true), ("small", &symbols, false), ("other", &program, false)] {
            let mut image = Image::open(&file(of)).expect("a program");
            let result = complete(&mut image, &roots, &with(from), |_| true);
            assert_eq!(result.is_ok(), fits, "{result:?}");
            assert!(
                fits || result.is_err_and(|error| matches!(error.why, UnusableFile::Mismatch(Mismatch::Addresses)))
            );
        }
    }

    /// A decompression bomb: a small file that is 1 GiB when decompressed.
    #[test]
    fn a_decompression_bomb_is_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("bomb");
        let shell = "head -c 1G /dev/zero | tr '\\0' 'x' | gzip > \"$1\"";
        run("bash", &[&"-c", &shell, &"bomb", &file]);
        let error = read_any(&file).expect_err("too large").to_string();
        assert!(error.contains("too large"), "{error}");
    }
}

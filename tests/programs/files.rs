//! Files with symbols, and program files that were stripped or lack parts, of a small program.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use armtrace::discovery;
use armtrace::symbols::{complete, read_any, Damage, DebugRoots, Image, Settings, SymbolSource, Trial};
use tempfile::TempDir;

use super::{build, latch_plan, COMPILERS};

/// The path of the program in the root folders of these tests.
const PROGRAM: &str = "/usr/sbin/mariadbd";

/// A program, stripped and with a separate debug file, as packages ship it.
struct Variants {
    folder: TempDir,
}

impl Variants {
    fn new() -> Variants {
        let variants = Variants { folder: tempfile::tempdir().expect("a folder") };
        let (original, debug, stripped) = (variants.original(), variants.debug(), variants.stripped());
        build(COMPILERS[0], &["mariadb.c", "mariadb_keys.c"], &["-g", "-Wl,--build-id=sha1"], &original);
        run("objcopy", &[&"--only-keep-debug", &original, &debug]);
        let link = format!("--add-gnu-debuglink={}", debug.display());
        run("objcopy", &[&"--strip-all", &link, &original, &stripped]);
        variants
    }

    fn original(&self) -> PathBuf {
        self.folder.path().join("original")
    }

    fn debug(&self) -> PathBuf {
        self.folder.path().join("mariadbd.debug")
    }

    fn stripped(&self) -> PathBuf {
        self.folder.path().join("mariadbd")
    }

    /// Adds symbols to the stripped program, which misses some.
    fn completed(&self, roots: &DebugRoots, settings: &Settings) -> (Image, Vec<Trial>) {
        let mut image = open(&self.stripped());
        assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
        assert!(discovery::misses_symbols(&image));
        let trials = complete(&mut image, roots, settings, discovery::misses_symbols).expect("no failure");
        (image, trials)
    }

    /// Checks that the stripped program has the original's symbols with this source.
    fn equals_original_with(&self, roots: &DebugRoots, settings: &Settings, source: SymbolSource) {
        let (image, trials) = self.completed(roots, settings);
        assert_eq!(image.symbol_source(), source, "{trials:#?}");
        assert!(trials.iter().any(|trial| trial.source == source && trial.outcome.is_ok()), "{trials:#?}");
        assert_eq!(symbols(&image), symbols(&open(&self.original())));
        assert!(!discovery::misses_symbols(&image));
        assert!(image.symbols_in_words().contains("no .symtab, .dynsym with"), "{}", image.symbols_in_words());
    }
}

fn open(path: &Path) -> Image {
    Image::open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn run(program: &str, arguments: &[&dyn AsRef<OsStr>]) {
    let mut command = Command::new(program);
    command.args(arguments.iter().map(AsRef::as_ref));
    let output = command.output().unwrap_or_else(|error| panic!("{program} (tests/lab/setup): {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn armtrace(arguments: &[&dyn AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.args(arguments.iter().map(AsRef::as_ref)).output().expect("armtrace runs")
}

/// Returns the names, addresses and sizes of all symbols, of which those outside of the program are no symbols of it.
fn symbols(image: &Image) -> BTreeSet<(String, u64, u64, bool)> {
    image.symbols().map(|symbol| (symbol.name.to_owned(), symbol.addr, symbol.size, symbol.is_function)).collect()
}

/// Creates a root folder with copies of files, given as their paths in the root and the files to copy.
fn root(files: &[(&str, &Path)]) -> (TempDir, DebugRoots) {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, from) in files {
        let to = folder.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    }
    let roots = DebugRoots::in_folder(folder.path(), Path::new(PROGRAM)).expect("the folder");
    (folder, roots)
}

fn build_id_path(image: &Image) -> String {
    let id = image.build_id();
    assert_eq!(id.len(), 40, "{id}");
    format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..])
}

fn with(file: &Path) -> Settings {
    Settings { file: Some(file.to_owned()), debuginfod: None }
}

fn trial(trials: &[Trial], source: SymbolSource) -> &Trial {
    let mut of_source = trials.iter().filter(|trial| trial.source == source);
    let trial = of_source.next().expect("it was tried");
    assert!(of_source.next().is_none(), "{trials:#?}");
    trial
}

#[test]
fn debug_files_are_found_where_packages_install_them() {
    let variants = Variants::new();
    let id = build_id_path(&open(&variants.original()));
    let debug = variants.debug();
    let (_folder, roots) = root(&[(&id, &debug)]);
    variants.equals_original_with(&roots, &Settings::default(), SymbolSource::BuildId);
    for folder in ["/usr/sbin", "/usr/sbin/.debug", "/usr/lib/debug/usr/sbin"] {
        let (_folder, roots) = root(&[(&format!("{folder}/mariadbd.debug"), &debug)]);
        variants.equals_original_with(&roots, &Settings::default(), SymbolSource::Debuglink);
    }
    for file in [&debug, &variants.original()] {
        variants.equals_original_with(&root(&[]).1, &with(file), SymbolSource::File);
    }
}

#[test]
fn without_a_debug_file_each_source_says_why() {
    let variants = Variants::new();
    let (folder, roots) = root(&[]);
    let (image, trials) = variants.completed(&roots, &Settings::default());
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
    assert_eq!(image.symbol_file(), None);
    let said = |source| {
        let trial = trial(&trials, source);
        assert!(!trial.is_failure(), "{trial}");
        trial.to_string()
    };
    assert_eq!(said(SymbolSource::MiniDebugInfo), "minidebuginfo: the program has none");
    let build_id = said(SymbolSource::BuildId);
    let expected = folder.path().join(build_id_path(&image).trim_start_matches('/'));
    assert_eq!(build_id, format!("build-id: there is no {}", expected.display()));
    let debuglink = said(SymbolSource::Debuglink);
    assert_eq!(debuglink.matches("mariadbd.debug").count(), 3, "{debuglink}");
    assert_eq!(said(SymbolSource::Debuginfod), "debuginfod: not queried, because DEBUGINFOD_URLS is not set");
    // A program with its own symbol table needs no other.
    let mut original = open(&variants.original());
    let trials = complete(&mut original, &roots, &Settings::default(), |_| true).expect("no failure");
    assert!(trials.is_empty() && original.symbol_source() == SymbolSource::Symtab, "{trials:?}");
}

#[test]
fn a_program_without_build_id_takes_no_symbols() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    build(COMPILERS[0], &["mariadb.c", "mariadb_keys.c"], &["-s", "-Wl,--build-id=none"], &program);
    let mut image = open(&program);
    let (_folder, roots) = root(&[]);
    let trials = complete(&mut image, &roots, &Settings::default(), |_| true).expect("no failure");
    for (source, why) in [
        (SymbolSource::BuildId, "build-id: the program has no build id"),
        (SymbolSource::Debuglink, "debuglink: the program names no debug file"),
    ] {
        assert_eq!(trial(&trials, source).to_string(), why);
    }
    let whole = folder.path().join("whole");
    build(COMPILERS[0], &["mariadb.c", "mariadb_keys.c"], &["-Wl,--build-id=none"], &whole);
    let why = complete(&mut image, &roots, &with(&whole), |_| true).expect_err("no build id").to_string();
    assert!(why.starts_with(&format!("--symbols {}: the server's program has no", whole.display())), "{why}");
}

/// As in distributions, the program contains a compressed symbol table of its functions.
#[test]
fn functions_come_from_mini_debug_info() {
    let variants = Variants::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (mini, program) = (folder.path().join("mini"), folder.path().join("mariadbd"));
    run("objcopy", &[&"--strip-debug", &variants.debug(), &mini]);
    run("xz", &[&mini]);
    let section = format!(".gnu_debugdata={}.xz", mini.display());
    run("objcopy", &[&"--add-section", &section, &variants.stripped(), &program]);
    let id = build_id_path(&open(&variants.original()));
    let complete = |roots: &DebugRoots| {
        let mut image = open(&program);
        complete(&mut image, roots, &Settings::default(), discovery::misses_symbols).expect("no failure");
        image
    };
    let image = complete(&root(&[]).1);
    assert_eq!(image.symbol_source(), SymbolSource::MiniDebugInfo);
    assert!(image.symbols_in_words().contains("together with its .gnu_debugdata"), "{}", image.symbols_in_words());
    assert_eq!(symbols(&image), symbols(&open(&variants.original())));
    // A debug file is preferred.
    let (_folder, roots) = root(&[(&id, &variants.debug())]);
    assert_eq!(complete(&roots).symbol_source(), SymbolSource::BuildId);
}

#[test]
fn another_builds_file_is_not_used() {
    let variants = Variants::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (other, note) = (folder.path().join("other.debug"), folder.path().join("note"));
    let mut bytes = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0".to_vec();
    bytes.extend([0x5a; 20]);
    fs::write(&note, bytes).expect("a file");
    let section = format!(".note.gnu.build-id={}", note.display());
    run("objcopy", &[&"--update-section", &section, &variants.debug(), &other]);
    let original = open(&variants.original());
    let id = build_id_path(&original);
    let (_folder, roots) = root(&[(&id, &other), ("/usr/sbin/mariadbd.debug", &other)]);
    let (image, trials) = variants.completed(&roots, &Settings::default());
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
    for source in [SymbolSource::BuildId, SymbolSource::Debuglink] {
        let refused = trials.iter().filter(|trial| trial.source == source && trial.is_failure());
        let refused: Vec<String> = refused.map(Trial::to_string).collect();
        assert!(refused.len() == 1 && refused[0].contains("another build"), "{trials:#?}");
        assert!(refused[0].contains(&"5a".repeat(20)) && refused[0].contains(&original.build_id()), "{refused:?}");
    }
    // The right debug file is found among wrong ones.
    let (_folder, roots) = root(&[(&id, &other), ("/usr/sbin/.debug/mariadbd.debug", &variants.debug())]);
    variants.equals_original_with(&roots, &Settings::default(), SymbolSource::Debuglink);
}

#[test]
fn a_debuglink_needs_a_matching_checksum() {
    let variants = Variants::new();
    let longer = variants.folder.path().join("longer");
    fs::copy(variants.debug(), &longer).expect("a copy");
    OpenOptions::new().append(true).open(&longer).and_then(|mut file| file.write_all(&[0])).expect("one byte more");
    let (_folder, roots) = root(&[("/usr/sbin/mariadbd.debug", &longer)]);
    let (image, trials) = variants.completed(&roots, &Settings::default());
    assert_eq!(image.symbol_source(), SymbolSource::Dynsym);
    assert!(trials.iter().any(|trial| trial.is_failure() && trial.to_string().contains("checksum")), "{trials:#?}");
}

#[test]
fn a_symbol_file_replaces_a_debug_file() {
    let variants = Variants::new();
    let folder = tempfile::tempdir().expect("a folder");
    let [file, again] = ["mariadbd.symbols", "again"].map(|name| folder.path().join(name));
    for from in [&variants.debug(), &variants.original()] {
        let output = armtrace(&[&"symbols", &"export", from, &"-o", &file]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let size = fs::metadata(&file).expect("the file").len();
        assert!(size > 100, "{size} bytes");
        assert!(text.contains("mariadbd.symbols"), "{text}");
        variants.equals_original_with(&root(&[]).1, &with(&file), SymbolSource::File);
    }
    // A symbol file can itself be exported.
    assert!(armtrace(&[&"symbols", &"export", &file, &"-o", &again]).status.success());
    assert_eq!(fs::read(&file).expect("a file"), fs::read(&again).expect("a file"));
    // A name without a folder is one in the current folder.
    let mut here = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    here.args(["symbols", "export", "again", "-o", "here"]).current_dir(folder.path());
    assert!(here.output().expect("armtrace runs").status.success());
    assert_eq!(fs::read(&file).expect("a file"), fs::read(folder.path().join("here")).expect("a file"));
}

#[test]
fn failed_exports_are_explained() {
    let variants = Variants::new();
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("out");
    let nothing = folder.path().join("nothing");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let nowhere = Path::new("/proc/nowhere");
    for (from, to, status, words) in [
        (&variants.stripped(), to.as_path(), 1, "no symbol table"),
        (&manifest, &to, 1, "not a usable ELF file"),
        (&nothing, &to, 1, "cannot read it"),
        (&variants.debug(), nowhere, 1, "cannot write"),
    ] {
        let output = armtrace(&[&"symbols", &"export", from, &"-o", &to]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 0);
}

/// The section headers are for linkers and debuggers; the loader works without them.
#[test]
fn without_section_headers_everything_the_loader_needs_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    for compiler in COMPILERS {
        let program = folder.path().join("program");
        let sources = ["mysql_8_0.c", "mysql_names.c", "mysql_keys.c"];
        build(compiler, &sources, &["-s", "-DLINE_AT=0x38", "-DMAKER=\"MySQL\"", "-Wl,--build-id=sha1"], &program);
        let whole = open(&program);
        let bare = folder.path().join("bare");
        fs::copy(&program, &bare).expect("a copy");
        let file = OpenOptions::new().write(true).open(&bare).expect("the copy");
        // In the ELF header: where the section headers are, their number, and which of them has the names.
        file.write_all_at(&[0; 8], 0x28).and_then(|()| file.write_all_at(&[0; 4], 0x3c)).expect("space for it");
        let bare = open(&bare);
        assert!(matches!(bare.damage(), Some(Damage::NoSections)), "{:?}", bare.damage());
        assert!(whole.damage().is_none());
        assert_eq!((bare.symbol_source(), bare.build_id()), (SymbolSource::Dynsym, whole.build_id()), "{compiler}");
        assert_eq!(symbols(&bare), symbols(&whole), "{compiler}");
        assert_eq!(bare.functions(), whole.functions(), "{compiler}");
        assert_eq!(bare.static_pointers(), whole.static_pointers(), "{compiler}");
        assert_eq!(bare.imports(), whole.imports(), "{compiler}");
        assert!(whole.imports().values().any(|name| name == "pthread_mutex_init"), "{compiler}");
        assert_eq!(bare.exported_functions(), whole.exported_functions(), "{compiler}");
        assert_eq!(bare.section(".bss").map(|range| range.end), whole.section(".bss").map(|range| range.end));
        let sites = |image: &Image| -> Vec<(String, u64)> {
            latch_plan(image).sites.into_iter().map(|site| (site.name, site.addr)).collect()
        };
        assert!(sites(&whole).len() >= 4, "{:?}", sites(&whole));
        assert_eq!(sites(&bare), sites(&whole), "{compiler}");
    }
}

/// Functions and data of a known program, by what its symbols say.
#[test]
fn the_image_of_a_program_is_that_of_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, word) in COMPILERS.into_iter().zip(["x86_64", "aarch64"]) {
        let program = folder.path().join("program");
        build(compiler, &["mariadb.c", "mariadb_keys.c"], &[], &program);
        let image = open(&program);
        assert_eq!((image.arch().as_str(), image.symbol_source()), (word, SymbolSource::Symtab));
        assert!(image.symbols_in_words().starts_with(".symtab with "), "{}", image.symbols_in_words());
        let symbol = |name: &str| image.symbol(name).unwrap_or_else(|| panic!("{name}"));
        let version = symbol("server_version");
        assert_eq!(image.cstr(version.addr), Some("11.4.5-MariaDB"));
        assert_eq!(image.cstr(version.addr + 7), Some("MariaDB"));
        assert_eq!(image.bytes(version.addr, 4), Some(&b"11.4"[..]));
        assert!(image.has_string(b"MariaDB Server") && !image.has_string(b"Percona"));
        assert!(!version.is_function && !image.is_static_data(version.addr));
        for name in ["srv_n_spin_wait_rounds", "log_sys"] {
            let data = symbol(name);
            assert!(image.is_static_data(data.addr), "{name}");
            assert!(image.static_data().is_some_and(|range| range.contains(&data.addr)), "{name}");
            assert_eq!(image.symbol_at(data.addr + data.size - 1).map(|s| s.name), Some(name));
        }
        // What is zero at first is not in the file.
        assert_eq!(image.bytes(symbol("log_sys").addr, 1), None);
        assert_eq!(image.bytes(symbol("srv_n_spin_wait_rounds").addr, 8), Some(&30_u64.to_le_bytes()[..]));
        let start = symbol("start");
        let range = image.function_at(start.addr).expect("its bounds");
        assert_eq!(range, start.addr..start.addr + start.size, "{compiler}");
        assert_eq!(image.function_at(range.end - 1), Some(range.clone()), "{compiler}");
        assert!(image.functions().contains(&range), "{compiler}");
        assert_eq!(image.function_at(version.addr), None);
        // The first of the variables: its name, and the variable.
        let variables = symbol("variables").addr;
        let pointers: BTreeMap<u64, u64> = image.static_pointers().into_iter().collect();
        assert_eq!(pointers.get(&(variables + 8)).and_then(|at| image.cstr(*at)), Some("sync_spin_loops"));
        assert_eq!(pointers.get(&(variables + 40)), Some(&symbol("srv_n_spin_wait_rounds").addr));
        assert!(image.extent().contains(&symbol("log_sys").addr) && !image.extent().contains(&(1 << 40)));
        let offset = image.file_offset(start.addr).expect("it is in the file");
        assert_eq!(image.page_address_of(offset), Some(start.addr));
    }
}

/// The text of these symbol files is wrong, although it is compressed correctly and has the right checksum.
#[test]
fn inconsistent_symbol_files_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("symbols.gz");
    let read = |text: &str| {
        let plain = folder.path().join("symbols");
        fs::write(&plain, text).expect("a file");
        run("gzip", &[&"-f", &plain]);
        read_any(&file)
    };
    let head = "armtrace-symbols 1\narch x86_64\nbuild-id abcd\ntext 1000 2000\n";
    let good = read(&format!("{head}symbols 2\n1000 10 f main\n10 4 d datum\n")).expect("a symbol file");
    assert_eq!(good.symbols.by_name("datum").map(|s| s.addr), Some(0x1010));
    for (text, why) in [
        (format!("{head}symbols 18446744073709551615\n1000 10 f main\n"), "damaged"),
        (format!("{head}symbols 1\n1000 10 f main\n10 4 d datum\n"), "damaged"),
        (format!("{head}symbols 2\n1000 10 f main\n"), "damaged"),
        (format!("{head}symbols 2\n1000 10 f main\nffffffffffffffff 4 d datum\n"), "damaged"),
        (format!("{head}symbols 1\n1000 10 x main\n"), "damaged"),
        (format!("{head}symbols 1\n1000 -1 f main\n"), "damaged"),
        (head.replace("abcd", "abc"), "damaged"),
        (head.replace("abcd", "ab\u{20ac}d"), "damaged"),
        (head.replace("x86_64", "vax"), "damaged"),
        (head.replace("symbols 1", "symbols 2"), "its version is 2"),
        ("hello\n".to_owned(), "not an armtrace symbol file"),
        (String::new(), "not an armtrace symbol file"),
    ] {
        let error = read(&text).expect_err(&text).to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

//! Whether the modules use each other as `docs/explanation/architecture.md` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A module's layer, counted from the top, and whether the modules of this layer may use each other.
#[derive(Clone, Copy)]
struct Layer {
    number: usize,
    is_joined: bool,
}

impl Layer {
    /// Returns whether this layer's modules may use a module of another layer, or of this one.
    fn may_use(self, other: Layer) -> bool {
        self.number < other.number || (self.number == other.number && self.is_joined)
    }
}

/// Each module's layer. Modules with a `+` between them are joined.
fn layers() -> BTreeMap<String, Layer> {
    let page = fs::read_to_string(root().join("docs/explanation/architecture.md")).expect("the page");
    let (_, rest) = page.split_once("```layers\n").expect("a block of layers");
    let (block, _) = rest.split_once("```").expect("its end");
    let modules = |(number, line): (usize, &str)| -> Vec<(String, Layer)> {
        let layer = Layer { number, is_joined: line.contains('+') };
        line.split([' ', '+']).filter(|module| !module.is_empty()).map(|module| (module.to_owned(), layer)).collect()
    };
    block.lines().enumerate().flat_map(modules).collect()
}

/// The source files of each top-level module.
fn modules() -> BTreeMap<String, Vec<PathBuf>> {
    let mut modules = BTreeMap::new();
    for entry in fs::read_dir(root().join("src")).expect("the sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            modules.insert(name, files_in(&path));
        } else if !["lib", "main"].contains(&name.as_str()) {
            modules.insert(name, vec![path]);
        }
    }
    modules
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

/// The modules that a file's text names as `crate::MODULE`, its tests included.
fn used(text: &str) -> BTreeSet<&str> {
    let after = text.split("crate::").skip(1);
    let name = |rest: &'_ str| rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    after.map(|rest| &rest[..name(rest)]).filter(|name| !name.is_empty()).collect()
}

#[test]
fn modules_use_only_what_is_below_them() {
    let layers = layers();
    let mut wrong = Vec::new();
    for (module, files) in modules() {
        let layer = *layers.get(&module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
            let text = fs::read_to_string(file).expect("a source file");
            assert!(!text.contains("use crate::{"), "{}: import from one module at a time", file.display());
            let upward = used(&text).into_iter().filter(|used| *used != module);
            let upward = upward.filter(|used| layers.get(*used).is_some_and(|other| !layer.may_use(*other)));
            wrong.extend(upward.map(|used| format!("{} uses {used}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The catalog describes programs; it does not read them.
#[test]
fn the_catalog_is_data() {
    for file in files_in(&root().join("src/catalog")) {
        let text = fs::read_to_string(&file).expect("a source file");
        let code = text.split("#[cfg(test)]\nmod tests").next().expect("its beginning");
        let imports = code.lines().filter_map(|line| line.strip_prefix("use crate::symbols::"));
        let names = imports.flat_map(|names| names.trim_matches(['{', '}', ';']).split(", "));
        let others: Vec<&str> = names.filter(|name| !["Arch", "Parameter"].contains(name)).collect();
        assert!(others.is_empty(), "{} uses {others:?}", file.display());
    }
}

/// How instructions are encoded is known in one place.
#[test]
fn only_isa_decodes_instructions() {
    let others = modules().into_iter().filter(|(module, _)| module != "isa").flat_map(|(_, files)| files);
    let decodes = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a source file");
        ["iced_x86", "yaxpeax"].iter().any(|decoder| text.contains(decoder))
    };
    let wrong: Vec<PathBuf> = others.filter(decodes).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The formatters keep code within the width, but not comments.
#[test]
fn comments_are_within_120_columns() {
    let files = ["src", "bpf", "tests", "benches", "fuzz/fuzz_targets"].map(|folder| files_in(&root().join(folder)));
    let is_code =
        |file: &PathBuf| file.extension().is_some_and(|kind| ["rs", "c", "h"].iter().any(|code| kind == *code));
    let mut wrong = Vec::new();
    for file in files.into_iter().flatten().filter(is_code) {
        let text = fs::read_to_string(&file).expect("a source file");
        let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > 120;
        let lines = text.lines().enumerate().filter(|(_, line)| is_wide(line));
        wrong.extend(lines.map(|(number, _)| format!("{}:{}", file.display(), number + 1)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_layer_has_modules_that_exist() {
    let modules = modules();
    let gone: Vec<_> = layers().into_keys().filter(|layer| !modules.contains_key(layer)).collect();
    assert!(gone.is_empty(), "no such module: {gone:?}");
}

#[test]
fn uses_are_found() {
    let text = "use crate::model::Kind;\nlet x = crate::attach::f(y);\nuse super::z;";
    assert_eq!(used(text), BTreeSet::from(["attach", "model"]));
}

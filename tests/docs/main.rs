//! Whether the documentation is whole: its links, its table of contents, the pages that the code names, its commands
//! and settings.

mod commands;
mod configuration;
mod links;
mod runbooks;

use std::fs;
use std::path::Path;

/// The folder of the book.
const BOOK: &str = "docs";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// Returns the files below a folder, or the file itself, relative to the project's root; built files are left out.
fn files_below(path: &str) -> Vec<String> {
    let full = root().join(path);
    if full.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(&full).unwrap_or_else(|e| panic!("{path}: {e}"));
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let kept = names.filter(|name| !["target", "results", "book"].contains(&name.as_str()));
    kept.flat_map(|name| files_below(&format!("{path}/{name}"))).collect()
}

/// Returns the Markdown files of the project.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root()).expect("the project").map(|entry| entry.expect("an entry").file_name());
    let top = entries.map(|name| name.to_string_lossy().into_owned()).filter(|name| root().join(name).is_file());
    let below = [BOOK, "tests", "fuzz", "scripts", "packaging", "benches", "dashboards"];
    let files = top.chain(below.iter().flat_map(|folder| files_below(folder)));
    files.filter(|file| file.ends_with(".md")).collect()
}

//! The chain of sources for a program's symbols.
//!
//! They are tried in this order, until one has the full symbol table. What the program itself contains is used in any
//! case:
//!
//! 1. a file that the user named (`--symbols`), and then nothing else
//! 2. `.symtab`, `.dynsym`: in the program
//! 3. MiniDebugInfo: in the program, functions only
//! 4. a debug file in a directory of build IDs, in the server's root directory, then on the host
//! 5. the debug file that the program names (`.gnu_debuglink`), in the same roots
//! 6. debuginfod servers, if the user has named any and the catalog misses something

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use super::debug_file::{debuglink_crc, DebugFile};
use super::debug_roots::DebugRoots;
use super::debuginfod::Debuginfod;
use super::debuglink::Debuglink;
use super::image::{Image, SymbolSource};
use super::portable;

/// The user's settings for the chain.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// An armtrace symbol file or a debug file, to be used instead of a search.
    pub file: Option<PathBuf>,
    /// The servers to query; `None` if the user has named none.
    pub debuginfod: Option<Debuginfod>,
}

impl Settings {
    /// Returns the settings from the environment and the option `--symbols`.
    pub fn from_env(file: Option<PathBuf>) -> Settings {
        Settings { file, debuginfod: Debuginfod::from_env() }
    }
}

/// A source that was tried, and the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The source.
    pub source: SymbolSource,
    /// Where its symbols are, or why it has none.
    pub outcome: Result<PathBuf, String>,
    /// Whether something was found that cannot be used, which deserves a warning.
    pub is_failure: bool,
}

impl Trial {
    fn absent(source: SymbolSource, why: impl Into<String>) -> Trial {
        Trial { source, outcome: Err(why.into()), is_failure: false }
    }

    fn failed(source: SymbolSource, why: impl Into<String>) -> Trial {
        Trial { source, outcome: Err(why.into()), is_failure: true }
    }

    fn found(source: SymbolSource, path: PathBuf) -> Trial {
        Trial { source, outcome: Ok(path), is_failure: false }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(path) => write!(f, "{}: {}", self.source.as_str(), path.display()),
            Err(why) => write!(f, "{}: {why}", self.source.as_str()),
        }
    }
}

/// Gives `image` the symbols that can be found, and returns what was tried beyond its own. Debuginfod servers are
/// queried only if `misses_some` returns true for the image after everything else.
///
/// # Errors
/// Fails when the file that the user named cannot be used, saying what is wrong with it.
pub fn complete(
    image: &mut Image,
    roots: &DebugRoots,
    settings: &Settings,
    misses_some: impl Fn(&Image) -> bool,
) -> Result<Vec<Trial>, String> {
    if let Some(path) = &settings.file {
        let shown = |why: String| format!("--symbols {}: {why}", path.display());
        add_named_file(image, path).map_err(shown)?;
        return Ok(vec![Trial::found(SymbolSource::File, path.clone())]);
    }
    if image.symbol_source() == SymbolSource::Symtab {
        return Ok(Vec::new());
    }
    let mut chain = Chain { image, roots, trials: Vec::new() };
    chain.mini_debug_info();
    if !(chain.build_id() || chain.debuglink()) {
        let is_needed = misses_some(chain.image);
        chain.debuginfod(settings.debuginfod.as_ref(), is_needed);
    }
    Ok(chain.trials)
}

fn add_named_file(image: &mut Image, path: &Path) -> Result<(), String> {
    let found = read_any(path)?;
    if image.identity().build_id.is_empty() {
        return Err(
            "the server's program has no build id, so armtrace cannot verify that these symbols belong to it".into()
        );
    }
    image.identity().check(&found.identity)?;
    image.add_symbols(&found.symbols, SymbolSource::File, Some(path.to_owned()))
}

/// Reads an armtrace symbol file, or an ELF file with a symbol table.
///
/// # Errors
/// Fails with the reason why the file is unusable.
pub fn read_any(path: &Path) -> Result<DebugFile, String> {
    let read = |e: io::Error| format!("cannot read it: {e}");
    let mut file = File::open(path).map_err(read)?;
    let mut begin = Vec::new();
    (&file).take(4).read_to_end(&mut begin).map_err(read)?;
    file.rewind().map_err(read)?;
    if portable::is_portable(&begin) {
        portable::read(file)
    } else {
        DebugFile::read(&file)
    }
}

struct Chain<'a> {
    image: &'a mut Image,
    roots: &'a DebugRoots,
    trials: Vec<Trial>,
}

impl Chain<'_> {
    fn mini_debug_info(&mut self) {
        let source = SymbolSource::MiniDebugInfo;
        let Some(section) = self.image.unloaded_section(".gnu_debugdata") else {
            return self.trials.push(Trial::absent(source, "the program has none"));
        };
        // It is part of the program, so it needs no build ID.
        let found = DebugFile::from_gnu_debugdata(section)
            .and_then(|found| self.image.identity().check_addresses(&found.identity).map(|()| found));
        self.add(source, Path::new(".gnu_debugdata"), None, found);
    }

    fn build_id(&mut self) -> bool {
        let source = SymbolSource::BuildId;
        let id = self.image.build_id();
        // The first byte of the ID names the directory.
        if id.len() < 4 {
            self.trials.push(Trial::absent(source, "the program has no build id"));
            return false;
        }
        let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
        self.debug_file(source, |_| vec![path.clone()], None)
    }

    fn debuglink(&mut self) -> bool {
        let source = SymbolSource::Debuglink;
        let Some(link) = self.image.unloaded_section(".gnu_debuglink").and_then(Debuglink::parse) else {
            self.trials.push(Trial::absent(source, "the program names no debug file"));
            return false;
        };
        self.debug_file(source, |program| link.candidates(program), Some(link.crc))
    }

    /// Uses the first existing debug file that belongs to this build; returns false if there is none. The checksum is
    /// compared if one is known.
    fn debug_file(&mut self, source: SymbolSource, paths: impl Fn(&Path) -> Vec<PathBuf>, crc: Option<u32>) -> bool {
        let roots = self.roots;
        let mut looked = Vec::new();
        for root in &roots.roots {
            for path in paths(&root.program) {
                let shown = root.shown(&path);
                let file = match root.open_file(&path) {
                    Ok(file) => file,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        looked.push(shown.display().to_string());
                        continue;
                    }
                    Err(e) => {
                        self.trials.push(Trial::failed(source, format!("{}: {e}", shown.display())));
                        continue;
                    }
                };
                let found = self.check(&file).and_then(|found| check_crc(&file, crc).map(|()| found));
                if self.add(source, &shown, Some(&shown), found) {
                    return true;
                }
            }
        }
        if !looked.is_empty() {
            self.trials.push(Trial::absent(source, format!("there is no {}", looked.join(", no "))));
        }
        false
    }

    fn debuginfod(&mut self, settings: Option<&Debuginfod>, is_needed: bool) {
        let source = SymbolSource::Debuginfod;
        let id = self.image.build_id();
        let Some(debuginfod) = settings else {
            return self.trials.push(Trial::absent(source, "not queried, because DEBUGINFOD_URLS is not set"));
        };
        if id.is_empty() {
            return self.trials.push(Trial::absent(source, "not queried, because the program has no build id"));
        }
        if !is_needed {
            return self.trials.push(Trial::absent(source, "not queried, because nothing is missing"));
        }
        match debuginfod.debug_file(&id, |file| self.check(file)) {
            Ok(Some((found, path))) => drop(self.add(source, &path, Some(&path), Ok(found))),
            Ok(None) => self.trials.push(Trial::failed(source, format!("no server has the debug file of build {id}"))),
            Err(why) => self.trials.push(Trial::failed(source, why)),
        }
    }

    /// Reads a debug file's symbols, if they are this program's.
    fn check(&self, file: &File) -> Result<DebugFile, String> {
        let found = DebugFile::read(file)?;
        self.image.identity().check(&found.identity)?;
        Ok(found)
    }

    /// Records the result of a source, and adds its symbols if it has any.
    fn add(
        &mut self,
        source: SymbolSource,
        shown: &Path,
        file: Option<&Path>,
        found: Result<DebugFile, String>,
    ) -> bool {
        let added = found.and_then(|found| self.image.add_symbols(&found.symbols, source, file.map(Path::to_owned)));
        let is_added = added.is_ok();
        self.trials.push(match added {
            Ok(()) => Trial::found(source, shown.to_owned()),
            Err(why) => Trial::failed(source, format!("{}: {why}", shown.display())),
        });
        is_added
    }
}

fn check_crc(file: &File, expected: Option<u32>) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    let found = debuglink_crc(file).map_err(|e| format!("its checksum: {e}"))?;
    if found == expected {
        Ok(())
    } else {
        Err(format!("its checksum is {found:08x}, but the program expects {expected:08x}"))
    }
}

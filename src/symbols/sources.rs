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

use super::debug_file::{debuglink_crc, DebugFile, DebugFileError};
use super::debug_roots::DebugRoots;
use super::debuginfod::{Debuginfod, DebuginfodError};
use super::debuglink::Debuglink;
use super::image::{Image, Mismatch, SymbolSource};
use super::portable::{self, PortableError};
use super::table::TableError;

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

/// The reason why a file's symbols cannot be used for a program, for a message that begins with its path.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFile {
    /// It is missing, or cannot be read.
    #[error("cannot read it: {0}")]
    Unreadable(io::Error),
    /// It is a debug file that cannot be used.
    #[error(transparent)]
    DebugFile(#[from] DebugFileError),
    /// It is a symbol file that cannot be used.
    #[error(transparent)]
    SymbolFile(#[from] PortableError),
    /// The program has no build ID to compare with the file's.
    #[error("the server's program has no build id, so armtrace cannot verify that these symbols belong to it")]
    NoBuildId,
    /// It is not of this program.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// Its checksum cannot be computed.
    #[error("its checksum: {0}")]
    NoChecksum(io::Error),
    /// Its checksum is not the one in the program.
    #[error("its checksum is {found:08x}, but the program expects {expected:08x}")]
    Checksum {
        /// The CRC-32 of the file.
        found: u32,
        /// The one that the program expects.
        expected: u32,
    },
    /// There are too many symbols together with the program's own.
    #[error(transparent)]
    Symbols(#[from] TableError),
}

/// The error if the symbol file that the user named cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--symbols {}: {why}", .path.display())]
pub struct NamedFileError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: UnusableFile,
}

/// The reason why a source has no symbols.
#[derive(Debug, thiserror::Error)]
pub enum NoSymbols {
    /// The program contains no MiniDebugInfo.
    #[error("the program has none")]
    NoSection,
    /// The program has no build ID, by which debug files are found.
    #[error("the program has no build id")]
    NoBuildId,
    /// The program does not name its debug file.
    #[error("the program names no debug file")]
    NoDebuglink,
    /// None of these files exists.
    #[error("there is no {}", .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", no "))]
    NoFile(Vec<PathBuf>),
    /// The user has named no debuginfod server.
    #[error("not queried, because DEBUGINFOD_URLS is not set")]
    NoServers,
    /// Debuginfod servers cannot be asked, because the program has no build ID.
    #[error("not queried, because the program has no build id")]
    NothingToAskFor,
    /// The program has all symbols that matter.
    #[error("not queried, because nothing is missing")]
    NotNeeded,
    /// A file exists but cannot be opened.
    #[error("{}: {why}", .path.display())]
    Unopened {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// A file's symbols cannot be used.
    #[error("{}: {why}", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: UnusableFile,
    },
    /// No debuginfod server has the debug file of this build.
    #[error("no server has the debug file of build {0}")]
    NotServed(String),
    /// The servers failed, or the cache did.
    #[error(transparent)]
    Debuginfod(#[from] DebuginfodError),
}

/// A source that was tried, and the result.
#[derive(Debug)]
pub struct Trial {
    /// The source.
    pub source: SymbolSource,
    /// Where its symbols are, or why it has none.
    pub outcome: Result<PathBuf, NoSymbols>,
}

impl Trial {
    /// Returns whether something was found that cannot be used, or a server had no answer, which deserves a warning.
    pub fn is_failure(&self) -> bool {
        match &self.outcome {
            Ok(_) => false,
            Err(why) => match why {
                NoSymbols::NoSection
                | NoSymbols::NoBuildId
                | NoSymbols::NoDebuglink
                | NoSymbols::NoFile(_)
                | NoSymbols::NoServers
                | NoSymbols::NothingToAskFor
                | NoSymbols::NotNeeded => false,
                NoSymbols::Unopened { .. }
                | NoSymbols::Unusable { .. }
                | NoSymbols::NotServed(_)
                | NoSymbols::Debuginfod(_) => true,
            },
        }
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
/// Fails when the file that the user named cannot be used.
pub fn complete(
    image: &mut Image,
    roots: &DebugRoots,
    settings: &Settings,
    misses_some: impl Fn(&Image) -> bool,
) -> Result<Vec<Trial>, NamedFileError> {
    if let Some(path) = &settings.file {
        add_named_file(image, path).map_err(|why| NamedFileError { path: path.clone(), why })?;
        return Ok(vec![Trial { source: SymbolSource::File, outcome: Ok(path.clone()) }]);
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

fn add_named_file(image: &mut Image, path: &Path) -> Result<(), UnusableFile> {
    let found = read_any(path)?;
    if image.identity().build_id.is_empty() {
        return Err(UnusableFile::NoBuildId);
    }
    image.identity().check(&found.identity)?;
    Ok(image.add_symbols(&found.symbols, SymbolSource::File, Some(path.to_owned()))?)
}

/// Reads an armtrace symbol file, or an ELF file with a symbol table.
///
/// # Errors
/// Fails with the reason why the file is unusable.
pub fn read_any(path: &Path) -> Result<DebugFile, UnusableFile> {
    let mut file = File::open(path).map_err(UnusableFile::Unreadable)?;
    let mut begin = Vec::new();
    (&file).take(4).read_to_end(&mut begin).map_err(UnusableFile::Unreadable)?;
    file.rewind().map_err(UnusableFile::Unreadable)?;
    if portable::is_portable(&begin) {
        Ok(portable::read(file)?)
    } else {
        Ok(DebugFile::read(&file)?)
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
            return self.note(source, Err(NoSymbols::NoSection));
        };
        // It is part of the program, so it needs no build ID.
        let found = DebugFile::from_gnu_debugdata(section).map_err(UnusableFile::from).and_then(|found| {
            self.image.identity().check_addresses(&found.identity)?;
            Ok(found)
        });
        self.add(source, Path::new(".gnu_debugdata"), None, found);
    }

    fn build_id(&mut self) -> bool {
        let source = SymbolSource::BuildId;
        let id = self.image.build_id();
        // The first byte of the ID names the directory.
        if id.len() < 4 {
            self.note(source, Err(NoSymbols::NoBuildId));
            return false;
        }
        let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
        self.debug_file(source, |_| vec![path.clone()], None)
    }

    fn debuglink(&mut self) -> bool {
        let source = SymbolSource::Debuglink;
        let Some(link) = self.image.unloaded_section(".gnu_debuglink").and_then(Debuglink::parse) else {
            self.note(source, Err(NoSymbols::NoDebuglink));
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
                        looked.push(shown);
                        continue;
                    }
                    Err(why) => {
                        self.note(source, Err(NoSymbols::Unopened { path: shown, why }));
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
            self.note(source, Err(NoSymbols::NoFile(looked)));
        }
        false
    }

    fn debuginfod(&mut self, settings: Option<&Debuginfod>, is_needed: bool) {
        let source = SymbolSource::Debuginfod;
        let id = self.image.build_id();
        let Some(debuginfod) = settings else { return self.note(source, Err(NoSymbols::NoServers)) };
        if id.is_empty() {
            return self.note(source, Err(NoSymbols::NothingToAskFor));
        }
        if !is_needed {
            return self.note(source, Err(NoSymbols::NotNeeded));
        }
        match debuginfod.debug_file(&id, |file| self.check(file)) {
            Ok(Some((found, path))) => drop(self.add(source, &path, Some(&path), Ok(found))),
            Ok(None) => self.note(source, Err(NoSymbols::NotServed(id))),
            Err(why) => self.note(source, Err(why.into())),
        }
    }

    /// Reads a debug file's symbols, if they are this program's.
    fn check(&self, file: &File) -> Result<DebugFile, UnusableFile> {
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
        found: Result<DebugFile, UnusableFile>,
    ) -> bool {
        let added =
            found.and_then(|found| Ok(self.image.add_symbols(&found.symbols, source, file.map(Path::to_owned))?));
        let is_added = added.is_ok();
        let path = shown.to_owned();
        let outcome = match added {
            Ok(()) => Ok(path),
            Err(why) => Err(NoSymbols::Unusable { path, why }),
        };
        self.note(source, outcome);
        is_added
    }

    fn note(&mut self, source: SymbolSource, outcome: Result<PathBuf, NoSymbols>) {
        self.trials.push(Trial { source, outcome });
    }
}

fn check_crc(file: &File, expected: Option<u32>) -> Result<(), UnusableFile> {
    let Some(expected) = expected else { return Ok(()) };
    let found = debuglink_crc(file).map_err(UnusableFile::NoChecksum)?;
    if found == expected {
        Ok(())
    } else {
        Err(UnusableFile::Checksum { found, expected })
    }
}

//! One ELF file, indexed just far enough to find functions, data and strings in it.
//!
//! Addresses here are link-time virtual addresses ("svma"); the target's load bias turns them into addresses of a
//! process. Everything is read on demand, so a 300 MB binary with full debug information costs no
//! more than its symbol table.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection};
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Rela, SectionHeader};
use object::{Object, ObjectSection, ReadRef};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::loaded::Loaded;
use super::mapped::Mapped;
use super::table::{Symbol, Table, TableError};

/// The most bytes of a program that is copied.
const MAX_PROGRAM: u64 = 4 << 30;

/// The instruction set of a binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Arch {
    /// x86-64, little-endian.
    X86_64,
    /// 64-bit Arm, little-endian.
    Aarch64,
}

impl Arch {
    /// The architecture that this agent was built for.
    pub const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 };

    fn of(machine: elf::Machine) -> Option<Arch> {
        match machine {
            elf::EM_X86_64 => Some(Arch::X86_64),
            elf::EM_AARCH64 => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// Returns the value of the `arch` label, spelled as by `uname -m`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The reason why a file cannot be used as a server binary.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file cannot be opened or mapped.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file is not an ELF file, or is truncated or malformed.
    #[error("{path} is not a usable ELF file: {source}")]
    Elf {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The file is for neither of the architectures in [`Arch`].
    #[error("{path} is for a machine that armtrace does not know (ELF machine {machine})")]
    Machine {
        /// The file.
        path: String,
        /// The number of the machine, `EM_…` in `elf.h`.
        machine: u16,
    },
}

/// What is wrong with an ELF file that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The headers cannot be read.
    #[error(transparent)]
    Headers(#[from] object::read::Error),
    /// The file ends within a loaded segment.
    #[error("truncated: a loaded segment lies past the end of the file")]
    Truncated,
    /// A loaded segment ends beyond the last address.
    #[error("a loaded segment lies past the end of the address space")]
    OutsideAddressSpace,
    /// Nothing is loaded.
    #[error("it has no loadable segment")]
    NoSegment,
    /// There are no usable section headers, and the exported symbols cannot be read.
    #[error(transparent)]
    Symbols(#[from] TableError),
}

/// How a file is damaged that can be used nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The section headers cannot be read.
    #[error("its sections cannot be read: {0}")]
    Sections(object::read::Error),
    /// There are no section headers.
    #[error("its section headers were stripped off")]
    NoSections,
    /// The full symbol table cannot be read.
    #[error("its .symtab cannot be read: {0}")]
    SymbolTable(TableError),
}

/// The error for a file that is for a machine unknown to armtrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is for another machine")]
pub struct OtherMachine;

/// The reason why symbols are not those of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The build IDs differ.
    #[error(
        "it belongs to another build: its build id is {}, the server's is {}",
        or_none(.theirs),
        or_none(.servers)
    )]
    Build {
        /// The build ID of the symbols in hexadecimal; empty if there is none.
        theirs: String,
        /// That of the program.
        servers: String,
    },
    /// The architecture or the location of the code differs.
    #[error("it is for another architecture, or its code is at other addresses than the server's")]
    Addresses,
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the GNU build ID of the program that this process runs, in hexadecimal; empty if there is none.
pub fn own_build_id() -> String {
    let own = File::open("/proc/self/exe").and_then(|file| Mapped::running(&file, MAX_PROGRAM)).ok();
    let found = own.as_ref().and_then(|own| Some(Loaded::parse(own).ok()?.build_id()));
    hexadecimal(&found.unwrap_or_default())
}

/// What a file with other contents does not have: its device, its number on that, its size, and the time of its last
/// change in seconds and nanoseconds. A program that runs cannot be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileIdentity(u64, u64, u64, i64, i64);

impl FileIdentity {
    /// Returns the identity of the file with this metadata.
    pub fn of(file: &Metadata) -> FileIdentity {
        FileIdentity(file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec())
    }
}

fn or_none(build_id: &str) -> &str {
    if build_id.is_empty() {
        "none"
    } else {
        build_id
    }
}

/// The source of the names in an image; with several sources, the one that knew most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum SymbolSource {
    /// The program's full symbol table, including local functions and data.
    Symtab,
    /// Only what the program exports to its plugins.
    Dynsym,
    /// What it exports and, compressed in the program, the names of its other functions.
    MiniDebugInfo,
    /// A debug file in a directory of build IDs.
    #[strum(serialize = "build-id")]
    BuildId,
    /// A debug file that the program names.
    Debuglink,
    /// A debug file from a debuginfod server, or from the cache of such files.
    Debuginfod,
    /// A file that the user named.
    File,
    /// Nothing: no source has any names.
    None,
}

impl SymbolSource {
    /// Returns the value of the `symbol_source` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What a file with symbols must have in common with the program that the symbols belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildIdentity {
    /// The instruction set.
    pub arch: Arch,
    /// The build ID; empty if there is none.
    pub build_id: Vec<u8>,
    /// The link-time address range of `.text`; empty if there is no such section.
    pub text: Range<u64>,
}

impl BuildIdentity {
    pub(super) fn of<'a, R: ReadRef<'a>>(
        elf: &ElfFile64<'a, object::LittleEndian, R>,
    ) -> Result<BuildIdentity, OtherMachine> {
        let arch = Arch::of(elf.elf_header().e_machine(elf.endian())).ok_or(OtherMachine)?;
        Ok(BuildIdentity::with_arch(elf, arch))
    }

    fn with_arch<'a, R: ReadRef<'a>>(elf: &ElfFile64<'a, object::LittleEndian, R>, arch: Arch) -> BuildIdentity {
        let text = elf.section_by_name(".text").map_or(0..0, |s| s.address()..s.address().saturating_add(s.size()));
        let build_id = elf.build_id().ok().flatten().map(<[u8]>::to_vec).unwrap_or_default();
        BuildIdentity { arch, build_id, text }
    }

    /// Returns the GNU build ID in hexadecimal; empty if there is none.
    pub fn build_id(&self) -> String {
        hexadecimal(&self.build_id)
    }

    /// Checks whether symbols of `other` are symbols of this program, by build ID and by the location of the code: a
    /// link-time address must mean the same in both.
    ///
    /// # Errors
    /// Fails with what differs.
    pub(super) fn check(&self, other: &BuildIdentity) -> Result<(), Mismatch> {
        if self.build_id != other.build_id {
            return Err(Mismatch::Build { theirs: other.build_id(), servers: self.build_id() });
        }
        self.check_addresses(other)
    }

    /// Does the part of [`BuildIdentity::check`] that works without a build ID. A program without section headers does
    /// not say where its code is.
    pub(super) fn check_addresses(&self, other: &BuildIdentity) -> Result<(), Mismatch> {
        if self.arch != other.arch || !self.text.is_empty() && self.text != other.text {
            return Err(Mismatch::Addresses);
        }
        Ok(())
    }
}

/// The contents of a file, found by its section headers or without them.
struct Contents {
    identity: BuildIdentity,
    source: SymbolSource,
    sections: HashMap<String, Range<u64>>,
    symbols: Table,
    damage: Option<Damage>,
}

impl Contents {
    /// Reads the contents by the section headers.
    fn by_sections(data: &[u8], loaded: &Loaded, arch: Arch) -> Result<Contents, Damage> {
        let elf = with_sections(data)?;
        let mut sections = HashMap::new();
        for section in elf.sections() {
            if let Ok(name) = section.name() {
                let header = section.elf_section_header();
                let addr = header.sh_addr(elf.endian());
                sections.insert(name.to_owned(), addr..addr.saturating_add(header.sh_size(elf.endian())));
            }
        }
        let table = Table::from_elf(&elf, elf.elf_symbol_table());
        let damage = table.as_ref().err().copied().map(Damage::SymbolTable);
        let mut source = SymbolSource::Symtab;
        let mut symbols = table.unwrap_or_default();
        if symbols.is_empty() {
            let exported = Table::from_elf(&elf, elf.elf_dynamic_symbol_table());
            symbols = exported.or_else(|_| loaded.symbols()).unwrap_or_default();
            source = if symbols.is_empty() { SymbolSource::None } else { SymbolSource::Dynsym };
        }
        Ok(Contents { identity: BuildIdentity::with_arch(&elf, arch), source, sections, symbols, damage })
    }

    /// Reads the contents as the loader does; `why` says why the section headers cannot be used.
    fn by_segments(loaded: &Loaded, arch: Arch, why: Damage) -> Result<Contents, TableError> {
        let symbols = loaded.symbols()?;
        let source = if symbols.is_empty() { SymbolSource::None } else { SymbolSource::Dynsym };
        let identity = BuildIdentity { arch, build_id: loaded.build_id(), text: 0..0 };
        Ok(Contents { identity, source, sections: loaded.sections(), symbols, damage: Some(why) })
    }
}

/// Parses a file whose section headers can be used.
fn with_sections(data: &[u8]) -> Result<ElfFile64<'_, object::LittleEndian>, Damage> {
    let elf = ElfFile64::<object::LittleEndian>::parse(data).map_err(Damage::Sections)?;
    if elf.elf_section_table().is_empty() {
        return Err(Damage::NoSections);
    }
    Ok(elf)
}

struct Segment {
    addr: u64,
    offset: u64,
    file_size: u64,
    memory_size: u64,
}

/// A server binary.
pub struct Image {
    data: Mapped,
    /// `None` for a copy.
    file: Option<FileIdentity>,
    identity: BuildIdentity,
    source: SymbolSource,
    symbol_file: Option<PathBuf>,
    segments: Vec<Segment>,
    sections: HashMap<String, Range<u64>>,
    /// The writable static data: `.data` and `.bss`.
    variables: [Range<u64>; 2],
    symbols: Table,
    is_fixed: bool,
    /// The reason why the file is damaged, although it can be used.
    damage: Option<Damage>,
    /// The number of functions and variables that the file itself names.
    own_symbols: (SymbolSource, usize),
    /// The global offset table: address of an entry to what it points to. Read on first use.
    got: OnceLock<HashMap<u64, u64>>,
    /// [`Image::imports`], read on first use.
    imports: OnceLock<HashMap<u64, String>>,
}

impl Image {
    /// Indexes a copy of the ELF file at `path`.
    ///
    /// # Errors
    /// Fails with [`ImageError`] when the file cannot be read, is truncated or malformed, or is for another machine,
    /// and when there is no room for a copy.
    pub fn open(path: &Path) -> Result<Image, ImageError> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(|source| ImageError::Open { path: shown.clone(), source })?;
        Image::of_copy(&file, &shown, MAX_PROGRAM)
    }

    /// Maps and indexes the ELF file at `path`, which a process runs: it cannot be written to meanwhile. Should the
    /// file be truncated afterwards, the rest of it reads as zeros.
    ///
    /// # Errors
    /// Fails like [`Image::open`].
    pub fn open_running(path: &Path) -> Result<Image, ImageError> {
        let shown = path.display().to_string();
        let mapped = File::open(path)
            .and_then(|file| Ok((FileIdentity::of(&file.metadata()?), Mapped::running(&file, MAX_PROGRAM)?)));
        let (file, data) = mapped.map_err(|source| ImageError::Open { path: shown.clone(), source })?;
        Ok(Image { file: Some(file), ..Image::parse(data, &shown)? })
    }

    /// Indexes a copy of an ELF file that others may write to, as a server's library in a container. `shown` is how
    /// messages name the file.
    ///
    /// # Errors
    /// Fails like [`Image::open`], and when the file has more than `most` bytes.
    pub fn of_copy(file: &File, shown: &str, most: u64) -> Result<Image, ImageError> {
        let data = Mapped::copy(file, most).map_err(|source| ImageError::Open { path: shown.to_owned(), source })?;
        Image::parse(data, shown)
    }

    /// Returns which file it is that a process runs; `None` for a copy of any other file.
    pub fn file_identity(&self) -> Option<FileIdentity> {
        self.file
    }

    /// Returns the size of the file, in bytes.
    pub fn file_size(&self) -> u64 {
        self.data.len() as u64
    }

    /// Releases the memory of the parts of the file that were read so far; they are read again on demand.
    pub fn release_memory(&self) {
        self.data.release_memory();
    }

    fn parse(data: Mapped, path: &str) -> Result<Image, ImageError> {
        let bad = |source: Malformed| ImageError::Elf { path: path.into(), source };
        let header = elf::FileHeader64::<object::LittleEndian>::parse(&*data).map_err(|e| bad(e.into()))?;
        let endian = header.endian().map_err(|e| bad(e.into()))?;
        let machine = header.e_machine(endian);
        let Some(arch) = Arch::of(machine) else {
            return Err(ImageError::Machine { path: path.into(), machine: machine.0 });
        };
        let loaded = Loaded::parse(&data).map_err(|e| bad(e.into()))?;
        let mut segments = Vec::new();
        for header in loaded.headers() {
            if header.p_type(endian) == elf::PT_LOAD {
                let (offset, file_size) = header.file_range(endian);
                if offset.checked_add(file_size).is_none_or(|end| end > data.len() as u64) {
                    return Err(bad(Malformed::Truncated));
                }
                let (addr, memory_size) = (header.p_vaddr(endian), header.p_memsz(endian));
                if addr.checked_add(memory_size.max(file_size)).is_none() {
                    return Err(bad(Malformed::OutsideAddressSpace));
                }
                segments.push(Segment { addr, offset, file_size, memory_size });
            }
        }
        if segments.is_empty() {
            return Err(bad(Malformed::NoSegment));
        }
        let (contents, has_sections) = match Contents::by_sections(&data, &loaded, arch) {
            Ok(contents) => (contents, true),
            Err(why) => (Contents::by_segments(&loaded, arch, why).map_err(|e| bad(e.into()))?, false),
        };
        let Contents { identity, source, sections, symbols, damage } = contents;
        let variables = [".data", ".bss"].map(|name| sections.get(name).cloned().unwrap_or(0..0));
        let is_fixed = header.e_type(endian) == elf::ET_EXEC;
        let (got, imports, own_symbols) = (OnceLock::new(), OnceLock::new(), (source, symbols.len()));
        let mut image = Image {
            identity,
            source,
            symbol_file: None,
            segments,
            sections,
            variables,
            symbols,
            is_fixed,
            damage,
            own_symbols,
            data,
            file: None,
            got,
            imports,
        };
        if !has_sections {
            image.find_code();
        }
        if image.data.is_cut() {
            return Err(bad(Malformed::Truncated));
        }
        Ok(image)
    }

    /// Finds the code and the constants of a program without section headers.
    fn find_code(&mut self) {
        let functions = self.functions();
        let found = Loaded::parse(&self.data).map(|loaded| loaded.code_and_constants(&functions));
        self.sections.extend(found.unwrap_or_default());
    }

    /// Returns how the file is damaged, although it can be used; `None` for most files.
    pub fn damage(&self) -> Option<Damage> {
        self.damage
    }

    /// Adds symbols that `source` has of this very build; those outside of the program are left out.
    ///
    /// # Errors
    /// Fails when there are more than a program can have.
    pub(super) fn add_symbols(
        &mut self,
        symbols: &Table,
        source: SymbolSource,
        file: Option<PathBuf>,
    ) -> Result<(), TableError> {
        let extent = self.extent();
        let others = symbols.iter().filter(|s| extent.contains(&s.addr));
        self.symbols = Table::new(self.symbols.iter().chain(others))?;
        self.source = source;
        self.symbol_file = file;
        Ok(())
    }

    /// Returns the instruction set of the program.
    pub fn arch(&self) -> Arch {
        self.identity.arch
    }

    /// Returns the source of the names, of several the one that knew most.
    pub fn symbol_source(&self) -> SymbolSource {
        self.source
    }

    /// Describes which symbols there are: those of the file, and those that were added.
    pub fn symbols_in_words(&self) -> String {
        let (own, count) = self.own_symbols;
        let own = match own {
            SymbolSource::None => "neither .symtab nor .dynsym".to_owned(),
            SymbolSource::Symtab => format!(".symtab with {count} functions and variables"),
            _ => format!("no .symtab, .dynsym with {count} functions and variables"),
        };
        let from = match (self.source, &self.symbol_file) {
            (source, _) if source == self.own_symbols.0 => return own,
            (SymbolSource::MiniDebugInfo, _) | (_, None) => "its .gnu_debugdata".to_owned(),
            (_, Some(file)) => file.display().to_string(),
        };
        format!("{own}; together with {from}: {}", self.symbols.len())
    }

    /// Returns the file that the symbols are from, if it is not the program's own.
    pub fn symbol_file(&self) -> Option<&Path> {
        self.symbol_file.as_deref()
    }

    /// Returns what a file with symbols of this program must have in common with it.
    pub fn identity(&self) -> &BuildIdentity {
        &self.identity
    }

    /// Returns the GNU build ID in hexadecimal; empty if there is none.
    pub fn build_id(&self) -> String {
        self.identity.build_id()
    }

    /// Returns the symbol with exactly this mangled name.
    pub fn symbol(&self, name: &str) -> Option<Symbol<'_>> {
        self.symbols.by_name(name)
    }

    /// Returns the number of all symbols, and their checksum.
    pub fn symbols_digest(&self) -> (usize, u32) {
        (self.symbols.len(), self.symbols.digest())
    }

    /// Iterates over all defined functions and data objects, by ascending address.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.symbols.iter()
    }

    /// Iterates over the functions whose mangled names begin with `prefix`.
    pub fn functions_named<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = Symbol<'a>> {
        self.symbols.beginning_with(prefix).filter(|s| s.is_function)
    }

    /// Returns the addresses of the functions that the program exports, whatever other symbols are known.
    pub fn exported_functions(&self) -> HashSet<u64> {
        let table = Loaded::parse(&self.data).ok().and_then(|loaded| loaded.symbols().ok()).unwrap_or_default();
        let functions = table.iter().filter(|s| s.is_function);
        functions.map(|s| s.addr).collect()
    }

    /// Returns the function or data object that contains `addr`.
    pub fn symbol_at(&self, addr: u64) -> Option<Symbol<'_>> {
        self.symbols.at(addr)
    }

    /// Returns the bounds of the function that contains `addr`, from the unwind table, which stripped binaries keep.
    /// Cold parts that the compiler moved away are separate functions here. Also `None` if the table contradicts itself
    /// because another function begins inside of it.
    pub fn function_at(&self, addr: u64) -> Option<Range<u64>> {
        let header = self.section(".eh_frame_hdr")?;
        let bases = self.unwind_bases();
        let parsed = EhFrameHdr::new(self.bytes(header.start, (header.end - header.start) as usize)?, LittleEndian)
            .parse(&bases, 8)
            .ok()?;
        let section = self.eh_frame()?;
        let table = parsed.table()?;
        let at = |addr| table.fde_for_address(&section, &bases, addr, EhFrame::cie_from_offset).ok();
        let fde = at(addr).filter(|fde| fde.contains(addr))?;
        let range = fde.initial_address()..fde.end_address();
        at(range.end - 1).is_some_and(|last| last.initial_address() == range.start).then_some(range)
    }

    /// Returns the bounds of all functions in the unwind table, in its order. For a damaged table, those before the
    /// damage.
    pub fn functions(&self) -> Vec<Range<u64>> {
        let Some(section) = self.eh_frame() else { return Vec::new() };
        let bases = self.unwind_bases();
        let mut entries = section.entries(&bases);
        let mut found = Vec::new();
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { break };
            found.push(fde.initial_address()..fde.end_address());
        }
        found
    }

    fn eh_frame(&self) -> Option<EhFrame<EndianSlice<'_, LittleEndian>>> {
        let range = self.section(".eh_frame")?;
        let bytes = self.bytes(range.start, usize::try_from(range.end - range.start).ok()?)?;
        Some(EhFrame::from(EndianSlice::new(bytes, LittleEndian)))
    }

    fn unwind_bases(&self) -> BaseAddresses {
        let start = |name: &str| self.section(name).map_or(0, |range| range.start);
        BaseAddresses::default()
            .set_eh_frame_hdr(start(".eh_frame_hdr"))
            .set_eh_frame(start(".eh_frame"))
            .set_text(start(".text"))
    }

    /// Returns the address range of a section, by name.
    pub fn section(&self, name: &str) -> Option<Range<u64>> {
        self.sections.get(name).cloned()
    }

    /// Returns the contents of a section that is not loaded, by name, as they are in the file.
    pub(super) fn unloaded_section(&self, name: &str) -> Option<&[u8]> {
        let elf = ElfFile64::<object::LittleEndian>::parse(&*self.data).ok()?;
        let section = elf.section_by_name(name)?;
        section.elf_section_header().data(elf.endian(), &*self.data).ok()
    }

    /// Returns the whole file.
    pub(super) fn file(&self) -> &[u8] {
        &self.data
    }

    /// Returns the image's writable static data: `.data` and `.bss`, which are adjacent.
    pub fn static_data(&self) -> Option<Range<u64>> {
        let (data, bss) = (self.section(".data"), self.section(".bss"));
        let start = data.iter().chain(&bss).map(|r| r.start).min()?;
        let end = data.iter().chain(&bss).map(|r| r.end).max()?;
        Some(start..end)
    }

    /// Returns whether `addr` is part of the image's writable static data.
    pub fn is_static_data(&self, addr: u64) -> bool {
        self.variables.iter().any(|range| range.contains(&addr))
    }

    /// Returns `len` bytes of the file at `addr`; `None` outside the file's segments (and so in `.bss`).
    pub fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let at = self.file_offset(addr)?;
        let segment = self.segments.iter().find(|s| (s.addr..s.addr + s.file_size).contains(&addr))?;
        let room = (segment.addr + segment.file_size - addr) as usize;
        (len <= room).then(|| &self.data[at as usize..at as usize + len])
    }

    /// Returns whether these bytes occur among the program's constants.
    pub fn has_string(&self, wanted: &[u8]) -> bool {
        let constants = self.section(".rodata").and_then(|r| self.bytes(r.start, (r.end - r.start) as usize));
        constants.is_some_and(|bytes| memchr::memmem::find(bytes, wanted).is_some())
    }

    /// Returns the NUL-terminated string at `addr`, if it is UTF-8 and shorter than 4 KiB.
    pub fn cstr(&self, addr: u64) -> Option<&str> {
        let at = self.file_offset(addr)? as usize;
        let window = &self.data[at..self.data.len().min(at + 4096)];
        let end = window.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&window[..end]).ok()
    }

    /// Returns the offset of `addr` in the file; `None` if it is not in the file.
    pub fn file_offset(&self, addr: u64) -> Option<u64> {
        self.segments.iter().find(|s| (s.addr..s.addr + s.file_size).contains(&addr)).map(|s| addr - s.addr + s.offset)
    }

    /// Returns the link-time address at which the page of the file at `offset` is mapped. Segments may begin anywhere,
    /// but mappings consist of whole pages.
    pub fn page_address_of(&self, offset: u64) -> Option<u64> {
        const PAGE_MASK: u64 = !0xfff;
        self.segments
            .iter()
            .find(|s| s.offset & PAGE_MASK <= offset && offset < s.offset + s.file_size)
            .map(|s| s.addr.wrapping_sub(s.offset).wrapping_add(offset))
    }

    /// Returns the address range that the image occupies when loaded.
    pub fn extent(&self) -> Range<u64> {
        let low = self.segments.iter().map(|s| s.addr).min().unwrap_or(0);
        let high = self.segments.iter().map(|s| s.addr + s.memory_size).max().unwrap_or(0);
        low..high
    }

    /// Returns what the loader fills in with addresses in this image: (address of the pointer, address that it points
    /// to), in file order. In a position-independent binary these are its static pointers. Those to exported symbols
    /// name the symbol, which in a program is its own.
    pub fn relative_relocations(&self) -> Vec<(u64, u64)> {
        let (relative, symbolic) = match self.arch() {
            Arch::X86_64 => (elf::R_X86_64_RELATIVE, [elf::R_X86_64_64, elf::R_X86_64_GLOB_DAT]),
            Arch::Aarch64 => (elf::R_AARCH64_RELATIVE, [elf::R_AARCH64_ABS64, elf::R_AARCH64_GLOB_DAT]),
        };
        let endian = object::LittleEndian;
        let symbols = Loaded::parse(&self.data).map(|loaded| loaded.symbol_addresses()).unwrap_or_default();
        let defined = |r: &elf::Rela64<object::LittleEndian>| *symbols.get(r.symbol(endian, false)?.0)?;
        let to = |r: &elf::Rela64<object::LittleEndian>| match r.r_type(endian, false) {
            kind if kind == relative => Some(r.r_addend(endian) as u64),
            kind if symbolic.contains(&kind) => Some(defined(r)?.wrapping_add_signed(r.r_addend(endian))),
            _ => None,
        };
        self.relocations().into_iter().filter_map(|r| Some((r.r_offset(endian), to(r)?))).collect()
    }

    fn relocations(&self) -> Vec<&elf::Rela64<object::LittleEndian>> {
        let Ok(elf) = with_sections(&self.data) else {
            return Loaded::parse(&self.data).map(|loaded| loaded.relocations()).unwrap_or_default();
        };
        let tables = elf.elf_section_table().iter().filter_map(|s| s.rela(elf.endian(), &*self.data).ok()?);
        tables.flat_map(|(relocations, _)| relocations).collect()
    }

    /// Returns what the entry at `slot` of the global offset table points to inside this image. The table does not
    /// change after the image is loaded.
    pub fn got_entry(&self, slot: u64) -> Option<u64> {
        self.got().get(&slot).copied()
    }

    /// Returns these addresses and those of the global offset table's entries that point to them: everything by which
    /// code may refer to them.
    pub fn with_got_entries(&self, addresses: &HashSet<u64>) -> HashSet<u64> {
        let slots = self.got().iter().filter(|(_, to)| addresses.contains(to)).map(|(&slot, _)| slot);
        addresses.iter().copied().chain(slots).collect()
    }

    fn got(&self) -> &HashMap<u64, u64> {
        self.got.get_or_init(|| {
            let Some(range) = self.section(".got") else { return HashMap::new() };
            let mut found = HashMap::new();
            if self.is_fixed {
                let imports = self.imports();
                found.extend(self.words(range.clone()).filter(|(at, _)| !imports.contains_key(at)));
            }
            found.extend(self.relative_relocations().into_iter().filter(|(at, _)| range.contains(at)));
            found
        })
    }

    /// Returns whether the image is loaded where it was linked to, so that its static pointers are plain numbers.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Returns the static pointers: (address of the pointer, address that it points to), by ascending address. In an
    /// image that is loaded where it was linked to, any word of its initialized data that lies in the image counts as a
    /// pointer, in addition to what the loader fills in.
    pub fn static_pointers(&self) -> Vec<(u64, u64)> {
        let mut pointers = self.relative_relocations();
        if self.is_fixed {
            let sections = [".data", ".data.rel.ro"].iter().filter_map(|name| self.section(name));
            pointers.extend(sections.flat_map(|section| self.words(section)));
        }
        // Of several for one place, the first counts. Most linkers sort them, and then this is a single pass.
        pointers.sort_by_key(|(at, _)| *at);
        pointers.dedup_by_key(|(at, _)| *at);
        pointers
    }

    /// Returns the words in a part of the file that could be addresses in this image: (location, address).
    fn words(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let image = self.extent();
        let start = range.start.checked_next_multiple_of(8).unwrap_or(u64::MAX);
        let bytes = self.bytes(start, range.end.saturating_sub(start) as usize).unwrap_or_default();
        let words = bytes.chunks_exact(8).filter_map(|w| w.try_into().ok()).map(u64::from_le_bytes);
        (start..).step_by(8).zip(words).filter(move |(_, to)| image.contains(to))
    }

    /// Returns the imported function that each procedure-linkage slot (`.got` entry) is bound to at load time: address
    /// of the slot to name.
    pub fn imports(&self) -> &HashMap<u64, String> {
        self.imports.get_or_init(|| self.read_imports())
    }

    fn read_imports(&self) -> HashMap<u64, String> {
        let kinds = match self.arch() {
            Arch::X86_64 => [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT],
            Arch::Aarch64 => [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT],
        };
        let endian = object::LittleEndian;
        let (elf, loaded) = (with_sections(&self.data).ok(), Loaded::parse(&self.data).ok());
        let name = |index| match &elf {
            Some(elf) => {
                let table = elf.elf_dynamic_symbol_table();
                table.symbol(index).and_then(|symbol| table.symbol_name(endian, symbol)).ok()
            }
            None => loaded.as_ref()?.symbol_name(index.0).map(str::as_bytes),
        };
        let named = |r: &elf::Rela64<_>| Some(String::from_utf8_lossy(name(r.symbol(endian, false)?)?).into_owned());
        let bound = self.relocations().into_iter().filter(|r| kinds.contains(&r.r_type(endian, false)));
        bound.filter_map(|r| Some((r.r_offset(endian), named(r)?))).collect()
    }
}

//! One ELF file, mapped and indexed just far enough to find functions, data and strings in it.
//!
//! Addresses here are link-time virtual addresses ("svma"); the target's load bias turns them into
//! addresses of a process. Everything is read from the mapped file on demand, so that a 300 MB binary with
//! full debug information costs no more than its symbol table.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection};
use memmap2::Mmap;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Rela, SectionHeader};
use object::{Object, ObjectSection, ReadRef};

use super::table::{Symbol, Table};

/// The instruction set of a binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// The architecture this agent was built for.
    pub const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 };

    fn of(machine: elf::Machine) -> Option<Arch> {
        match machine {
            elf::EM_X86_64 => Some(Arch::X86_64),
            elf::EM_AARCH64 => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// The value of the `arch` label, as `uname -m` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }
}

/// Why a file could not be used as a server binary.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot open {path}: {source}")]
    Open { path: String, source: std::io::Error },
    #[error("{path} is not a usable ELF file: {reason}")]
    Elf { path: String, reason: String },
    #[error("{path} is for a machine that armtrace does not know (ELF machine {machine})")]
    Machine { path: String, machine: u16 },
}

/// Where the names in an image came from: the source that knew most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolSource {
    /// The program's full symbol table: local functions and data too.
    Symtab,
    /// Only what the program exports to its plugins.
    Dynsym,
    /// What it exports and, compressed in the program, the names of its other functions.
    MiniDebugInfo,
    /// A debug file in a folder of build ids.
    BuildId,
    /// A debug file that the program names.
    Debuglink,
    /// A debug file from a debuginfod server, or from the cache of such files.
    Debuginfod,
    /// A file that the user named.
    File,
    None,
}

impl SymbolSource {
    /// The value of the `symbol_source` label.
    pub fn as_str(self) -> &'static str {
        match self {
            SymbolSource::Symtab => "symtab",
            SymbolSource::Dynsym => "dynsym",
            SymbolSource::MiniDebugInfo => "minidebuginfo",
            SymbolSource::BuildId => "build-id",
            SymbolSource::Debuglink => "debuglink",
            SymbolSource::Debuginfod => "debuginfod",
            SymbolSource::File => "file",
            SymbolSource::None => "none",
        }
    }
}

/// What a file with symbols must have in common with the program that they are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub arch: Arch,
    /// Empty where there is none.
    pub build_id: Vec<u8>,
    /// Link-time addresses of `.text`; empty where there is no such section.
    pub text: Range<u64>,
}

impl Identity {
    pub(super) fn of<'a, R: ReadRef<'a>>(elf: &ElfFile64<'a, object::LittleEndian, R>) -> Result<Identity, String> {
        let endian = elf.endian();
        let arch = Arch::of(elf.elf_header().e_machine(endian)).ok_or("it is for another machine")?;
        let text = elf.section_by_name(".text").map_or(0..0, |s| s.address()..s.address().saturating_add(s.size()));
        let build_id = elf.build_id().ok().flatten().map(<[u8]>::to_vec).unwrap_or_default();
        Ok(Identity { arch, build_id, text })
    }

    /// The GNU build id in hexadecimal; empty where there is none.
    pub fn build_id(&self) -> String {
        self.build_id.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Whether symbols of `other` are symbols of this, by build id and by where the code is: a link-time address
    /// must mean the same in both.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn check(&self, other: &Identity) -> Result<(), String> {
        if self.build_id != other.build_id {
            let shown = |i: &Identity| if i.build_id.is_empty() { "none".to_owned() } else { i.build_id() };
            return Err(format!(
                "it is of another build: its build id is {}, the server's {}",
                shown(other),
                shown(self)
            ));
        }
        self.check_addresses(other)
    }

    /// The part of [`Identity::check`] that a file without a build id can stand.
    pub(super) fn check_addresses(&self, other: &Identity) -> Result<(), String> {
        if self.arch != other.arch || self.text != other.text {
            return Err("it is for another architecture, or its code is at other addresses than the server's".into());
        }
        Ok(())
    }
}

struct Segment {
    addr: u64,
    offset: u64,
    file_size: u64,
    memory_size: u64,
}

/// A mapped server binary.
pub struct Image {
    data: Mmap,
    identity: Identity,
    source: SymbolSource,
    symbol_file: Option<PathBuf>,
    segments: Vec<Segment>,
    sections: HashMap<String, Range<u64>>,
    symbols: Table,
    is_fixed: bool,
    /// The global offset table: address of an entry to what it points to; read when first needed.
    got: OnceLock<HashMap<u64, u64>>,
}

impl Image {
    /// Maps and indexes the ELF file at `path`.
    ///
    /// # Errors
    /// [`ImageError`] when the file cannot be read, is truncated or malformed, or is for another machine.
    pub fn open(path: &Path) -> Result<Image, ImageError> {
        let shown = path.display().to_string();
        let open = |source| ImageError::Open { path: shown.clone(), source };
        let file = File::open(path).map_err(open)?;
        // SAFETY: the mapping is private and read-only. A file truncated by somebody else while it is
        // mapped would raise SIGBUS; a running executable cannot be written to (ETXTBSY), and package
        // managers replace files rather than rewrite them.
        let data = unsafe { Mmap::map(&file) }.map_err(open)?;
        Image::parse(data, &shown)
    }

    /// Gives back the memory of the parts of the file that were read so far; what is read again comes back by itself.
    pub fn release_memory(&self) {
        // SAFETY: the mapping is of a file and never written to, so its pages can be dropped and read again at any time.
        _ = unsafe { self.data.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }

    fn parse(data: Mmap, path: &str) -> Result<Image, ImageError> {
        let bad = |reason: &dyn std::fmt::Display| ImageError::Elf { path: path.into(), reason: reason.to_string() };
        let elf = ElfFile64::<object::LittleEndian>::parse(&*data).map_err(|e| bad(&e))?;
        let endian = elf.endian();
        let machine = elf.elf_header().e_machine(endian);
        if Arch::of(machine).is_none() {
            return Err(ImageError::Machine { path: path.into(), machine: machine.0 });
        }
        let mut segments = Vec::new();
        for header in elf.elf_program_headers() {
            if header.p_type(endian) == elf::PT_LOAD {
                let (offset, file_size) = header.file_range(endian);
                if offset.checked_add(file_size).is_none_or(|end| end > data.len() as u64) {
                    return Err(bad(&"truncated: a loaded segment lies past the end of the file"));
                }
                let (addr, memory_size) = (header.p_vaddr(endian), header.p_memsz(endian));
                if addr.checked_add(memory_size.max(file_size)).is_none() {
                    return Err(bad(&"a loaded segment lies past the end of all addresses"));
                }
                segments.push(Segment { addr, offset, file_size, memory_size });
            }
        }
        if segments.is_empty() {
            return Err(bad(&"it has no loadable segment"));
        }
        let mut sections = HashMap::new();
        for section in elf.sections() {
            if let Ok(name) = section.name() {
                let header = section.elf_section_header();
                let addr = header.sh_addr(endian);
                sections.insert(name.to_owned(), addr..addr.saturating_add(header.sh_size(endian)));
            }
        }
        let mut source = SymbolSource::Symtab;
        let mut symbols = Table::from_elf(&elf, elf.elf_symbol_table()).map_err(|e| bad(&e))?;
        if symbols.is_empty() {
            symbols = Table::from_elf(&elf, elf.elf_dynamic_symbol_table()).map_err(|e| bad(&e))?;
            source = if symbols.is_empty() { SymbolSource::None } else { SymbolSource::Dynsym };
        }
        let identity = Identity::of(&elf).map_err(|e| bad(&e))?;
        let is_fixed = elf.elf_header().e_type(endian) == elf::ET_EXEC;
        let got = OnceLock::new();
        Ok(Image { identity, source, symbol_file: None, segments, sections, symbols, is_fixed, data, got })
    }

    /// Adds symbols that `source` has of this very build; what lies outside of the program is left out.
    ///
    /// # Errors
    /// When there are more than a program can have.
    pub(super) fn add_symbols(
        &mut self,
        symbols: &Table,
        source: SymbolSource,
        file: Option<PathBuf>,
    ) -> Result<(), String> {
        let extent = self.extent();
        let others = symbols.iter().filter(|s| extent.contains(&s.addr));
        self.symbols = Table::new(self.symbols.iter().chain(others))?;
        self.source = source;
        self.symbol_file = file;
        Ok(())
    }

    pub fn arch(&self) -> Arch {
        self.identity.arch
    }

    pub fn symbol_source(&self) -> SymbolSource {
        self.source
    }

    /// The file that the symbols are from, if it is not the program's own.
    pub fn symbol_file(&self) -> Option<&Path> {
        self.symbol_file.as_deref()
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The GNU build id in hexadecimal; empty where there is none.
    pub fn build_id(&self) -> String {
        self.identity.build_id()
    }

    /// The symbol of exactly this mangled name.
    pub fn symbol(&self, name: &str) -> Option<Symbol<'_>> {
        self.symbols.by_name(name)
    }

    /// All defined functions and data objects, by ascending address.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.symbols.iter()
    }

    /// The function or data object that contains `addr`.
    pub fn symbol_at(&self, addr: u64) -> Option<Symbol<'_>> {
        self.symbols.at(addr)
    }

    /// The bounds of the function that contains `addr`, from the unwind table, which stripped binaries
    /// keep too. Cold parts that the compiler moved away are functions of their own here.
    pub fn function_at(&self, addr: u64) -> Option<Range<u64>> {
        let header = self.section(".eh_frame_hdr")?;
        let bases = self.unwind_bases();
        let parsed = EhFrameHdr::new(self.bytes(header.start, (header.end - header.start) as usize)?, LittleEndian)
            .parse(&bases, 8)
            .ok()?;
        let section = self.eh_frame()?;
        let fde = parsed.table()?.fde_for_address(&section, &bases, addr, EhFrame::cie_from_offset).ok()?;
        fde.contains(addr).then(|| fde.initial_address()..fde.end_address())
    }

    /// The bounds of all functions in the unwind table, in its order. Of a damaged table: those before the damage.
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

    /// The address range of a section, by name.
    pub fn section(&self, name: &str) -> Option<Range<u64>> {
        self.sections.get(name).cloned()
    }

    /// The contents of a section that is not loaded, by name, as they are in the file.
    pub(super) fn unloaded_section(&self, name: &str) -> Option<&[u8]> {
        let elf = ElfFile64::<object::LittleEndian>::parse(&*self.data).ok()?;
        let section = elf.section_by_name(name)?;
        section.elf_section_header().data(elf.endian(), &*self.data).ok()
    }

    /// The contents of a section with debug information, by name, unless they are compressed.
    pub fn debug_section(&self, name: &str) -> Option<&[u8]> {
        let elf = ElfFile64::<object::LittleEndian>::parse(&*self.data).ok()?;
        let section = elf.section_by_name_bytes(name.as_bytes())?;
        let header = section.elf_section_header();
        let is_compressed = header.sh_flags(elf.endian()).contains(elf::SHF_COMPRESSED);
        (!is_compressed).then(|| header.data(elf.endian(), &*self.data).ok())?
    }

    /// The image's writable static data: `.data` and `.bss`, which follow one another.
    pub fn static_data(&self) -> Option<Range<u64>> {
        let (data, bss) = (self.section(".data"), self.section(".bss"));
        let start = data.iter().chain(&bss).map(|r| r.start).min()?;
        let end = data.iter().chain(&bss).map(|r| r.end).max()?;
        Some(start..end)
    }

    /// Whether `addr` is part of the image's writable static data.
    pub fn is_static_data(&self, addr: u64) -> bool {
        [".data", ".bss"].iter().any(|s| self.sections.get(*s).is_some_and(|r| r.contains(&addr)))
    }

    /// `len` bytes as they are in the file at `addr`; `None` outside the file's segments (so in `.bss`).
    pub fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let at = self.file_offset(addr)?;
        let segment = self.segments.iter().find(|s| (s.addr..s.addr + s.file_size).contains(&addr))?;
        let room = (segment.addr + segment.file_size - addr) as usize;
        (len <= room).then(|| &self.data[at as usize..at as usize + len])
    }

    /// The NUL-terminated string at `addr`, if it is UTF-8 and shorter than 4 KiB.
    pub fn cstr(&self, addr: u64) -> Option<&str> {
        let at = self.file_offset(addr)? as usize;
        let window = &self.data[at..self.data.len().min(at + 4096)];
        let end = window.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&window[..end]).ok()
    }

    /// Where `addr` lies in the file; `None` when it is not in it.
    pub fn file_offset(&self, addr: u64) -> Option<u64> {
        self.segments.iter().find(|s| (s.addr..s.addr + s.file_size).contains(&addr)).map(|s| addr - s.addr + s.offset)
    }

    /// The link-time address at which the page of the file at `offset` is mapped: segments begin anywhere, pages
    /// of a mapping do not.
    pub fn page_address_of(&self, offset: u64) -> Option<u64> {
        const PAGE_MASK: u64 = !0xfff;
        self.segments
            .iter()
            .find(|s| s.offset & PAGE_MASK <= offset && offset < s.offset + s.file_size)
            .map(|s| s.addr.wrapping_sub(s.offset).wrapping_add(offset))
    }

    /// The address range that the image occupies once loaded.
    pub fn extent(&self) -> Range<u64> {
        let low = self.segments.iter().map(|s| s.addr).min().unwrap_or(0);
        let high = self.segments.iter().map(|s| s.addr + s.memory_size).max().unwrap_or(0);
        low..high
    }

    /// The relative relocations: (address of the pointer, address that it points to), in file order. In a
    /// position-independent binary these are its static pointers.
    pub fn relative_relocations(&self) -> Vec<(u64, u64)> {
        let relative = match self.arch() {
            Arch::X86_64 => elf::R_X86_64_RELATIVE,
            Arch::Aarch64 => elf::R_AARCH64_RELATIVE,
        };
        let Ok(elf) = ElfFile64::<object::LittleEndian>::parse(&*self.data) else { return Vec::new() };
        let endian = elf.endian();
        let mut found = Vec::new();
        for section in elf.elf_section_table().iter() {
            if let Ok(Some((relocations, _))) = section.rela(endian, &*self.data) {
                found.extend(
                    relocations
                        .iter()
                        .filter(|r| r.r_type(endian, false) == relative)
                        .map(|r| (r.r_offset(endian), r.r_addend(endian) as u64)),
                );
            }
        }
        found
    }

    /// What the entry at `slot` of the global offset table points to inside this image. The table does not change once the
    /// image is loaded.
    pub fn got_entry(&self, slot: u64) -> Option<u64> {
        self.got().get(&slot).copied()
    }

    /// These addresses, and those of the entries of the global offset table that point to them: what code may refer to.
    pub fn with_got_entries(&self, addresses: &HashSet<u64>) -> HashSet<u64> {
        let slots = self.got().iter().filter(|(_, to)| addresses.contains(to)).map(|(&slot, _)| slot);
        addresses.iter().copied().chain(slots).collect()
    }

    fn got(&self) -> &HashMap<u64, u64> {
        self.got.get_or_init(|| {
            let Some(range) = self.section(".got") else { return HashMap::new() };
            self.relative_relocations().into_iter().filter(|(at, _)| range.contains(at)).collect()
        })
    }

    /// Whether the image is loaded where it was linked to: its static pointers are plain numbers then.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// The static pointers: (address of the pointer, address that it points to), by ascending address. In an image that is
    /// loaded where it was linked to, what is in its initialised data and lies in the image counts as one.
    pub fn static_pointers(&self) -> Vec<(u64, u64)> {
        if !self.is_fixed {
            let mut pointers = self.relative_relocations();
            pointers.sort_unstable();
            return pointers;
        }
        let image = self.extent();
        let data = self.section(".data").unwrap_or(0..0);
        let start = data.start.next_multiple_of(8);
        let bytes = self.bytes(start, data.end.saturating_sub(start) as usize).unwrap_or_default();
        let words = bytes.chunks_exact(8).filter_map(|w| w.try_into().ok()).map(u64::from_le_bytes);
        (start..).step_by(8).zip(words).filter(|(_, to)| image.contains(to)).collect()
    }

    /// The imported function that each procedure-linkage slot (`.got` entry) is bound to at load time:
    /// address of the slot to name.
    pub fn imports(&self) -> HashMap<u64, String> {
        let Ok(elf) = ElfFile64::<object::LittleEndian>::parse(&*self.data) else { return HashMap::new() };
        let kinds = match self.arch() {
            Arch::X86_64 => [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT],
            Arch::Aarch64 => [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT],
        };
        let endian = elf.endian();
        let table = elf.elf_dynamic_symbol_table();
        let mut found = HashMap::new();
        for section in elf.elf_section_table().iter() {
            if let Ok(Some((relocations, _))) = section.rela(endian, &*self.data) {
                for r in relocations.iter().filter(|r| kinds.contains(&r.r_type(endian, false))) {
                    let Some(index) = r.symbol(endian, false) else { continue };
                    if let Ok(symbol) = table.symbol(index) {
                        if let Ok(name) = table.symbol_name(endian, symbol) {
                            found.insert(r.r_offset(endian), String::from_utf8_lossy(name).into_owned());
                        }
                    }
                }
            }
        }
        found
    }
}

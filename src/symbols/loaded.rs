//! Reads what the system's loader needs to know about a program from its program headers. Nothing else is available in
//! a program whose section headers were stripped or are damaged. Nothing in it is trusted.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{BaseAddresses, EhFrameHdr, Pointer};
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, Rela64, Sym64};
use object::read::elf::{Dyn, FileHeader, GnuHashTable, HashTable, ProgramHeader};
use object::LittleEndian;

use super::table::{name_at, Table, TableError};

pub(super) struct Loaded<'a> {
    data: &'a [u8],
    headers: &'a [ProgramHeader64<LittleEndian>],
    dynamic: &'a [Dyn64<LittleEndian>],
}

impl<'a> Loaded<'a> {
    /// Parses the program in these bytes.
    ///
    /// # Errors
    /// Fails when there are no program headers.
    pub fn parse(data: &'a [u8]) -> Result<Loaded<'a>, object::read::Error> {
        let header = FileHeader64::<LittleEndian>::parse(data)?;
        let headers = header.program_headers(LittleEndian, data)?;
        let dynamic = headers.iter().find_map(|h| h.dynamic(LittleEndian, data).ok()?).unwrap_or_default();
        Ok(Loaded { data, headers, dynamic })
    }

    pub fn headers(&self) -> &'a [ProgramHeader64<LittleEndian>] {
        self.headers
    }

    /// Returns the GNU build ID; empty if there is none.
    pub fn build_id(&self) -> Vec<u8> {
        let notes = self.headers.iter().filter_map(|h| h.notes(LittleEndian, self.data).ok()?);
        let of_gnu = |note: &object::read::elf::Note<_>| {
            note.name() == elf::ELF_NOTE_GNU && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID
        };
        let mut notes = notes.flat_map(|mut notes| std::iter::from_fn(move || notes.next().ok()?));
        notes.find(of_gnu).map_or_else(Vec::new, |note| note.desc().to_vec())
    }

    /// Returns the sections that can be identified, by their usual names. They contain what is looked up in them, and
    /// possibly more.
    pub fn sections(&self) -> HashMap<String, Range<u64>> {
        let mut found = HashMap::new();
        let mut add = |name: &str, range: Option<Range<u64>>| {
            found.extend(range.filter(|r| r.start < r.end).map(|range| (name.to_owned(), range)));
        };
        add(".eh_frame_hdr", self.header(elf::PT_GNU_EH_FRAME).map(memory));
        add(".eh_frame", self.eh_frame());
        let relro = self.header(elf::PT_GNU_RELRO).map(memory);
        // Linkers put it last among the data that is not written to after loading, after the dynamic section.
        let behind_dynamic = self.header(elf::PT_DYNAMIC).map(|dynamic| memory(dynamic).end);
        add(".got", behind_dynamic.zip(relro.as_ref()).map(|(start, relro)| start..relro.end));
        let writable = |h: &&ProgramHeader64<LittleEndian>| {
            h.p_type(LittleEndian) == elf::PT_LOAD && h.p_flags(LittleEndian).contains(elf::PF_W)
        };
        if let Some(last) = self.headers.iter().rfind(writable) {
            let Range { start, end } = memory(last);
            let in_file = start.saturating_add(last.p_filesz(LittleEndian)).min(end);
            let start = relro.map_or(start, |relro| relro.end.clamp(start, in_file));
            add(".data", Some(start..in_file));
            add(".bss", Some(in_file..end));
        }
        found
    }

    /// Returns the address ranges of the code of these functions and of the constants, as `.text` and `.rodata`.
    pub fn code_and_constants(&self, functions: &[Range<u64>]) -> HashMap<String, Range<u64>> {
        let is_code = |h: &&ProgramHeader64<LittleEndian>| {
            h.p_type(LittleEndian) == elf::PT_LOAD && h.p_flags(LittleEndian).contains(elf::PF_X)
        };
        let Some(segment) = self.headers.iter().find(is_code).map(memory) else { return HashMap::new() };
        let inside =
            || functions.iter().filter(|f| segment.start <= f.start && f.start < f.end && f.end <= segment.end);
        let Some(text) = inside().map(|f| f.start).min().zip(inside().map(|f| f.end).max()) else {
            return HashMap::new();
        };
        let text = text.0..text.1;
        // Linkers put constants before the unwind table, in the same segment, and after the code if that is in it too.
        let constants = self.header(elf::PT_GNU_EH_FRAME).map(memory).and_then(|unwind| {
            let segment = self.loads().map(memory).find(|segment| segment.contains(&unwind.start))?;
            let start = if segment.contains(&text.end) { text.end } else { segment.start };
            (start < unwind.start).then_some(start..unwind.start)
        });
        let text = Some((".text".to_owned(), text));
        text.into_iter().chain(constants.map(|range| (".rodata".to_owned(), range))).collect()
    }

    /// Returns the functions and data objects that the program exports.
    ///
    /// # Errors
    /// Fails when there are more than a program can have.
    pub fn symbols(&self) -> Result<Table, TableError> {
        Table::of_symbols(self.dynamic_symbols(), self.strings())
    }

    /// Returns the name of a dynamic symbol, by its number in relocations.
    pub fn symbol_name(&self, index: usize) -> Option<&'a str> {
        name_at(self.strings(), self.dynamic_symbols().get(index)?.st_name.get(LittleEndian) as usize)
    }

    /// Returns the address of each dynamic symbol that is a function or data object of the program itself, by its
    /// number in relocations.
    pub fn symbol_addresses(&self) -> Vec<Option<u64>> {
        let own = |symbol: &Sym64<LittleEndian>| {
            let is_plain = matches!(symbol.st_type(), elf::STT_OBJECT | elf::STT_FUNC);
            (is_plain && symbol.st_shndx.get(LittleEndian) != elf::SHN_UNDEF).then(|| symbol.st_value.get(LittleEndian))
        };
        self.dynamic_symbols().iter().map(own).collect()
    }

    /// Returns all relocations that the loader performs.
    pub fn relocations(&self) -> Vec<&'a Rela64<LittleEndian>> {
        let tables = [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)];
        let table = |(address, size)| -> Option<&'a [Rela64<LittleEndian>]> {
            let size = usize::try_from(self.tag(size)?).ok()?;
            let bytes = self.behind(self.tag(address)?)?.get(..size)?;
            object::pod::slice_from_bytes(bytes, size / size_of::<Rela64<LittleEndian>>()).ok().map(|(all, _)| all)
        };
        tables.into_iter().filter_map(table).flatten().collect()
    }

    fn dynamic_symbols(&self) -> &'a [Sym64<LittleEndian>] {
        let table = || {
            let bytes = self.behind(self.tag(elf::DT_SYMTAB)?)?;
            object::pod::slice_from_bytes(bytes, self.symbol_count()?).ok().map(|(all, _)| all)
        };
        table().unwrap_or_default()
    }

    /// Returns the number of dynamic symbols, which only their hash tables show.
    fn symbol_count(&self) -> Option<usize> {
        type Header = FileHeader64<LittleEndian>;
        let gnu = || {
            let table = GnuHashTable::<Header>::parse(LittleEndian, self.behind(self.tag(elf::DT_GNU_HASH)?)?).ok()?;
            table.symbol_table_length(LittleEndian)
        };
        let old = || {
            let table = HashTable::<Header>::parse(LittleEndian, self.behind(self.tag(elf::DT_HASH)?)?).ok()?;
            Some(table.symbol_table_length())
        };
        gnu().or_else(old).and_then(|count| usize::try_from(count).ok())
    }

    fn strings(&self) -> &'a [u8] {
        let table = || {
            let size = usize::try_from(self.tag(elf::DT_STRSZ)?).ok()?;
            self.behind(self.tag(elf::DT_STRTAB)?)?.get(..size)
        };
        table().unwrap_or_default()
    }

    /// Returns the range from the beginning of the unwind table, as its index gives it, to the end of its segment. The
    /// table marks its own end.
    fn eh_frame(&self) -> Option<Range<u64>> {
        let header = memory(self.header(elf::PT_GNU_EH_FRAME)?);
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.start);
        let parsed = EhFrameHdr::new(self.behind(header.start)?, gimli::LittleEndian).parse(&bases, 8).ok()?;
        let Pointer::Direct(start) = parsed.eh_frame_ptr() else { return None };
        let rest = self.behind(start)?.len() as u64;
        Some(start..start.checked_add(rest)?)
    }

    fn tag(&self, tag: elf::DynamicTag) -> Option<u64> {
        self.dynamic.iter().find(|d| d.d_tag(LittleEndian) == tag).map(|d| d.d_val(LittleEndian))
    }

    fn header(&self, kind: elf::ProgramType) -> Option<&'a ProgramHeader64<LittleEndian>> {
        self.headers.iter().find(|h| h.p_type(LittleEndian) == kind)
    }

    fn loads(&self) -> impl Iterator<Item = &'a ProgramHeader64<LittleEndian>> {
        self.headers.iter().filter(|h| h.p_type(LittleEndian) == elf::PT_LOAD)
    }

    /// Returns the bytes of the file from this address to the end of its segment.
    fn behind(&self, address: u64) -> Option<&'a [u8]> {
        let segment = |h: &'a ProgramHeader64<LittleEndian>| {
            let bytes = h.data(LittleEndian, self.data).ok()?;
            bytes.get(usize::try_from(address.checked_sub(h.p_vaddr(LittleEndian))?).ok()?..)
        };
        self.loads().find_map(segment).filter(|bytes| !bytes.is_empty())
    }
}

fn memory(header: &ProgramHeader64<LittleEndian>) -> Range<u64> {
    let start = header.p_vaddr(LittleEndian);
    start..start.saturating_add(header.p_memsz(LittleEndian))
}

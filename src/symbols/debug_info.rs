//! A program's own debug information (DWARF), decompressed if necessary. Nothing in it is trusted.

use std::collections::HashMap;
use std::io;

use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use memmap2::Mmap;
use object::read::elf::ElfFile64;
use object::{CompressedData, CompressionFormat, Object, ObjectSection};

use super::Image;

/// The sections that are read, for types, functions and lines, but not for the locations of variables.
const SECTIONS: [SectionId; 11] = [
    SectionId::DebugInfo,
    SectionId::DebugTypes,
    SectionId::DebugAbbrev,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];

/// The most bytes of all sections together, decompressed. MySQL's debug build has 700 MB.
const MAX_DECOMPRESSED: u64 = 2 << 30;

/// The most bytes of a name. A name without an end would be read to the end of the section on every use.
const MAX_NAME: usize = 64 << 10;

/// The sections that contain nothing but names.
const NAMES: [SectionId; 2] = [SectionId::DebugStr, SectionId::DebugLineStr];

/// The highest compression ratio of zlib, apart from a few bytes.
const MAX_ZLIB_RATIO: u64 = 1032;

/// The reason why a program's debug information cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DebugInfoError {
    /// The program cannot be read as an ELF file with sections.
    #[error(transparent)]
    Elf(#[from] object::read::Error),
    /// The program has no section with debug information.
    #[error("the program has no debug information of its own")]
    None,
    /// A section cannot be used.
    #[error("its section {name} {why}")]
    Section {
        /// The section's name.
        name: &'static str,
        /// What is wrong with it.
        why: SectionError,
    },
}

/// What is wrong with a section, for a message that begins with its name.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    /// Its header or its beginning cannot be read.
    #[error("is damaged: {0}")]
    Damaged(#[from] object::read::Error),
    /// A name in it is longer than any is.
    #[error("has a name of more than {MAX_NAME} bytes")]
    LongName,
    /// It is compressed by Zstandard.
    #[error(
        "is compressed by zstd, which armtrace cannot read: use a copy made with objcopy --decompress-debug-sections"
    )]
    Zstandard,
    /// It is compressed in an unknown way.
    #[error("is compressed in an unknown format")]
    UnknownCompression,
    /// The size that it claims is impossible.
    #[error("claims to have {claimed} bytes, more than {compressed} compressed bytes can hold")]
    Impossible {
        /// The size that it claims to have when decompressed, in bytes.
        claimed: u64,
        /// Its size in the file, in bytes.
        compressed: u64,
    },
    /// It has this many bytes decompressed, more than are read.
    #[error("has {0} bytes decompressed, more than armtrace reads")]
    TooLarge(u64),
    /// It cannot be decompressed.
    #[error("cannot be decompressed: {0}")]
    Compression(#[from] io::Error),
}

/// A part of a section with debug information.
pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The sections with a program's debug information.
pub struct DebugInfo<'a> {
    image: &'a Image,
    sections: HashMap<SectionId, Contents<'a>>,
}

enum Contents<'a> {
    /// Data in the program file.
    InProgram(&'a [u8]),
    /// Data in an unnamed file, so that the kernel can reclaim its memory.
    Decompressed(Mmap),
}

impl<'a> DebugInfo<'a> {
    /// Returns the debug information of this program.
    ///
    /// # Errors
    /// Fails with the reason why none can be read.
    pub fn of(image: &'a Image) -> Result<DebugInfo<'a>, DebugInfoError> {
        DebugInfo::within(image, MAX_DECOMPRESSED)
    }

    /// Returns the debug information, if it has at most `most` bytes decompressed.
    fn within(image: &'a Image, most: u64) -> Result<DebugInfo<'a>, DebugInfoError> {
        let elf = ElfFile64::<object::LittleEndian>::parse(image.file())?;
        let (mut sections, mut left) = (HashMap::new(), most);
        for id in SECTIONS {
            let Some(section) = section(&elf, id) else { continue };
            let data = section.compressed_data().map_err(SectionError::from);
            let contents = data.and_then(|data| contents(id, &data, &mut left));
            sections.insert(id, contents.map_err(|why| DebugInfoError::Section { name: id.name(), why })?);
            image.release_memory();
        }
        if sections.contains_key(&SectionId::DebugInfo) {
            Ok(DebugInfo { image, sections })
        } else {
            Err(DebugInfoError::None)
        }
    }

    /// Returns all of it in the form that its reader needs.
    pub fn dwarf(&self) -> Dwarf<Slice<'_>> {
        let section = |id| self.sections.get(&id).map_or(&[][..], Contents::bytes);
        let loaded = Dwarf::load(|id| Ok::<_, std::convert::Infallible>(EndianSlice::new(section(id), LittleEndian)));
        loaded.unwrap_or_else(|never| match never {})
    }

    /// Releases the memory of what was read so far; it is read again on demand.
    pub fn release_memory(&self) {
        self.image.release_memory();
        for contents in self.sections.values() {
            if let Contents::Decompressed(data) = contents {
                // SAFETY: the mapping is of a file that is no longer written to, so its pages can be dropped and read
                // again.
                _ = unsafe { data.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
            }
        }
    }
}

impl Contents<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Contents::InProgram(bytes) => bytes,
            Contents::Decompressed(data) => data,
        }
    }
}

/// Returns whether every name ends within the limit.
fn are_names(bytes: &[u8]) -> bool {
    let mut begin = 0;
    let ends = memchr::memchr_iter(0, bytes).chain([bytes.len()]);
    ends.into_iter().all(|end| end - std::mem::replace(&mut begin, end + 1) <= MAX_NAME)
}

type Elf<'a> = ElfFile64<'a, object::LittleEndian>;

/// Returns a section by its usual name, or by the one with which older tools mark compression: `.zdebug_info`.
fn section<'a, 'f>(elf: &'f Elf<'a>, id: SectionId) -> Option<impl ObjectSection<'a> + use<'a, 'f>> {
    let older = id.name().replacen('.', ".z", 1);
    elf.section_by_name_bytes(id.name().as_bytes()).or_else(|| elf.section_by_name_bytes(older.as_bytes()))
}

/// Returns the contents of a section, of which `left` bytes may be decompressed. Its names are known to end.
fn contents<'a>(id: SectionId, data: &CompressedData<'a>, left: &mut u64) -> Result<Contents<'a>, SectionError> {
    let contents = decompress(data, left)?;
    if NAMES.contains(&id) && !are_names(contents.bytes()) {
        return Err(SectionError::LongName);
    }
    Ok(contents)
}

fn decompress<'a>(data: &CompressedData<'a>, left: &mut u64) -> Result<Contents<'a>, SectionError> {
    match data.format {
        CompressionFormat::None => return Ok(Contents::InProgram(data.data)),
        CompressionFormat::Zlib => {}
        CompressionFormat::Zstandard => return Err(SectionError::Zstandard),
        _ => return Err(SectionError::UnknownCompression),
    }
    let (size, compressed) = (data.uncompressed_size, data.data.len() as u64);
    if size / MAX_ZLIB_RATIO > compressed {
        return Err(SectionError::Impossible { claimed: size, compressed });
    }
    *left = left.checked_sub(size).ok_or(SectionError::TooLarge(size))?;
    Ok(Contents::Decompressed(decompressed(data.data, size)?))
}

fn decompressed(data: &[u8], size: u64) -> io::Result<Mmap> {
    let mut file = tempfile::tempfile()?;
    // Reading one byte more than claimed detects a size that is too small.
    let mut reader = io::Read::take(flate2::read::ZlibDecoder::new(data), size + 1);
    let found = io::copy(&mut reader, &mut io::BufWriter::with_capacity(1 << 20, &mut file))?;
    if found != size {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it does not have the {size} bytes that it claims"),
        ));
    }
    // SAFETY: nothing else has access to the file, which has no name.
    unsafe { Mmap::map(&file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `size` zeros, compressed, in a section that claims to have `claimed` bytes.
    fn zeros(size: usize, claimed: u64, left: &mut u64) -> Result<Vec<u8>, SectionError> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        io::Write::write_all(&mut encoder, &vec![0; size]).expect("memory");
        let data = encoder.finish().expect("memory");
        let section = CompressedData { format: CompressionFormat::Zlib, data: &data, uncompressed_size: claimed };
        decompress(&section, left).map(|contents| contents.bytes().to_vec())
    }

    #[test]
    fn no_more_is_decompressed_than_is_claimed_and_allowed() {
        let mut left = 3000;
        assert_eq!(zeros(1000, 1000, &mut left).expect("the right size"), vec![0; 1000]);
        assert_eq!(zeros(2000, 2000, &mut left).expect("the right size"), vec![0; 2000]);
        assert_eq!(left, 0);
        let error = |size, claimed, mut left| zeros(size, claimed, &mut left).expect_err("a wrong size");
        assert!(matches!(error(1, 1, 0), SectionError::TooLarge(1)));
        for claimed in [0, 999, 1001] {
            let error = error(1000, claimed, 1 << 20);
            assert!(matches!(error, SectionError::Compression(_)), "{claimed}: {error}");
            assert!(error.to_string().contains("bytes that it claims"), "{claimed}: {error}");
        }
        for claimed in [1 << 40, u64::MAX] {
            let error = error(1 << 20, claimed, u64::MAX);
            assert!(matches!(error, SectionError::Impossible { .. }), "{claimed}: {error}");
        }
    }

    #[test]
    fn names_have_an_end() {
        let name = |bytes: usize| [vec![b'x'; bytes], vec![0]].concat();
        for right in [vec![], vec![0], b"a\0b\0".to_vec(), [name(MAX_NAME), name(1)].concat()] {
            assert!(are_names(&right), "{}", right.len());
        }
        for wrong in [name(MAX_NAME + 1), [name(1), vec![b'x'; MAX_NAME + 1]].concat()] {
            assert!(!are_names(&wrong), "{}", wrong.len());
        }
    }

    #[test]
    fn an_unknown_compression_is_said() {
        let said = |format| decompress(&CompressedData { format, data: &[], uncompressed_size: 1 }, &mut 1).err();
        assert!(matches!(said(CompressionFormat::Zstandard), Some(SectionError::Zstandard)));
        assert!(matches!(said(CompressionFormat::Unknown), Some(SectionError::UnknownCompression)));
    }
}

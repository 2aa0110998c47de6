//! Reads separate files with a program's symbols: debug files, and the compressed ELF file that a program may carry in
//! itself.
//!
//! These files may come from a server's container or from the network, so nothing in them is trusted. They are read
//! rather than mapped, because anyone who may write to a mapped file can kill the process that maps it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::read::elf::ElfFile64;
use object::{LittleEndian, ReadCache, ReadRef};

use super::image::{BuildIdentity, OtherMachine};
use super::table::{Table, TableError};

/// The most bytes that are read of a debug file. MariaDB 11.4's has 300 MB, of which 4 MB are needed: debug information
/// is not read.
const MAX_READ: u64 = 512 << 20;

/// The most bytes of decompressed MiniDebugInfo, and the memory for decompression, in KiB. `xz` needs at most 64 MiB
/// with any preset.
const MAX_MINI: u64 = 256 << 20;
const MAX_XZ_MEMORY: u32 = 80 << 10;

/// The size in bytes above which no checksum is computed.
const MAX_CHECKSUMMED: u64 = 4 << 30;

/// The reason why a debug file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DebugFileError {
    /// It cannot be decompressed.
    #[error("cannot decompress it: {0}")]
    Compression(io::Error),
    /// It is not an ELF file, or is damaged.
    #[error("not a usable ELF file: {0}")]
    Elf(object::read::Error),
    /// It is for a machine that armtrace does not know.
    #[error(transparent)]
    Machine(#[from] OtherMachine),
    /// It has no symbol table.
    #[error("it has no symbol table")]
    NoSymbols,
    /// Its symbol table cannot be used.
    #[error(transparent)]
    Symbols(#[from] TableError),
}

/// The symbols in a file, and the identity of the program that they belong to.
#[derive(Debug)]
pub struct DebugFile {
    /// What the program must have in common with the file.
    pub identity: BuildIdentity,
    /// The functions and data objects.
    pub symbols: Table,
}

impl DebugFile {
    /// Reads the symbol table of an ELF file, and nothing else of it.
    ///
    /// # Errors
    /// Fails with the reason why the file is unusable.
    pub fn read(file: &File) -> Result<DebugFile, DebugFileError> {
        let pieces = Pieces { cache: ReadCache::new(file), left: Cell::new(MAX_READ) };
        parse(&pieces)
    }

    /// Reads the ELF file that a program carries in its section `.gnu_debugdata`. It names only functions, and only
    /// those that `.dynsym` does not.
    ///
    /// # Errors
    /// Fails with the reason why the section is unusable.
    pub fn from_gnu_debugdata(compressed: &[u8]) -> Result<DebugFile, DebugFileError> {
        let reader = lzma_rust2::XzReader::new_mem_limit(compressed, true, MAX_XZ_MEMORY);
        let mut elf = Vec::new();
        reader.take(MAX_MINI).read_to_end(&mut elf).map_err(DebugFileError::Compression)?;
        parse(&*elf)
    }
}

fn parse<'a, R: ReadRef<'a>>(data: R) -> Result<DebugFile, DebugFileError> {
    let elf = ElfFile64::<LittleEndian, R>::parse(data).map_err(DebugFileError::Elf)?;
    let symbols = elf.elf_symbol_table();
    if symbols.len() <= 1 {
        return Err(DebugFileError::NoSymbols);
    }
    Ok(DebugFile { identity: BuildIdentity::of(&elf)?, symbols: Table::from_elf(&elf, symbols)? })
}

/// A file of which only requested pieces are read, up to a limit.
struct Pieces<'f> {
    cache: ReadCache<&'f File>,
    left: Cell<u64>,
}

impl Pieces<'_> {
    fn charge(&self, bytes: u64) -> Result<(), ()> {
        self.left.set(self.left.get().checked_sub(bytes).ok_or(())?);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for &'a Pieces<'_> {
    fn len(self) -> Result<u64, ()> {
        (&self.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.charge(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let found = self.cache.read_bytes_at_until(range, delimiter)?;
        self.charge(found.len() as u64 + 1)?;
        Ok(found)
    }
}

/// Returns the checksum that `.gnu_debuglink` stores of the file it names: the CRC-32 of the whole file.
pub(super) fn debuglink_crc(file: &File) -> io::Result<u32> {
    if file.metadata()?.len() > MAX_CHECKSUMMED {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large for a checksum"));
    }
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < MAX_CHECKSUMMED {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            got => {
                crc.update(&buffer[..got]);
                at += got as u64;
            }
        }
    }
    Ok(crc.finalize())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn no_more_than_the_limit_is_read() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"one\0two\0three").expect("space for it");
        let pieces = Pieces { cache: ReadCache::new(&file), left: Cell::new(12) };
        assert_eq!((&pieces).len(), Ok(13));
        assert_eq!((&pieces).read_bytes_at(4, 3), Ok(&b"two"[..]));
        assert_eq!((&pieces).read_bytes_at_until(0..13, 0), Ok(&b"one"[..]));
        // The text and its end count too.
        assert_eq!(pieces.left.get(), 5);
        assert_eq!((&pieces).read_bytes_at(0, 6), Err(()));
        assert_eq!((&pieces).read_bytes_at(8, 5), Ok(&b"three"[..]));
    }
}
